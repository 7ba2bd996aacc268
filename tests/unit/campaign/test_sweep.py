"""The event stream of a sweep, folded: what a terminal and a log tell."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from benchmark.campaign.progress import PlainView, render
from benchmark.campaign.sweep import Sweep


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def event(task, answer, host="h1", kind="runner_on_ok"):
    return {"event": kind, "event_data": {"host": host, "task": task, "res": {"stdout": json.dumps(answer)}}}


FORESEEN = {
    "most": 4,
    "order": [
        {"configuration": "tp8", "start_number": 1, "minutes": 10.0},
        {"configuration": "ep8", "start_number": 1, "minutes": 10.0},
        {"configuration": "tp8", "start_number": 2, "minutes": 5.0},
    ],
    "minutes": 25.0,
    "kept": [{"configuration": "ep4", "outcome": "measured", "why": "measured before, kept"}],
    "otherwise": [],
    "skipped": [
        {"configuration": "tp2ep4", "reason": "ep divides tp.", "chance": None, "deferred": False},
        {"configuration": "pp8", "reason": "Deferred: 3 minutes are left.", "chance": None, "deferred": True},
    ],
    "lines": ["h1: 3 engine starts foreseen, about 25 minutes.", "  1. tp8: 10 minutes."],
}


def handed(name, number, minutes, sentence="The baseline, first."):
    turn = {"configuration": name, "start_number": number, "sentence": sentence}
    return {"turn": turn, "coming": [], "minutes": minutes, "folder": "/c", "winner": None, "report": {}}


def fold(*events, clock=None):
    sweep, told = Sweep(clock or Clock()), []
    for one in events:
        told += sweep.take(one)
    return sweep, told


def drawn(sweep, width=100):
    out = StringIO()
    Console(file=out, width=width, force_terminal=False).print(render(sweep))
    return out.getvalue()


BEGUN = {"fingerprint": "f", "complete": False, "measured": [], "ladder": [1, 64], "start_number": 1}
POINT = {"phase": "done", "point": {"valid": True, "output_tokens_per_second": 512.3}}


def test_the_plan_comes_first_and_once():
    sweep, told = fold(event("Foresee | what would be tried", FORESEEN), event("Open | write what this is", FORESEEN))
    assert [(e.text, e.plan) for e in told] == [(line, True) for line in FORESEEN["lines"]]
    states = {turn.name: turn.state for turn in sweep.turns.values()}
    assert states == {"tp8": "waiting", "ep8": "waiting", "ep4": "known", "tp2ep4": "rejected", "pp8": "deferred"}
    page = drawn(sweep)
    assert "3 of 5 done" in page
    assert "about 25:00 left" in page
    assert "Deferred: 3 minutes are left." in page


def test_the_live_view_shows_stage_point_best_and_time_left():
    clock = Clock()
    sweep, _ = fold(
        event("Foresee | what would be tried", FORESEEN),
        event("Next | write the report", handed("tp8", 1, 25.0)),
        event("Begin | open the record of tp8", BEGUN),
        event("Switch | start tp8", {"phase": "starting", "waiting_for": "tp8: weights"}, kind="runner_retry"),
        clock=clock,
    )
    assert "starting: tp8: weights" in drawn(sweep)
    progress = {"phase": "running", "progress": {"phase": "window", "output_tokens_per_second": 500.0}}
    sweep.take(event("Point | measure tp8 at 64", progress, kind="runner_retry"))
    assert "concurrency 64, window, 500 tok/s" in drawn(sweep)
    sweep.take(event("Point | measure tp8 at 64", POINT))
    clock.now += 60
    page = drawn(sweep)
    assert "best so far tp8 with 512 tok/s" in page
    assert "about 24:00 left" in page
    assert all(len(line) <= 100 for line in page.splitlines())


def test_a_second_start_is_told_as_one():
    sweep, told = fold(
        event("Foresee | what would be tried", FORESEEN),
        event("Next | write the report", handed("tp8", 2, 5.0, "The baseline again: drift and noise.")),
        event("Begin | open the record of tp8", BEGUN | {"start_number": 2, "ladder": [64]}),
        event("Point | measure tp8 at 64", POINT),
    )
    assert [e.text for e in told if not e.plan] == [
        "h1  tp8 start 2  next: The baseline again: drift and noise.",
        "h1  tp8 start 2  measuring  concurrency 64: 512.3 tok/s",
    ]
    assert "tp8 #2" in drawn(sweep)
    assert sweep.folder == "/c"


def test_a_rung_that_is_left_says_why():
    _, told = fold(
        event("Begin | open the record of pp8", BEGUN),
        event("Point | measure pp8 at 64", {"phase": "left", "reason": "It cannot win."}),
    )
    assert told[-1].text == "h1  pp8  measuring  concurrency 64 left out: It cannot win."


def test_a_log_has_one_line_an_event():
    _, told = fold(event("Foresee | what would be tried", FORESEEN), event("Next | write", handed("tp8", 1, 25.0)))
    out = StringIO()
    PlainView(Console(file=out, width=100)).show(Sweep(), told)
    assert out.getvalue().splitlines() == [*FORESEEN["lines"], "  0:00  h1  tp8  next: The baseline, first."]


def test_a_host_that_cannot_be_reached_is_an_error():
    sweep, told = fold({"event": "runner_on_unreachable", "event_data": {"host": "h2", "res": {"msg": "timed out"}}})
    assert told[0].text == sweep.errors[0] == "h2 cannot be reached: timed out"


def test_the_time_left_of_many_hosts_is_that_of_their_waves():
    clock = Clock()
    sweep = Sweep(clock, forks=2)
    assert sweep.seconds_left() is None
    for host, minutes in (("h1", 30.0), ("h2", 20.0), ("h3", 40.0), ("h4", 10.0)):
        sweep.take(event("Foresee | what would be tried", FORESEEN | {"minutes": minutes}, host))
    # Two at a time, in order: h1 to 30 and h2 to 20, h3 after h2 to 60, h4 after h1 to 40.
    assert sweep.seconds_left() == 60 * 60
    for host, minutes in (("h1", 30.0), ("h2", 20.0)):
        sweep.take(event("Next | ask", handed("tp8", 1, minutes), host))
    clock.now += 600
    # h1 has 20 left and h2 10: h3 to 50, h4 to 30. Who waits loses nothing.
    assert sweep.seconds_left() == 50 * 60
    sweep.take({"event": "runner_on_unreachable", "event_data": {"host": "h3", "task": "Take", "res": {}}})
    # Without h3, h4 follows h2: both are through after 20.
    assert sweep.seconds_left() == 20 * 60


def test_the_time_left_of_as_many_hosts_as_forks_is_that_of_the_longest():
    sweep = Sweep(Clock(), forks=5)
    for host, minutes in (("h1", 30.0), ("h2", 20.0)):
        sweep.take(event("Foresee | what would be tried", FORESEEN | {"minutes": minutes}, host))
    assert sweep.seconds_left() == 30 * 60
