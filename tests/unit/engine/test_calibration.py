import json
from pathlib import Path

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


def true_step(engine, batch, **factors):
    """A step of a host whose times are these factors of what is assumed."""
    model = StepModel(KIMI, Layout.from_engine(engine), engine, RTX, "0.5.11")
    return scaled(model.decode_parts(batch, 1024 + 256), factors)


def true_tpot(engine, batch, **factors):
    """Time per token of one of `batch` users: a step, and in each step a share of the others' prefills."""
    model = StepModel(KIMI, Layout.from_engine(engine), engine, RTX, "0.5.11")
    together = 1 + batch / 512
    prefill = scaled(model.prefill_parts(round(together * 1024), 0, together), factors)
    return true_step(engine, batch, **factors) + (batch - 1) / 512 * prefill / together


def scaled(parts, factors):
    return sum(factors.get(group, 1.0) * sum(part.expected for part in ranges) for group, ranges in parts.items())


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
    host = {"work": 1.2, "communication": 2.5}
    records = [
        record(tp8, [point(c, true_tpot(tp8, c, **host)) for c in (1, 4, 16)]),
        record(pp8, [point(1, true_step(pp8, 1, **host))]),
    ]
    found = calibrate(records, KIMI, RTX, "0.5.11")
    assert found is not None
    assert found.factor("decode").value == pytest.approx(1.2, rel=0.15)
    assert found.factor("communication").value == pytest.approx(2.5, rel=0.25)


def test_a_calibrated_range_is_narrow_and_holds_another_rung():
    engine = {"tp_size": 8, "max_running_requests": 64}
    host = {"work": 1.5, "communication": 1.5, "launch": 1.5}
    points = [point(c, true_tpot(engine, c, **host)) for c in (1, 8, 32)]
    found = calibrate([record(engine, points)], KIMI, RTX, "0.5.11")
    step = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11", found).decode_seconds(16, 1024 + 256)
    plain = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11").decode_seconds(16, 1024 + 256)
    assert step.contains(true_step(engine, 16, **host))
    assert step.width < plain.width


def test_ttft_of_a_single_user_corrects_prefill_and_leaves_decode():
    engine = {"tp_size": 8, "max_running_requests": 64}
    plain = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11")
    ttft = 2 * plain.prefill_seconds(1024).expected
    found = calibrate([record(engine, [point(1, true_step(engine, 1), ttft)])], KIMI, RTX, "0.5.11")
    model = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11", found)
    assert model.prefill_seconds(1024).expected == pytest.approx(ttft, rel=0.1)
    assert model.decode_seconds(1, 1280).expected == pytest.approx(plain.decode_seconds(1, 1280).expected, rel=0.1)


def test_slow_launches_are_not_taken_for_slow_steps():
    """One user waits 80 ms for a prefill of 512 tokens, eight see it between their tokens; a step stays what it is."""
    engine = {"max_running_requests": 64, "disable_piecewise_cuda_graph": True}
    workload = {"prompt_tokens": 512, "output_tokens": 128}
    model = StepModel(MINI, Layout(), engine, H200, "0.5.11")
    alone, eight = (model.decode_seconds(batch, 576).expected for batch in (1, 8))
    points = [point(1, alone, 0.080), point(8, eight + 7 / 128 * 0.080)]
    found = calibrate([record(engine, points, workload=workload)], MINI, H200, "0.5.11")
    assert found.factor("launch").value > 2
    corrected = StepModel(MINI, Layout(), engine, H200, "0.5.11", found)
    assert corrected.decode_seconds(8, 576).expected == pytest.approx(eight, rel=0.1)


EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence" / "h200-one-gpu" / "campaigns"
# Decode lines of the engine's log that follow a decode line, so without a prefill between (README.md there), ms.
LOGGED = [("mini-moe", 1, 1.54, 0.25), ("mini-moe", 256, 6.49, 0.35), ("k2-slice", 1, 2.34, 0.25)]


def evidence(model):
    found = [json.loads(path.read_text()) for path in sorted(EVIDENCE.glob(f"{model}-short/*/*/*/record.json"))]
    assert found
    return found


@pytest.mark.parametrize(("model", "batch", "milliseconds", "within"), LOGGED)
def test_one_model_on_a_host_tells_the_steps_of_another(model, batch, milliseconds, within):
    other = "k2-slice" if model == "mini-moe" else "mini-moe"
    shape = load_model(model)
    found = calibrate(evidence(other), shape, H200, "0.5.11", shape_of=lambda seen: load_model(other))
    engine = {"max_running_requests": 256, "cuda_graph_max_bs": 256}
    step = StepModel(shape, Layout(), engine, H200, "0.5.11", found).decode_seconds(batch, 576)
    assert step.expected * 1e3 == pytest.approx(milliseconds, rel=within)
    assert step.contains(milliseconds / 1e3)


def test_another_model_teaches_the_host_and_not_this_models_weights():
    k2 = load_model("k2-slice")
    found = calibrate(evidence("mini-moe"), k2, H200, "0.5.11", shape_of=lambda seen: MINI)
    assert found.weights_extra_bytes == 0
    # 139.11 GiB were free before the load, in every start.
    assert found.pre_load_free_bytes[1] / GIB == pytest.approx(139.11, abs=0.01)
    assert found.source == "this host: 10 starts, 34 measurements"
    # A start with two GPUs was never seen there: its communicators are not known.
    two = find_host("2x H200")
    plain = plan_memory(k2, Layout(tp=2), {}, two, "0.5.11")
    assert plan_memory(k2, Layout(tp=2), {}, two, "0.5.11", found).pre_load_free_bytes == plain.pre_load_free_bytes


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
    step = StepModel(KIMI, Layout(tp=8), engine, RTX, "0.5.11", found).decode_seconds(1, 1000)
    assert 0 < step.low < step.expected < step.high
    assert step.width >= 1.2
