"""The roles keep what their argument_specs promise, and stay clear of defaults of Ansible that break such a tree."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())


def load(path: Path):
    return yaml.safe_load(path.read_text()) if path.exists() else None


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_agree(role):
    defaults = load(ROOT / "roles" / role / "defaults/main.yml") or {}
    options = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    promised = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: squeeze(value) for name, value in promised.items()} == {
        name: squeeze(value) for name, value in defaults.items()
    }


def squeeze(value):
    return " ".join(value.split()) if isinstance(value, str) else value


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_handlers(role):
    # A handler for a unit of one configuration runs after the measurements, or for the wrong configuration.
    assert not (ROOT / "roles" / role / "handlers").exists()


def test_no_loop_variable_is_called_config():
    # An extra var named like an include's loop variable wins inside the included file.
    for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]:
        assert "loop_var: config" not in path.read_text(), path


def test_links_of_the_collection_make_no_circle():
    # One link to the root would be a cycle, on which ansible-lint dies (ELOOP).
    folder = ROOT / "collections/ansible_collections/shardsweep/serving"
    assert not folder.is_symlink()
    links = {link.name: link.resolve() for link in folder.iterdir()}
    assert links == {name: ROOT / name for name in ("plugins", "roles", "playbooks", "benchmark", "meta", "galaxy.yml")}


def test_the_catalogue_is_seen_by_playbooks_wherever_they_are_started():
    # group_vars beside the root playbooks is not read for an imported playbook: a file link beside those is.
    link = ROOT / "playbooks/group_vars/all/configs.yml"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "group_vars/all/configs.yml"


def test_group_vars_hold_the_catalogue_and_nothing_else():
    # Playbook group_vars beat an inventory's group_vars/all: a knob there could not be set by a user.
    assert list(load(ROOT / "group_vars/all/configs.yml")) == ["sglang_configs"]
    assert [path.name for path in (ROOT / "group_vars").rglob("*") if path.is_file()] == ["configs.yml"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_a_scenario_of_its_own(role):
    scenario = ROOT / "molecule" / role
    assert (scenario / "verify.yml").exists() or (scenario / "side_effect.yml").exists()
    # `make test-hosts` runs it.
    assert role in load_runner().scenarios()


def load_runner():
    spec = importlib.util.spec_from_file_location("hosts_run", ROOT / "tests/hosts/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended(pid: int) -> bool:
    """Whether a killed process is gone, or dead and not yet collected; a kill takes a moment to arrive."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid is not here")
def test_the_end_of_a_scenario_is_the_end_of_its_playbook():
    runner = load_runner()
    process = subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo started; wait"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"started\n"
    (child,) = runner.below(process.pid)
    runner.end(process)
    process.stdout.close()
    assert ended(child)


def test_the_test_hosts_say_what_they_need(monkeypatch):
    runner = load_runner()
    monkeypatch.setattr(runner.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(runner.os, "geteuid", lambda: 1000)
    assert "this needs root, to install podman" in runner.refusal()
    monkeypatch.setattr(runner.os, "geteuid", lambda: 0)
    assert runner.refusal() is None
    monkeypatch.setattr(runner.shutil, "which", lambda name: None)
    assert "this needs Linux with apt" in runner.refusal()
    # The longest begin first.
    places = [runner.has_hosts(name) for name in runner.scenarios()]
    assert places == sorted(places, reverse=True)
    assert "default" not in runner.scenarios()


@pytest.mark.parametrize(
    "scenario", sorted((ROOT / "molecule").glob("*/molecule.yml")), ids=lambda path: path.parent.name
)
def test_molecule_leaves_the_links_alone(scenario):
    # prerun, on by default, replaces them by an installed copy.
    assert load(scenario)["prerun"] is False


@pytest.mark.parametrize(
    "inventory",
    [ROOT / "inventory/hosts.yml", ROOT / "molecule/default/inventory/hosts.yml"],
    ids=lambda path: str(path.name),
)
def test_local_hosts_use_the_python_that_runs_ansible(inventory):
    # Discovery may find another Python, which lacks what ours has.
    for host in load(inventory)["gpu_servers"]["hosts"].values():
        assert host["ansible_python_interpreter"] == "{{ ansible_playbook_python }}"


def test_root_playbooks_are_three_lines():
    for name in ("deploy.yml", "sweep.yml"):
        assert len((ROOT / name).read_text().splitlines()) <= 4


def tasks_of(path: Path):
    """Every task of a file, those within plays and blocks too."""
    waiting = list(load(path) or [])
    while waiting:
        task = waiting.pop()
        if isinstance(task, dict):
            yield task
            waiting += [inner for key in ("tasks", "block", "rescue", "always") for inner in task.get(key) or []]


def test_a_host_that_is_asked_until_it_is_over_is_not_cut_off_by_a_number_of_tries():
    """Its own limits follow from the model's size; a loop whose tries are used up ends as if all were well."""
    files = [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    asking = [
        (path.name, task["retries"])
        for path in files
        if path.parent.name != "all" and "gpu_host" not in path.parts  # whose runs have a limit of seconds each
        for task in tasks_of(path)
        if "phase" in str(task.get("until", ""))
    ]
    assert len(asking) > 8
    assert {tries for _, tries in asking} == {"{{ __sglang_service_most_looks }}"}, asking
    assert load(ROOT / "roles/sglang_service/vars/main.yml")["__sglang_service_most_looks"] * 5 > 7 * 86400


@pytest.mark.parametrize("role", ROLES)
def test_no_answer_takes_the_name_of_a_variable(role):
    """A registered name hides the variable for the rest of the play, also where its task is skipped."""
    folder = ROOT / "roles" / role
    named = {name for part in ("defaults", "vars") for name in load(folder / part / "main.yml") or {}}
    tasks = "".join(path.read_text() for path in folder.glob("tasks/*.yml"))
    assert named & set(re.findall(r"register: (\w+)", tasks)) == set()
