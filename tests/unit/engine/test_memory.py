import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmark.engine.budget import default_fraction, graph_sizes, kv_cell, segment_bytes, server_defaults
from benchmark.engine.hardware import GIB, MIB, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.memory import allocations, plan_memory
from benchmark.engine.models import ModelShape, from_config, load_model

CAPTURES = Path(__file__).parents[2] / "captures"
RTX = find_host("8x RTX PRO 6000 Blackwell")
RELEASE = "0.5.11"
# What every configuration of the campaign shared.
SHARED = {"mem_fraction_static": 0.88, "context_length": 32768, "attention_backend": "triton"}


def plan(model: str | ModelShape, host, release=RELEASE, **engine):
    shape = load_model(model) if isinstance(model, str) else model
    host = find_host(host) if isinstance(host, str) else host
    return plan_memory(shape, Layout.from_engine(engine), engine, host, release)


# --- against the captures: weights within 1 %, KV pool within 0.7 GiB (tests/captures/README.md) ---


@pytest.mark.parametrize(
    ("model", "host", "engine", "weights", "pool"),
    [
        ("mini-moe", "1x H200", {"mem_fraction_static": 0.7, "max_running_requests": 64}, 5.062, 92.305),
        ("mini-moe", "1x H200", {"mem_fraction_static": 0.7, "max_running_requests": 256}, 5.062, 92.305),
        ("mini-moe", "1x H200", {"mem_fraction_static": 0.995, "cuda_graph_max_bs": 512}, 5.062, 133.37),
        ("mini-moe", "1x H200", {"mem_fraction_static": 0.97, "disable_cuda_graph": True}, 5.062, 129.87),
        ("k2-slice", "1x H200", {"mem_fraction_static": 0.85, "max_running_requests": 64}, 69.482, 48.744),
        ("mini-moe", "2x H200", {"mem_fraction_static": 0.5, "tp_size": 2}, 2.57, 66.57),
        ("mini-moe", "2x H200", {"mem_fraction_static": 0.5, "tp_size": 2, "ep_size": 2}, 2.57, 66.57),
    ],
)
def test_weights_and_pool_of_the_captures(model, host, engine, weights, pool):
    found = plan(model, host, context_length=8192, **engine)
    assert found.weights_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert found.kv_pool_bytes / GIB == pytest.approx(pool, abs=0.7)


@pytest.mark.parametrize(
    ("model", "batch", "graphs"), [("mini-moe", 64, 0.176), ("mini-moe", 256, 0.346), ("k2-slice", 64, 0.223)]
)
def test_graph_memory_of_the_captures(model, batch, graphs):
    found = plan(model, "1x H200", mem_fraction_static=0.7, max_running_requests=batch)
    assert found.graph_bytes / GIB == pytest.approx(graphs, rel=0.15)


def test_the_capture_without_room_for_a_pool_fails_there():
    found = plan("mini-moe", "1x H200", mem_fraction_static=0.005)
    assert found.failure is not None
    assert found.failure.stage == "kv"
    # 5.062 / 139.13 GiB: the smallest fraction that holds the weights.
    assert found.min_fraction == pytest.approx(0.0364, abs=0.0005)


def test_the_capture_without_room_for_graphs_fails_there():
    found = plan("mini-moe", "1x H200", mem_fraction_static=0.995, cuda_graph_max_bs=512, context_length=8192)
    assert found.failure is not None
    assert found.failure.stage == "graphs"
    assert "No room beside weights and cache" in found.failure.sentence


def test_the_capture_that_died_while_loading_dies_at_the_same_tensor():
    """`Tried to allocate 21.00 GiB`, 127.51 GiB allocated by PyTorch (failures/oom_weights.log)."""
    config = json.loads((CAPTURES / "models" / "mini-moe" / "config.json").read_text())
    config |= {"hidden_size": 7168, "n_routed_experts": 384, "moe_intermediate_size": 2048, "num_hidden_layers": 8}
    found = plan(from_config(config, "large"), "1x H200")
    assert found.failure is not None
    assert (found.failure.stage, found.failure.layer) == ("weights", 5)
    assert found.failure.requested_bytes == 21 * GIB
    assert found.failure.allocated_bytes / GIB == pytest.approx(127.51, rel=0.005)


# --- Kimi K2.6 on eight RTX PRO 6000 ---


def test_tp4ep2_dies_at_one_layers_down_projection():
    found = plan("kimi-k2.6", RTX, tp_size=4, ep_size=2, max_running_requests=64, **SHARED)
    failure = found.failure
    assert failure is not None
    # int32 [192 experts, 1024/8, 7168] = 704,643,072 bytes.
    assert failure.requested_bytes == 192 * 128 * 7168 * 4 == 672 * MIB
    assert failure.tensor == "mlp.experts.w2_weight"
    # 2.215 GiB of experts and about 0.1 of the rest a layer, layer 0 dense: 93.9 GiB hold 39 whole ones.
    assert failure.layer == 40
    assert 0 < failure.free_bytes < 672 * MIB
    assert "it uses 4 of 8 GPUs" in failure.sentence
    assert "672.00 MiB" in failure.sentence


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_expert_bytes_do_not_depend_on_ep(ep):
    found = plan("kimi-k2.6", RTX, tp_size=8, ep_size=ep, **SHARED)
    # 60 layers x 384 experts x 3 x 7168 x 2048 weights at 4 bits, and a bf16 scale for every 32.
    experts = 60 * 384 * 3 * 7168 * 2048 * 9 // 16
    assert experts / GIB == pytest.approx(531.56, abs=0.01)
    assert found.parts["experts"] == experts // 8


def test_parts_of_tp8_by_hand():
    parts = plan("kimi-k2.6", RTX, tp_size=8, **SHARED).parts
    assert parts["embeddings"] == 2 * 163840 * 7168 * 2 // 8
    assert parts["dense"] == 3 * 7168 * 18432 * 2 // 8
    assert parts["shared"] == 60 * 3 * 7168 * 2048 * 2 // 8
    # Router in bf16 and its bias in float32, whole on every rank.
    assert parts["router"] == 60 * (384 * 7168 * 2 + 384 * 4)
    # q_a and kv_a whole; q_b, kv_b and o_proj split; w_kc and w_vc copy kv_b.
    whole = (1536 + 576) * 7168
    split = (1536 * 64 * 192 + 2 * 512 * 64 * 256 + 64 * 128 * 7168) // 8
    assert parts["attention"] == 61 * (whole + split) * 2
    # 27 x (4 x 1152^2 / 8 + 2 x 1152 x 4304), and a projector of 4608 x (4608 + 7168).
    assert parts["vision"] == (27 * (4 * 1152 * 1152 // 8 + 2 * 1152 * 4304) + 4608 * (4608 + 7168)) * 2


def test_tp8_holds_72_gib_and_needs_more_than_the_default_fraction():
    """`71.8 GiB a rank`, and a default of 0.758 that leaves less than the weights (sglang 0.5.23, read)."""
    found = plan("kimi-k2.6", RTX, "0.5.23", tp_size=8)
    assert found.weights_bytes / GIB == pytest.approx(71.8, abs=0.3)
    assert found.fraction_is_default
    assert found.mem_fraction_static == pytest.approx(0.758, abs=0.001)
    assert found.failure is not None
    assert found.failure.stage == "kv"


@pytest.mark.parametrize(("fraction", "tokens"), [(0.85, 126e3), (0.88, 169e3), (0.90, 198e3), (0.94, 256e3)])
def test_tokens_of_tp8_at_fractions(fraction, tokens):
    """The engine's formula with 71.8 GiB of weights and 94.3 free gives these; free is 93.9 here."""
    found = plan("kimi-k2.6", RTX, tp_size=8, mem_fraction_static=fraction, context_length=32768)
    assert found.token_capacity == pytest.approx(tokens, abs=8e3)


def test_a_vision_tower_is_left_room_since_the_release_that_does_so():
    """100 MiB for its embeddings in 0.5.23, 1 GiB more with CUDA IPC; in 0.5.11 nothing."""
    old, new, ipc = (
        plan("kimi-k2.6", RTX, release, tp_size=8, **SHARED, **more)
        for release, more in (("0.5.11", {}), ("0.5.23", {}), ("0.5.23", {"mm_feature_transport": "cuda_ipc"}))
    )
    assert old.kv_pool_bytes - new.kv_pool_bytes == pytest.approx(100 * MIB, abs=70272)
    assert new.kv_pool_bytes - ipc.kv_pool_bytes == pytest.approx(GIB, abs=70272)


def test_fp8_halves_the_cache():
    two = plan("kimi-k2.6", RTX, tp_size=8, kv_cache_dtype="fp8_e4m3", **SHARED)
    one = plan("kimi-k2.6", RTX, tp_size=8, **SHARED)
    assert (one.kv_bytes_per_token, two.kv_bytes_per_token) == (70272, 35136)


@pytest.mark.parametrize(
    ("fields", "layer"),
    [
        ({}, 1152),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8}}, 576),
        ({"kv_cache_quant_algo": "FP8"}, 576),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, 1152),
    ],
)
def test_a_modelopt_checkpoint_may_ask_for_an_fp8_cache(fields, layer):
    shape = load_model("kimi-k2.5-nvfp4")
    config = {**shape.config, "quantization_config": {**shape.config["quantization_config"], **fields}}
    found = plan(from_config(config, "nvfp4"), RTX, tp_size=8, **SHARED)
    assert found.kv_bytes_per_token == 61 * layer
    kept = plan(from_config(config, "nvfp4"), RTX, tp_size=8, kv_cache_dtype="bf16", **SHARED)
    assert kept.kv_bytes_per_token == 61 * 1152


@pytest.mark.parametrize(
    ("model", "tp", "cell"),
    # Half a byte a number and one scale byte for 16: 576 -> 288 + 36; 1 head x 128 x 2 -> 128 + 16.
    [("kimi-k2.6", 8, 61 * (288 + 36)), ("llama-3.1-70b", 8, 80 * (128 + 16))],
)
def test_an_fp4_cache_has_scales(model, tp, cell):
    found = plan(model, "8x B200", tp_size=tp, kv_cache_dtype="fp4_e2m1", mem_fraction_static=0.85)
    assert found.kv_bytes_per_token == cell


def test_llama_4_keeps_less_of_its_chunked_layers():
    """36 of 48 layers hold 0.8 of the tokens: 1 head x 256 numbers x 2 bytes x (12 + 0.8 x 36)."""
    flags = {"tp_size": 8, "mem_fraction_static": 0.8, "context_length": 131072}
    found = plan("llama-4-scout-17b-16e-instruct", "8x H100", **flags)
    assert found.kv_bytes_per_token == int(512 * (12 + 0.8 * 36))
    whole = plan("llama-4-scout-17b-16e-instruct", "8x H100", disable_hybrid_swa_memory=True, **flags)
    assert whole.kv_bytes_per_token == 512 * 48


def test_pipeline_stages_split_the_cache_by_layers():
    found = plan("kimi-k2.6", RTX, tp_size=4, pp_size=2, **SHARED)
    # 31 layers x 576 x 2 bytes on the second stage, which also has one layer of experts more.
    assert found.kv_bytes_per_token == 35712
    assert found.stages[1] > found.stages[0]
    assert found.failure is None


@pytest.mark.parametrize(
    ("engine", "fraction"),
    [({}, 0.758), ({"cuda_graph_max_bs": 32}, 0.766), ({"cuda_graph_max_bs": 32, "chunked_prefill_size": 4096}, 0.814)],
)
def test_default_fractions_by_hand(engine, fraction):
    """(97887 - reserved) / 97887, times 0.9097 for the vision tower: reserved 16384, 15424, 10240 MiB."""
    layout = Layout(tp=8)
    found = default_fraction({"tp_size": 8, **engine}, load_model("kimi-k2.6"), layout, RTX, "0.5.23")
    assert found == pytest.approx(fraction, abs=0.001)


EIGHT_ADP = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}


@pytest.mark.parametrize(
    ("release", "model", "host", "engine", "reserved"),
    [
        # 42 prefill graphs up to 2048 tokens, 50 up to 4096, 58 up to 8192, at 8 MiB each.
        ("0.5.11", "llama-3.1-8b", "1x RTX 4090", {}, 512 + 3072 + 128 + 2 * 24 + 8 * 42),
        ("0.5.23", "llama-3.1-8b", "1x RTX 4090", {}, 512 + 6144 + 128 + 2 * 48 + 8 * 50),
        ("0.5.11", "qwen3-235b-a22b", "8x H100", {"tp_size": 8}, 512 + 12288 + 1024 + 1024 + 8 * 58),
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8}, 512 + 12288 + 1024 + 1024 + 1536),
        # 0.5.11 keeps room for graphs of 512 requests, whatever may run, and for graphs that are off.
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "max_running_requests": 64}, 16384),
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "disable_cuda_graph": True}, 16384),
        ("0.5.23", "deepseek-v3", "8x H200", {"tp_size": 8, "max_running_requests": 64}, 16384 - 2 * 448),
        ("0.5.23", "deepseek-v3", "8x H200", {"tp_size": 8, "disable_decode_cuda_graph": True}, 16384 - 2 * 512),
        # A draft: 4 GiB, 6 for one of its own kind; 0.5.23 counts its weights instead.
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "speculative_algorithm": "EAGLE"}, 16384 + 4096),
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "speculative_algorithm": "STANDALONE"}, 16384 + 6144),
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "speculative_algorithm": "NGRAM"}, 16384),
        ("0.5.23", "deepseek-v3", "8x H200", {"tp_size": 8, "speculative_algorithm": "EAGLE"}, 16384),
        # No prefill graphs under attention DP, sparse attention or an all-to-all backend.
        ("0.5.11", "deepseek-v3", "8x H200", EIGHT_ADP, 14848 + 4.5 * 512 * 8),
        ("0.5.11", "deepseek-v3.2", "8x H200", {"tp_size": 8}, 14848),
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "moe_a2a_backend": "deepep"}, 14848),
        ("0.5.23", "deepseek-v3", "8x H200", {"tp_size": 8, "moe_a2a_backend": "deepep"}, 16384 + 1024 + 2048),
        # Uncut prefills: --max-prefill-tokens, 16384.
        ("0.5.11", "deepseek-v3", "8x H200", {"tp_size": 8, "chunked_prefill_size": -1}, 16384 - 12288 + 24576),
        # The floor of GPUs of more than 60 GiB.
        ("0.5.11", "qwen3-30b-a3b", "1x H200", {"chunked_prefill_size": 2048}, 10240),
    ],
)
def test_default_fractions_of_a_release_by_hand(release, model, host, engine, reserved):
    gpus = find_host(host)
    found = default_fraction(engine, load_model(model), Layout.from_engine(engine), gpus, release)
    total = gpus.gpu.memory_mib
    assert found == round((total - reserved) / total, 3)


@pytest.mark.parametrize(
    ("model", "layers", "width"),
    # Qwen's tower has `depth`: the engine finds no num_hidden_layers and takes 24.
    [("kimi-k2.6", 27, 1152), ("qwen3.5-397b-a17b", 24, 1152)],
)
def test_a_vision_tower_lowers_the_default_fraction(model, layers, width):
    """No prefill graphs for towers in 0.5.11: 14848 MiB reserved of 97887, so 0.848."""
    engine = {"tp_size": 8}
    found = default_fraction(engine, load_model(model), Layout(tp=8), RTX, "0.5.11")
    factor = 0.95 * (1 - 0.1 * (layers * width**2 / (24 * 1024**2) - 1))
    assert found == pytest.approx(0.848 * factor)
    plain = default_fraction(engine | {"language_only": True}, load_model(model), Layout(tp=8), RTX, "0.5.11")
    assert plain == pytest.approx(0.848)


def test_the_request_table_of_a_very_long_context():
    """2049 x 10,485,764 x 4 bytes = 80.04 GiB for Llama 4 Scout at its default context (sglang#5755)."""
    shape = load_model("llama-4-scout-17b-16e-instruct")
    found = plan(shape, "8x H200", tp_size=8, mem_fraction_static=0.8, max_running_requests=2048)
    assert found.request_table_bytes == 2049 * 10_485_764 * 4
    assert found.request_table_bytes / GIB == pytest.approx(80.04, abs=0.01)
    assert found.failure is not None
    assert found.failure.stage == "graphs"


def test_defaults_by_the_size_of_the_gpu():
    assert server_defaults({}, Layout(tp=8), RTX, RELEASE) == server_defaults(
        {"chunked_prefill_size": 8192}, Layout(tp=4), RTX, RELEASE
    )
    assert server_defaults({}, Layout(tp=8), RTX, RELEASE).graph_max_batch == 512
    assert server_defaults({}, Layout(tp=2), RTX, RELEASE).graph_max_batch == 256
    assert server_defaults({"max_running_requests": 64}, Layout(tp=8), RTX, RELEASE).graph_max_batch == 64
    assert server_defaults({}, Layout(tp=8, attention_dp=8), RTX, RELEASE).chunked_prefill_size == 1024


def test_captured_batches_of_two_captures():
    small = server_defaults({"max_running_requests": 64}, Layout(), find_host("1x H200"), RELEASE)
    assert graph_sizes({}, small, 64) == (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
    large = server_defaults({"max_running_requests": 256}, Layout(), find_host("1x H200"), RELEASE)
    assert len(graph_sizes({}, large, 256)) == 36
    assert graph_sizes({"disable_cuda_graph": True}, large, 256) == ()


@pytest.mark.parametrize(
    ("engine", "running", "count", "last"),
    [
        # 1, 2, 4, 8, 12, then 16 to 96 by 8, and the largest itself.
        ({"cuda_graph_max_bs": 100}, 2048, 5 + 11 + 1, (96, 100)),
        ({"cuda_graph_max_bs": 100}, 50, 5 + 5 + 1, (48, 50)),
        ({"cuda_graph_bs": [1, 8, 64]}, 2048, 3, (8, 64)),
        ({"cuda_graph_bs": [1, 8, 64]}, 48, 3, (8, 48)),
        # 1 to 8, 10 to 32 by 2, 40 to 64 by 4.
        ({"cuda_graph_max_bs": 64, "speculative_algorithm": "EAGLE"}, 2048, 8 + 12 + 7, (60, 64)),
        ({"cuda_graph_max_bs": 10, "disable_cuda_graph_padding": True}, 2048, 10, (9, 10)),
    ],
)
def test_the_largest_batch_has_a_graph_of_its_own(engine, running, count, last):
    sizes = graph_sizes(engine, server_defaults(engine, Layout(tp=8), RTX, RELEASE), running)
    assert (len(sizes), sizes[-2:]) == (count, last)


def test_segments_of_the_allocator():
    # 40 MiB alone; 3 MiB and 9 MiB share 20 MiB; half a MiB takes 2.
    assert segment_bytes([40 * MIB]) == 40 * MIB
    assert segment_bytes([3 * MIB, 9 * MIB]) == 20 * MIB
    assert segment_bytes([MIB // 2, MIB // 2]) == 2 * MIB
    assert segment_bytes([11 * MIB]) == 12 * MIB


def test_a_draft_adds_a_layer_and_its_cache():
    """0.5.23 sizes the pool with the draft: one layer of cache more for each 78, and the draft's weights counted."""
    flags = {"tp_size": 8, "mem_fraction_static": 0.9, "max_running_requests": 48}
    without = plan("glm-5-nvfp4", RTX, "0.5.23", **flags)
    drafting = plan("glm-5-nvfp4", RTX, "0.5.23", speculative_algorithm="EAGLE", **flags)
    assert drafting.kv_bytes_per_token * 78 == without.kv_bytes_per_token * 79
    draft = drafting.weights_bytes - without.weights_bytes
    assert draft > 0
    assert without.kv_pool_bytes - drafting.kv_pool_bytes == pytest.approx(draft, abs=2e5)


@pytest.mark.parametrize(("algorithm", "running"), [("EAGLE", 48), ("NGRAM", 48), (None, 2048)])
def test_speculation_lets_48_requests_run_where_no_number_is_set(algorithm, running):
    found = plan("deepseek-v3", "8x H200", tp_size=8, mem_fraction_static=0.8, speculative_algorithm=algorithm)
    assert found.max_running_requests == running


def test_states_of_a_hybrid_model_are_sized_by_requests_only_without_a_radix_cache():
    """Otherwise states take 0.9 parts of 1.9 of the room, whatever --max-running-requests says."""
    flags = {"tp_size": 4, "mem_fraction_static": 0.8, "kv_cache_dtype": "fp8_e4m3", "max_running_requests": 128}
    kept = plan("qwen3.5-397b-a17b-nvfp4", "4x RTX PRO 6000", **flags)
    none = plan("qwen3.5-397b-a17b-nvfp4", "4x RTX PRO 6000", disable_radix_cache=True, **flags)
    room = kept.kv_pool_bytes + kept.state_bytes
    assert kept.state_bytes / room == pytest.approx(0.9 / 1.9, rel=0.001)
    assert none.kv_pool_bytes + none.state_bytes == pytest.approx(room, rel=1e-6)
    # 45 layers of 16 heads of 128 x 128 numbers, and 3 inputs of a convolution over 2 x 4 + 16 heads; bf16.
    assert none.state_bytes == 128 * 45 * (16 * 128 * 128 + 3 * (2 * 4 + 16) * 128) * 2
    quarter = plan("qwen3.5-397b-a17b-nvfp4", "4x RTX PRO 6000", mamba_full_memory_ratio=0.25, **flags)
    assert quarter.state_bytes / room == pytest.approx(0.2, rel=0.01)  # whole states


def test_a_draft_that_loads_after_the_pool_is_sized_takes_from_the_rest():
    """0.5.11: as many tokens as without one, and so much less stays free."""
    flags = {"tp_size": 8, "mem_fraction_static": 0.8, "max_running_requests": 48, "disable_cuda_graph": True}
    without, drafting = (plan("deepseek-v3", "8x H200", **flags, speculative_algorithm=a) for a in (None, "EAGLE"))
    assert drafting.token_capacity == without.token_capacity
    taken = drafting.weights_bytes - without.weights_bytes + without.token_capacity * 1152
    assert without.slack_bytes - drafting.slack_bytes == taken
    assert without.max_fraction > drafting.max_fraction


def test_an_all_to_all_backend_keeps_shared_experts_whole():
    split = plan("deepseek-v3", "8x H200", tp_size=8, mem_fraction_static=0.8)
    whole = plan("deepseek-v3", "8x H200", tp_size=8, mem_fraction_static=0.8, moe_a2a_backend="deepep")
    assert whole.parts["shared"] == pytest.approx(8 * split.parts["shared"], rel=0.001)


def test_widths_that_do_not_nest_are_refused():
    with pytest.raises(ValueError, match="do not nest"):
        list(allocations(load_model("mini-moe"), Layout(tp=2, ep=4)))
    with pytest.raises(ValueError, match="no stage 2"):
        list(allocations(load_model("mini-moe"), Layout(pp=2), stage=2))


def test_experts_are_built_before_the_shared_expert_and_layers_in_order():
    tensors = [a for a in allocations(load_model("kimi-k2.6"), Layout(tp=8)) if a.layer == 7]
    names = [a.tensor for a in tensors]
    order = ["self_attn.o_proj.weight", "mlp.gate", "mlp.experts.w13_weight", "mlp.experts.w2_weight"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)
    assert names.index("mlp.experts.w2_weight") < names.index("mlp.shared_experts.gate_up_proj.weight")
    # Only while loading: g_idx and sort_indices, 2 x int32 [384, 7168] for w13 and [384, 256] for w2.
    temporary = [a for a in tensors if a.temporary]
    assert {a.bytes for a in temporary} == {384 * 7168 * 8, 384 * 256 * 8}


# --- public observations (tests/data/plan-cases.yml has their sources) ---


@pytest.mark.parametrize(
    ("case", "model", "host", "engine", "weights"),
    [
        ("glm5.md", "glm-5-nvfp4", "8x RTX PRO 6000", {"tp_size": 8}, 57.06),
        ("qwen3.5_fp4_rtx6000pro", "qwen3.5-397b-a17b-nvfp4", "4x RTX PRO 6000", {"tp_size": 4}, 56.12),
        ("sglang#17392", "qwen3-30b-a3b", "4x H200", {"tp_size": 4, "ep_size": 4, "attn_dp_size": 4}, 16.39),
        ("kvcached#198", "gpt-oss-20b", "1x B200", {}, 14.53),
        ("minimax-m25.md (vLLM)", "minimax-m2.5", "4x RTX PRO 6000", {"tp_size": 4}, 53.75),
        ("public log", "qwen2.5-32b", "4x RTX 4090", {"tp_size": 4}, 15.54),
    ],
)
def test_weights_of_public_cases_within_3_percent(case, model, host, engine, weights):
    assert plan(model, host, mem_fraction_static=0.8, **engine).weights_bytes / GIB == pytest.approx(weights, rel=0.03)


@pytest.mark.parametrize(
    ("case", "model", "host", "engine", "cell"),
    [
        # KV GiB / tokens of a log, so what is allocated: (656 + 132) x 61, 48 x 2 x 4 x 128 x 2, (1152 + 132) x 78,
        # (576 + 132) x 78.
        ("sglang#11309", "deepseek-v3.2", "8x B200", {"tp_size": 8, "attn_dp_size": 8}, 48071.7),
        ("sglang#17392", "qwen3-30b-a3b", "4x H200", {"tp_size": 4, "attn_dp_size": 4}, 98300.6),
        ("glm5.md", "glm-5-nvfp4", "8x RTX PRO 6000", {"tp_size": 8, "kv_cache_dtype": "bf16"}, 100164.5),
        ("InferenceX#2335", "glm-5.2-nvfp4", "8x RTX PRO 6000", {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, 55238.7),
        ("ktransformers#1757", "minimax-m2", "1x RTX PRO 6000", {}, 254200.7),
        ("minimax-m25.md (vLLM)", "minimax-m2.5", "4x RTX PRO 6000", {"tp_size": 4}, 63495.9),
        ("public log", "qwen2.5-32b", "4x RTX 4090", {"tp_size": 4}, 65422.9),
    ],
)
def test_kv_bytes_a_token_of_public_cases_within_half_a_percent(case, model, host, engine, cell):
    # The build of sglang#11309 is of October 2025, before TensorRT-LLM's layout became the default there.
    release = "0.5.4.post3" if case == "sglang#11309" else RELEASE
    found = plan(model, host, release, mem_fraction_static=0.8, **engine)
    assert found.kv_bytes_per_token == pytest.approx(cell, rel=0.005)


@pytest.mark.parametrize(
    ("release", "host", "engine", "sized", "held"),
    [
        # 61 layers of 512 + 64 numbers, and an index key of 128 bytes with one float32 scale.
        ("0.5.11", "8x H200", {}, 2 * 576 + 132, 2 * 576 + 132),
        # FlashMLA's FP8 layout: 512 + 4 scales of 4 bytes + 64 numbers of 2.
        ("0.5.11", "8x H200", {"kv_cache_dtype": "fp8_e4m3"}, 576 + 132, 656 + 132),
        ("0.5.23", "8x H200", {"kv_cache_dtype": "fp8_e4m3"}, 656 + 132, 656 + 132),
        # sm_100 and sm_120: FP8 by themselves, in TensorRT-LLM's layout, unless another is asked for.
        ("0.5.11", "8x B200", {}, 576 + 132, 576 + 132),
        ("0.5.11", "8x RTX PRO 6000", {}, 576 + 132, 576 + 132),
        ("0.5.11", "8x B200", {"nsa_prefill_backend": "flashmla_kv"}, 576 + 132, 656 + 132),
        ("0.5.4.post3", "8x B200", {}, 576 + 132, 656 + 132),
    ],
)
def test_sparse_attention_is_sized_by_one_cell_and_allocated_by_another(release, host, engine, sized, held):
    cell = kv_cell(load_model("deepseek-v3.2"), Layout(tp=8), 0, engine, find_host(host), release)
    assert (cell.sized, cell.held) == (61 * sized, 61 * held)


def test_a_pool_beyond_its_budget_takes_the_room_of_the_graphs():
    """DeepSeek V3.2 in FP8 on H200s: each token takes 80 x 61 bytes more than it is sized with."""
    sized = 61 * (576 + 132)
    found = plan("deepseek-v3.2", "8x H200", tp_size=8, kv_cache_dtype="fp8_e4m3", mem_fraction_static=0.85)
    budget = found.pre_load_free_bytes * 0.85 - found.weights_bytes
    assert found.token_capacity == pytest.approx(budget / sized, abs=1)
    assert found.kv_pool_bytes == found.token_capacity * 61 * 788
    assert found.kv_pool_bytes > budget
    # One step beyond the largest fraction that starts there is no room for graphs.
    engine = {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3", "max_running_requests": 64}
    most = plan("deepseek-v3.2", "8x H200", mem_fraction_static=0.85, **engine).max_fraction
    assert plan("deepseek-v3.2", "8x H200", mem_fraction_static=most - 1e-6, **engine).failure is None
    failure = plan("deepseek-v3.2", "8x H200", mem_fraction_static=most + 1e-4, **engine).failure
    assert failure is not None and failure.stage == "graphs"


def test_tokens_of_deepseek_v32_on_eight_b200():
    """975,424 tokens under attention DP in October 2025 (sglang#11309); divided by 788 bytes they would be 868,567."""
    found = plan("deepseek-v3.2", "8x B200", "0.5.4.post3", tp_size=8, dp_size=8, enable_dp_attention=True)
    assert found.token_capacity == pytest.approx(975_424, rel=0.03)


def test_tokens_of_deepseek_r1_on_eight_h200():
    """About 509,000 at 0.82 (aisimulate#263)."""
    found = plan("deepseek-r1", "8x H200", tp_size=8, mem_fraction_static=0.82)
    assert found.token_capacity == pytest.approx(509e3, rel=0.02)


def test_four_rtx_pro_6000_do_not_hold_glm_5():
    """`GLM-5-NVFP4 (440 GB)` on four: out of memory (rtx6kpro models/glm5.md); on six as tp2 pp3 it runs."""
    four = plan("glm-5-nvfp4", "4x RTX PRO 6000", tp_size=4)
    assert four.failure is not None
    assert four.failure.stage == "weights"
    assert plan("glm-5-nvfp4", "6x RTX PRO 6000", tp_size=2, pp_size=3, mem_fraction_static=0.9).failure is None


def test_mxfp4_is_padded_on_sm_100_only():
    """2880 becomes 3072 in both directions there: 1.7 GiB more than unpadded for gpt-oss-20b (kvcached#198)."""
    padded = plan("gpt-oss-20b", "1x B200").parts["experts"]
    plain = plan("gpt-oss-20b", "1x H200").parts["experts"]
    assert 24 * 32 * 3 * 3072 * 3072 * 17 // 32 < padded < 24 * 32 * 3 * 3072 * 3072 * 17 // 32 * 1.01
    assert plain < padded


# --- properties ---


@st.composite
def shapes(draw) -> ModelShape:
    """Models whose widths divide by 8, so that nothing is padded."""
    latent = draw(st.booleans())
    config = {
        "model_type": "deepseek_v3" if latent else "qwen3_moe",
        "hidden_size": 128 * draw(st.integers(1, 8)),
        "intermediate_size": 256 * draw(st.integers(1, 8)),
        "moe_intermediate_size": 256 * draw(st.integers(1, 4)),
        "num_hidden_layers": draw(st.integers(8, 12)),
        "num_attention_heads": 8 * draw(st.integers(1, 8)),
        "vocab_size": 512 * draw(st.integers(1, 20)),
        "num_experts_per_tok": draw(st.integers(1, 4)),
        ("n_routed_experts" if latent else "num_experts"): 8 * draw(st.integers(1, 8)),
        "tie_word_embeddings": False,
        "head_dim": 64,
    }
    if latent:
        config |= {"q_lora_rank": 64, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
        config |= {"v_head_dim": 32, "first_k_dense_replace": draw(st.integers(0, 3)), "n_shared_experts": 1}
    else:
        config["num_key_value_heads"] = draw(st.sampled_from([1, 2, 4, 8]))
    if draw(st.booleans()):
        weights = {"num_bits": 4, "group_size": 32, "type": "int", "strategy": "group"}
        ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": weights}},
            "ignore": ignore,
        }
    return from_config(config, "drawn")


@st.composite
def layouts(draw) -> Layout:
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    divisors = [d for d in (1, 2, 4, 8) if tp % d == 0]
    pp = draw(st.integers(1, 4))
    return Layout(tp=tp, pp=pp, ep=draw(st.sampled_from(divisors)), attention_dp=draw(st.sampled_from(divisors)))


def _whole(shape: ModelShape, layout: Layout) -> int:
    """Bytes of the model, each tensor once: what all ranks hold, less the copies of what is replicated."""
    total = 0
    for stage in range(layout.pp):
        for a in allocations(shape, layout, stage):
            if not a.temporary and not a.tensor.startswith("rotary"):
                copied, remainder = divmod(a.bytes * layout.tp, a.copies)
                assert remainder == 0
                total += copied
    return total


@settings(max_examples=60, deadline=None)
@given(shapes(), layouts())
def test_sharding_never_loses_bytes(shape, layout):
    assert _whole(shape, layout) == _whole(shape, Layout())


@settings(max_examples=60, deadline=None)
@given(shapes(), layouts(), st.sampled_from(["tp", "pp"]))
def test_more_gpus_never_need_more_memory_each(shape, layout, width):
    more = replace(layout, **{width: getattr(layout, width) * 2})
    assume(more.tp <= 8 and more.pp <= shape.layers)

    def most(split: Layout) -> int:
        return max(sum(a.bytes for a in allocations(shape, split, stage)) for stage in range(split.pp))

    assert most(more) <= most(layout)


@settings(max_examples=40, deadline=None)
@given(shapes(), layouts(), st.integers(1, 2048), st.integers(1024, 200_000))
def test_room_falls_as_context_and_graphs_grow(shape, layout, batch, context):
    def at(batch: int, context: int):
        engine = {"cuda_graph_max_bs": batch, "context_length": context, "max_running_requests": 2048}
        return plan_memory(shape, layout, engine, RTX, RELEASE)

    small, long, wide = at(batch, context), at(batch, context * 2), at(batch * 2, context)
    assume(wide.token_capacity > 2 * 2048)  # below, fewer requests run than were asked for
    assert long.max_fraction < small.max_fraction
    assert long.slack_bytes <= small.slack_bytes
    assert wide.max_fraction <= small.max_fraction
    # Without a fraction of its own the engine reserves for graphs, and the pool shrinks.
    assert wide.token_capacity <= small.token_capacity
    assert long.token_capacity <= small.token_capacity
    assert long.concurrency(context * 2) <= small.concurrency(context)


@settings(max_examples=60, deadline=None)
@given(shapes(), layouts(), st.floats(0.01, 0.99))
def test_a_plan_is_consistent(shape, layout, fraction):
    found = plan_memory(shape, layout, {"mem_fraction_static": fraction}, RTX, RELEASE)
    assert sum(found.parts.values()) == found.weights_bytes
    assert found.token_capacity * found.kv_bytes_per_token == found.kv_pool_bytes
    assert found.kv_pool_bytes + found.weights_bytes <= found.pre_load_free_bytes or found.failure
    if found.failure is None:
        assert found.margin_bytes >= 0
        assert found.min_fraction <= fraction <= found.max_fraction
