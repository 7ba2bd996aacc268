"""Whom a sweep keeps from its host, as the tools tell that are there before anything is written: shell scripts here."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import ROOT, recap

pytestmark = pytest.mark.slow

HELD = {"held_by": "A sweep holds this host: ann.", "sweep_refused": "Another sweep holds this host: ann."}
SILENT = HELD | {"sweep_refused": None}
FREE = {"held_by": None, "sweep_refused": None}


def host(site, name: str, script: str | None, *group: str) -> None:
    """A host whose tools answer so to each verb; None: it is bare."""
    tool = site.folder / name / "venv/bin/shardsweep-host"
    if script is not None:
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    site.hosts[name] = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "sglang_tools_home": str(site.folder / name),
        "sglang_service_nodes": list(group),
    }


def test_only_tools_that_name_a_sweep_stop_what_is_asked_for(site):
    host(site, "bare", None)
    host(site, "broken", "echo 'Traceback (most recent call last):'; exit 1")
    host(site, "old", "echo \"invalid choice: 'held'\" >&2; exit 2")
    host(site, "unread", 'echo \'{"error": "settings.json is not there."}\'; exit 2')
    host(site, "free", f"echo '{json.dumps(FREE)}'")
    host(site, "silent", f"echo '{json.dumps(SILENT)}'")
    host(site, "first", f"echo '{json.dumps(HELD)}'")
    host(site, "second", f"echo '{json.dumps(FREE)}'", "first", "second")
    play = site.folder / "play.yml"
    tasks = [{"ansible.builtin.import_tasks": str(ROOT / f"playbooks/tasks/{name}.yml")} for name in ("knobs", "held")]
    play.write_text(json.dumps([{"hosts": "gpu_servers", "gather_facts": False, "tasks": tasks}]))

    def refused(*arguments: str, **variables: str) -> set[str]:
        done = site.play(str(play), *arguments, **variables)
        return {name for name in site.hosts if recap(done, name)["failed"]}

    # A further node would sweep without its first.
    assert refused(held_asks="sweep_refused") == {"first", "second"}
    assert refused() == {"silent", "first", "second"}
    assert refused("--check") == set()
