"""Widths of the parallel groups against one another, the GPUs there and the attention heads."""

from __future__ import annotations

from collections.abc import Iterator

from ..verdict import Rule, Verdict
from .subject import Subject, gpus

_POSITIVE = Rule(
    "width-positive",
    "Every width is at least 1",
    "Widths of parallel groups count GPUs; the engine divides by them.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:286, runtime_context.py:106",
    "ZeroDivisionError: integer division or modulo by zero",
    "Leave the setting out, or set it to 1 or more.",
)
_WORLD = Rule(
    "world-size",
    "The GPUs that a split needs must be there",
    "SGLang takes tp x pp GPUs, times dp for whole replicas. Expert parallelism and attention DP divide the "
    "tensor-parallel group and add none. Nothing checks beforehand that the GPUs exist.",
    "SGLang 0.5.23 server_args.py:581-589; 0.5.11 model_executor/model_runner.py:1106",
    "torch.AcceleratorError: CUDA error: invalid device ordinal",
    "Lower tp_size, pp_size or dp_size until their product fits the host.",
)
_UNUSED = Rule(
    "unused-gpus",
    "GPUs that would stand idle",
    "Only tp x pp x dp GPUs work. ep_size says in how many groups the tensor-parallel ranks hold the experts; "
    "it adds no GPUs, and expert weights on each GPU are total / (tp x pp) whatever ep is.",
    "SGLang 0.5.23 server_args.py:581-589",
    None,
    "Raise tp_size or pp_size so that their product is the number of GPUs.",
)
_EP_LARGER = Rule(
    "ep-larger-than-tp",
    "ep_size cannot be larger than tp_size",
    "Expert-parallel ranks are tensor-parallel ranks seen in another way: tp_size / ep_size ranks share one "
    "expert. With ep_size above tp_size that is 0, and the engine divides by it.",
    "SGLang 0.5.11 entrypoints/engine.py:1307 (seen in a real start); 0.5.23 runtime_context.py:106",
    "ZeroDivisionError: integer division or modulo by zero",
    "Use an ep_size that divides tp_size: 1, 2, 4 or 8 for tp_size 8.",
)
_EP_DIVIDES = Rule(
    "ep-divides-tp",
    "ep_size must divide tp_size",
    "The tensor-parallel group is cut into equal expert groups. A rest leaves ranks without a group.",
    "SGLang 0.5.23 distributed/parallel_state.py:420; 0.5.11 distributed/parallel_state.py:323",
    "AssertionError (assert self.cpu_group is not None)",
    "Use an ep_size that divides tp_size.",
)
_ADP_DIVIDES = Rule(
    "attention-dp-divides-tp",
    "Attention DP must divide tp_size",
    "Attention DP cuts the tensor-parallel group into groups that each keep their own requests and KV cache.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:326; 0.5.11 server_args.py:2935",
    "AssertionError (assert tp_size % attn_dp_size == 0)",
    "Use a number of attention groups that divides tp_size.",
)
_ADP_OFF = Rule(
    "attention-dp-off",
    "Attention DP of 1 is none",
    "With one group the engine turns attention DP off without a word.",
    "SGLang 0.5.11 server_args.py:2929-2931; 0.5.23 arg_groups/overrides.py:1367",
    None,
    "Take the setting out, or give the number of groups.",
)
_ADP_OLD = Rule(
    "attention-dp-deprecated",
    "The old spelling of attention DP",
    "Since 0.5.22 attention DP is attn_dp_size: N. dp_size: N with enable_dp_attention still works and is to go "
    "after 2026-12-31.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:39",
    None,
    "Write attn_dp_size instead of dp_size and enable_dp_attention.",
)
_DP_BOTH = Rule(
    "replicas-with-attention-dp",
    "Replicas and attention DP exclude each other",
    "dp_size means whole replicas, attn_dp_size attention groups inside one. Since 0.5.22 both at once are refused.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:290",
    "--dp-size X with --attn-dp-size Y: data-parallel replicas combined with attention data parallelism are not "
    "supported.",
    "Take dp_size out and keep attn_dp_size.",
)
_DP_NODES = Rule(
    "replicas-over-nodes",
    "Replicas stay on one node",
    "Data-parallel replicas are not supported over several nodes; attention DP is.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:198; 0.5.11 server_args.py:6791",
    "multi-node data-parallel replicas are not supported; use attention DP (--attn-dp-size) across nodes",
    "Run one engine on each node, or use attention DP.",
)
_NODES = Rule(
    "nodes-divide-world",
    "Nodes must share the ranks evenly",
    "tp x pp ranks are dealt evenly to the nodes.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:180; 0.5.11 server_args.py:6775",
    "tp_size must be divisible by number of nodes",
    "Choose tp_size x pp_size as a multiple of nnodes.",
)
_NODES_STAGES = Rule(
    "nodes-cut-stages",
    "Nodes hold whole pipeline stages, or stages whole nodes",
    "Each node runs pp / nnodes stages, or each stage runs on nnodes / pp nodes, with the fraction cut off. With a "
    "rest some ranks are started nowhere, and the others wait for them until their time is up.",
    "SGLang 0.5.23 entrypoints/engine.py, _calculate_rank_ranges",
    None,
    "Choose a pp_size that is a multiple of nnodes, or divides it, and a tp_size that nnodes / pp_size divides.",
)
NODES_THERE = Rule(
    "nodes-there",
    "The hosts that a configuration is spread over must be there",
    "An engine of several nodes runs on the first hosts of its group, all at once, with the same GPUs on each. Asked "
    "of a sweep's and a deployment's hosts, before anything is stopped.",
    "SGLang 0.5.23 server_args.py (--nnodes, --node-rank, --dist-init-addr)",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 8/16 clients joined.",
    "Name the hosts of the group in sglang_service_nodes, the same list on each (docs/hosts.md).",
)
_DENSE_TP = Rule(
    "moe-dense-tp-size",
    "moe_dense_tp_size takes few values",
    "Before 0.5.13 it is 1 or unset; since then also tp_size.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:211; 0.5.11 server_args.py:6798",
    "moe_dense_tp_size only supports None, 1, or tp_size currently",
    "Take moe_dense_tp_size out, or set it to 1.",
)
_LM_HEAD = Rule(
    "dp-lm-head",
    "enable_dp_lm_head needs attention DP",
    "A replicated output layer serves attention groups. With replicas instead, the engine refuses it; with "
    "neither, it turns it off without a word.",
    "SGLang 0.5.23 arg_groups/overrides.py:1367, :1426; 0.5.11 server_args.py:2929, :2942",
    "--enable-dp-lm-head requires attention DP (--attn-dp-size).",
    "Add attention DP, or take enable_dp_lm_head out.",
)
_CONTEXT = Rule(
    "context-parallel",
    "Context-parallel and expert-data-parallel widths must nest",
    "attn_cp_size, moe_dp_size and dcp_size divide the tensor-parallel group as well.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:159-190, distributed/parallel_state.py:2665; 0.5.11 "
    "server_args.py:2891-2926",
    "tp_size must be divisible by attn_cp_size",
    "Use widths whose product divides tp_size.",
)
_HEADS = Rule(
    "heads-divide",
    "Attention heads must share evenly",
    "Each rank of an attention group computes its share of the heads. A group has tp_size / attention DP ranks.",
    "SGLang 0.5.23 models/deepseek_v2.py:2057; 0.5.11 models/qwen3_moe.py:468",
    "AssertionError (assert num_heads % attn_tp_size == 0)",
    "Use a tp_size, or attention DP, whose quotient divides the number of heads.",
)
_KV_HEADS = Rule(
    "kv-heads-divide",
    "KV heads must share or repeat evenly",
    "With fewer KV heads than ranks they are repeated, with more they are shared; both need an even division.",
    "SGLang 0.5.23 models/qwen3_moe.py:512-516; 0.5.11 models/qwen3_moe.py:474-478",
    "AssertionError (assert total_num_kv_heads % attn_tp_size == 0)",
    "Use a tp_size that divides, or is a multiple of, the number of KV heads.",
)
_VISION_HEADS = Rule(
    "vision-heads-divide",
    "The vision tower's heads must share evenly",
    "The vision tower is split over the attention group, like the language model, unless mm_enable_dp_encoder "
    "replicates it.",
    "SGLang 0.5.23 layers/attention/vision.py:1132; gpustack/gpustack#4769",
    "16 is not divisible by 6",
    "Use a tp_size that divides the vision heads, or mm_enable_dp_encoder: true.",
)
_VOCABULARY = Rule(
    "vocabulary-divides",
    "The vocabulary must share evenly",
    "Up to 0.5.21 the vocabulary is padded to a multiple of 64 and then shared by all ranks; since 0.5.22 it is "
    "padded to a multiple of the ranks too.",
    "SGLang 0.5.11 layers/vocab_parallel_embedding.py:235-292; 0.5.23 layers/vocab_parallel_embedding.py:273",
    "AssertionError: 163840 is not divisible by 6",
    "Use a tp_size of 1, 2, 4, 8 or 16, or SGLang 0.5.22 or newer.",
)

RULES = (
    _POSITIVE, _WORLD, _UNUSED, _EP_LARGER, _EP_DIVIDES, _ADP_DIVIDES, _ADP_OFF, _ADP_OLD, _DP_BOTH, _DP_NODES,
    _NODES, _NODES_STAGES, NODES_THERE, _DENSE_TP, _LM_HEAD, _CONTEXT, _HEADS, _KV_HEADS, _VISION_HEADS, _VOCABULARY,
)  # fmt: skip


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on the widths. If one is below 1 nothing else can be said."""
    layout = subject.layout
    for name in ("tp", "pp", "ep", "attention_dp", "dp", "nnodes", "dcp"):
        if (width := getattr(layout, name)) < 1:
            message = None
            if name == "attention_dp" and subject.number("attn_dp_size") is not None:
                message = f"--attn-dp-size must be positive (got {width})."
            yield _POSITIVE.verdict("reject", f"{name} is {width}; a width is at least 1.", message=message)
            return
    yield from _gpus(subject)
    yield from _experts_in_tp(subject)
    yield from _data_parallel(subject)
    yield from _context_parallel(subject)
    if subject.shape is not None and layout.tp % layout.attention_dp == 0:
        yield from _heads(subject)


def _split(subject: Subject) -> str:
    """`tp4 ep2`, as people say it."""
    return subject.layout.name().replace("_", " ")


def _gpus(subject: Subject) -> Iterator[Verdict]:
    layout, there = subject.layout, subject.gpus_there
    world = layout.tp * layout.pp
    if world % layout.nnodes:
        yield _NODES.verdict("reject", f"tp {layout.tp} x pp {layout.pp} = {world} ranks on {layout.nnodes} nodes.")
    elif max(layout.pp, layout.nnodes) % min(layout.pp, layout.nnodes) or layout.tp % layout.stage_nodes:
        sentence = f"pp {layout.pp} and tp {layout.tp} on {layout.nnodes} nodes leave ranks that no node starts."
        yield _NODES_STAGES.verdict("reject", sentence)
    if layout.dp > 1 and layout.nnodes > 1:
        old = "multi-node data parallel is not supported unless dp attention!"
        message = None if subject.since("0.5.22") else old
        sentence = f"{layout.dp} replicas over {layout.nnodes} nodes are not supported."
        yield _DP_NODES.verdict("reject", sentence, message=message)
    if there is None:
        return
    first = subject.whole_number("base_gpu_id", 0)
    step = subject.whole_number("gpu_id_step", 1)
    # The last GPU number that a node needs, plus one; spare numbers in between do not count.
    needed = first * layout.nnodes + (layout.gpus - layout.nnodes) * step + layout.nnodes
    if needed > there:
        shifted = f" from GPU {first} in steps of {step}" if (first, step) != (0, 1) else ""
        has = "the host has" if layout.nnodes == 1 else f"{layout.nnodes} such nodes have"
        sentence = f"{_split(subject)} needs {gpus(layout.gpus)}{shifted}; {has} {there}."
        yield _WORLD.verdict("reject", sentence)
    elif layout.gpus < there:
        idle = there - layout.gpus
        reason = ": ep divides the tp group and adds no GPUs" if layout.ep > 1 else ""
        sentence = f"{_split(subject)} works on {layout.gpus} of {gpus(there)} and leaves {idle} idle{reason}."
        advice = f"For all {there}: tp_size x pp_size = {there}, such as tp_size: {there}."
        if layout.ep > 1 and there % layout.ep == 0:
            advice = f"For all {there} with the same expert groups: tp_size: {there}, ep_size: {layout.ep}."
        yield _UNUSED.verdict("note", sentence, advice=advice)


def _experts_in_tp(subject: Subject) -> Iterator[Verdict]:
    layout = subject.layout
    divisors = [str(n) for n in range(1, layout.tp + 1) if layout.tp % n == 0]
    advice = f"Use an ep_size that divides tp_size {layout.tp}: {', '.join(divisors)}."
    if layout.ep > layout.tp:
        sentence = (
            f"ep {layout.ep} is larger than tp {layout.tp}: ep divides the tensor-parallel group, and a group of "
            f"{layout.tp} cannot hold {layout.ep} expert groups."
        )
        wider = f" For {layout.tp} x {layout.ep} GPUs write tp_size: {layout.tp * layout.ep}, ep_size: {layout.ep}."
        fits = subject.gpus_there is None or layout.tp * layout.ep <= subject.gpus_there
        yield _EP_LARGER.verdict("reject", sentence, advice=advice + (wider if fits else ""))
    elif layout.tp % layout.ep:
        sentence = f"ep {layout.ep} does not divide tp {layout.tp}; {layout.tp % layout.ep} ranks would have no group."
        message = None
        if subject.shape is not None and subject.shape.formats.experts.block[0]:
            # model_executor/model_runner.py:1075 asks before the groups are made.
            message = f"tp_size {layout.tp} must be divisible by ep_size {layout.ep}"
        yield _EP_DIVIDES.verdict("reject", sentence, advice=advice, message=message)


def _data_parallel(subject: Subject) -> Iterator[Verdict]:
    layout = subject.layout
    if layout.tp % layout.attention_dp:
        sentence = f"Attention DP {layout.attention_dp} does not divide tp {layout.tp}."
        yield _ADP_DIVIDES.verdict("reject", sentence)
    if subject.on("enable_dp_attention"):
        if layout.attention_dp == 1:
            yield _ADP_OFF.verdict("note", "enable_dp_attention without dp_size above 1 changes nothing.")
        elif subject.since("0.5.22"):
            sentence = f"dp_size with enable_dp_attention is deprecated; it means attn_dp_size: {layout.attention_dp}."
            yield _ADP_OLD.verdict("note", sentence)
    if layout.attention_dp > 1 and layout.dp > 1:
        sentence = f"dp_size {layout.dp} (replicas) and attn_dp_size {layout.attention_dp} cannot go together."
        message = (
            f"--dp-size {layout.dp} with --attn-dp-size {layout.attention_dp}: data-parallel replicas combined with "
            "attention data parallelism are not supported."
        )
        yield _DP_BOTH.verdict("reject", sentence, message=message)
    if subject.on("enable_dp_lm_head") and layout.attention_dp == 1:
        severity, effect = ("reject", "is refused") if layout.dp > 1 else ("note", "does nothing")
        message = None if subject.since("0.5.22") else "Please enable dp attention when setting enable_dp_lm_head."
        yield _LM_HEAD.verdict(severity, f"enable_dp_lm_head without attention DP {effect}.", message=message)
    if subject.given("moe_dense_tp_size"):
        yield from _dense_tp(subject)


def _dense_tp(subject: Subject) -> Iterator[Verdict]:
    size = subject.whole_number("moe_dense_tp_size", 1)
    new = subject.since("0.5.13.post1")
    if size == 1 or (new and size == subject.layout.tp):
        return
    allowed = f"1 or {subject.layout.tp} (tp_size)" if new else "1"
    message = None if new else "moe_dense_tp_size only support 1 and None currently"
    yield _DENSE_TP.verdict("reject", f"moe_dense_tp_size is {size}; it can be {allowed}.", message=message)


def _context_parallel(subject: Subject) -> Iterator[Verdict]:
    layout, tp = subject.layout, subject.layout.tp
    cp, moe_dp = subject.whole_number("attn_cp_size"), subject.whole_number("moe_dp_size")
    if min(cp, moe_dp) < 1:
        yield _POSITIVE.verdict("reject", f"attn_cp_size {cp}, moe_dp_size {moe_dp}: a width is at least 1.")
        return
    if tp % (cp * layout.attention_dp):
        sentence = f"attn_cp_size {cp} x attention DP {layout.attention_dp} does not divide tp {tp}."
        if cp > 1:
            name = "attn_dp_size" if subject.since("0.5.22") else "dp_size"
            message = f"tp_size must be divisible by {name} * attn_cp_size" if tp % cp == 0 else None
            yield _CONTEXT.verdict("reject", sentence, message=message)
    if moe_dp > 1 and tp % moe_dp:
        message = "tp_size must be divisible by moe_dp_size"
        yield _CONTEXT.verdict("reject", f"moe_dp_size {moe_dp} does not divide tp {tp}.", message=message)
    elif moe_dp > 1 and layout.ep > 1 and layout.ep * moe_dp != tp:
        sentence = f"ep {layout.ep} x moe_dp_size {moe_dp} = {layout.ep * moe_dp} must be tp {tp}."
        yield _CONTEXT.verdict("reject", sentence, message="ep_size * moe_dp_size must be equal to tp_size")
    if moe_dp > 1 and cp != moe_dp:
        message = "attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"
        sentence = f"moe_dp_size {moe_dp} needs attn_cp_size {moe_dp}; it is {cp}."
        yield _CONTEXT.verdict("reject", sentence, message=message)
    if tp % layout.dcp:
        message = f"tensor_model_parallel_size ({tp}) must be divisible by decode_context_parallel_size ({layout.dcp})"
        yield _CONTEXT.verdict("reject", f"dcp_size {layout.dcp} does not divide tp {tp}.", message=message)


def _heads(subject: Subject) -> Iterator[Verdict]:
    shape, width, layout = subject.shape, subject.attention_tp, subject.layout
    if shape is None or width < 1:
        return
    shared = f"attention groups of {width} (tp {layout.tp} / attention DP {layout.attention_dp})"
    if shape.heads % width:
        yield _HEADS.verdict("reject", f"{shape.heads} attention heads do not divide over {shared}.")
    elif shape.attention != "mla" and shape.kv_heads % width and width % shape.kv_heads:
        yield _KV_HEADS.verdict("reject", f"{shape.kv_heads} KV heads neither divide nor repeat over {shared}.")
    vision_heads = getattr(shape.vision, "heads", 0)
    if vision_heads and vision_heads % width and not subject.on("mm_enable_dp_encoder"):
        yield _VISION_HEADS.verdict("reject", f"{vision_heads} vision heads do not divide over {shared}.")
    ranks = width if subject.on("enable_dp_lm_head") else layout.tp
    padded = -(-shape.vocab // 64) * 64
    if padded % ranks and not subject.since("0.5.22"):
        sentence = f"A vocabulary of {shape.vocab} (padded to {padded}) does not divide over {ranks} ranks."
        yield _VOCABULARY.verdict("reject", sentence, message=f"AssertionError: {padded} is not divisible by {ranks}")
