"""What follows the ladder on the same start."""

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign.objectives import GOODPUT, PEAK, PREFILL, SINGLE_STREAM, TTFT, Starts
from benchmark.campaign.record import Distribution, Flag
from benchmark.load.further import after_ladder, drifted
from benchmark.load.metrics import first_of
from benchmark.load.workload import Workload, WorkloadError, named

CHAT = named("chat")
LONG = [{"workload": "long_prompt", "concurrency": 1}, {"workload": "long_prompt", "concurrency": 4}]


def test_the_first_rung_comes_again_last():
    found = after_ladder(CHAT, [1, 8, 64], LONG)
    assert [point.key for point in found] == [("long_prompt", 1, 1), ("long_prompt", 4, 1), ("chat", 1, 2)]
    assert [point.label for point in found][1:] == ["long_prompt at concurrency 4", "chat at concurrency 1 again"]


def test_each_workload_is_warmed_up_for_all_its_rungs():
    found = after_ladder(CHAT, [1, 8, 64], LONG, rate=2, ttft_limit_seconds=1.0)
    assert [point.ladder for point in found] == [(1, 4), (1, 4), (1, 8, 64), (1, 8, 64)]


def test_a_ladder_of_one_rung_has_no_drift_to_show():
    assert after_ladder(CHAT, [64]) == []
    assert after_ladder(CHAT, [1, 8], first_again=False) == []


def test_an_open_loop_of_the_same_requests():
    (point,) = after_ladder(CHAT, [64], rate=2.5, ttft_limit_seconds=2.0, tpot_limit_seconds=0.05)
    assert point.key == ("chat_open", 64, 1)
    assert point.label == "chat_open at 2.5 requests a second"
    work = point.workload
    assert (work.rate, work.ttft_limit_seconds, work.tpot_limit_seconds) == (2.5, 2.0, 0.05)
    assert (work.prompt_tokens, work.output_tokens, work.seed) == (1024, 512, 1)


def test_limits_of_the_workload_serve_too():
    work = Workload(name="w", tpot_limit_seconds=0.04)
    assert after_ladder(work, [8], rate=1.0)[0].workload.tpot_limit_seconds == 0.04


@pytest.mark.parametrize(
    ("wanted", "options", "text"),
    [
        ([{"workload": "nonsense", "concurrency": 1}], {}, "no workload 'nonsense'"),
        ([{"workload": "chat", "concurrency": 0}], {}, "at least 1"),
        ([{"concurrency": 4}], {}, "has a workload and a concurrency"),
        ([{"workload": "chat", "concurrency": 8}], {}, "asked for twice"),
        ([], {"rate": 2.0}, "goodput is counted under them"),
        ([], {"rate": -1.0, "ttft_limit_seconds": 1.0}, "rate is -1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(wanted, options, text):
    with pytest.raises(WorkloadError, match=text):
        after_ladder(CHAT, [1, 8], wanted, **options)


def test_drift():
    """100 and 103 tokens a second: 3 %, above the 2 % asked; with windows known to 3 % each it is noise."""
    sure = {"output_tokens_per_second_half_width": 0.002}
    assert drifted(first_of(a_point(1, 100.0, **sure)), a_point(1, 101.0, **sure)) == []
    (flag,) = drifted(first_of(a_point(1, 100.0, **sure)), a_point(1, 103.0, **sure))
    assert (flag.id, flag.severity) == ("drifted", "warning")
    assert "103.0 tok/s after 100.0 at its beginning (+3.0 %)" in flag.message
    unsure = {"output_tokens_per_second_half_width": 0.03}
    assert drifted(first_of(a_point(1, 100.0, **unsure)), a_point(1, 103.0, **unsure)) == []


def test_an_invalid_point_shows_no_drift():
    bad = a_point(1, 50.0, flags=[Flag(id="x", severity="invalid", message="m")])
    assert drifted(first_of(a_point(1, 100.0)), bad) == []
    assert drifted(first_of(bad), a_point(1, 100.0)) == []


def test_points_of_several_workloads_are_not_mixed_up():
    """The chat's peak, the long prompt's prefill and TTFT alone, the open loop's goodput: one record tells all."""
    alone = Distribution(count=8, mean=2.0, p50=2.0, p90=2.0, p95=2.0, p99=None, min=2.0, max=2.0)
    points = [
        a_point(1, 50.0, workload="chat"),
        a_point(64, 900.0, workload="chat"),
        a_point(1, 20.0, workload="long_prompt", prompt_tokens_per_second=7000.0, ttft_seconds=alone),
        a_point(4, 25.0, workload="long_prompt", prompt_tokens_per_second=9000.0),
        msgspec.structs.replace(a_point(64, 700.0, workload="chat_open"), rate=2.0, goodput_requests_per_second=1.5),
        a_point(1, 50.5, workload="chat", repeat=2),
    ]
    further = [point.to_mapping() for point in after_ladder(CHAT, [1, 64], LONG, rate=2.0, ttft_limit_seconds=1.0)]
    record = a_record(
        outcome="measured", points=points, workload=CHAT.to_mapping(), after_ladder=further, ladder=[1, 64]
    )
    found = Starts((record,))
    assert found.value(PEAK) == 900.0
    assert found.value(SINGLE_STREAM) == pytest.approx((50.0 * 50.5) ** 0.5)
    assert found.value(PREFILL) == 9000.0
    assert found.value(TTFT) == 2.0
    assert found.value(GOODPUT) == 1.5
    assert record.peak().concurrency == 64
    assert record.at(4) is None
