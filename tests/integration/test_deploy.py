"""Deploying, as a user sees it: real playbooks, real processes, real HTTP; only the engine is simulated."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest
import yaml
from conftest import ROOT, recap, run, said

pytestmark = pytest.mark.slow


def test_check_mode_shows_the_unit_of_a_bare_host_and_changes_nothing(site):
    shown = site.play("deploy.yml", "--check", "--diff", config="ep4")
    assert shown.returncode == 0, said(shown)
    assert "+  --ep-size 4 \\" in shown.stdout
    assert "+# Configuration ep4: Experts in four groups" in shown.stdout
    assert not site.state.exists()


def test_deploy_serves_and_a_second_run_changes_nothing(site):
    first = site.play("deploy.yml", config="ep4")
    assert first.returncode == 0, said(first)
    answer = site.ask("/v1/completions", method="POST", json={"model": "kimi-k2.6", "prompt": "A", "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert site.ask("/server_info").json()["ep_size"] == 4
    pid = site.verb("observe")["serving"][0]["pid"]

    again = site.play("deploy.yml", config="ep4")
    assert recap(again)["changed"] == 0, said(again)

    # A new catalogue entry and another description are no reason to restart what serves.
    site.variables["sglang_site_configs"] = {
        "new": {"extends": "ep8", "description": "new"},
        "ep4": {"extends": "ep8_tuned", "description": "Reworded", "engine": {"ep_size": 4}},
    }
    reworded = site.play("deploy.yml", config="ep4")
    assert reworded.returncode == 0, said(reworded)
    assert site.verb("observe")["serving"][0]["pid"] == pid

    # Another flag is.
    site.variables["sglang_site_configs"]["ep4"]["engine"]["max_running_requests"] = 32
    changed = site.play("deploy.yml", config="ep4")
    assert changed.returncode == 0, said(changed)
    assert site.verb("observe")["serving"][0]["pid"] != pid
    assert site.ask("/server_info").json()["max_running_requests"] == 32


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            {"extends": "ep8", "engine": {"ep_sise": 4}},
            "0.5.11 has no flag --ep-sise; the nearest is --ep-size.",
        ),
        (
            {"extends": "ep9"},
            "'mine' extends 'ep9', which is not in the catalogue. The nearest is 'ep8'.",
        ),
        ({"extends": "ep8", "engine": {"port": 1}}, "Set sglang_service_port in your inventory instead."),
        ({"extends": "ep8", "environment": {"NCCL_P2P_LEVEL": "sys"}}, "NCCL_P2P_LEVEL"),
    ],
)
def test_a_bad_entry_is_refused_in_one_sentence_before_anything_happens(site, entry, sentence):
    site.variables["sglang_site_configs"] = {"mine": entry}
    refused = site.play("deploy.yml", config="mine")
    assert refused.returncode != 0
    assert sentence in said(refused)
    assert site.serving() == []


def test_an_unknown_configuration_answers_with_the_nearest_and_the_list(site):
    refused = site.play("deploy.yml", config="ep8-tunde")
    assert refused.returncode != 0
    assert "There is no configuration 'ep8-tunde'. The nearest is 'ep8_tuned'. There are tp8, pp8, ep8," in said(
        refused
    )


def test_no_configuration_answers_with_the_list(site):
    refused = site.play("deploy.yml")
    assert "Say which configuration: -e config=ep4." in said(refused)


def test_a_yaml_error_in_the_catalogue_is_shown_with_its_line(site, tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("sglang_site_configs:\n  mine: {engine: {tp_size: 8}\n  other: 1\n")
    refused = site.play("deploy.yml", "-e", f"@{broken}", config="ep4")
    assert refused.returncode != 0
    assert "YAML parsing failed" in said(refused)
    assert f"{broken}:" in said(refused)


def test_what_serves_is_not_stopped_without_a_word(served):
    refused = served.play("deploy.yml", config="ep8")
    assert refused.returncode != 0
    assert "sglang-ep4 serves on here and would be stopped. Say -e interrupt=true" in said(refused)
    assert served.serving() == ["sglang-ep4"]


def test_a_start_that_fails_brings_back_what_served(served):
    failed = served.play("deploy.yml", config="tp4ep2", interrupt=True)
    assert failed.returncode != 0
    text = said(failed)
    assert "tp4ep2 did not start: The weights do not fit over 4 GPUs" in text
    assert "sglang-ep4 served before and serves again." in text
    assert served.serving() == ["sglang-ep4"]
    assert served.ask("/health").status_code == 200
    # The restore went well, and did not make the failure forgotten.
    status = served.play("playbooks/status.yml")
    assert status.returncode == 0, said(status)
    assert "Last failure: tp4ep2 20" in said(status)
    assert "UTC: The weights do not fit over 4 GPUs" in said(status)


def test_an_engine_that_falls_while_it_serves_is_the_last_failure(site):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    pid = site.verb("observe")["serving"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        if not site.serving():
            break
        time.sleep(0.2)
    status = said(site.play("playbooks/status.yml"))
    assert "Nothing serves." in status
    assert "Last failure: ep4 20" in status
    fell = site.verb("observe")["last_failure"]
    # It stays the last when the engine serves again, and a stop that is asked for is none.
    assert site.play("deploy.yml", config="ep4").returncode == 0
    assert site.play("playbooks/stop.yml").returncode == 0
    assert site.verb("observe")["last_failure"] == fell


def test_a_changed_configuration_that_fails_comes_back_as_it_was(served):
    entry = {"extends": "ep8_tuned", "engine": {"ep_size": 4, "mem_fraction_static": 0.5}}
    served.variables["sglang_site_configs"] = {"ep4": entry}
    failed = served.play("deploy.yml", config="ep4")
    assert failed.returncode != 0
    assert "sglang-ep4 served before and serves again." in said(failed)
    assert served.ask("/server_info").json()["mem_fraction_static"] == 0.88


def test_a_port_that_somebody_else_has_is_named_with_who_has_it(site):
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", site.port))
        somebody.listen()
        failed = site.play("deploy.yml", config="ep4")
    assert failed.returncode != 0
    assert "Blocked by pid" in said(failed)
    assert f"which listens on port {site.port}" in said(failed)
    assert site.serving() == []


@pytest.mark.long
def test_memory_that_somebody_else_holds_is_named_and_left_alone(site, tools):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    holder = subprocess.Popen(
        [str(tools / "venv/bin/python"), "-m", "benchmark.simulator.hold", "3", str(20 << 30), "120"],
        env={"SHARDSWEEP_SIMULATED_GPU": str(site.state / "simulated-gpu")},
    )
    try:
        failed = site.play("deploy.yml", config="ep8", interrupt=True)
        assert failed.returncode != 0
        assert "GPU memory is held (GPU 3 20.0 GiB)" in said(failed)
        assert f"Blocked by pid {holder.pid}" in said(failed)
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()


def test_the_installed_collection_deploys_with_somebody_elses_inventory(site, tmp_path):
    build = ["ansible-galaxy", "collection", "build", "--output-path", str(tmp_path)]
    assert run(build, ROOT, site.environment()).returncode == 0
    (artefact,) = tmp_path.glob("shardsweep-serving-*.tar.gz")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = ["ansible-galaxy", "collection", "install", str(artefact), "-p", str(elsewhere / "collections")]
    assert run(install, elsewhere, site.environment()).returncode == 0
    environment = site.environment() | {"ANSIBLE_COLLECTIONS_PATH": str(elsewhere / "collections")}
    site.write()
    command = ["ansible-playbook", "-i", str(site.inventory), "shardsweep.serving.deploy", "-e", "config=ep4"]
    done = run(command, elsewhere, environment)
    assert done.returncode == 0, said(done)
    assert site.serving() == ["sglang-ep4"]
    assert not list((elsewhere / "collections").rglob("record.json"))


def test_users_add_configurations_in_their_own_inventory(site):
    site.variables["sglang_site_configs"] = {"ep2": {"extends": "ep8_tuned", "engine": {"ep_size": 2}}}
    assert site.play("deploy.yml", config="ep2").returncode == 0
    assert site.ask("/server_info").json()["ep_size"] == 2
    unit = yaml.safe_load((site.state / "settings.json").read_text())
    assert unit["manager"] == "supervisor"


@pytest.mark.long
def test_a_broken_nvidia_smi_hides_nothing_and_keeps_nothing(site, tools):
    assert site.play("deploy.yml", config="ep4").returncode == 0
    refused = site.play("deploy.yml", config="ep8", interrupt=True, sglang_service_nvidia_smi=["false"])
    assert (refused.returncode, site.serving()) == (2, ["sglang-ep4"]), said(refused)
    assert "here: GPUs unknown: nvidia-smi failed (exit 1)" in said(refused)
    # From here on the host's settings have it.
    status = said(site.play("playbooks/status.yml"))
    assert "sglang-ep4 is active, started 20" in status
    assert "GPUs unknown: nvidia-smi failed (exit 1)" in status
    facts = site.folder / "facts.d"
    facts.mkdir()
    (facts / "sglang_old.fact").write_text("{}")
    pruned = site.play("playbooks/remove.yml", prune=True)
    assert (pruned.returncode, list(facts.iterdir())) == (0, []), said(pruned)
    # The tools are other tests' too.
    stay = {"sglang_tools_home": str(site.folder / "tools"), "sglang_home": str(site.folder / "opt")}
    verb = [str(tools / "venv/bin/shardsweep-host"), "--settings", str(site.state / "settings.json")]
    removed = site.play("playbooks/remove.yml", interrupt=True, sglang_tools_verb=verb, **stay)
    assert removed.returncode == 0, said(removed)
    assert (
        "No process of ours is left on here. Whether the memory of its GPUs is free nobody can tell: nvidia-smi"
        in said(removed)
    )
    assert list(site.state.glob("units/sglang-*")) == []


def test_prune_takes_what_is_gone_from_the_catalogue_and_nothing_else(site):
    facts = site.folder / "facts.d"
    facts.mkdir()
    # The first three tell of the host; ep4 is in the catalogue; `old` was.
    for name in ("engine", "model", "preflight", "ep4", "old"):
        (facts / f"sglang_{name}.fact").write_text("{}")
    pruned = site.play("playbooks/remove.yml", prune=True)
    assert pruned.returncode == 0, said(pruned)
    left = {path.stem.removeprefix("sglang_") for path in facts.iterdir()}
    assert left == {"engine", "model", "preflight", "ep4"}
