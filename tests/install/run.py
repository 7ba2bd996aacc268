"""`make test-install`: the real installation, without a GPU. Each release by playbooks/install.yml, twice.

Asserts that the second run changes nothing, that the compiler of the wheels compiled, that the engine's help, also as
`sglang serve --help` prints it, is the one that flags.json describes, that the model loaded, and that ranks of the
engine's own torch add up over gloo.
About 10 GB of downloads and a few minutes; needs 40 GB of disk, Python 3.12 (or --python) and PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from hub import COMMIT, NEXT_COMMIT, REPOSITORY, Hub

from benchmark.engine import sweep
from benchmark.engine.help_text import compare_help

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".shardsweep/install"

# With a lock: what their help says is what flags.json says.
RELEASES = ("0.5.11", "0.5.23")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=list(RELEASES))
    parser.add_argument("--python", default=find_python(), help="as sglang_python: a version or a path")
    parser.add_argument("--user", default="", help="verify as this user (only as root); needs a --python open to it")
    parser.add_argument("--keep", action="store_true", help="leave the installation in .shardsweep/install")
    parser.add_argument("--record", type=Path, help="write the figures into this folder")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        subprocess.run([sys.executable, ROOT / "tests/install/make_model.py", FOLDER / "model"], check=True)
        figures = [measure(release, options) for release in options.releases]
        download(options.releases[-1], options)
    finally:
        if not options.keep:
            shutil.rmtree(FOLDER, ignore_errors=True)
    text = table(figures)
    say(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        (options.record / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
        (options.record / "README.md").write_text(text)
    return 0


def find_python() -> str:
    """A Python 3.12 of this machine with headers, on PATH or pyenv's; the bare version where there is none, for uv."""
    look = ROOT / "roles/sglang/files/look_at_python.py"
    for path in (shutil.which("python3.12"), *sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12"))):
        # A shim of pyenv's answers only where its version was chosen; one without headers answers more.
        if path and subprocess.run([path, look], capture_output=True, text=True, check=False).stdout == "3.12\n":
            return str(path)
    return "3.12"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def measure(release: str, options: argparse.Namespace) -> dict[str, Any]:
    """Install a release, and again; see that it is what it should be."""
    say(f"SGLang {release}: installing (several GB) ...")
    first_seconds, first_changed, output = play(release, options)
    second_seconds, second_changed, _ = play(release, options)
    see(second_changed == 0, f"the second run of {release} changed {second_changed} things")
    fact = json.loads((FOLDER / "facts.d/sglang_engine.fact").read_text())
    model = json.loads((FOLDER / "facts.d/sglang_model.fact").read_text())
    compiled = re.search(
        r"CUDA \S+ compiles and links for sm_\d+ with ninja \S+ runtime \d+", re.sub(r"\s+", " ", output)
    )
    see(compiled is not None, "no word of a compiler in the first run's output")
    alike = f"The engine's flags are those of {release}."
    see(release not in RELEASES or fact["flags"]["sentence"] == alike, f"launch_server: {fact['flags']['sentence']}")
    see(fact["release"] == release, f"the fact tells of {fact['release']}")
    see(model["loaded"]["vocabulary"] == 256, f"the tokenizer of the small model has {model['loaded']}")
    venv = FOLDER / "sglang/venv"
    see(venv.resolve() == Path(fact["venv"]), "the link in use leads elsewhere")
    nvcc = (FOLDER / "sglang/cuda/bin/nvcc").resolve()
    see(nvcc.stat().st_mode & 0o005 == 0o005, f"{nvcc} may not be run by every user")
    told = compare_help(serve_help(venv), release).sentence
    see(release not in RELEASES or told == alike, f"sglang serve --help: {told}")
    taken, seconds = ask(release, venv / "bin/python")
    talked = talk(release, options)
    return {
        "release": release,
        "command_lines": taken,
        "parser_seconds": round(seconds, 1),
        "communication": talked,
        "day": time.strftime("%Y-%m-%d"),
        "first_run_seconds": round(first_seconds),
        "first_run_changed": first_changed,
        "second_run_seconds": round(second_seconds),
        "second_run_changed": second_changed,
        "venv_gib": round(folder_bytes(venv.resolve()) / 2**30, 2),
        "packages": len((venv / "installed.txt").read_text().split()),
        "toolkit": compiled[0] if compiled else "",
        "flags": fact["flags"],
        "serve_help": told,
        "versions": fact["versions"],
        "user": options.user or "the one who ran this",
        "processors": os.cpu_count(),
        "system": platform.platform(),
    }


def serve_help(venv: Path) -> str:
    """What `sglang serve --help` says of language models; behind it comes the help for diffusion models, or why not."""
    done = subprocess.run(
        [venv / "bin/sglang", "serve", "--help"],
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    _, found, behind = done.stdout.partition("--- Help for Standard Language Model Server ---")
    see(bool(found), f"sglang serve --help (exit {done.returncode}) shows no such server: {done.stderr[-500:]}")
    return behind.partition("--- Help for Diffusion Model Server ---")[0]


def ask(release: str, python: Path) -> tuple[int, float]:
    """Ask the engine's own parser about the catalogue as a sweep does: (command lines that it takes, seconds).

    It must take all that the plan does not reject, and refuse a flag and a value that it does not know.
    """
    catalogue = yaml.safe_load((ROOT / "group_vars/all/configs.yml").read_text())["sglang_configs"]
    planned = sweep.plan(None, catalogue, None, {"release": release, "model": "kimi-k2.6"})
    lines = sweep.command_lines(planned, release, {"model_path": "/m", "port": 30001})
    wrong = {
        "a_flag": ["--model-path", "/m", "--no-such-flag"],
        "a_value": ["--model-path", "/m", "--tp-size", "eight"],
    }
    began = time.monotonic()
    answer = subprocess.run(
        [python, "-c", (ROOT / "roles/sglang_service/files/ask_parser.py").read_text(), "sglang", release],
        input=json.dumps({**lines, **wrong}),
        capture_output=True,
        text=True,
        check=False,
    )
    see(answer.returncode == 0, f"the parser of {release} could not be asked: {answer.stderr[-500:]}")
    refused = json.loads(answer.stdout.splitlines()[-1])
    see(refused.keys() == wrong.keys(), f"the parser of {release} refuses {refused}")
    see("--no-such-flag" in refused["a_flag"] and "eight" in refused["a_value"], f"it says {refused}")
    return len(lines), time.monotonic() - began


def talk(release: str, options: argparse.Namespace) -> dict[str, Any]:
    """The communication check by the engine's own torch, over gloo: a pair of ranks and four, whose sums are right."""
    # What this machine is short of is no matter of the check's.
    known = {"communication": True, "gpu_host_accept": ["shm", "port"], "gpu_host_communication_seconds": 300}
    seconds, _, _ = play(release, options, known, "preflight")
    told = json.loads((FOLDER / "state/host.json").read_text())["communication"]
    (ran,) = told["runs"]
    results = [(result["ranks"], result["backend"], result["outcome"]) for result in ran["results"]]
    see(results == [(2, "gloo", "ok"), (4, "gloo", "ok")], f"the ranks of {release} ended as {ran['results']}")
    pair = ran["results"][0]
    see(all(size["seconds"] > 0 for size in pair["sizes"]) and pair["steps"], f"the pair measured nothing: {pair}")
    see({check["verdict"] for check in told["checks"]} <= {"ok", "unknown"}, f"it was judged {told['checks']}")
    return {"torch": pair["torch"], "ranks": [ranks for ranks, *_ in results], "preflight_seconds": round(seconds)}


def download(release: str, options: argparse.Namespace) -> None:
    """Fetch a model from a mirror on this machine, whose line breaks once; see that the fetch went on, and ended.

    Then another commit of it, whose config has the size that it had.
    """
    subprocess.run([sys.executable, ROOT / "tests/install/make_model.py", FOLDER / "source", "40000000"], check=True)
    with Hub(FOLDER / "source") as hub:
        settings = {
            "sglang_model_method": "download",
            "sglang_model_repository": REPOSITORY,
            "sglang_model_commit": COMMIT,
            "sglang_model_endpoint": hub.address,
            "sglang_model_path": str(FOLDER / "fetched"),
            "sglang_model_spare_bytes": 100_000_000,
        }
        play(release, options, settings)
        see(max(hub.asked_from, default=0) > 0, f"the fetch did not go on where it broke off: {hub.asked_from}")
        _, changed, _ = play(release, options, settings)
        fact = FOLDER / "facts.d/sglang_model.fact"
        fetched = json.loads(fact.read_text())
        see(changed == 0, f"the second run of a download changed {changed} things")
        see((fetched["path"], fetched["commit"]) == (settings["sglang_model_path"], COMMIT), f"it tells of {fetched}")
        config = FOLDER / "source/config.json"
        config.write_text(config.read_text().replace("256", "257", 1))
        hub.commit = NEXT_COMMIT
        play(release, options, settings | {"sglang_model_commit": NEXT_COMMIT})
        moved = json.loads(fact.read_text())
    see(moved["commit"] == NEXT_COMMIT, f"another commit of the same sizes was not fetched: {moved}")
    see((FOLDER / "fetched/config.json").read_bytes() == config.read_bytes(), "the config is still the old commit's")


def play(
    release: str, options: argparse.Namespace, further: dict[str, Any] | None = None, playbook: str = "install"
) -> tuple[float, int, str]:
    """Run a playbook: (seconds, tasks that changed something, output)."""
    settings = {"sglang_release": release, "sglang_python": options.python, **(further or {})}
    if options.user:
        settings.update({f"{role}_user": options.user for role in ("sglang", "cuda", "sglang_model")})
        # The tools too are run by that user.
        settings["sglang_tools_python"] = options.python
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ansible", "playbook", ROOT / f"playbooks/{playbook}.yml"),
            *("--inventory", ROOT / "tests/install/inventory", "--extra-vars", json.dumps(settings)),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        say(done.stdout[-6000:] + done.stderr[-2000:])
        raise SystemExit(f"playbooks/{playbook}.yml failed for SGLang {release}.")
    changed = re.search(r"changed=(\d+)", done.stdout)
    return time.monotonic() - began, int(changed[1]) if changed else -1, done.stdout


def see(good: bool, otherwise: str) -> None:
    if not good:
        raise SystemExit(f"test-install: {otherwise}.")


def folder_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def row(one: dict[str, Any]) -> str:
    cells = [
        one["release"],
        f"{one['first_run_seconds']} s",
        f"{one['second_run_seconds']} s",
        f"{one['venv_gib']} GiB",
        str(one["packages"]),
        one["user"],
        one["toolkit"],
    ]
    return f"| {' | '.join(cells)} |"


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Real installations",
        "",
        "Written by `make test-install`: `playbooks/install.yml` on a machine without a GPU, from PyPI, with CUDA by "
        "wheels. The second run changed nothing.",
        "",
        "| release | first run | second run | size | packages | as | toolkit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [row(one) for one in figures]
    lines.append("")
    for one in figures:
        shown = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        asked = (
            f"The engine's own parser takes the {one['command_lines']} command lines of the catalogue that the plan "
            f"does not reject, and refuses a wrong flag and a wrong value ({one['parser_seconds']} s). The "
            f"communication check ran with its torch {one['communication']['torch']} over gloo, by 2 ranks and by 4."
        )
        served = f"By `sglang serve --help`: {one['serve_help']}"
        lines += [f"{one['release']}: {one['flags']['sentence']} {served} {asked} Versions: {shown}.", ""]
    lines.append(f"On {figures[0]['day']}, {figures[0]['processors']} processors, {figures[0]['system']}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
