"""The pictures' data: gaps, whiskers, the frontier, memory that does not fit, stages, drift."""

from __future__ import annotations

import msgspec
import pytest

from benchmark.campaign.record import Stage, Start
from benchmark.report import figures
from benchmark.report.figures import base, latency, machine, speed
from benchmark.report.summary import rows
from tests.data.campaigns import made


def found(records, decision=None):
    return rows(records, decision or {})


def trace(picture, name):
    return next(t for t in picture.figure["data"] if t["name"] == name)


def test_an_invalid_point_is_a_gap_with_its_reason_on_the_floor():
    records, decision = made.small()
    picture = speed.throughput(found(records, decision))
    line = trace(picture, "pp8")
    assert line["y"][line["x"].index(16)] is None
    assert line["connectgaps"] is False
    cross = trace(picture, "pp8: left out")
    assert (cross["x"], cross["y"]) == ([16], [0])
    assert "A kernel was compiled inside the window." in cross["text"][0]
    assert "1 point left out" in " ".join(picture.sentences)


def test_whiskers_span_repeated_starts():
    first = made.record("ep8", points=[made.point(1, 60.0)])
    again = msgspec.structs.replace(first, created_at="2026-11-30T00:00:00Z", points=[made.point(1, 66.0)])
    line = trace(speed.throughput(found([first, again])), "ep8")
    assert line["y"] == [63.0]
    assert line["error_y"]["array"] == [3.0]
    assert line["error_y"]["arrayminus"] == [3.0]


def test_the_frontier_leaves_out_what_is_beaten_on_both():
    a = made.record("a", points=[made.point(1, 60.0), made.point(10, 300.0)])  # 60 and 30 a user
    b = made.record("b", points=[made.point(1, 50.0), made.point(20, 500.0)])  # 50 and 25 a user
    best = speed.frontier(found([a, b]))
    assert [(row.label, c) for row, c, _, _ in best] == [("a", 1), ("a", 10), ("b", 20)]


def test_colours_run_out_after_eight():
    records, decision = made.many()
    picture = speed.throughput(found(records, decision))
    named = [t for t in picture.figure["data"] if t.get("showlegend")]
    assert len(named) == 8
    assert {t["line"]["color"] for t in named} == {f"@s{i}" for i in range(1, 9)}


def test_latencies_are_shown_at_the_concurrency_that_most_share():
    records = [
        made.record("a", points=[made.point(c, 60.0 * c) for c in (1, 8, 64)]),
        made.record("b", points=[made.point(c, 50.0 * c) for c in (1, 8)]),
    ]
    picture = latency.ttft(found(records))
    assert picture.title == "Time to first token, C=8"
    # 0.1 + 0.01 x 8 = 0.18 s; p95 is 1.7 times that.
    assert picture.cells[0] == ["a", "144 ms", "180 ms", "270 ms", "306 ms", "360 ms", "540 ms"]


def test_a_missing_99th_percentile_is_left_out():
    point = made.point(8, 100.0)
    short = msgspec.structs.replace(point.ttft_seconds, p99=None)
    picture = latency.ttft(found([made.record("a", points=[msgspec.structs.replace(point, ttft_seconds=short)])]))
    assert picture.cells[0][-2] == "\N{EN DASH}"
    assert len(picture.figure["data"][-1]["x"]) == 1


def test_memory_shows_the_one_that_did_not_fit_against_the_card():
    picture = machine.memory(found(*made.small()))
    weights = trace(picture, "weights")
    assert max(weights["x"]) == pytest.approx(132.9)
    assert picture.figure["layout"]["shapes"][0]["x0"] == pytest.approx(95.593, abs=0.001)
    assert picture.sentences[0] == "tp4ep2 needs 132.9 GiB of 95.6: it does not fit."
    planned = [shape for shape in weights["marker"]["pattern"]["shape"] if shape]
    assert planned == ["/"]


def test_stages_last_until_the_next_and_the_last_until_ready():
    start = Start(
        started_at="2026-11-29T12:00:00Z",
        ready_seconds=50.0,
        stages=[Stage(name="load", seconds=5.0), Stage(name="graphs", seconds=30.0)],
    )
    (row,) = found([made.record("a", start=start)])
    assert machine.stage_spans(row) == [("launch", 0.0, 5.0), ("load", 5.0, 30.0), ("graphs", 30.0, 50.0)]


def test_drift_is_against_the_mean_of_the_baselines_starts():
    first = made.record("ep8", points=[made.point(1, 98.0)])
    again = msgspec.structs.replace(
        first,
        created_at="2026-11-29T18:00:00Z",
        points=[made.point(1, 102.0, started_at="2026-11-29T18:00:00Z")],
    )
    other = made.record("ep4", against="ep8", points=[made.point(1, 90.0)])
    picture = machine.drift(found([first, again, other]))
    assert picture.figure["data"][0]["y"] == pytest.approx([-2.0, 2.0])
    assert "stayed within 2.0 %" in picture.sentences[0]
    once = machine.drift(found([first, other]))
    assert once.figure is None
    assert "ep8 was started once" in once.sentences[0]


@pytest.mark.parametrize("case", [made.small, made.one_point, made.all_failed, made.hostile])
def test_every_picture_says_something_and_knows_its_table(case):
    for picture in figures.draw(found(*case())):
        assert " ".join(picture.sentences)
        assert all(len(cells) == len(picture.headers) for cells in picture.cells)
        if picture.figure is None:
            assert picture.sentences[0]


def test_no_picture_without_rows():
    assert all(picture.figure is None for picture in figures.draw([]))


def test_ids_of_pictures_are_their_own():
    pictures = figures.draw(found(*made.small()))
    assert len({picture.id for picture in pictures}) == len(pictures)


def test_text_for_plotly_holds_no_markup():
    assert base.plain("<b>a</b>\n&") == "&lt;b&gt;a&lt;/b&gt; &amp;"


def test_log_ticks_are_round_and_not_too_many():
    assert base.log_ticks([0.1, 0.9])["ticktext"][:3] == ["0.1", "0.2", "0.5"]
    assert base.log_ticks([1.0, 3.0])["ticktext"][:4] == ["1", "1.5", "2", "3"]
    assert base.log_ticks([0.001, 10.0])["ticktext"] == ["0.001", "0.01", "0.1", "1", "10"]
    assert base.log_ticks([]) == {}


def test_a_rung_left_on_purpose_is_marked_with_the_reason_on_hover():
    from benchmark.campaign.record import Left

    left = Left(rungs=[8], reason="It cannot win.")
    row = made.record("ep8", points=[made.point(1, 60.0)], left=left)
    picture = speed.throughput(found([row]))
    mark = trace(picture, "ep8: not measured")
    assert (mark["x"], mark["y"]) == ([8], [0])
    assert "It cannot win." in mark["text"][0]
    assert "1 rung not measured on purpose" in " ".join(picture.sentences)
    # The axis has a place for it.
    assert 8 in picture.figure["layout"]["xaxis"]["tickvals"]


def test_whiskers_are_intervals_once_the_noise_between_starts_is_known():
    # Four starts at 98, 102, 98 and 102: s = 0.0231 of the logarithm, 3 degrees, t = 3.182, n = 4: +-3.7 %.
    starts = [
        made.record("ep8", start_number=n, created_at=f"2026-11-{n:02d}T00:00:00Z", points=[made.point(1, rate)])
        for n, rate in enumerate((98.0, 102.0, 98.0, 102.0), 1)
    ]
    picture = speed.throughput(found(starts))
    line = trace(picture, "ep8")
    assert line["error_y"]["array"][0] == pytest.approx(100 * 0.0375, rel=0.01)
    assert any(sentence.startswith("Whiskers are intervals of 95 %") for sentence in picture.sentences)
