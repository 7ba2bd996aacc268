"""The collection's actions `verb` and `files`, as Ansible runs them."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.shardsweep.serving.plugins.filter.configurations import FilterModule

ROOT = Path(__file__).resolve().parents[2]


def write(tmp_path, *files, umask=0o022, options=()) -> dict:
    return play(tmp_path, "files", {"files": list(files)}, *options, umask=umask)


def test_files_are_written_whole_with_their_folders_and_a_second_time_nothing_changes(tmp_path):
    unit, script = tmp_path / "units/a.conf", tmp_path / "run of 'it'/deep/a.sh"
    files = [{"path": str(unit), "content": "[program:a]\n"}, {"path": str(script), "content": "exec ä\n"}]
    first = write(tmp_path, *files, umask=0o077)
    assert first["changed"] and first["written"] == [str(unit), str(script)]
    assert (unit.read_text(), script.read_text()) == ("[program:a]\n", "exec ä\n")
    assert [oct(path.stat().st_mode & 0o777) for path in (unit, script, script.parent)] == ["0o644", "0o644", "0o755"]
    again = write(tmp_path, *files)
    assert not again["changed"] and again["written"] == []
    script.chmod(0o600)
    unit.write_text("[program:b]\n")
    mended = write(tmp_path, *files)
    assert mended["written"] == [str(unit), str(script)]
    assert (unit.read_text(), script.stat().st_mode & 0o777) == ("[program:a]\n", 0o644)
    assert sorted(path.name for path in tmp_path.glob("*/**/*")) == ["a.conf", "a.sh", "deep"]


def test_check_mode_says_what_would_change_and_writes_nothing(tmp_path):
    path = tmp_path / "a.conf"
    path.write_text("old\n")
    said = write(tmp_path, {"path": str(path), "content": "new\n"}, options=("--check", "--diff"))
    assert said["changed"]
    assert [(d["before"], d["after"], d["after_header"]) for d in said["diff"]] == [("old\n", "new\n", str(path))]
    assert path.read_text() == "old\n"


def test_one_file_that_is_refused_keeps_all_as_they_are(tmp_path):
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    files = [
        {"path": str(good), "content": "fine\n"},
        {"path": str(bad), "content": "broken\n", "validate": ["grep", "fine"]},
    ]
    said = write(tmp_path, *files)
    assert said["failed"] and str(bad) in said["msg"]
    assert not good.exists() and not bad.exists()
    assert list(tmp_path.glob(".new*")) == []


def test_a_verb_gets_its_input_and_its_folder_and_what_it_says_is_not_mixed(tmp_path):
    program = (
        "import json, os, sys; sys.stderr.write('to people'); print(json.dumps([json.load(sys.stdin), os.getcwd()]))"
    )
    folder = tmp_path / "a folder"
    folder.mkdir()
    task = {"argv": [sys.executable, "-c", program], "stdin": '{"name": "it\'s ä"}', "chdir": str(folder)}
    said = play(tmp_path, "verb", task)
    assert json.loads(said["stdout"]) == [{"name": "it's ä"}, str(folder)]
    assert (said["stderr"], said["rc"], said["failed"]) == ("to people", 0, False)


def test_a_verb_that_fails_fails_its_task_and_its_answer_is_there(tmp_path):
    task = {"argv": [sys.executable, "-c", 'import sys; print(\'{"error": "no room"}\'); sys.exit(2)']}
    said = play(tmp_path, "verb", task)
    assert (json.loads(said["stdout"]), said["rc"], said["failed"]) == ({"error": "no room"}, 2, True)
    assert said["msg"] == "no room"


@pytest.mark.parametrize(
    ("program", "msg"),
    [
        ("import sys; sys.stderr.write('Traceback\\nOSError: [Errno 28]\\n\\n'); sys.exit(3)", "OSError: [Errno 28]"),
        ("print('[1]'); raise SystemExit(5)", "It ended with status 5 and said nothing."),
    ],
)
def test_a_verb_that_left_no_answer_is_told_by_the_last_line_of_its_trace(tmp_path, program, msg):
    assert play(tmp_path, "verb", {"argv": [sys.executable, "-c", program]})["msg"] == msg


def test_a_verb_is_not_run_in_check_mode(tmp_path):
    touched = tmp_path / "touched"
    said = play(tmp_path, "verb", {"argv": ["touch", str(touched)]}, "--check")
    assert said["skipped"] and not touched.exists()


def test_a_verb_is_not_asked_again_once_its_controller_was_killed(tmp_path):
    asked = tmp_path / "asked"
    asking = {
        "shardsweep.serving.verb": {"argv": ["sh", "-c", f"echo $PPID >> {shlex.quote(str(asked))}"]},
        "until": False,
        "retries": 200,
        "delay": 0.1,
    }
    command, environment = told_to_play(tmp_path, [asking])
    controller = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait(lambda: asked.exists() and len(asked.read_text().split()) >= 2)
        children = [
            int(pid) for pid in Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text().split()
        ]
    finally:
        controller.kill()
        controller.wait()
    assert children
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    often = len(asked.read_text().split())
    time.sleep(1)
    assert len(asked.read_text().split()) == often < 100


def wait(true: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "It has not come."
        time.sleep(0.05)


def play(tmp_path: Path, action: str, arguments: dict, *options: str, umask: int = 0o022) -> dict:
    """The result of a task with one of the collection's actions on this machine."""
    told = tmp_path / "told.json"
    tasks = [
        {f"shardsweep.serving.{action}": arguments, "register": "said", "ignore_errors": True},
        {
            "ansible.builtin.copy": {"content": "{{ said | to_json }}", "dest": str(told), "mode": "0600"},
            "check_mode": False,
        },
    ]
    command, environment = told_to_play(tmp_path, tasks)
    subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True, capture_output=True, umask=umask)
    return {"failed": False, **json.loads(told.read_text())}


def told_to_play(tmp_path: Path, tasks: list[dict]) -> tuple[list[str], dict[str, str]]:
    """The command, and its environment, that plays these tasks on this machine."""
    book = tmp_path / "verb.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    environment = {
        **os.environ,
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local", str(book)]
    return [*command, "-e", f"ansible_python_interpreter={sys.executable}"], environment


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b'{"path": "/m", "revision": "abc"}', {"path": "/m", "revision": "abc"}),
        (b'{"path": "/m", "revi', {}),
        (b"", {}),
        (b"[1]", {}),
        (b"null", {}),
        (b"\xff\x00", {}),
        (b"[" * 100_000, {}),
    ],
)
def test_a_spoiled_fact_counts_as_absent(content, read):
    assert FilterModule().filters()["json_file"](base64.b64encode(content).decode()) == read
