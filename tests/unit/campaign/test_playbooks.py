"""A playbook that is run and watched, and stopped."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import yaml

from benchmark.campaign.playbooks import forks, run_watched


def test_a_playbook_that_is_stopped_leaves_no_process_behind(tmp_path):
    mark = f"sleeps-in-{tmp_path.name}"
    book = tmp_path / "book.yml"
    # As a step of a sweep: asked again and again until it says that it is over.
    task = {
        "ansible.builtin.command": {"argv": [sys.executable, "-c", "import time; time.sleep(1)", mark]},
        "register": "said",
        "until": "said.rc == 7",
        "retries": 90,
        "delay": 0,
    }
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    asked = []

    def take(event):
        if event["event"] == "runner_retry":
            asked.append(event)

    options = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    status, _ = run_watched(str(book), options, take, lambda: bool(asked))
    assert status == "canceled" and asked
    time.sleep(4)
    assert [line for line in command_lines() if mark in line or str(book) in line] == []


def test_forks_are_those_that_ansible_would_use(tmp_path, monkeypatch):
    monkeypatch.delenv("ANSIBLE_FORKS", raising=False)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    assert forks() == 5
    (tmp_path / "ansible.cfg").write_text("[defaults]\nforks = 20\n")
    assert forks() == 20
    monkeypatch.setenv("ANSIBLE_FORKS", "50")
    assert forks() == 50


def command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
