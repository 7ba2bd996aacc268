"""The installed engine's own argument parser is asked, with a stand-in for the engine's package, and by the role."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.engine.sweep import command_lines, plan, refuse

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "roles" / "sglang_service" / "files" / "ask_parser.py"
# As SGLang's: a class that adds its flags to a parser. `--grammar-backend` has lost a choice in "this build".
SERVER_ARGS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--grammar-backend", choices=["none", "outlines"])
        parser.add_argument("--tp-size", type=int)
"""


@pytest.fixture
def site(tmp_path):
    package = tmp_path / "site" / "sglang" / "srt"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "server_args.py").write_text(SERVER_ARGS)
    return tmp_path / "site"


def ask(site, asked, engine="sglang", release="0.5.11"):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.read_text(), engine, release],
        input=json.dumps(asked), env={"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_parser_says_what_it_refuses_and_keeps_silent_on_the_rest(site):
    good = ["--model-path", "/m", "--tp-size", "8", "--grammar-backend", "none"]
    asked = {
        "good": good,
        "choice": [*good[:-1], "xgrammar"],
        "unknown": [*good, "--no-such-flag"],
        "value": ["--model-path", "/m", "--tp-size", "eight"],
    }
    refused = json.loads(ask(site, asked).stdout.splitlines()[-1])
    assert set(refused) == {"choice", "unknown", "value"}
    assert refused["choice"].startswith("argument --grammar-backend: invalid choice: 'xgrammar'")
    assert refused["unknown"] == "unrecognized arguments: --no-such-flag"
    assert refused["value"] == "argument --tp-size: invalid int value: 'eight'"


def test_a_flag_that_a_plugin_of_the_engine_adds_is_taken(site):
    # As SGLang's load_plugins, which its launcher calls first: it may wrap what adds the flags.
    (site / "sglang/srt/plugins.py").write_text("""
from sglang.srt.server_args import ServerArgs

def load_plugins():
    ServerArgs.add_cli_args = staticmethod(lambda parser: parser.add_argument("--metrics-port", type=int))
""")
    asked = {"good": ["--metrics-port", "9000"], "bad": ["--metrics-port", "x"]}
    assert json.loads(ask(site, asked).stdout) == {"bad": "argument --metrics-port: invalid int value: 'x'"}


def test_help_is_no_refusal(site):
    assert json.loads(ask(site, {"help": ["--help"]}).stdout.splitlines()[-1]) == {}


def test_an_engine_that_is_not_there_has_no_say(tmp_path):
    answer = ask(tmp_path, {"good": ["--model-path", "/m"]})
    assert answer.returncode == 1
    assert "No module named 'sglang'" in answer.stderr


def test_the_simulated_engine_is_asked_for_its_release():
    line = ["--model-path", "kimi-k2.6", "--cuda-graph-max-bs", "64"]
    asked = {"old": line}
    assert json.loads(ask(ROOT, asked, "simulated", "0.5.11").stdout) == {}
    refused = json.loads(ask(ROOT, asked, "simulated", "0.5.23").stdout)
    assert refused["old"].startswith("ambiguous option: --cuda-graph-max-bs could match")


def entries():
    catalogue = {
        "runs": {"engine": {"tp_size": 8, "mem_fraction_static": 0.88, "trust_remote_code": True}},
        "rejected": {"engine": {"tp_size": 2, "ep_size": 4}},
    }
    gpus = [{"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}] * 8
    return plan("", catalogue, None, {"release": "0.5.11", "model": "kimi-k2.6", "gpus": gpus})


def test_a_sweep_asks_about_what_its_plan_does_not_reject():
    own = {"model_path": "/m", "port": 30001}
    assert command_lines(entries(), "0.5.11", own) == {
        "runs": [
            *("--model-path", "/m", "--port", "30001"),
            *("--tp-size", "8", "--mem-fraction-static", "0.88", "--trust-remote-code"),
        ]
    }


def test_a_refusal_is_a_rejection_in_the_engines_words():
    said = "argument --tp-size: invalid int value: 'eight'"
    runs, rejected = refuse(entries(), {"runs": said, "rejected": "something"})
    assert runs["verdict"] == runs["plan"]["verdict"] == "rejected"
    assert runs["sentence"].startswith(f"The engine's own argument parser refuses it: {said}")
    rule = runs["plan"]["rules"][0]
    assert (rule["rule"], rule["severity"]) == ("engine-arguments", "reject")
    assert rule["engine_message"] == f"error: {said}"
    assert rejected["sentence"].startswith("ep 4 is larger than tp 2")
    assert [entry["verdict"] for entry in refuse(entries(), {})] == ["runs", "rejected"]


PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: shardsweep.serving.sglang_tools, tasks_from: defaults.yml, public: true}
    - ansible.builtin.include_role: {name: shardsweep.serving.sglang_service, tasks_from: check.yml, public: true}
"""


@pytest.fixture
def check(site, tmp_path):
    """Runs the role's check with the stand-in as the installed engine."""
    (tmp_path / "play.yml").write_text(PLAYBOOK)

    def run(engine):
        settings = {
            "ansible_python_interpreter": sys.executable,
            "sglang_service_manager": "supervisor",
            "sglang_service_python": sys.executable,
            "sglang_service_environment": {"PYTHONPATH": str(site)},
            "sglang_model_path": "/m",
            "sglang_service_catalogue": {"drawn": {"engine": engine}},
            "sglang_service_config": "drawn",
        }
        playbook = Path(sys.executable).parent / "ansible-playbook"
        return subprocess.run(
            [playbook, "-i", "localhost,", tmp_path / "play.yml", "-e", json.dumps(settings)], cwd=ROOT,
            env=os.environ | {"ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_the_role_takes_the_engines_no_for_an_answer(check, site):
    # The release's table has xgrammar; the build that is installed has not.
    (site / "sglang" / "srt" / "server_args.py").write_text(
        SERVER_ARGS + '        for flag in ("--host", "--port", "--served-model-name"):\n'
        "            parser.add_argument(flag)\n"
        '        parser.add_argument("--enable-metrics", action="store_true")\n'
    )
    refused = check({"tp_size": 8, "grammar_backend": "xgrammar"})
    said = " ".join(refused.stdout.split())
    assert refused.returncode != 0, said
    assert "the engine's own argument parser refuses drawn: argument --grammar-backend: invalid choice" in said
    assert "Nothing was stopped." in said
    taken = check({"tp_size": 8, "grammar_backend": "none"})
    assert taken.returncode == 0, taken.stdout + taken.stderr


@pytest.mark.slow
def test_the_role_goes_on_where_nobody_can_be_asked(check, site):
    (site / "sglang" / "srt" / "server_args.py").write_text("raise ImportError('libcuda.so.1 is not there')\n")
    answer = check({"tp_size": 8})
    assert answer.returncode == 0, answer.stdout + answer.stderr
