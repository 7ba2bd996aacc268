from __future__ import annotations

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.campaign.objectives import (
    ENERGY,
    GOODPUT,
    PEAK,
    PREFILL,
    SINGLE_STREAM,
    TTFT,
    ObjectiveError,
    Starts,
    group,
    objective,
    ranking_starts,
)


def start(*points, number=1, name="a", against=None, **more):
    configuration = rec.Configuration(name=name, against=against)
    return a_record(configuration=configuration, outcome="measured", points=list(points), start_number=number, **more)


def seconds(p50):
    return rec.Distribution(count=1, mean=p50, p50=p50, p90=p50, p95=p50, p99=None, min=p50, max=p50)


def test_the_peak_of_several_starts_is_read_at_one_rung():
    # Each start has another best rung; by the mean 64 wins (110 x 100 against 90 x 105).
    found = Starts((start(a_point(64, 110.0), a_point(128, 90.0)), start(a_point(64, 100.0), a_point(128, 105.0))))
    assert found.rung(PEAK) == 64
    assert found.values(PEAK) == [110.0, 100.0]
    assert found.mean(PEAK) == pytest.approx((110 * 100) ** 0.5)


def test_only_a_rung_of_all_starts_can_be_the_best():
    found = Starts((start(a_point(1, 10.0), a_point(64, 100.0), a_point(256, 120.0)), start(a_point(64, 98.0))))
    assert found.rung(PEAK) == 64


def test_starts_that_chose_a_configuration_are_not_quoted():
    one, two, three = (start(a_point(8, value), number=n) for n, value in ((1, 110.0), (2, 104.0), (3, 100.0)))
    assert Starts((one,)).value(PEAK) == 110.0
    assert Starts((one, two)).value(PEAK) == 104.0
    assert Starts((one, two, three)).value(PEAK) == 100.0
    assert Starts((one, two, three)).quoted_starts(PEAK) == 1


def test_repeats_inside_a_start_are_one_value():
    found = Starts((start(a_point(8, 100.0), a_point(8, 121.0, repeat=2)),))
    assert found.values(PEAK) == [pytest.approx(110.0)]


def test_long_prompt_objectives_need_long_prompts():
    point = a_point(1, 20.0, ttft_seconds=seconds(1.5), prompt_tokens_per_second=9000.0)
    assert Starts((start(point, workload={"prompt_tokens": 128}),)).value(TTFT) is None
    long = Starts((start(point, workload={"prompt_tokens": 16384}),))
    assert long.value(TTFT) == 1.5
    assert long.value(PREFILL) == 9000.0
    assert TTFT.better(0.1) == -0.1


def test_ttft_is_that_of_the_lowest_rung():
    points = [a_point(c, 20.0, ttft_seconds=seconds(t)) for c, t in ((1, 2.0), (8, 0.5))]
    assert Starts((start(*points, workload={"prompt_tokens": 8192}),)).value(TTFT) == 2.0


def test_goodput_comes_from_open_loops_and_the_peak_from_closed_ones():
    open_loop = msgspec.structs.replace(a_point(64, 500.0), rate=3.0, goodput_requests_per_second=2.5)
    found = Starts((start(a_point(1, 20.0), open_loop),))
    assert found.value(GOODPUT) == 2.5
    assert found.value(PEAK) == 20.0


def test_tokens_a_joule_from_either_telemetry():
    told = a_point(1, 20.0, telemetry={"energy_joules_per_token": 4.0})
    summed = a_point(8, 90.0, telemetry={"energy_joules": 100.0}, output_tokens=50)
    assert Starts((start(told, summed),)).value(ENERGY) == 0.5
    assert Starts((start(a_point(1, 20.0, telemetry={"energy_joules": "?"})),)).value(ENERGY) is None


def test_names_of_objectives():
    assert objective("Throughput@64").concurrency == 64
    assert objective("single-stream") is SINGLE_STREAM
    with pytest.raises(ObjectiveError, match="did you mean 'prefill'"):
        objective("prefil")
    with pytest.raises(ObjectiveError):
        objective("throughput@0")


def test_records_of_other_inputs_are_not_mixed_in():
    old = start(a_point(1, 1.0), fingerprint="1" * 64, updated_at="2026-01-01T00:00:00Z")
    new = start(a_point(1, 2.0), fingerprint="2" * 64, updated_at="2026-01-02T00:00:00Z")
    again = start(a_point(1, 3.0), number=2, fingerprint="2" * 64, updated_at="2026-01-03T00:00:00Z")
    (found,) = group([again, old, new])
    assert found.values(PEAK) == [2.0, 3.0]


def test_the_starts_number_is_no_input():
    records = [
        start(a_point(1, 1.0), number=n, fingerprint=str(n) * 64, fingerprint_of={"engine": "x", "start_number": n})
        for n in (1, 2)
    ]
    (found,) = group(records)
    assert len(found.measured) == 2


def test_a_start_without_a_valid_point_is_none():
    bad = a_point(1, 5.0, flags=[rec.Flag(id="x", severity="invalid", message="m")])
    found = Starts((start(bad), a_record(outcome="failed")))
    assert found.measured == ()
    assert found.value(PEAK) is None
    assert found.rung(PEAK) is None


def test_the_winner_is_ranked_by_as_many_starts_as_a_rival_has():
    def many(name, count, against="root"):
        return Starts(tuple(start(a_point(1, 9.0), name=name, number=n, against=against) for n in range(count)))

    groups = [many("root", 3, None), many("a", 3), many("b", 2), many("c", 1)]
    assert ranking_starts(groups, PEAK) == 2
    assert ranking_starts([many("root", 3, None), many("a", 5), many("b", 5)], PEAK) == 5
    assert ranking_starts([many("root", 3, None)], PEAK) == 2


def test_a_second_start_without_the_rung_takes_nothing_from_the_first():
    # Second starts measure the rungs about the peak only; the single stream stays known from the first.
    first = a_record(outcome="measured", points=[a_point(1, 20.0), a_point(64, 900.0)])
    second = a_record(outcome="measured", start_number=2, points=[a_point(64, 910.0)])
    (found,) = group([first, second])
    assert found.values(SINGLE_STREAM) == [20.0]
    assert found.values(PEAK) == [900.0, 910.0]
