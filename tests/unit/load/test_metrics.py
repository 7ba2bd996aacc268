"""Formulae, against values worked out by hand."""

import math

import numpy as np
import pytest

from benchmark.load.metrics import figures, tpot_seconds
from benchmark.load.rows import CANCELLED
from benchmark.load.statistics import batch_edges, bootstrap_interval, distribution, half_width, t95, t_interval
from benchmark.load.summary import summarise

from .made import about, row


def test_window_takes_tokens_by_their_arrival():
    """Tokens at 100 ... 1000 ms; inside (250, 850] are those at 300 ... 800: six in 0.6 s."""
    found = figures([row(sent=0, tokens=range(100, 1001, 100))], about(250, 850))
    assert found.window_tokens == 6
    assert found.output_tokens_per_second == pytest.approx(10)


def test_window_edges_are_open_at_the_left_and_closed_at_the_right():
    assert figures([row(tokens=(100, 200, 300))], about(100, 300)).window_tokens == 2


def test_latencies():
    """Sent at 50: TTFT 150 ms; two gaps of 100 and one of 200 ms; TPOT 400 / 3 ms; ends at 610: E2E 560 ms."""
    found = figures([row(sent=50, tokens=(200, 300, 400, 600), done=610)], about(0, 1000))
    assert found.ttft.tolist() == [0.15]
    assert found.itl.tolist() == pytest.approx([0.1, 0.1, 0.2])
    assert found.tpot.tolist() == pytest.approx([0.4 / 3])
    assert found.e2e.tolist() == [0.56]


def test_gaps_over_the_edge_of_the_window_do_not_count():
    found = figures([row(tokens=(100, 200, 300, 400, 500))], about(150, 450))
    assert found.itl.tolist() == pytest.approx([0.1, 0.1])


def test_several_tokens_an_event_share_the_gap():
    """Counts 1, 4, 6: three tokens in 300 ms, two in 100 ms; TPOT 400 / 5 ms."""
    found = figures([row(tokens=(100, 400, 500), counts=[1, 4, 6], source="reported")], about(0, 1000))
    assert found.itl.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05])
    assert found.tpot.tolist() == pytest.approx([0.08])
    assert found.window_tokens == 6


def test_interpolated_counts_keep_gaps_between_events():
    found = figures([row(tokens=(100, 400, 500), counts=[2, 4, 6], source="interpolated")], about(0, 1000))
    assert found.itl.tolist() == pytest.approx([0.3, 0.1])


# F1.15: the decode rate is (n - 1) / (last - first), not tokens over the whole time with prefill in it.
def test_decode_rate_without_prefill():
    """Prefill of 9 s, then 11 tokens in 1 s: 10 tokens a second for the user, TPOT 0.1 s."""
    point = summarise([row(sent=0, tokens=range(9000, 10001, 100))], about(0, 10000))
    assert point.output_tokens_per_second_per_user == pytest.approx(10)
    assert point.output_tokens_per_second == pytest.approx(1.1)
    assert point.e2e_seconds.p50 == pytest.approx(10)


def test_first_wave_counts_for_throughput_but_not_for_latency():
    rows = [row(0, 0, (100, 200), first_wave=True), row(1, 200, (300, 400))]
    found = figures(rows, about(50, 500))
    assert found.window_tokens == 4
    assert found.ttft.tolist() == [0.1]
    assert len(found.e2e) == 1


# F1.12: failed requests bring no tokens; the whole time counts.
def test_failed_requests_bring_no_tokens():
    rows = [row(0, 0, (100, 200, 300)), row(1, 0, (100, 200, 300), error="HTTP 500: no")]
    point = summarise(rows, about(0, 1000))
    assert point.output_tokens_per_second == pytest.approx(3)
    assert (point.requests_completed, point.requests_failed) == (1, 1)
    assert point.errors == {"HTTP 500: no": 1}
    assert not point.valid


def test_requests_meant_for_after_the_window_may_be_cancelled():
    rows = [row(0, 0, (100, 200)), row(1, 1001, (1100,), error=CANCELLED)]
    point = summarise(rows, about(0, 1000))
    assert (point.requests_completed, point.requests_failed, point.valid) == (1, 0, True)


@pytest.mark.parametrize("workload", [{}, {"rate": 5.0}])
def test_a_request_of_the_window_that_is_cancelled_makes_the_point_invalid(workload):
    """Eight answers of ten tokens each in a second are 80 tok/s; with six of them given up, 20 would be told."""
    rows = [row(i, 10, range(100, 1000, 90), error=None if i < 2 else CANCELLED) for i in range(8)]
    point = summarise(rows, about(0, 1000, concurrency=8, workload=workload))
    assert point.output_tokens_per_second == pytest.approx(20)
    assert [flag.id for flag in point.flags if flag.severity == "invalid"] == ["drain_cut"]
    assert "6 requests of the window" in point.flags[0].message


# F1.5: without usage there is no rate, and the point is invalid.
def test_unknown_tokens_give_no_rate():
    made = row(tokens=(100, 200), output_tokens=None, counts=[], source="unknown")
    point = summarise([made], about(0, 1000))
    assert point.output_tokens_per_second is None
    assert [flag.id for flag in point.flags if flag.severity == "invalid"] == ["no_usage"]


def test_tokens_without_any_token_event_count_at_the_end():
    """transformers serve: four completion tokens and no text at all."""
    found = figures([row(sent=0, done=500, counts=[], source="unknown", output_tokens=4)], about(0, 1000))
    assert found.window_tokens == 4
    assert found.ttft.size == 0


def test_first_content_is_told_apart_only_where_it_differs():
    point = summarise([row(tokens=(1000, 5000), first_content_us=5_000_000)], about(0, 6000))
    assert point.ttft_seconds.p50 == pytest.approx(1.0)
    assert point.first_content_seconds.p50 == pytest.approx(5.0)
    assert summarise([row(tokens=(1000, 5000))], about(0, 6000)).first_content_seconds is None


# F1.1: an answer that ended while it reasoned has no first content; its first token does not stand in for it.
def test_answers_without_content_have_no_time_to_it():
    rows = [row(i, 0, (1000, 5000), first_content_us=None) for i in range(2)]
    point = summarise([*rows, row(2, 0, (1000, 5000), first_content_us=5_000_000)], about(0, 6000))
    assert (point.ttft_seconds.count, point.ttft_seconds.p50) == (3, 1.0)
    assert (point.first_content_seconds.count, point.first_content_seconds.p50) == (1, 5.0)
    assert summarise(rows, about(0, 6000)).first_content_seconds is None


# F1.6, F1.20: accepted tokens, not chunks: three answers of four events with ten tokens each.
def test_tokens_an_event():
    rows = [row(i, 0, (100, 200, 300, 400), counts=[3, 6, 9, 10], source="reported") for i in range(3)]
    assert summarise(rows, about(0, 1000)).client["tokens_per_event"] == 2.5
    assert summarise([row(0, 0, (100, 200))], about(0, 1000)).client["tokens_per_event"] == 1
    assert summarise([row(0, 0, (), done=50)], about(0, 1000)).client["tokens_per_event"] is None


def test_prefill_rate():
    rows = [row(i, 100 * i, (100 * i + 50,), prompt_tokens=1000) for i in range(10)]
    assert summarise(rows, about(0, 1000)).prompt_tokens_per_second == pytest.approx(10_000)


def test_open_loop_counts_from_the_intended_start():
    made = row(sent=150, tokens=(250, 350), intended_us=100_000)
    found = figures([made], about(0, 1000, workload={"rate": 5.0}))
    assert found.ttft.tolist() == [0.15]
    assert found.e2e.tolist() == [0.25]


def test_open_loop_takes_all_requests_meant_for_the_window():
    """A request that ends after the window counts: leaving it out would leave out the slow ones."""
    rows = [row(0, 100, (200, 5000)), row(1, 2000, (2100, 2200))]
    found = figures(rows, about(0, 1000, workload={"rate": 5.0}))
    assert found.e2e.tolist() == [4.9]


def test_goodput():
    """Limits: TTFT 0.2 s, TPOT 0.1 s. The second is late, the third slow; one good one in a second."""
    rows = [row(0, 100, (250, 300, 350)), row(1, 200, (500, 550)), row(2, 300, (400, 700))]
    limits = {"rate": 3.0, "ttft_limit_seconds": 0.2, "tpot_limit_seconds": 0.1}
    assert summarise(rows, about(0, 1000, workload=limits)).goodput_requests_per_second == pytest.approx(1)
    closed = {key: value for key, value in limits.items() if key != "rate"}
    assert summarise(rows, about(0, 1000, workload=closed)).goodput_requests_per_second is None


def test_without_a_window_all_of_the_time_is_taken_and_the_point_is_invalid():
    point = summarise([row(0, 0, (100, 1000))], about())
    assert point.window_seconds == pytest.approx(1.0)
    assert [flag.id for flag in point.flags if flag.severity == "invalid"] == ["not_steady"]


def test_nothing_at_all():
    point = summarise([], about())
    assert point.output_tokens_per_second is None
    assert not point.valid


def test_tpot_needs_two_events():
    assert tpot_seconds(row(tokens=(100,))) is None
    assert tpot_seconds(row()) is None


def test_percentiles_are_of_type_seven():
    """1 ... 5: the 90th percentile lies 0.6 of the way from 4 to 5 (Hyndman and Fan 1996, definition 7)."""
    found = distribution([5, 1, 2, 3, 4])
    assert (found.p50, found.p90, found.p95) == (3, pytest.approx(4.6), pytest.approx(4.8))
    assert (found.mean, found.min, found.max, found.count) == (3, 1, 5, 5)


def test_p99_needs_a_thousand():
    assert distribution(range(999)).p99 is None
    assert distribution(range(1000)).p99 == pytest.approx(989.01)
    assert distribution([]) is None


def test_p99_of_itl_needs_a_thousand_requests():
    """Ten tokens each are nine gaps each: 999 requests have 8,991 gaps and no p99, 1,000 have one."""
    rows = [row(i, i, range(i + 100, i + 200, 10)) for i in range(1000)]
    few, enough = (summarise(some, about(0, 2000)).itl_seconds for some in (rows[:999], rows))
    assert (few.count, few.p99) == (8991, None)
    assert enough.p99 == pytest.approx(0.01)


def test_t_interval():
    """9, 10, 11: mean 10, deviation 1, half-width 4.303 / sqrt 3."""
    mean, half = t_interval([9, 10, 11])
    assert mean == 10
    assert half == pytest.approx(4.303 / math.sqrt(3))
    assert t_interval([5])[1] == math.inf


def test_t_points_from_the_tables():
    assert t95(1) == 12.706
    assert t95(30) == 2.042
    assert t95(60) == pytest.approx(2.000, abs=1e-3)
    assert t95(120) == pytest.approx(1.980, abs=1e-3)
    assert t95(0) == math.inf


def test_bootstrap_is_repeatable_and_holds_the_median():
    values = [10, 11, 12, 13, 14]
    low, high = bootstrap_interval(values, seed=3)
    assert (low, high) == bootstrap_interval(values, seed=3)
    assert 10 <= low <= 12 <= high <= 14


def test_half_width_of_a_steady_rate_is_zero():
    times = np.arange(0, 11.0)
    assert half_width(times, 100 * times) == pytest.approx(0)


def test_half_width_by_hand():
    """Ten batches of one second, of 90 and 110 tokens in turn: R = 100, sum of squares 10 x 100,
    error sqrt(1000 / 90) = 3.333, t(9) = 2.262: 7.54 %."""
    totals = np.concatenate(([0], np.cumsum([90, 110] * 5)))
    assert half_width(np.arange(11.0), totals) == pytest.approx(0.0754, abs=1e-4)


def test_batches_are_whole_turnovers_where_there_are_four():
    """64 in flight: five turnovers and 10 completions over give five runs of 64; three give ten runs of any length."""
    assert batch_edges(1 + 5 * 64 + 10, 64).tolist() == [0, 64, 128, 192, 256, 320]
    assert batch_edges(1 + 21 * 8, 8).tolist()[:3] == [0, 16, 32]
    assert len(batch_edges(1 + 3 * 64, 64)) == 11


def test_requests_in_step_do_not_look_uncertain():
    """Eight in flight end together each second: runs of a part of a turnover say nothing, whole ones are alike."""
    times = np.repeat(np.arange(0.0, 11.0), 8)[7:]
    totals = 100.0 * np.arange(len(times))
    whole = batch_edges(len(times), 8)
    assert half_width(times[whole], totals[whole]) == pytest.approx(0)
    cut = batch_edges(len(times) - 3)
    assert half_width(times[cut], totals[cut]) > 0.02


def test_batch_edges():
    """21 completions part into ten runs of two; seven into six of one."""
    assert batch_edges(21).tolist() == list(range(0, 21, 2))
    assert batch_edges(7).tolist() == list(range(7))
    assert batch_edges(0).tolist() == []


def test_half_width_needs_four_batches():
    assert half_width(np.arange(4.0), np.arange(4.0)) == math.inf
    assert half_width(np.array([]), np.array([])) == math.inf
    assert half_width(np.zeros(20), np.arange(20.0)) == math.inf


def test_busiest_second():
    """Tokens at 100, 1100 and ten from 1550 to 2450: the second up to 2450 (from 1450) has all ten of them."""
    made = row(0, 0, (100, 1100, *range(1550, 2451, 100)))
    assert figures([made], about(0, 2500)).peak_tokens_per_second == 10
    assert figures([made], about(0, 900)).peak_tokens_per_second is None


def test_energy_a_token():
    """Four tokens inside the window, 10 J: 2.5 J each."""
    made = row(0, 0, (100, 200, 300, 400))
    assert (
        summarise([made], about(0, 1000, telemetry={"energy_joules": 10.0})).telemetry["energy_joules_per_token"] == 2.5
    )
    assert "energy_joules_per_token" not in summarise([made], about(0, 1000)).telemetry
