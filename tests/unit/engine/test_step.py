from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.hardware import AllReduce, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.memory import plan_memory
from benchmark.engine.models import load_model
from benchmark.engine.roofline import experts_touched, quantizes_activations, stage_work
from benchmark.engine.step import StepModel, predict_ladder

KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")
SHARED = {"mem_fraction_static": 0.88, "context_length": 32768, "max_running_requests": 256}


def model(name="kimi-k2.6", host=RTX, **engine):
    host = find_host(host) if isinstance(host, str) else host
    return StepModel(load_model(name), Layout.from_engine(engine), engine, host, "0.5.11")


def ladder(rungs, host=RTX, prompt=1024, output=512, **engine):
    settings_ = SHARED | engine
    memory = plan_memory(KIMI, Layout.from_engine(settings_), settings_, host, "0.5.11")
    step = StepModel(KIMI, Layout.from_engine(settings_), settings_, host, "0.5.11")
    return predict_ladder(step, memory, {"prompt_tokens": prompt, "output_tokens": output}, rungs)


@pytest.mark.parametrize(
    ("name", "context", "batch", "measured"),
    [
        ("mini-moe", 576, 1, 1.54e-3),
        ("mini-moe", 576, 8, 2.53e-3),
        ("mini-moe", 576, 64, 3.62e-3),
        ("mini-moe", 576, 256, 6.49e-3),
        ("k2-slice", 576, 1, 2.34e-3),
    ],
)
def test_decode_steps_on_one_h200(name, context, batch, measured):
    """Decode lines of a log without a prefill between, evenly routed (docs/evidence/h200-one-gpu)."""
    step = model(name, "1x H200").decode_seconds(batch, context)
    assert step.contains(measured)
    assert step.expected == pytest.approx(measured, rel=0.25)


TWO = {"prompt_tokens": 256, "output_tokens": 512, "length_range": 0.5}


@pytest.mark.parametrize(
    ("engine", "step", "ttft", "rates"),
    [
        # TPOT and median TTFT at one request, tokens a second at 1, 8, 64 (docs/evidence/several-gpus, fourth machine).
        ({}, 1.44e-3, 24e-3, (664, 3037, 10843)),
        ({"tp_size": 2}, 1.97e-3, 45e-3, (479, 2415, 7704)),
        ({"tp_size": 2, "ep_size": 2}, 1.89e-3, 43e-3, (497, 2657, 6898)),
        ({"pp_size": 2}, 6.19e-3, 45e-3, (160, 925, 4686)),
        ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, 2.87e-3, 52e-3, (333, 2000, 5733)),
    ],
)
def test_splits_on_two_h200s(engine, step, ttft, rates):
    """Without the host's own all-reduces; the constants for stages and attention DP were read off these starts."""
    engine = engine | {
        "context_length": 8192, "mem_fraction_static": 0.5, "max_running_requests": 256, "cuda_graph_max_bs": 256,
        "disable_piecewise_cuda_graph": True, "attention_backend": "triton",
    }  # fmt: skip
    shape, host = load_model("mini-moe"), find_host("2x H200")
    layout = Layout.from_engine(engine)
    made = StepModel(shape, layout, engine, host, "0.5.11")
    assert made.decode_seconds(1, 384).expected == pytest.approx(step, rel=0.25)
    memory = plan_memory(shape, layout, engine, host, "0.5.11")
    rungs = predict_ladder(made, memory, TWO, [1, 8, 64])
    assert rungs[0]["ttft"].expected == pytest.approx(ttft, rel=0.35)
    for rung, measured in zip(rungs, rates, strict=True):
        rate = rung["output_tokens_per_second"]
        assert rate.contains(measured)
        assert rate.expected == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("engine", "weights", "kv_tokens", "rates"),
    [
        # GiB on the fuller GPU, KV tokens of a rank, tokens a second at 1, 8, 64, 256 (first two: means of two starts).
        ({"tp_size": 2}, 34.87, 3_992_707, (466, 1993, 5156, 10213)),
        ({"tp_size": 2, "ep_size": 2}, 34.86, 3_993_845, (478, 1961, 5213, 10044)),
        ({"pp_size": 2}, 38.85, 7_057_898, (153, 867, 2810, 5836)),
        ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, 36.85, 3_762_080, (376, 1784, 4733, 10594)),
    ],
)
def test_splits_of_another_model_on_two_h200s(engine, weights, kv_tokens, rates):
    """Eight layers of Kimi K2 (docs/evidence/several-gpus, sixth machine): no constant was read from these starts."""
    engine = engine | {
        "context_length": 8192, "mem_fraction_static": 0.5, "max_running_requests": 256, "cuda_graph_max_bs": 256,
        "disable_piecewise_cuda_graph": True, "attention_backend": "triton", "disable_custom_all_reduce": True,
    }  # fmt: skip
    shape, host, layout = load_model("k2-slice"), find_host("2x H200"), Layout.from_engine(engine)
    memory = plan_memory(shape, layout, engine, host, "0.5.11")
    assert memory.weights_bytes / 2**30 == pytest.approx(weights, rel=0.01)
    assert memory.token_capacity == pytest.approx(kv_tokens, rel=0.01)
    for rung, measured in zip(
        predict_ladder(StepModel(shape, layout, engine, host, "0.5.11"), memory, TWO, [1, 8, 64, 256]),
        rates,
        strict=True,
    ):
        rate = rung["output_tokens_per_second"]
        assert rate.contains(measured)
        assert rate.expected == pytest.approx(measured, rel=0.25)


def test_lengths_that_vary_are_timed_by_their_mean():
    step = model("mini-moe", "2x H200")
    memory = plan_memory(load_model("mini-moe"), Layout(), {}, find_host("2x H200"), "0.5.11")
    mean = predict_ladder(step, memory, {"prompt_tokens": 192, "output_tokens": 384}, [1, 64])
    assert predict_ladder(step, memory, TWO, [1, 64]) == mean


def test_experts_touched_by_hand():
    # 384 x (1 - (1 - 8/384)^64) = 284: the README of the captures says about 283 for even routing.
    assert experts_touched(384, 8, 64, 1) == pytest.approx(284, abs=1)
    assert experts_touched(384, 8, 1, 1) == pytest.approx(8)


def test_the_busiest_of_eight_ranks_holds_more_than_its_share():
    """One token, 8 of 384 experts over 8 ranks: the exact expectation of the largest group is about 2.3."""
    # Exact, by counting: P(max <= m) for 8 draws without replacement from 8 groups of 48.
    whole = comb(384, 8)

    def ways(limit: int) -> int:
        row = [1] + [0] * 8
        for _ in range(8):
            row = [sum(row[n - k] * comb(48, k) for k in range(min(n, limit) + 1)) for n in range(9)]
        return row[8]

    exact = sum(1 - ways(m) / whole for m in range(8))
    assert experts_touched(384, 8, 1, 8) == pytest.approx(exact, rel=0.12)


def test_bytes_read_by_tp1_for_one_token():
    """About 32.6 GB of weights are touched for a token of Kimi K2 (a public estimate)."""
    stages = [stage_work(KIMI, Layout(pp=8), stage, {}, RTX, "0.5.11") for stage in range(8)]
    read = sum(stage.fixed_bytes + 8 * stage.expert_bytes * stage.moe_layers for stage in stages)
    assert read / 1e9 == pytest.approx(32.6, rel=0.03)


@pytest.mark.parametrize(
    ("name", "quantized"),
    [
        ("deepseek-v3", True),
        ("kimi-k2.6-nvfp4", True),
        ("kimi-k2.6", False),
        ("gpt-oss-120b", False),
        ("glm-4.5", False),
    ],
)
def test_which_formats_quantize_activations(name, quantized):
    assert quantizes_activations(load_model(name)) is quantized


@pytest.mark.parametrize(
    ("name", "host", "engine", "measured"),
    [
        ("minimax-m2.5", "4x RTX PRO 6000 Blackwell", {"tp_size": 4}, 71),
        ("minimax-m2.5-nvfp4", "2x RTX PRO 6000 Blackwell", {"tp_size": 2}, 87),
    ],
)
def test_single_streams_of_minimax(name, host, engine, measured):
    """tests/data/plan-cases.yml, rank-m25-rtxp6k: one user with SGLang."""
    rate = model(name, host, **engine).decode_seconds(1, 320).inverse()
    assert rate.contains(measured)
    assert rate.expected == pytest.approx(measured, rel=0.2)


def test_a_single_stream_of_tp8_is_tens_of_tokens_a_second():
    """73 to 90 tok/s are reported for this model, card and split with SGLang (C2 of public reports), 92 with vLLM."""
    rate = model(tp_size=8).decode_seconds(1, 100).inverse()
    assert rate.contains(73)
    assert rate.contains(85)
    assert 40 < rate.expected < 100


def test_a_slow_interconnect_shows_in_the_step():
    """123 all-reduces at 225 us more are 28 ms; the gather of logits counts as half a one."""

    def host(latency: float):
        sizes = (14336, 8 * 163840 // 8 * 2)
        return find_host("8x RTX PRO 6000 Blackwell", allreduce=tuple(AllReduce(8, size, latency) for size in sizes))

    slow, fast = (model(host=host(latency), tp_size=8).decode_seconds(1, 1).expected for latency in (250e-6, 25e-6))
    assert slow - fast == pytest.approx(123.5 * 225e-6)


def test_pipeline_stages_trade_speed_of_one_user_for_all_reduces():
    assert model(pp_size=8).decode_seconds(1, 100).expected > model(tp_size=8).decode_seconds(1, 100).expected
    assert sum(call.count for call in model(pp_size=8).collectives(1)) == 7


def test_ep_changes_balance_not_traffic():
    plain, whole = model(tp_size=8), model(tp_size=8, ep_size=8)
    assert plain.collectives(64) == whole.collectives(64)
    # One token: the busiest rank reads about 2.3 whole experts, not 8 eighths.
    assert whole.decode_seconds(1, 100).expected > plain.decode_seconds(1, 100).expected


def test_eplb_costs_bookkeeping_and_moves():
    with_eplb = model(tp_size=8, ep_size=8, enable_eplb=True).decode_seconds(1, 100)
    assert with_eplb.expected > 1.1 * model(tp_size=8, ep_size=8).decode_seconds(1, 100).expected


def test_without_decode_graphs_a_step_is_slower():
    """21 ms for 12 layers, from batches of 256 with graphs to 64 (docs/evidence/h200-one-gpu)."""
    eager = model("mini-moe", "1x H200", cuda_graph_max_bs=64).decode_seconds(256, 576)
    captured = model("mini-moe", "1x H200", cuda_graph_max_bs=256).decode_seconds(256, 576)
    assert eager.expected - captured.expected == pytest.approx(21e-3, rel=0.2)


NO_PIECEWISE = {"disable_piecewise_cuda_graph": True}


@pytest.mark.parametrize(
    ("name", "tokens", "prompts", "fastest", "slowest"),
    [("mini-moe", 512, 1, 24e-3, 44e-3), ("mini-moe", 8192, 16, 38e-3, 56e-3), ("k2-slice", 512, 1, 34e-3, 43e-3)],
)
def test_prefills_without_graphs_pay_for_launches(name, tokens, prompts, fastest, slowest):
    """Over all starts on one H200: TTFT of one user, and chunks one after the other in the log."""
    prefill = model(name, "1x H200", **NO_PIECEWISE).prefill_seconds(tokens, 0, prompts)
    assert fastest <= prefill.expected <= slowest
    assert prefill.contains(fastest)
    assert prefill.contains(slowest)


def test_a_small_prefill_costs_what_an_empty_one_does():
    """Launches decide: sixteen times the tokens take less than twice as long."""
    step = model("mini-moe", "1x H200", **NO_PIECEWISE)
    assert step.prefill_seconds(4096, 0, 8).expected < 2 * step.prefill_seconds(256).expected


def test_prompts_in_one_chunk_do_not_see_each_other():
    step = model("mini-moe", "1x H200")
    assert step.prefill_seconds(8192, 0, 16).expected < 0.8 * step.prefill_seconds(8192).expected


@pytest.mark.parametrize(
    ("name", "release", "engine", "tokens", "graphs"),
    [
        ("qwen3-30b-a3b", "0.5.11", {}, 8192, True),
        ("qwen3-30b-a3b", "0.5.9", {}, 512, False),
        ("qwen3-30b-a3b", "0.5.9", {"enable_piecewise_cuda_graph": True}, 512, True),
        ("qwen3-30b-a3b", "0.5.11", NO_PIECEWISE, 512, False),
        ("qwen3-30b-a3b", "0.5.23", {"disable_prefill_cuda_graph": True}, 512, False),
        ("qwen3-30b-a3b", "0.5.11", {"tp_size": 2, "pp_size": 2}, 512, False),
        ("qwen3-30b-a3b", "0.5.11", {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 512, False),
        ("qwen3-30b-a3b", "0.5.11", {"tp_size": 4, "moe_a2a_backend": "deepep"}, 512, False),
        # MLA: up to 2,048 tokens.
        ("deepseek-v3", "0.5.11", {"tp_size": 8}, 2048, True),
        ("deepseek-v3", "0.5.11", {"tp_size": 8}, 2049, False),
        # Multimodal: not before 0.5.15.
        ("kimi-k2.6", "0.5.11", {"tp_size": 8}, 512, False),
        ("kimi-k2.6", "0.5.11", {"tp_size": 8, "enforce_piecewise_cuda_graph": True}, 512, True),
        ("kimi-k2.6", "0.5.23", {"tp_size": 8}, 512, True),
    ],
)
def test_prefills_with_piecewise_graphs(name, release, engine, tokens, graphs):
    step = StepModel(load_model(name), Layout.from_engine(engine), engine, find_host("8x H200"), release)
    assert step.prefill_graphs(tokens) is graphs
    other = StepModel(load_model(name), Layout.from_engine(engine), engine | NO_PIECEWISE, step.host, release)
    faster = step.prefill_seconds(tokens).expected < other.prefill_seconds(tokens).expected
    assert faster is graphs or "enforce_piecewise_cuda_graph" in engine


@pytest.mark.parametrize(("concurrency", "measured"), [(1, 557), (8, 1826), (256, 9569)])
def test_a_closed_loop_on_one_h200(concurrency, measured):
    """Medians of six starts of mini-moe, 512 tokens in and 128 out (docs/evidence/h200-one-gpu)."""
    engine = {"max_running_requests": 256, "cuda_graph_max_bs": 256, "context_length": 8192, **NO_PIECEWISE}
    shape, host = load_model("mini-moe"), find_host("1x H200")
    memory = plan_memory(shape, Layout(), engine, host, "0.5.11")
    step = StepModel(shape, Layout(), engine, host, "0.5.11")
    rung = predict_ladder(step, memory, {"prompt_tokens": 512, "output_tokens": 128}, [concurrency])[0]
    assert rung["output_tokens_per_second"].expected == pytest.approx(measured, rel=0.15)


def test_prefill_of_8192_tokens():
    """A cold prefill of 8k at 7,478 tok/s, 1.10 s (rtx6kpro, all-reduce at 37.6 GB/s)."""
    assert model(tp_size=8).prefill_seconds(8192).contains(8192 / 7478)


def test_max_running_requests_limits_the_batch():
    few, many = ladder([256], max_running_requests=64, tp_size=8)[0], ladder([256], tp_size=8)[0]
    assert few["reached"] == 64
    assert many["reached"] > few["reached"]
    assert few["output_tokens_per_second"].expected < many["output_tokens_per_second"].expected
    # 256 users on 64 places wait for three rounds.
    assert few["ttft"].expected > ladder([64], tp_size=8)[0]["ttft"].expected * 3


def test_a_ladder_in_numbers():
    rungs = ladder([1, 8, 64], tp_size=8)
    assert [rung["reached"] for rung in rungs] == [1, 8, 64]
    one = rungs[0]
    # Alone: L = 512 steps and one prefill; 512 tokens in that time.
    step = model(tp_size=8, **SHARED)
    life = 512 * step.decode_seconds(1, 1024 + 256).expected + step.prefill_seconds(1024).expected
    assert one["output_tokens_per_second"].expected == pytest.approx(512 / life)
    rates = [rung["output_tokens_per_second"].expected for rung in rungs]
    assert rates == sorted(rates)
    assert 300 < rates[2] < 2000


def test_a_request_that_never_fits_reaches_nothing():
    rung = ladder([4], tp_size=8, max_total_tokens=1000)[0]
    assert (rung["reached"], rung["ttft"]) == (0, None)


def test_widths_that_do_not_nest_are_refused():
    with pytest.raises(ValueError, match="do not nest"):
        StepModel(KIMI, Layout(tp=2, ep=4), {}, RTX, "0.5.11")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(8, 1, 1), (8, 1, 8), (4, 2, 2), (1, 8, 1)]),
    st.integers(1, 512),
    st.integers(1, 512),
    st.integers(0, 100_000),
)
def test_more_work_never_takes_less(widths, one, other, context):
    tp, pp, ep = widths
    step = model(tp_size=tp, pp_size=pp, ep_size=ep, cuda_graph_max_bs=512)
    small, large = sorted((one, other))
    first, second = step.decode_seconds(small, context), step.decode_seconds(large, context)
    assert 0 < first.low <= first.expected <= first.high
    assert first.expected <= second.expected * 1.0001
    assert step.decode_seconds(small, context).expected <= step.decode_seconds(small, context + 1000).expected
    assert step.prefill_seconds(small).expected <= step.prefill_seconds(large).expected * 1.0001


@pytest.mark.parametrize(
    ("release", "model", "host", "engine", "graphs"),
    [
        # 0.5.11 takes no prefill graphs for sparse attention or towers; 0.5.23 does, for these.
        ("0.5.11", "deepseek-v3", "8x H200", {}, True),
        ("0.5.11", "deepseek-v3.2", "8x H200", {}, False),
        ("0.5.23", "deepseek-v3.2", "8x H200", {}, True),
        ("0.5.11", "kimi-k2.6", "8x H200", {}, False),
        ("0.5.23", "kimi-k2.6", "8x H200", {}, True),
        ("0.5.11", "deepseek-v3", "8x H200", {"enable_eplb": True}, False),
        ("0.5.23", "deepseek-v3", "8x H200", {"disable_prefill_cuda_graph": True}, False),
    ],
)
def test_prefills_run_from_graphs_where_the_release_takes_them(release, model, host, engine, graphs):
    step = StepModel(load_model(model), Layout(tp=8), {"tp_size": 8} | engine, find_host(host), release)
    assert step.prefill_graphs(1024) is graphs
