"""The quantities a memory plan is made of: defaults of the engine, KV bytes a token, graphs, allocator, context."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .flags import release_at_least
from .hardware import GIB, MIB, Host
from .layout import A2A_BACKENDS, Layout
from .models import ModelShape
from .ranges import Range
from .weights import BuildOptions, ceil_div

# CUDA context and what PyTorch loads with it: H200 139.80 GiB - 139.13 free before the load, one GPU (captures);
# B200 178.35 - 177.66 (kvcached#198).
CONTEXT_BYTES = int(0.68 * GIB)
# Communicators, on top. NVLink: two H200s 0.85 (captures), four 0.78 (sglang#17392), eight 1.22 (InferenceX#2128).
NVLINK_COMMUNICATOR_BYTES = int(0.70 * GIB)
NVLINK_COMMUNICATOR_BYTES_PER_GPU = int(0.06 * GIB)
# PCIe: eight RTX PRO 6000, 94.97 - 93.89 - 0.68 (rtx6kpro models/glm5.md: 0.92 x free = 57.06 + 29.32).
PCIE_COMMUNICATOR_BYTES = int(0.40 * GIB)
# Public logs of this kind of host tell 93.3 to 94.1 GiB free before the load.
PRE_LOAD_SPREAD_BYTES = int(0.4 * GIB)

# Decode graphs: a fixed part, one for each graph and layer, and the largest batch's buffers. Fitted to three
# captures (0.176, 0.346 and 0.223 GiB); field reports reach 6.2 GiB with DeepGEMM (sglang#5893).
GRAPH_FIXED_BYTES = 110 * MIB
GRAPH_BYTES_PER_LAYER = int(0.15 * MIB)
# Triton keeps partial results of this many KV splits in float32 for each head and request.
TRITON_KV_SPLITS = 8

# Default of --mamba-full-memory-ratio: linear-attention states over KV cache.
MAMBA_RATIO = 0.9
# Requests that may run with speculation, where no number is set (0.5.11 server_args.py:3431-3564, 0.5.23
# arg_groups/speculative_hook.py:442-1298).
SPECULATIVE_RUNNING = 48

# An activation of a prefill chunk lives in about this many copies of [tokens, width] at its peak.
PREFILL_COPIES = 4


# Formulas were read in 0.5.11 and 0.5.23. What 0.5.23 computes from a prefill and a decode phase is taken to hold since
# the release whose flags first tell the phases apart (--cuda-graph-max-bs-decode).
PHASES = "0.5.15"
# Other formulas that changed between the two, it is not known when: the nearer of the two speaks.
MIDDLE = "0.5.17"
# --max-prefill-tokens, which sizes activations where prefills are not cut (server_args.py:367).
MAX_PREFILL_TOKENS = 16384
# 0.5.11 takes no prefill graphs for these (configs/model_config.py:1446), nor for any sparse attention.
_NO_PREFILL_GRAPHS = ("Qwen3NextForCausalLM",)
# Multimodal models that 0.5.23 takes prefill graphs for (configs/model_config.py:2501), those that are known here.
_VISION_PREFILL_GRAPHS = ("KimiK25ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
# Text only unless --enable-multimodal is given (configs/model_config.py:186).
_TEXT_BY_DEFAULT = ("Llama4ForConditionalGeneration",)
# All-to-all backends that 0.5.23 has tried with prefill graphs (arg_groups/cuda_graph_hook.py:222).
_PREFILL_GRAPH_BACKENDS = ("none", "deepep", "megamoe", "flashinfer")
# Any of these turns 0.5.11's prefill graphs off (server_args.py:1194-1261).
_NO_PREFILL_GRAPHS_WITH = (
    "enable_torch_compile",
    "lora_paths",
    "enable_lora",
    "dllm_algorithm",
    "cpu_offload_gb",
    "enable_hierarchical_cache",
    "enable_deterministic_inference",
    "enable_symm_mem",
    "enable_eplb",
    "expert_distribution_recorder_mode",
    "debug_cuda_graph",
    "enable_dp_attention",
)


@dataclass(frozen=True)
class ServerDefaults:
    """What the engine chooses from the GPU's memory (0.5.11 server_args.py:1323-1384, 0.5.23 memory_hook.py:82-182),
    unless it is set."""

    chunked_prefill_size: int
    """Of one attention-DP rank."""
    graph_max_batch: int
    """The largest decode graph that is captured."""
    whole_chunk: int
    """The chunk before attention DP divides it."""
    reserved_batch: int
    """The largest decode graph that the default fraction keeps room for."""


def draft_layers(engine: Mapping[str, Any], shape: ModelShape) -> int:
    """Draft layers that speculation loads from the model's own checkpoint; a separate draft is not counted."""
    speculates = str(engine.get("speculative_algorithm") or "").upper() in ("EAGLE", "NEXTN")
    return shape.mtp_layers if speculates and not engine.get("speculative_draft_model_path") else 0


def separate_draft(engine: Mapping[str, Any], shape: ModelShape) -> bool:
    """Whether speculation loads a draft whose size the model's config does not tell."""
    algorithm = str(engine.get("speculative_algorithm") or "").upper()
    return algorithm not in ("", "NGRAM") and not draft_layers(engine, shape)


# Values of --quantization that read a checkpoint as it is stored.
_AS_STORED = ("", "none", "unquant", "auto", "awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "moe_wna16")


def guessed(engine: Mapping[str, Any], shape: ModelShape) -> tuple[str, ...]:
    """Why the weights on a GPU may not be what is counted, a sentence each."""
    found = []
    if shape.taken_for:
        found.append(
            f"{shape.architecture} is not known to the planner, and is counted as a model of {shape.taken_for}."
        )
    asked = str(engine.get("quantization") or "").lower()
    if asked not in _AS_STORED and not shape.quantization:
        found.append(f"quantization {asked} makes the weights smaller while they load, and they are counted as stored.")
    offloaded = float(engine.get("cpu_offload_gb") or 0)
    if offloaded > 0:
        found.append(f"cpu_offload_gb {offloaded:g} keeps weights in host memory, and they are counted on the GPU.")
    if int(engine.get("offload_group_size") or -1) > 0:
        found.append("offload_group_size keeps weights in host memory, and they are counted on the GPU.")
    return tuple(found)


def running_requests(engine: Mapping[str, Any]) -> int | None:
    """--max-running-requests, or what speculation sets where it is not given; None if the pool's size decides."""
    given = engine.get("max_running_requests")
    if given is not None:
        return int(given)
    return SPECULATIVE_RUNNING if engine.get("speculative_algorithm") else None


def build_options(engine: Mapping[str, Any], host: Host | None, shape: ModelShape) -> BuildOptions:
    """The settings of a configuration that change the layout of weights."""
    backend = str(engine.get("moe_a2a_backend") or "none")
    blackwell = bool(host and host.gpu.compute_capability[0] == 10)
    return BuildOptions(
        shared_replicated=backend in A2A_BACKENDS,
        dp_lm_head=bool(engine.get("enable_dp_lm_head")),
        dense_replicated=engine.get("moe_dense_tp_size") == 1,
        redundant_experts=int(engine.get("ep_num_redundant_experts") or 0),
        draft_layers=draft_layers(engine, shape),
        # FlashInfer's kernels on sm_100 pad both sides (layers/quantization/mxfp4.py); others one MXFP4 pair.
        mxfp4_pad=(256, 256) if blackwell else (64, 1),
    )


def server_defaults(engine: Mapping[str, Any], layout: Layout, host: Host, release: str) -> ServerDefaults:
    gib = host.gpu.memory_mib / 1024
    phases = release_at_least(release, PHASES)
    # (below this many GiB, chunk, largest decode graph at tp < 4, at tp >= 4)
    buckets = (
        (20, 2048, 8, 8),
        (35, 4096, 48, 160) if phases else (35, 2048, 24, 80),
        (60, 4096, 32, 160),
        (160, 8192, 256, 512),
    )
    chunk, narrow, wide = next((sizes for below, *sizes in buckets if gib < below), (16384, 512, 512))
    if engine.get("chunked_prefill_size") is not None:
        chunk = int(engine["chunked_prefill_size"])
    pools = max(1, layout.attention_dp)
    batch = reserved = wide if layout.tp >= 4 else narrow
    sizes = engine.get("cuda_graph_bs_decode") or engine.get("cuda_graph_bs")
    given = next((engine[k] for k in ("cuda_graph_max_bs_decode", "cuda_graph_max_bs") if engine.get(k)), None)
    running = engine.get("max_running_requests")
    if sizes or given is not None:
        batch = reserved = max(int(size) for size in sizes) if sizes else int(given)
    elif running is not None:
        batch = min(batch, max(1, int(running) // pools))
        # memory_hook.py:182; 0.5.11 keeps room for graphs that it then does not capture.
        reserved = min(reserved, int(running)) if phases else reserved
    return ServerDefaults(max(1, chunk // pools) if chunk > 0 else chunk, batch, chunk, reserved)


def graphs_disabled(engine: Mapping[str, Any]) -> bool:
    return bool(engine.get("disable_cuda_graph") or engine.get("disable_decode_cuda_graph"))


def graph_sizes(engine: Mapping[str, Any], defaults: ServerDefaults, running: int) -> tuple[int, ...]:
    """Batch sizes that get a decode graph: 1, 2, 4, 8 to 24 by 4 or 8, then by 8, by 16 from 256, by 32 from 512, and
    the largest; more of the small ones with speculation (0.5.11 server_args.py:1497-1528, 0.5.23
    arg_groups/cuda_graph_hook.py:500). None is above the requests that may run, and those have one
    (0.5.11 model_executor/cuda_graph_runner.py:496-522).
    """
    if graphs_disabled(engine):
        return ()
    given = engine.get("cuda_graph_bs_decode") or engine.get("cuda_graph_bs")
    most = min(defaults.graph_max_batch, running)
    if given:
        sizes = [int(size) for size in given]
        most = min(max(sizes), running)
    elif engine.get("disable_cuda_graph_padding"):
        sizes = list(range(1, most + 1))
    elif engine.get("speculative_algorithm"):
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, most + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32)]
    return tuple(sorted({size for size in sizes if size < most} | {most}))


def multimodal(engine: Mapping[str, Any], shape: ModelShape) -> bool:
    """Whether the engine serves the model's vision tower (configs/model_config.py:184-228)."""
    asked = engine.get("enable_multimodal") or shape.architecture not in _TEXT_BY_DEFAULT
    return shape.multimodal and bool(asked)


def prefill_graphs_on(engine: Mapping[str, Any], shape: ModelShape, layout: Layout, release: str) -> bool:
    """Whether the engine captures graphs of prefills: 0.5.11 server_args.py:1194-1261 (piecewise), 0.5.23
    arg_groups/cuda_graph_hook.py:32-255 (breakable)."""
    backend = str(engine.get("moe_a2a_backend") or "none")
    if release_at_least(release, PHASES):
        asked = engine.get("cuda_graph_backend_prefill")
        if asked is not None:
            return asked != "disabled"
        off = ("disable_cuda_graph", "disable_prefill_cuda_graph", "disable_piecewise_cuda_graph")
        return not (
            any(engine.get(key) for key in (*off, "enable_two_batch_overlap"))
            or layout.pp > 1
            or layout.dcp > 1
            or backend not in _PREFILL_GRAPH_BACKENDS
            or int(engine.get("attn_cp_size") or 1) > 1
            or (multimodal(engine, shape) and shape.architecture not in _VISION_PREFILL_GRAPHS)
        )
    if engine.get("enforce_piecewise_cuda_graph"):
        return True
    # On by default since 0.5.10; before, only where it was asked for.
    if not release_at_least(release, "0.5.10") and not engine.get("enable_piecewise_cuda_graph"):
        return False
    return not (
        any(engine.get(key) for key in ("disable_piecewise_cuda_graph", *_NO_PREFILL_GRAPHS_WITH))
        or shape.architecture in _NO_PREFILL_GRAPHS
        or bool(shape.index_dim)
        or layout.attention_dp > 1
        or layout.pp > 1
        or backend != "none"
        or multimodal(engine, shape)
        or "gguf" in (engine.get("load_format"), engine.get("quantization"))
        or str(engine.get("disaggregation_mode") or "null") != "null"
        or int(engine.get("attn_cp_size") or 1) > 1
    )


def prefill_graph_sizes(engine: Mapping[str, Any], chunk: int) -> tuple[int, ...]:
    """Tokens that get a prefill graph where attention is not MLA: 4 to 32 by 4, to 256 by 16, to 512 by 32, to 1024 by
    64, to 4096 by 256, then by 512 up to the chunk (0.5.11 server_args.py:1550, 0.5.23 cuda_graph_hook.py:480)."""
    given = engine.get("cuda_graph_bs_prefill") or engine.get("piecewise_cuda_graph_tokens")
    if given:
        return tuple(int(size) for size in given)
    keys = ("cuda_graph_max_bs_prefill", "piecewise_cuda_graph_max_tokens")
    most = next((int(engine[key]) for key in keys if engine.get(key) is not None), chunk)
    limit = engine.get("max_total_tokens")
    most = min(most, int(limit)) if limit else most
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    return tuple(size for step in steps for size in range(*step) if size <= most)


def default_fraction(engine: Mapping[str, Any], shape: ModelShape, layout: Layout, host: Host, release: str) -> float:
    """--mem-fraction-static where none is given; MiB throughout.

    0.5.11: server_args.py:1434-1487. 0.5.23: arg_groups/memory_hook.py:281-345 and 357-415, which reserves nothing for
    a draft (it is counted when the pool is sized), nor for decode graphs that are off.
    """
    defaults = server_defaults(engine, layout, host, release)
    phases = release_at_least(release, PHASES)
    total, batch, backend = host.gpu.memory_mib, defaults.reserved_batch, str(engine.get("moe_a2a_backend") or "none")
    tokens = defaults.whole_chunk
    if tokens <= 0:
        tokens = int(engine.get("max_prefill_tokens") or MAX_PREFILL_TOKENS)
    decodes = not (phases and graphs_disabled(engine))
    reserved = 512 + 1.5 * max(tokens, 2048) + layout.tp * layout.pp / 8 * 1024
    reserved += 2 * batch if decodes else 0
    if layout.attention_dp > 1 or (engine.get("enable_dp_attention") and not phases):
        reserved += (4.5 if batch > 300 else 3) * batch * layout.attention_dp
    if prefill_graphs_on(engine, shape, layout, release):
        mla = shape.attention == "mla"
        reserved += 1536 if mla else 8 * len(prefill_graph_sizes(engine, defaults.whole_chunk))
        reserved += 1024 if phases and backend == "deepep" else 0
    if total > 61440:
        reserved = max(reserved, 10240)
    if phases:
        reserved += 2048 if backend == "deepep" and decodes else 0
    else:
        reserved += _draft_reserve(str(engine.get("speculative_algorithm") or "").upper())
    return max(0.0, round((total - reserved) / total, 3) * _vision_factor(engine, shape))


def _draft_reserve(algorithm: str) -> int:
    """MiB that 0.5.11 keeps for a draft model and its graphs (server_args.py:1470-1475)."""
    if algorithm in ("", "NGRAM"):
        return 0
    return 6144 if algorithm == "STANDALONE" else 4096


def _vision_factor(engine: Mapping[str, Any], shape: ModelShape) -> float:
    """How a vision tower lowers the default fraction (0.5.11 server_args.py:7137, 0.5.23 memory_hook.py:430)."""
    if not shape.vision or not multimodal(engine, shape) or engine.get("language_only"):
        return 1.0
    work = shape.vision.named_layers * shape.vision.hidden**2 / (24 * 1024**2)
    return 0.95 * min(max(1 - 0.1 * (work - 1), 0.8), 1.05)


def pre_load_free_bytes(host: Host, layout: Layout) -> Range:
    """Free memory of a GPU once communicators stand, before any weight (`Load weight begin. avail mem`)."""
    used = CONTEXT_BYTES
    if layout.tp * layout.pp > 1:
        if host.nvlink:
            used += NVLINK_COMMUNICATOR_BYTES + NVLINK_COMMUNICATOR_BYTES_PER_GPU * min(layout.tp * layout.pp, 8)
        else:
            used += PCIE_COMMUNICATOR_BYTES
    free = host.gpu.usable_bytes - used
    return Range(free - PRE_LOAD_SPREAD_BYTES, free, free + PRE_LOAD_SPREAD_BYTES)


def kv_dtype(engine: Mapping[str, Any], shape: ModelShape, host: Host) -> str:
    """`bf16`, `fp8` or `fp4`: how a cached number is kept.

    `auto` is FP8 for sparse attention on sm_100 and newer (0.5.11 server_args.py:1583), FP8 where a ModelOpt checkpoint
    says so (model_executor/model_runner.py:2213), otherwise the model's own bf16.
    """
    dtype = str(engine.get("kv_cache_dtype") or "auto")
    if dtype == "auto":
        if shape.index_dim:
            return "fp8" if host.gpu.compute_capability[0] >= 10 else "bf16"
        return "fp8" if shape.cache_quantization == "FP8" else "bf16"
    if "fp4" in dtype:
        return "fp4"
    return "fp8" if "fp8" in dtype or "e4m3" in dtype or "e5m2" in dtype else "bf16"


@dataclass(frozen=True)
class Cell:
    """Bytes of one token in the pool of one rank of a stage."""

    sized: int
    """What the engine divides the free room by."""
    held: int
    """What it then allocates, and a log's KV size tells. They differ for sparse attention with FP8."""


def kv_cell(shape: ModelShape, layout: Layout, stage: int, engine: Mapping[str, Any], host: Host, release: str) -> Cell:
    """Bytes of one token (0.5.11 model_executor/pool_configurator.py:112-180, 0.5.23 the same file, :340-470).

    The latent vector of MLA is whole on every rank; heads of GQA are split over the attention ranks. FP4 has one scale
    byte for 16 numbers.
    """
    layers = layout.stage_layers(shape.layers)[stage]
    held_layers = layers + (draft_layers(engine, shape) if stage == layout.pp - 1 else 0)
    sized_layers = held_layers if drafts_counted(release) else layers
    dtype = kv_dtype(engine, shape, host)
    if shape.attention == "mla":
        width = shape.kv_lora_rank + shape.rope_dim
        sized = held = {"bf16": 2 * width, "fp8": width, "fp4": width // 2 + width // 16}[dtype]
        if shape.index_dim:
            index = shape.index_dim + ceil_div(shape.index_dim, 128) * 4
            if dtype == "fp8" and _scaled_latent(engine, host, release):
                # The rotary part stays bf16, one float32 scale for 128 numbers.
                held = shape.kv_lora_rank + ceil_div(shape.kv_lora_rank, 128) * 4 + shape.rope_dim * 2
            # 0.5.11 sizes by the plain vector whatever it allocates; 0.5.23 by what it allocates.
            sized, held = (held if release_at_least(release, MIDDLE) else sized) + index, held + index
        ranks = max(1, layout.dcp)
        return Cell(ceil_div(sized_layers * sized, ranks), ceil_div(held_layers * held, ranks))
    heads = max(1, ceil_div(shape.kv_heads, layout.attention_tp))
    pair = heads * (shape.head_dim + shape.v_head_dim)
    scales = 2 * heads * shape.head_dim // 16
    cell = {"bf16": 2 * pair, "fp8": pair, "fp4": pair // 2 + scales}[dtype]
    if shape.linear:
        layers = max(1, round(layers * shape.attention_layers / shape.layers))
        return Cell(cell * layers, cell * layers)
    if shape.sliding_layers and not engine.get("disable_hybrid_swa_memory"):
        ratio = float(engine.get("swa_full_tokens_ratio") or 0.8)
        share = shape.sliding_layers / shape.layers
        size = int(cell * layers * (1 - share + ratio * share))
        return Cell(size, size)
    return Cell(cell * sized_layers, cell * held_layers)


def _scaled_latent(engine: Mapping[str, Any], host: Host, release: str) -> bool:
    """Whether sparse attention keeps scales beside an FP8 latent vector: FlashMLA's layout, not TensorRT-LLM's.

    TensorRT-LLM's is the default on sm_100 and newer (0.5.11 server_args.py:1614, model_runner_kv_cache_mixin.py:141,
    0.5.23 kv_cache_configurator.py:3412). In October 2025 it was not yet (sglang#11309).
    """
    keys = ("nsa_prefill_backend", "nsa_decode_backend", "dsa_prefill_backend", "dsa_decode_backend")
    given = {engine[key] for key in keys if engine.get(key)}
    capability = host.gpu.compute_capability[0]
    if given:
        return "trtllm" not in given
    # Before 0.5.11 sm_120 had no scaled layout either.
    return capability == 9 or (capability == 10 and not release_at_least(release, "0.5.9"))


def drafts_counted(release: str) -> bool:
    """Whether the pool is sized with the draft in memory and in the cell (0.5.23 kv_cache_configurator.py:3040).

    0.5.11 sizes first and loads the draft into what it left (managers/scheduler.py:692).
    """
    return release_at_least(release, MIDDLE)


def kv_bytes_per_token(
    shape: ModelShape, layout: Layout, stage: int, engine: Mapping[str, Any], host: Host, release: str
) -> int:
    """What one token takes in the pool of one rank of a stage."""
    return kv_cell(shape, layout, stage, engine, host, release).held


def linear_states(shape: ModelShape, layout: Layout, engine: Mapping[str, Any], rest: float) -> int:
    """Bytes that a hybrid model takes from `rest`, the room for states and cache, for recurrent states (bf16).

    By the number of states where that is set, by that of requests only without a radix cache, otherwise
    --mamba-full-memory-ratio is states over cache (0.5.11 model_executor/model_runner_kv_cache_mixin.py:96-126).
    """
    if not shape.linear:
        return 0
    pools = max(1, layout.attention_dp)
    number = engine.get("max_mamba_cache_size")
    if number is None and engine.get("disable_radix_cache"):
        number = engine.get("max_running_requests")
    each = linear_state_bytes(shape, layout)
    if number is not None:
        return int(number) // pools * each
    ratio = float(engine.get("mamba_full_memory_ratio") or MAMBA_RATIO)
    return int(max(0.0, rest) * ratio / (1 + ratio)) // each * each


def linear_state_bytes(shape: ModelShape, layout: Layout) -> int:
    """Recurrent state of one request; 0 without such layers."""
    if not shape.linear:
        return 0
    heads = ceil_div(shape.linear.value_heads, layout.attention_tp)
    keys = ceil_div(shape.linear.key_heads, layout.attention_tp) * shape.linear.key_dim
    state = heads * shape.linear.key_dim * shape.linear.value_dim
    convolution = (2 * keys + heads * shape.linear.value_dim) * (shape.linear.convolution - 1)
    return ceil_div(shape.linear.layers, layout.pp) * (state + convolution) * 2


def graph_bytes(
    shape: ModelShape,
    layout: Layout,
    engine: Mapping[str, Any],
    defaults: ServerDefaults,
    running: int,
    release: str,
) -> int:
    """Memory of the decode graphs of one GPU; an estimate: six times as much is on record."""
    del release
    pools = max(1, layout.attention_dp * layout.dp)
    sizes = graph_sizes(engine, defaults, max(1, running // pools))
    if not sizes:
        return 0
    layers = max(layout.stage_layers(shape.layers))
    heads = ceil_div(shape.heads, layout.attention_tp)
    width = shape.kv_lora_rank if shape.attention == "mla" else shape.v_head_dim
    partial = heads * TRITON_KV_SPLITS * width * 4
    logits = shape.vocab * (2 + 4)
    # Under attention DP every rank's graph holds the tokens of all of them.
    gathered = shape.hidden * 2 * 2 * (layout.attention_dp if layout.attention_dp > 1 else 1)
    return GRAPH_FIXED_BYTES + max(sizes) * (partial + logits + gathered) + len(sizes) * layers * GRAPH_BYTES_PER_LAYER


def prefill_bytes(shape: ModelShape, layout: Layout, chunk: int, context: int) -> int:
    """Peak activations of the largest prefill chunk; after the start nothing reserves them."""
    tokens = chunk * layout.attention_dp if chunk > 0 else context
    heads = ceil_div(shape.heads, layout.attention_tp)
    own = max(1, tokens // layout.attention_dp)
    attention = own * heads * (2 * shape.head_dim + shape.v_head_dim) * 2
    # Expert outputs: every token once for each of its experts.
    moe_width = shape.experts_per_token * (shape.hidden + 3 * ceil_div(shape.moe_intermediate, max(1, layout.moe_tp)))
    dense_width = 3 * ceil_div(shape.intermediate, layout.tp)
    return attention + tokens * (PREFILL_COPIES * shape.hidden + max(moe_width, dense_width)) * 2


def segment_bytes(sizes: Iterable[int]) -> int:
    """What PyTorch's caching allocator takes from the GPU for tensors that live together.

    Below 1 MiB: packed in segments of 2 MiB. Below 10 MiB: best fit in segments of 20 MiB. Larger: a segment
    of its own, rounded to 2 MiB (c10/cuda/CUDACachingAllocator.cpp, kSmallSize, kMinLargeAlloc, kRoundLarge).
    """
    total, small = 0, 0
    holes: list[int] = []
    for size in sizes:
        rounded = ceil_div(size, 512) * 512
        if rounded < MIB:
            small += rounded
        elif rounded < 10 * MIB:
            at = bisect_left(holes, rounded)
            if at == len(holes):
                total += 20 * MIB
                hole = 20 * MIB
            else:
                hole = holes.pop(at)
            if hole - rounded >= MIB:
                insort(holes, hole - rounded)
        else:
            total += ceil_div(rounded, 2 * MIB) * 2 * MIB
    return total + ceil_div(small, 2 * MIB) * 2 * MIB
