"""Ctrl-C in a sweep: asked once at a terminal, obeyed at once elsewhere."""

from __future__ import annotations

import os
import signal
import threading
from io import StringIO

import pytest
from rich.console import Console

from benchmark.campaign import command
from benchmark.campaign.progress import PlainView


def pressed(*, terminal, answer="", monkeypatch=None):
    """What comes of one Ctrl-C: (whether to stop, what was printed, how often was asked)."""
    out, asked = StringIO(), []
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
