from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.calibration import Calibration, calibrate
from benchmark.engine.hardware import GIB, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.memory import plan_memory
from benchmark.engine.models import load_model
from benchmark.engine.step import StepModel

MINI = load_model("mini-moe")
H200 = find_host("1x H200")
KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")
WORKLOAD = {"prompt_tokens": 1024, "output_tokens": 512}


def record(engine, points=(), start=None, workload=None):
    return {
        "outcome": "measured",
        "configuration": {"name": "drawn", "engine": engine},
        "workload": workload or WORKLOAD,
        "points": list(points),
        "start": start,
    }


def point(concurrency, tpot, ttft=None, flags=()):
    found = {"concurrency": concurrency, "tpot_seconds": {"p50": tpot}, "flags": list(flags)}
    return found | ({"ttft_seconds": {"p50": ttft}} if ttft else {})


def true_step(engine, batch, work, communication):
    """A host whose work and collectives take these factors of what is assumed."""
    model = StepModel(KIMI, Layout.from_engine(engine), engine, RTX, "0.5.11")
    parts = model.decode_parts(batch, 1024 + 256)
    factors = {"work": work, "communication": communication}
    return sum(factors[group] * sum(part.expected for part in ranges) for group, ranges in parts.items())


def test_a_captured_start_corrects_memory():
    start = {
        "weights_bytes": int(5.10 * GIB),
        "available_before_load_bytes": int(138.0 * GIB),
        "graph_bytes": int(0.3 * GIB),
    }
    engine = {"mem_fraction_static": 0.7, "max_running_requests": 64, "context_length": 8192}
    found = calibrate([record(engine, start=start)], MINI, H200, "0.5.11", "gpu1")
    assert found is not None
    plan = plan_memory(MINI, Layout(), engine, H200, "0.5.11", found)
    assert plan.weights_bytes / GIB == pytest.approx(5.10, abs=0.01)
    # 138.0 x 0.7 - 5.10.
    assert plan.kv_pool_bytes / GIB == pytest.approx(91.5, abs=0.01)
    assert plan.graph_bytes / GIB == pytest.approx(0.3, abs=0.01)
    assert plan.parts["allocator"] > 0
    assert found.source == "gpu1: 1 start, 0 measurements"


def test_a_start_alone_leaves_times_as_they_are():
    start = {"weights_bytes": 5 * GIB}
    found = calibrate([record({}, start=start)], MINI, H200, "0.5.11")
    plain = StepModel(MINI, Layout(), {}, H200, "0.5.11").decode_seconds(1, 100)
    assert StepModel(MINI, Layout(), {}, H200, "0.5.11", found).decode_seconds(1, 100) == plain


def test_points_of_two_splits_tell_work_from_collectives():
    """tp8 has 123 all-reduces, pp8 none: with both, a slow interconnect is not taken for slow GPUs."""
    tp8, pp8 = {"tp_size": 8, "max_running_requests": 64}, {"pp_size": 8, "max_running_requests": 64}
    records = [
        record(tp8, [point(c, true_step(tp8, c, 1.2, 2.5)) for c in (1, 4, 16)]),
        record(pp8, [point(1, true_step(pp8, 1, 1.2, 2.5))]),
    ]
    found = calibrate(records, KIMI, RTX, "0.5.11")
    assert found is not None
    assert found.decode_scale == pytest.approx(1.2, rel=0.15)
    assert found.communication_scale == pytest.approx(2.5, rel=0.25)


def test_a_calibrated_range_is_narrow_and_holds_another_rung():
    engine = {"tp_size": 8, "max_running_requests": 64}
    points = [point(c, true_step(engine, c, 1.5, 1.5)) for c in (1, 8, 32)]
    found = calibrate([record(engine, points)], KIMI, RTX, "0.5.11")
    step = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11", found).decode_seconds(16, 1024 + 256)
    plain = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11").decode_seconds(16, 1024 + 256)
    assert step.contains(true_step(engine, 16, 1.5, 1.5))
    assert step.width < plain.width


def test_ttft_of_a_single_user_corrects_prefill():
    engine = {"tp_size": 8, "max_running_requests": 64}
    model = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11")
    ttft = 3 * model.prefill_seconds(1024).expected
    found = calibrate([record(engine, [point(1, true_step(engine, 1, 1, 1), ttft)])], KIMI, RTX, "0.5.11")
    assert found is not None
    assert found.prefill_scale == pytest.approx(3, rel=0.02)


def test_invalid_points_teach_nothing():
    flags = [{"id": "short", "severity": "invalid", "message": ""}]
    assert calibrate([record({"tp_size": 8}, [point(1, 5.0, flags=flags)])], KIMI, RTX, "0.5.11") is None


@pytest.mark.parametrize("engine", [{"tp_size": 2, "ep_size": 4}, {"tp_size": "eight"}])
def test_records_of_splits_that_do_not_nest_are_passed_over(engine):
    assert calibrate([record(engine, [point(1, 0.02)], start={"weights_bytes": GIB})], KIMI, RTX, "0.5.11") is None


def test_nothing_measured_is_no_calibration():
    assert calibrate([], KIMI, RTX, "0.5.11") is None
    assert calibrate([record({"tp_size": 8})], KIMI, RTX, "0.5.11") is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 256), st.floats(1e-4, 10)), min_size=1, max_size=6))
def test_any_points_give_a_usable_calibration(points):
    engine = {"tp_size": 8, "max_running_requests": 256}
    found = calibrate([record(engine, [point(c, t) for c, t in points])], KIMI, RTX, "0.5.11")
    assert isinstance(found, Calibration)
    assert found.spread >= 1.15
    step = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11", found).decode_seconds(1, 1000)
    assert 0 < step.low <= step.expected <= step.high
    assert replace(found, points=0).points == 0
