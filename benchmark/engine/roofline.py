"""Time of the work on one GPU: the assumptions, each a named Range with its source, and the roofline they enter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

from .budget import build_options, kv_bytes_per_token
from .hardware import Gpu, Host
from .layout import Layout
from .models import ModelShape
from .ranges import Range
from .weights import ceil_div, tensors

# Share of the data sheet's bandwidth that reading weights reaches in decode. Two captures on one H200 (a step of
# 2.33 ms for 6.8 GB and of 1.60 ms for 1.3 GB) fit 0.88 with the overheads below.
BANDWIDTH_SHARE = Range(0.6, 0.88, 0.95)
# Decode attention reads the cache in pieces, with split partial results. Assumed.
CACHE_BANDWIDTH_SHARE = Range(0.3, 0.55, 0.85)
# Share of the dense tensor rate of large products; grouped products of experts are the lower end. Assumed; a cold
# prefill of 8,192 tokens at 7,478 tok/s on eight RTX PRO 6000 (rtx6kpro) lies inside.
COMPUTE_SHARE = Range(0.25, 0.45, 0.7)
ATTENTION_COMPUTE_SHARE = Range(0.12, 0.3, 0.55)
# A shard `width` wide works at width / (width + this): tiles, prologue and epilogue of a narrow product. Assumed.
SHARD_WIDTH_HALF = Range(0.0, 40.0, 200.0)
# Tokens of one batch share experts, so fewer distinct ones are touched than even routing says. Assumed.
SHARED_EXPERTS = Range(0.55, 0.85, 1.0)
# What a layer costs beside the above inside a CUDA graph: a dozen small kernels, their gaps, norms, routing. Fitted
# to the two captures named above.
MOE_LAYER_OVERHEAD = Range(45e-6, 75e-6, 130e-6)
DENSE_LAYER_OVERHEAD = Range(15e-6, 30e-6, 60e-6)
# Above one token routing sorts tokens by expert and adds their outputs up: a few kernels more in every such layer.
# Two models on one H200 take 0.3 (7 layers) and 0.5 ms (11) more at 8 requests than their bytes explain.
MOE_BATCH_OVERHEAD = Range(10e-6, 42e-6, 90e-6)
# Where products take 8- or 4-bit floating-point numbers, activations are quantized in front of each: four or five small
# kernels a layer. Assumed at 5 us each; integer weights are widened inside the product and need none.
ACTIVATION_QUANTIZATION = Range(5e-6, 25e-6, 60e-6)
# Without a graph a layer's kernels are launched from Python, one by one, and the CPU is the limit. On one H200 (SGLang
# 0.5.11, 16 virtual cores) decode above the graphs took 21 ms a step more for 12 layers (MLA, experts); prefills of 512
# tokens 19 to 40 ms for them and 35 to 38 for 8 larger ones, one of 8,192 tokens 38 to 56 for 12: launches and work add
# up. The range is what starts on that host differ by, and other CPUs. How it divides over the parts of a layer, and
# what grouped-query attention and a dense MLP take, follows the number of their kernels; assumed.
EAGER_ATTENTION = {"mla": Range(0.5e-3, 1.05e-3, 1.9e-3), "gqa": Range(0.25e-3, 0.5e-3, 1.0e-3)}
EAGER_EXPERTS = Range(0.4e-3, 0.7e-3, 1.4e-3)
EAGER_MLP = Range(0.05e-3, 0.15e-3, 0.4e-3)
# Of a layer whose collectives are launched from Python too: each rank then waits for the slower one, twice. Prefills
# of 512 tokens took 41 to 50 ms on two H200s where one took 26 (mini-moe, first machine of docs/evidence/several-gpus).
EAGER_COLLECTIVES = Range(0.1e-3, 0.8e-3, 2.2e-3)
# Prefill from piecewise graphs still launches attention, and what splits the graph, from Python. Assumed.
PIECEWISE_LAYER_OVERHEAD = Range(0.1e-3, 0.4e-3, 1.5e-3)
# Sampling, scheduling, detokenizing: once a step, and for each request. The decode lines of a log with evenly routed
# batches of 8, 64 and 256 (mini-moe on one H200: 2.53, 3.62, 6.49 ms) leave 0.6, 1.2 and 3.2 ms for the second, with
# the overhead of batches above.
STEP_OVERHEAD = Range(0.15e-3, 0.3e-3, 1.0e-3)
REQUEST_OVERHEAD = Range(4e-6, 10e-6, 40e-6)
# Several ranks agree in every step on what runs, by messages between their processes. Six starts of mini-moe over two
# H200s took 1.77 to 2.25 ms a step where their work and collectives explain 1.57 to 1.64, and one GPU 1.53 of 1.48.
RANKS_OVERHEAD = Range(0.05e-3, 0.2e-3, 0.8e-3)
# Scheduling a prefill, its first token, and the HTTP server's way there and back.
PREFILL_OVERHEAD = Range(1e-3, 4e-3, 12e-3)
# Pipeline stages have no overlapped scheduler (overrides.py:1624): the CPU's part shows in every micro-batch, and so
# does the message to the next stage, which is pickled. On two H200s (fourth machine of docs/evidence/several-gpus) a
# step of one request took 6.2 ms over two stages and 1.4 ms on one GPU, a prefill 45 and 24 ms.
PIPELINE_STAGE_OVERHEAD = Range(0.1e-3, 1.8e-3, 3.0e-3)
PIPELINE_STAGE_PREFILL = Range(0.5e-3, 8e-3, 15e-3)
# Attention-DP ranks tell each other before every pass what each of them runs: the same machine took 2.9 ms a step
# where two tensor-parallel ranks took 1.9 and prefilled in 52 ms instead of 45.
ATTENTION_DP_OVERHEAD = Range(0.2e-3, 0.9e-3, 2.0e-3)
# A stage waits for micro-batches of unequal size, with a prefill in one of them, and for the sampled tokens' way back.
# Four stages on one H100 host were 3.5 times slower than tp4 (gpustack, GLM-4.5-Air). Applies to batches above one.
PIPELINE_STALL = Range(1.05, 1.5, 2.5)
# Load of the busiest rank over the expected maximum of even routing: real routers are uneven. Assumed.
ROUTER_SKEW = Range(1.0, 1.2, 1.8)
BALANCED_SKEW = Range(1.0, 1.05, 1.3)
# EPLB records which experts each layer used (a scatter and a copy a layer; assumed), and every 1,000 passes
# (--eplb-rebalance-num-iterations) moves a share of the experts between GPUs (assumed).
EPLB_LAYER_OVERHEAD = Range(20e-6, 60e-6, 400e-6)
EPLB_PASSES = 1000
EPLB_MOVED_SHARE = Range(0.2, 0.5, 1.0)
EPLB_PCIE_BANDWIDTH = 25e9
# What no part accounts for: the kernels a build has, clocks, noise (the same public configuration measured twice
# differs by 16 %). Relative to the whole; assumed.
UNACCOUNTED_BELOW = 0.2
UNACCOUNTED_ABOVE = 0.6
# Expected maximum of n independent standard normal values (order statistics).
MAXIMUM_OF_NORMALS = {2: 0.564, 4: 1.029, 8: 1.423, 16: 1.766, 32: 2.070, 64: 2.344}


@dataclass(frozen=True)
class StageWork:
    """What one rank of a pipeline stage reads and multiplies, apart from what the batch decides."""

    layers: int
    moe_layers: int
    fixed_bytes: int
    """Read in every pass: attention, dense and shared MLPs, router, head."""
    expert_bytes: int
    """One expert's share of one layer."""
    matrix_flops: float
    """For one token: 2 x parameters of everything but routed experts and the output layer, on this rank."""
    head_flops: float
    """For one token that is sampled: the output layer."""
    cache_bytes: int
    """One token of context, apart from its index keys."""
    index_bytes: int = 0
    """Index keys of one token of context, which sparse attention reads for all of them."""


def stage_work(
    shape: ModelShape, layout: Layout, stage: int, engine: Mapping[str, Any], host: Host, release: str
) -> StageWork:
    """Sum up the tensors of one rank of a stage."""
    options = build_options(engine, host, shape)
    sizes = layout.stage_layers(shape.layers)
    first = sum(sizes[:stage])
    moe = sum(shape.moe[first : first + sizes[stage]])
    formats = shape.formats
    bits = {"attention": formats.attention.bits, "dense": formats.dense.bits, "shared": formats.shared.bits}
    fixed = experts = 0
    flops = head = 0.0
    for tensor in tensors(shape, layout, stage, options):
        # Tables are looked up, the tower runs for images only, and decode multiplies by the two copies of kv_b_proj.
        skipped = tensor.tensor.startswith(("rotary", "embed", "self_attn.kv_b_proj"))
        if tensor.temporary or tensor.part in ("vision", "draft") or skipped:
            continue
        if tensor.part == "experts":
            experts += tensor.bytes
            continue
        fixed += tensor.bytes
        if tensor.tensor == "lm_head":
            head += tensor.bytes  # two operations for two bytes
        elif not tensor.tensor.endswith("scale"):
            flops += 2 * tensor.bytes / (bits.get(tensor.part, 16) / 8)
    index = sizes[stage] * (shape.index_dim + ceil_div(shape.index_dim, 128) * 4)
    local = ceil_div(shape.experts + options.redundant_experts, layout.ep) if moe else 1
    return StageWork(
        layers=sizes[stage],
        moe_layers=moe,
        fixed_bytes=fixed,
        expert_bytes=experts // (moe * local) if moe else 0,
        matrix_flops=flops,
        head_flops=head,
        cache_bytes=kv_bytes_per_token(shape, layout, stage, engine, host, release) - index,
        index_bytes=index,
    )


def experts_touched(experts: int, chosen: int, tokens: int, ranks: int) -> float:
    """Distinct experts that `tokens` tokens touch on the busiest of `ranks`, if each expert is equally likely.

    A rank holds E/r experts, each touched with p = 1 - (1 - k/E)^T; the expected maximum over ranks is taken as that
    of as many normal values with the same mean and variance.
    """
    probability = 1 - (1 - chosen / experts) ** tokens
    local = experts / ranks
    mean = local * probability
    if ranks == 1:
        return mean
    spread = sqrt(local * probability * (1 - probability) * (1 - 1 / ranks))
    factor = MAXIMUM_OF_NORMALS.get(ranks) or 0.75 * sqrt(2 * log(ranks))
    return min(local, tokens * chosen, max(1.0, mean + factor * spread))


def matrices_seconds(shape: ModelShape, gpu: Gpu, stage: StageWork, tokens: int, sampled: int) -> Range:
    """Attention projections, dense and shared MLPs, router and head of one stage for `tokens` tokens of this rank, of
    which `sampled` get logits.
    """
    reading = per(stage.fixed_bytes, gpu.bandwidth, BANDWIDTH_SHARE)
    rate = tensor_rate(gpu, shape.formats.attention.bits, shape.formats.attention.name)
    flops = stage.matrix_flops * tokens + stage.head_flops * sampled
    return longer(reading, per(flops, rate, COMPUTE_SHARE))


def experts_seconds(
    shape: ModelShape, layout: Layout, gpu: Gpu, stage: StageWork, tokens: int, *, balanced: bool
) -> Range:
    """Routed experts of one stage on the busiest rank, for `tokens` tokens of the whole TP group."""
    touched = experts_touched(shape.experts, shape.experts_per_token, tokens, layout.ep)
    least = (
        min(touched, shape.experts_per_token / layout.ep) if layout.ep > 1 else min(touched, shape.experts_per_token)
    )
    width = shape.moe_intermediate / layout.moe_tp
    one = stage.expert_bytes * stage.moe_layers / gpu.bandwidth
    times = []
    for shared, bandwidth, half in zip(
        three(SHARED_EXPERTS), falling(BANDWIDTH_SHARE), three(SHARD_WIDTH_HALF), strict=True
    ):
        times.append(one * max(least, touched * shared if tokens > 1 else touched) / bandwidth * (width + half) / width)
    reading = Range(*times)
    flops = 2 * 3 * shape.hidden * width * tokens * shape.experts_per_token / layout.ep * stage.moe_layers
    rate = tensor_rate(gpu, shape.formats.experts.bits, shape.formats.experts.name)
    multiplying = per(flops, rate, COMPUTE_SHARE)
    if layout.ep > 1:
        skew = BALANCED_SKEW if balanced else ROUTER_SKEW
        multiplying = Range(*(a * b for a, b in zip(three(multiplying), three(skew), strict=True)))
    return longer(reading, multiplying)


def attention_seconds(
    shape: ModelShape, layout: Layout, gpu: Gpu, stage: StageWork, pairs: float, attended: float, *, decode: bool
) -> Range:
    """Attention of one stage over `pairs` (query tokens x cached tokens, summed over this rank's requests), of which
    sparse attention looks at `attended` and indexes the rest.
    """
    heads = ceil_div(shape.heads, layout.attention_tp)
    layers = stage.layers * shape.attention_layers / shape.layers
    absorbed = shape.attention == "mla" and decode
    wide = 2 * shape.kv_lora_rank + shape.rope_dim if absorbed else shape.head_dim + shape.v_head_dim
    multiplying = per(2 * heads * wide * attended * layers, gpu.bf16_flops, ATTENTION_COMPUTE_SHARE)
    if shape.index_dim:
        indexing = 2 * shape.index_heads * shape.index_dim * pairs * layers
        multiplying = multiplying.plus(per(indexing, gpu.fp8_flops, ATTENTION_COMPUTE_SHARE))
    if not decode:
        return multiplying
    read = attended * stage.cache_bytes + pairs * stage.index_bytes
    return longer(per(read, gpu.bandwidth, CACHE_BANDWIDTH_SHARE), multiplying)


def eplb_seconds(shape: ModelShape, layout: Layout, host: Host, stage: StageWork) -> Range:
    """What EPLB adds to each pass: its counters, and its moves spread over the passes between them."""
    held = shape.experts / layout.ep * stage.expert_bytes * stage.moe_layers
    bandwidth = host.gpu.nvlink / 2 if host.nvlink else EPLB_PCIE_BANDWIDTH
    moving = EPLB_MOVED_SHARE.scaled(held / bandwidth / EPLB_PASSES)
    return EPLB_LAYER_OVERHEAD.scaled(stage.moe_layers).plus(moving)


def quantizes_activations(shape: ModelShape) -> bool:
    """Whether products take quantized activations: FP8 and NVFP4; MXFP4 and integer weights are widened instead."""
    formats = shape.formats
    return any(form.name in ("fp8", "nvfp4") for form in (formats.experts, formats.dense, formats.attention))


def tensor_rate(gpu: Gpu, bits: int, name: str) -> float:
    """Tensor rate for weights of a format: INT4 is widened to bf16; FP8, and FP4 since Blackwell, have their own."""
    if bits == 8:
        return gpu.fp8_flops
    if name in ("nvfp4", "mxfp4") and gpu.compute_capability[0] >= 10:
        return gpu.fp4_flops
    return gpu.bf16_flops


def three(range_: Range) -> tuple[float, float, float]:
    return range_.low, range_.expected, range_.high


def falling(range_: Range) -> tuple[float, float, float]:
    return range_.high, range_.expected, range_.low


def per(amount: float, rate: float, share: Range) -> Range:
    """Seconds for an amount at a share of a rate: the largest share gives the lowest time."""
    return Range(*(amount / (rate * part) for part in falling(share)))


def longer(a: Range, b: Range) -> Range:
    return Range(max(a.low, b.low), max(a.expected, b.expected), max(a.high, b.high))
