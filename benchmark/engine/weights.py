"""Every tensor of a model on one rank, in the order in which SGLang builds it, with its bytes.

Source: SGLang 0.5.11 and 0.5.23 (models/deepseek_v2.py, qwen3_moe.py, gpt_oss.py, kimi_k25.py; layers/linear.py,
vocab_parallel_embedding.py, moe/fused_moe_triton/layer.py; layers/quantization). Bytes are counted tensor by tensor,
because what a parameter count misses (copies, padding, what is replicated) is what decides whether a model fits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .formats import BF16, Format
from .layout import Layout
from .models import LinearAttention, ModelShape, Vision

VOCABULARY_PADDING = 64  # vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE


@dataclass(frozen=True)
class Allocation:
    """One tensor on one rank."""

    tensor: str
    layer: int | None
    bytes: int
    part: str
    """experts, attention, dense, shared, router, embeddings, vision, draft or other."""
    temporary: bool = False
    """Freed when the weights are loaded."""
    copies: int = 1
    """Ranks of a stage that hold this same tensor: 1 if it is split over all, tp if all have the whole."""


@dataclass(frozen=True)
class BuildOptions:
    """Settings that change how weights are laid out, apart from the widths."""

    shared_replicated: bool = False
    """An all-to-all backend is in use: each rank keeps the shared experts whole."""
    dp_lm_head: bool = False
    dense_replicated: bool = False
    """--moe-dense-tp-size 1."""
    redundant_experts: int = 0
    draft_layers: int = 0
    """Layers of the model's own draft (multi-token prediction), which the last stage loads too."""
    mxfp4_pad: tuple[int, int] = (64, 1)
    """(intermediate a rank, hidden) are padded to multiples of these for MXFP4 kernels."""


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def pad(number: int, multiple: int) -> int:
    """The next multiple: pad(2880, 256) is 3072."""
    return ceil_div(number, multiple) * multiple


def build(shape: ModelShape, layout: Layout, stage: int, options: BuildOptions) -> Iterator[Allocation]:
    """The tensors of one rank of a pipeline stage, in building order, then what loading adds to them.

    Raises:
        ValueError: the widths do not nest (rules.py says more), or no such stage.
    """
    if not layout.whole:
        raise ValueError(f"tp {layout.tp}, ep {layout.ep}, attention DP {layout.attention_dp} do not nest.")
    sizes = layout.stage_layers(shape.layers)
    if not 0 <= stage < len(sizes):
        raise ValueError(f"There are {len(sizes)} pipeline stages; there is no stage {stage}.")
    first = sum(sizes[:stage])
    layers = range(first, first + sizes[stage])
    if shape.vision:
        yield from _vision(shape, shape.vision, layout)
    vocab = pad(shape.vocab, VOCABULARY_PADDING)
    if stage == 0 or (shape.tied and stage == layout.pp - 1):
        # With one attention rank the table is whole everywhere (get_embedding_tp_kwargs).
        embed = ceil_div(vocab, layout.attention_tp) * shape.hidden * 2
        yield Allocation("embed_tokens", None, embed, "embeddings", copies=layout.attention_dp)
    if shape.rope_dim:
        yield Allocation(
            "rotary.cos_sin_cache", None, shape.rope_positions * shape.rope_dim * 4, "other", copies=layout.tp
        )
    for layer in layers:
        yield from _layer(shape, layout, layer, options)
    if stage == layout.pp - 1:
        yield Allocation("norm", None, shape.hidden * 2, "other", copies=layout.tp)
        if not shape.tied:
            split = layout.attention_tp if options.dp_lm_head else layout.tp
            yield Allocation(
                "lm_head", None, ceil_div(vocab, split) * shape.hidden * 2, "embeddings", copies=layout.tp // split
            )
    if shape.attention == "mla":
        for layer in layers:
            yield from _absorbed(shape, layout, layer)
    if stage == layout.pp - 1:
        for _ in range(options.draft_layers):
            yield from _draft(shape, layout, options)


def _draft(shape: ModelShape, layout: Layout, options: BuildOptions) -> Iterator[Allocation]:
    """One draft layer: a decoder layer like the last, and a matrix that joins it to the model (deepseek_nextn.py)."""
    last = shape.layers - 1
    joined = shape.hidden * 2 * shape.hidden * 2
    yield Allocation("draft.eh_proj", None, joined, "draft", copies=layout.tp)
    more = _absorbed(shape, layout, last) if shape.attention == "mla" else iter(())
    for allocation in (*_layer(shape, layout, last, options), *more):
        yield replace(allocation, tensor=f"draft.{allocation.tensor}", layer=None, part="draft")


def _layer(shape: ModelShape, layout: Layout, layer: int, options: BuildOptions) -> Iterator[Allocation]:
    if shape.linear and (layer + 1) % (shape.layers // (shape.layers - shape.linear.layers)):
        tensors = _linear_attention(shape, shape.linear, layout, layer)
    elif shape.attention == "mla":
        tensors = _mla(shape, layout, layer)
    else:
        tensors = _gqa(shape, layout, layer)
    yield from tensors
    if shape.moe[layer]:
        yield from _moe(shape, layout, layer, options)
    else:
        split = 1 if options.dense_replicated else layout.tp
        yield from _mlp(shape.formats.dense, "mlp", "dense", shape.hidden, shape.intermediate, split, layout.tp, layer)
    yield Allocation("layernorms", layer, 2 * shape.hidden * 2, "other", copies=layout.tp)


def _linear(
    form: Format, tensor: str, part: str, outputs: int, inputs: int, layer: int, copies: int = 1
) -> Iterator[Allocation]:
    yield Allocation(f"{tensor}.weight", layer, form.weight_bytes(outputs, inputs), part, copies=copies)
    if scales := form.scales(outputs, inputs):
        yield Allocation(f"{tensor}.weight_scale", layer, scales, part, copies=copies)


def _mlp(
    form: Format, prefix: str, part: str, hidden: int, width: int, split: int, tp: int, layer: int
) -> Iterator[Allocation]:
    share, copies = ceil_div(width, split), tp // split
    yield from _linear(form, f"{prefix}.gate_up_proj", part, 2 * share, hidden, layer, copies)
    yield from _linear(form, f"{prefix}.down_proj", part, hidden, share, layer, copies)


def _mla(shape: ModelShape, layout: Layout, layer: int) -> Iterator[Allocation]:
    form, atp, tp, dp = shape.formats.attention, layout.attention_tp, layout.tp, layout.attention_dp
    heads = ceil_div(shape.heads, atp)
    latent = shape.kv_lora_rank + shape.rope_dim
    query = heads * (shape.nope_dim + shape.rope_dim)
    if shape.q_lora_rank:
        # q_a and kv_a are one matrix, whole on every rank (fused_qkv_a_proj_with_mqa).
        yield from _linear(
            form, "self_attn.fused_qkv_a_proj", "attention", shape.q_lora_rank + latent, shape.hidden, layer, tp
        )
        yield from _linear(form, "self_attn.q_b_proj", "attention", query, shape.q_lora_rank, layer, dp)
    else:
        yield from _linear(form, "self_attn.q_proj", "attention", query, shape.hidden, layer, dp)
        yield from _linear(form, "self_attn.kv_a_proj", "attention", latent, shape.hidden, layer, tp)
    up = heads * (shape.nope_dim + shape.v_head_dim)
    yield from _linear(form, "self_attn.kv_b_proj", "attention", up, shape.kv_lora_rank, layer, dp)
    yield from _linear(form, "self_attn.o_proj", "attention", shape.hidden, heads * shape.v_head_dim, layer, dp)
    if shape.index_dim:
        width = shape.index_heads * shape.index_dim
        yield from _linear(form, "self_attn.indexer.wq_b", "attention", width, shape.q_lora_rank, layer, tp)
        yield from _linear(form, "self_attn.indexer.wk", "attention", shape.index_dim, shape.hidden, layer, tp)
        yield from _linear(
            BF16, "self_attn.indexer.weights_proj", "attention", shape.index_heads, shape.hidden, layer, tp
        )


def _absorbed(shape: ModelShape, layout: Layout, layer: int) -> Iterator[Allocation]:
    """w_kc and w_vc: contiguous bf16 copies of the halves of kv_b_proj, which stays (post_load_weights)."""
    heads = ceil_div(shape.heads, layout.attention_tp)
    for tensor, width in (("w_kc", shape.nope_dim), ("w_vc", shape.v_head_dim)):
        size = heads * width * shape.kv_lora_rank * 2
        yield Allocation(f"self_attn.{tensor}", layer, size, "attention", copies=layout.attention_dp)


def _gqa(shape: ModelShape, layout: Layout, layer: int) -> Iterator[Allocation]:
    form, atp, dp = shape.formats.attention, layout.attention_tp, layout.attention_dp
    heads = ceil_div(shape.heads, atp)
    kv_heads = max(1, ceil_div(shape.kv_heads, atp))
    query = heads * shape.head_dim * (2 if shape.attention_gate else 1)
    keys = 2 * kv_heads * shape.head_dim
    # Key and value heads are repeated when there are fewer of them than ranks.
    repeated = max(1, atp // shape.kv_heads)
    yield from _linear(form, "self_attn.q_proj", "attention", query, shape.hidden, layer, dp)
    yield from _linear(form, "self_attn.kv_proj", "attention", keys, shape.hidden, layer, dp * repeated)
    yield from _linear(form, "self_attn.o_proj", "attention", shape.hidden, heads * shape.head_dim, layer, dp)
    if shape.attention_bias:
        yield Allocation("self_attn.bias", layer, (query + keys) * 2, "attention", copies=dp)
    if shape.qk_norm:
        yield Allocation("self_attn.qk_norm", layer, 2 * shape.head_dim * 2, "other", copies=layout.tp)


def _linear_attention(shape: ModelShape, linear: LinearAttention, layout: Layout, layer: int) -> Iterator[Allocation]:
    """A gated delta-net layer (models/qwen3_next.py): its heads are split like attention heads."""
    form, atp, dp = shape.formats.attention, layout.attention_tp, layout.attention_dp
    keys = ceil_div(linear.key_heads, atp) * linear.key_dim
    values = ceil_div(linear.value_heads, atp) * linear.value_dim
    gates = 2 * ceil_div(linear.value_heads, atp)
    yield from _linear(form, "linear_attn.in_proj_qkvz", "attention", 2 * keys + 2 * values, shape.hidden, layer, dp)
    yield from _linear(BF16, "linear_attn.in_proj_ba", "attention", gates, shape.hidden, layer, dp)
    yield Allocation("linear_attn.conv1d", layer, (2 * keys + values) * linear.convolution * 2, "attention", copies=dp)
    yield from _linear(form, "linear_attn.out_proj", "attention", shape.hidden, values, layer, dp)


def _moe(shape: ModelShape, layout: Layout, layer: int, options: BuildOptions) -> Iterator[Allocation]:
    tp = layout.tp
    router = shape.experts * shape.hidden * shape.router_bits // 8
    yield Allocation("mlp.gate", layer, router + shape.experts * 4, "router", copies=tp)
    experts = ceil_div(shape.experts + options.redundant_experts, layout.ep)
    yield from _experts(shape, layout, layer, experts, options)
    if shape.shared_intermediate:
        split = 1 if options.shared_replicated else tp
        yield from _mlp(
            shape.formats.shared,
            "mlp.shared_experts",
            "shared",
            shape.hidden,
            shape.shared_intermediate,
            split,
            tp,
            layer,
        )


def _experts(
    shape: ModelShape, layout: Layout, layer: int, experts: int, options: BuildOptions
) -> Iterator[Allocation]:
    """w13 (gate and up) and w2 (down) of this rank's experts, packed weights before scales.

    Shapes of INT4: compressed_tensors_wNa16_moe.py:100-245. g_idx and sort_indices exist while loading.
    """
    form, width, hidden = shape.formats.experts, ceil_div(shape.moe_intermediate, layout.moe_tp), shape.hidden
    if form.name == "mxfp4":
        width, hidden = pad(width, options.mxfp4_pad[0]), pad(hidden, options.mxfp4_pad[1])
    part = "experts"
    yield Allocation("mlp.experts.w13_weight", layer, experts * form.weight_bytes(2 * width, hidden), part)
    yield Allocation("mlp.experts.w2_weight", layer, experts * form.weight_bytes(hidden, width), part)
    if form.quantized:
        yield Allocation("mlp.experts.w13_weight_scale", layer, experts * form.scales(2 * width, hidden), part)
        yield Allocation("mlp.experts.w2_weight_scale", layer, experts * form.scales(hidden, width), part)
    if form.name.startswith("int") and form.group:
        yield Allocation("mlp.experts.w13_g_idx", layer, experts * hidden * 4 * 2, part, temporary=True)
        yield Allocation("mlp.experts.w2_g_idx", layer, experts * width * 4 * 2, part, temporary=True)
    if shape.expert_bias:
        yield Allocation("mlp.experts.bias", layer, experts * (2 * width + hidden) * 2, part)


def _vision(shape: ModelShape, vision: Vision, layout: Layout) -> Iterator[Allocation]:
    """The tower is built first, on every stage: its attention is split over TP, the rest is whole (kimi_k25.py:667)."""
    square = vision.hidden * vision.hidden
    yield Allocation("vision.attn", None, vision.layers * ceil_div(4 * square, layout.tp) * 2, "vision")
    mlp = vision.layers * 2 * vision.hidden * vision.intermediate * 2
    yield Allocation("vision.mlp", None, mlp, "vision", copies=layout.tp)
    merged = vision.hidden * vision.merge
    projector = (merged * merged + merged * shape.hidden) * 2
    yield Allocation("vision.projector", None, projector, "vision", copies=layout.tp)


@functools.lru_cache(maxsize=512)
def tensors(shape: ModelShape, layout: Layout, stage: int, options: BuildOptions) -> tuple[Allocation, ...]:
    """`build` as a tuple, kept: a plan asks for the same stage several times."""
    return tuple(build(shape, layout, stage, options))
