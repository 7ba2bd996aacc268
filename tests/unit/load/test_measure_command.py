"""What `shardsweep measure` says, and its record."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from builders import a_point
from rich.console import Console

from benchmark.campaign import record as rec
from benchmark.campaign.measure_command import across_repeats, measure_command
from benchmark.load import summary
from benchmark.load import workload as shipped

from .test_measure import WORK, reference

LONG = replace(WORK, name="long", prompt_tokens=200, output_tokens=2)


@pytest.fixture
def works(monkeypatch):
    monkeypatch.setattr(shipped, "NAMED", {work.name: work for work in (WORK, LONG)})
    # What a busy machine does to a window of a tenth of a second is not the matter here.
    monkeypatch.setattr(summary, "flags", lambda *_: [])


def command(url, **more):
    told = io.StringIO()
    options = {
        "ladder": [1, 3], "workload": "w", "also": ["long@2"], "rate": None, "ttft_limit": None, "tpot_limit": None,
        "answers": True, "route": "auto", "model": None, "headers": {}, "name": "server", "folder": None, "repeats": 1,
        "telemetry": False,
    }  # fmt: skip
    status = measure_command(url, console=Console(file=told, width=140), **(options | more))
    return status, told.getvalue()


def test_each_point_is_announced_with_its_cost_and_then_told(works, tmp_path):
    with reference() as (_, url):
        status, text = command(url, folder=tmp_path, rate=40.0, ttft_limit=1.0)
    lines = text.splitlines()
    starts = ["w at concurrency 1", "w at concurrency 3", "long at concurrency 2", "w_open at 40 requests a second",
              "w at concurrency 1 again"]  # fmt: skip
    announced = [line for line in lines if ": takes " in line]
    assert [line.partition(":")[0] for line in announced] == starts
    assert any(line.startswith("w_open at 40 requests a second: ") and "goodput" in line for line in lines)
    record = rec.load((tmp_path / "record.json").read_bytes())
    assert [(p.workload, p.concurrency, p.repeat) for p in record.points] == [
        ("w", 1, 1), ("w", 3, 1), ("long", 2, 1), ("w_open", 3, 1), ("w", 1, 2),
    ]  # fmt: skip
    assert [p.rate for p in record.points] == [None, None, None, 40.0, None]
    assert record.points[3].goodput_requests_per_second is not None
    assert len(record.accuracy["answers"]) == 8
    assert record.warm_up["passes_seconds"]
    assert record.complete
    assert status == 0


def test_what_the_server_cannot_hold_is_left_out_and_said(works, monkeypatch):
    """The reference server tells of a context of 1,048,576 tokens. It is left out, and nothing failed."""
    monkeypatch.setitem(shipped.NAMED, "long", replace(LONG, prompt_tokens=20_000_000))
    with reference() as (_, url):
        status, text = command(url, ladder=[2])
    assert status == 0
    assert "long at concurrency 2 was left out: its context length of 1,048,576 tokens does not hold a request" in text


def test_repeats_are_told_with_their_interval():
    """100 and 104: mean 102, standard error 2, t with one degree 12.706. Three: 100, 104, 102: t 4.303, error 1.155."""
    two = [a_point(1, 100.0), a_point(1, 104.0, repeat=2), a_point(8, 300.0)]
    assert across_repeats(two) == ["quick at concurrency 1, 2 repeats: 102.0 +- 25.4 tok/s (95 %)"]
    (line,) = across_repeats([*two[:2], a_point(1, 102.0, repeat=3)])
    assert line.startswith("quick at concurrency 1, 3 repeats: 102.0 +- 5.0 tok/s")
    invalid = rec.Flag(id="x", severity="invalid", message="m")
    assert across_repeats([two[0], a_point(1, 1.0, repeat=2, flags=[invalid])]) == []


def test_no_answers_when_they_are_not_wanted(works, tmp_path):
    with reference() as (_, url):
        command(url, ladder=[2], also=[], answers=False, folder=tmp_path)
    assert rec.load((tmp_path / "record.json").read_bytes()).accuracy == {}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"workload": "none"}, "there is no workload 'none'"),
        ({"also": ["long@many"]}, "'long@many' is not WORKLOAD@CONCURRENCY"),
        ({"rate": 3.0}, "goodput is counted under them"),
    ],
)
def test_a_mistake_is_said_before_anything_is_asked(works, more, text):
    status, told = command("http://127.0.0.1:9", **more)
    assert status == 2
    assert text in told
