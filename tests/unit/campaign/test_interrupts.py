"""Ctrl-C in a sweep: asked once at a terminal, obeyed at once elsewhere."""

from __future__ import annotations

import json
import os
import signal
import threading
from io import StringIO
from pathlib import Path

import pytest
from builders import a_point, a_record
from rich.console import Console

from benchmark.campaign import command, playbooks
from benchmark.campaign.progress import PlainView
from benchmark.campaign.store import Campaign


def pressed(*, terminal, answer="", monkeypatch=None, keyboard=True):
    """What comes of one Ctrl-C: (whether to stop, what was printed, how often was asked)."""
    out, asked = StringIO(), []
    monkeypatch.setattr("sys.stdin", StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: keyboard)
    console = Console(file=out, width=100, force_terminal=terminal)

    def line(seconds, again):
        asked.append(seconds)
        return answer

    monkeypatch.setattr(command, "_line_within", line)
    with command._Interrupts(console, PlainView(console)) as stopping:
        assert stopping.asked() is False
        os.kill(os.getpid(), signal.SIGINT)
        stop = stopping.asked()
        assert stopping.asked() is stop
    return stop, out.getvalue(), len(asked)


@pytest.mark.parametrize(
    ("answer", "stops"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("", False), (None, True)]
)
def test_at_a_terminal_it_asks_once_and_obeys(monkeypatch, answer, stops):
    stop, said, asked = pressed(terminal=True, answer=answer, monkeypatch=monkeypatch)
    assert (stop, asked) == (stops, 1)
    assert "Stop the sweep? What was measured is kept" in said


def test_without_a_terminal_it_stops_without_a_question(monkeypatch):
    assert pressed(terminal=False, monkeypatch=monkeypatch) == (True, "", 0)


def test_without_a_keyboard_it_stops_without_a_question(monkeypatch):
    """In `while read host; do shardsweep sweep --limit $host; done < hosts` the answer would be a line of the list."""
    assert pressed(terminal=True, keyboard=False, monkeypatch=monkeypatch) == (True, "", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_stops_without_a_question_and_afterwards_means_what_it_did(number):
    before = signal.getsignal(number)
    out = StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with command._Interrupts(console, PlainView(console)) as stopping:
        os.kill(os.getpid(), number)
        assert stopping.asked() is True
    assert out.getvalue() == ""
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_is_a_yes():
    again = threading.Event()
    again.set()
    assert command._line_within(5.0, again) is None


def test_a_terminal_that_is_gone_is_a_yes_and_silence_is_a_no(monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert command._line_within(5.0, threading.Event()) is None
    reading, writing = os.pipe()
    with os.fdopen(reading) as silent, os.fdopen(writing, "w"):
        monkeypatch.setattr("sys.stdin", silent)
        assert command._line_within(0.1, threading.Event()) == ""


def spoken_to_machines(campaign, monkeypatch, capfd, *events, status=("successful", 0)):
    """(exit status, the one object on standard output) of `sweep --json` where its playbook tells of these events."""
    answer = {"folder": str(campaign.folder), "turn": {}, "minutes": 0.0}
    data = {"host": "h1", "task": "Next | ask", "res": {"stdout": json.dumps(answer)}}

    def watched(playbook, arguments, take, cancelled):
        for event in ({"event": "runner_on_ok", "event_data": data}, *events):
            take(event)
        return status

    monkeypatch.setattr(command, "run_watched", watched)
    done = command.sweep_command([], None, {}, Console(file=StringIO()), as_json=True)
    return done, json.loads(capfd.readouterr().out)


def test_machines_are_told_one_object_with_what_went_wrong(tmp_path, monkeypatch, capfd):
    campaign = Campaign(tmp_path, "c")
    campaign.open({"name": "c"})
    campaign.put(a_record(name="ep4", outcome="measured", points=[a_point(4, 50.0)]))
    assert spoken_to_machines(campaign, monkeypatch, capfd)[1]["errors"] == []
    away = {"event": "runner_on_unreachable", "event_data": {"host": "h2", "res": {"msg": "no route"}}}
    done, said = spoken_to_machines(campaign, monkeypatch, capfd, away, status=("failed", 4))
    assert (done, said["winner"]["configuration"]) == (4, "ep4")
    assert said["errors"] == ["h2 cannot be reached: no route"]
    # A record that cannot be read.
    (path,) = campaign.folder.glob("*/*/*/record.json")
    path.write_text("{")
    done, said = spoken_to_machines(campaign, monkeypatch, capfd)
    assert (done, said["winner"]) == (1, None)
    assert str(path) in said["errors"][0]


def test_machines_are_told_where_there_are_no_playbooks(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(playbooks, "PROJECT", tmp_path)
    assert command.sweep_command([], None, {}, Console(file=StringIO()), as_json=True) == 2
    said = json.loads(capfd.readouterr().out)
    assert said["winner"] is None and said["errors"][0].startswith("There are no playbooks at ")


def test_what_is_interrupted_still_answers_machines_in_json_alone(tmp_path, monkeypatch, capfd):
    campaign = Campaign(tmp_path, "c")
    campaign.open({"name": "c"})
    campaign.put(a_record(name="ep4", outcome="measured", points=[a_point(4, 50.0)]))
    answer = {"folder": str(campaign.folder), "turn": {}, "minutes": 0.0}
    event = {
        "event": "runner_on_ok",
        "event_data": {"host": "h1", "task": "Next | ask", "res": {"stdout": json.dumps(answer)}},
    }

    def watched(playbook, arguments, take, cancelled):
        take(event)
        return "canceled", 254

    monkeypatch.setattr(command, "run_watched", watched)
    # Whatever giving the host back prints is Ansible's own.
    monkeypatch.setattr(playbooks, "project", lambda: tmp_path)
    status = command.sweep_command([], None, {}, Console(file=StringIO()), as_json=True)
    said = capfd.readouterr()
    assert status == 130
    assert json.loads(said.out)["winner"]["configuration"] == "ep4"
    assert "give_back.yml" in said.err and "What was measured is kept" in said.err
