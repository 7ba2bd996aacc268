"""Experts: how they divide over the ranks, what their quantization allows, and which kernels move them."""

from __future__ import annotations

from collections.abc import Iterator

from ..formats import Format
from ..models import ModelShape
from ..verdict import Rule, Verdict
from .subject import Subject

_COUNT = Rule(
    "experts-divide-ep",
    "Experts must divide into the expert groups",
    "Every expert group holds the same number of experts, redundant ones included.",
    "SGLang 0.5.23 layers/moe/fused_moe_triton/layer.py:414, eplb/expert_location.py:256; 0.5.11 layer.py:211",
    "AssertionError (assert num_experts % ep_size == 0)",
    "Use an ep_size that divides the experts, or add redundant experts up to the next multiple.",
)
_FEWER = Rule(
    "tp-larger-than-experts",
    "tp_size cannot exceed the number of experts",
    "Some models refuse more tensor-parallel ranks than experts: DeepSeek, Kimi, GLM, MiniMax and Qwen.",
    "SGLang 0.5.23 models/deepseek_v2.py:714; 0.5.11 models/deepseek_v2.py:411, glm4_moe.py:419, minimax_m2.py:473, "
    "qwen2_moe.py:212, qwen3_moe.py:247",
    "Tensor parallel size X is greater than the number of experts Y.",
    "Use a smaller tp_size and more pipeline stages.",
)
_NO_EXPERTS = Rule(
    "ep-without-experts",
    "A dense model has no experts",
    "Expert parallelism changes only layers that have experts.",
    "SGLang 0.5.23 layers/moe/fused_moe_triton/layer.py",
    None,
    "Take ep_size out.",
)
_WIDTH = Rule(
    "expert-width-divides",
    "An expert's width must divide",
    "tp_size / ep_size ranks share each expert's matrices and cut its width into equal shards.",
    "SGLang 0.5.23 layers/moe/fused_moe_triton/layer.py:427, model_runner_components/moe_ep_setup.py:160; 0.5.11 "
    "layers/moe/fused_moe_triton/layer.py:217",
    "moe_intermediate_size X must be divisible by moe_tp_size (Y) which is tp_size (Z) divided by moe_ep_size (W).",
    "Raise ep_size: with ep_size = tp_size no expert is cut.",
)
_BLOCK = Rule(
    "quantization-block",
    "An expert's shard must be whole quantization blocks",
    "Block-quantized checkpoints (FP8) have one scale for 128 x 128 weights. A shard that ends inside a block "
    "has no scale of its own.",
    "SGLang 0.5.23 model_runner_components/moe_ep_setup.py:173, layers/quantization/fp8.py:1588; "
    "kvcache-ai/ktransformers#2036; sgl-project/sglang#8344",
    "For quantized MoE models, please make sure (moe_intermediate_size / moe_tp_size) % weight_block_size_n == 0",
    "Raise ep_size: with ep_size = tp_size no expert is cut.",
)
_BLOCK_OTHER = Rule(
    "quantization-block-mlp",
    "Shared experts and dense layers must be cut into whole blocks too",
    "They are split over the whole tensor-parallel group, whatever ep_size is, and are block-quantized like the "
    "experts.",
    "SGLang 0.5.23 layers/quantization/fp8.py:605; sgl-project/sglang#26107, #19045",
    "Weight output_partition_size = X is not divisible by weight quantization block_n = 128.",
    "Use a smaller tp_size with more pipeline stages.",
)
_GROUP = Rule(
    "quantization-group",
    "An expert's shard must be whole quantization groups",
    "Group-quantized checkpoints (INT4) have one scale for 32 or 128 inputs. A shard that ends inside a group "
    "gets the wrong scales, or none that the kernel takes.",
    "SGLang 0.5.11 and 0.5.23 layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16_moe.py "
    "(w2_weight_scale)",
    "size_k = X, is not divisible by b_scales.size(1) = Y",
    "Raise ep_size: with ep_size = tp_size no expert is cut.",
)
_A2A_EP = Rule(
    "a2a-forces-ep",
    "An all-to-all backend sets ep_size to tp_size",
    "Backends that send tokens to the rank of their expert need one expert group on each rank. The engine "
    "overrides ep_size.",
    "SGLang 0.5.23 arg_groups/overrides.py:1578-1620; 0.5.11 server_args.py:3053-3111",
    "DeepEP MoE is enabled. The expert parallel size is adjusted to be the same as the tensor parallel size",
    "Write ep_size equal to tp_size, or moe_a2a_backend: none.",
)
_A2A_MARLIN = Rule(
    "a2a-int4",
    "INT4 experts have no all-to-all backend",
    "INT4 experts run in the Marlin kernel, and the engine registers it for moe_a2a_backend none only.",
    "SGLang 0.5.23 layers/moe/moe_runner/marlin.py:115, runner.py:179; 0.5.11 marlin.py:76, runner.py:80; "
    "sgl-project/sglang#38115",
    "Runner backend marlin requires a fused func for a2a backend deepep, but none is registered.",
    "Take moe_a2a_backend out.",
)
_A2A_PCIE = Rule(
    "a2a-pcie",
    "All-to-all backends want NVLink or RDMA",
    "DeepEP and its kin move tokens by NVLink and by NVSHMEM over RDMA (IBGDA); a host with PCIe alone has neither.",
    "deepseek-ai/DeepEP README; SGLang 0.5.23 arg_groups/moe_hook.py",
    None,
    "Take moe_a2a_backend out: without one the experts' results are summed by the all-reduce of tensor parallelism.",
)
_A2A_FLASHINFER = Rule(
    "a2a-flashinfer",
    "FlashInfer's all-to-all has its own demands",
    "Up to 0.5.12 it wants the flashinfer_cutlass runner; since 0.5.13 attention DP as wide as tp_size.",
    "SGLang 0.5.11 server_args.py:3106; 0.5.23 arg_groups/moe_hook.py:475",
    "Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size",
    "Set attention DP to tp_size, or take moe_a2a_backend out.",
)
_FLASHINFER_RUNNER = Rule(
    "flashinfer-runner-ep",
    "FlashInfer's CUTLASS and CuteDSL runners take ep 1 or tp",
    "These kernels know whole experts on each rank, or experts cut over all ranks, and nothing between.",
    "SGLang 0.5.23 arg_groups/moe_hook.py:92, :105; 0.5.11 server_args.py:2969, :2978",
    "The expert parallel size must be 1 or the same as the tensor parallel size",
    "Use ep_size 1 or tp_size, or another moe_runner_backend.",
)
_FLASHINFER_QUANT = Rule(
    "flashinfer-runner-quantization",
    "FlashInfer's CUTLASS runner takes few formats",
    "It knows modelopt FP4 and FP8, and bfloat16.",
    "SGLang 0.5.23 arg_groups/moe_hook.py:80; 0.5.11 server_args.py:2963",
    "Invalid quantization 'X'. FlashInfer Cutlass MOE supports only: 'modelopt_fp4', 'modelopt_fp8', "
    "'modelopt_mixed', or bfloat16 (None).",
    "Take moe_runner_backend out.",
)
_CUTLASS_FP8 = Rule(
    "cutlass-fp8-ep",
    "The CUTLASS FP8 runner knows no expert parallelism",
    "moe_runner_backend cutlass with FP8 or MXFP8 runs with ep_size 1 only.",
    "SGLang 0.5.23 arg_groups/moe_hook.py:162; 0.5.11 server_args.py:3035",
    "FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1",
    "Use ep_size 1, or another moe_runner_backend.",
)
_TRITON_KERNEL = Rule(
    "triton-kernel-ep",
    "gpt-oss on triton_kernel knows no expert parallelism",
    "The triton_kernel runner of gpt-oss runs with ep_size 1 only.",
    "SGLang 0.5.23 arg_groups/model_hook.py:570; 0.5.11 server_args.py:1984",
    "Triton kernel MoE is only supported when ep_size == 1",
    "Use ep_size 1, or another moe_runner_backend.",
)
_EPLB = Rule(
    "eplb-needs-ep",
    "EPLB needs expert parallelism",
    "Expert load balancing moves experts between expert groups; with one group there is nothing to move.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:791; 0.5.11 server_args.py:3139",
    "AssertionError (assert ep_size > 1)",
    "Use an ep_size above 1, or take enable_eplb out.",
)
_EPLB_COST = Rule(
    "eplb-one-host",
    "EPLB was a loss on a host like this",
    "Rebalancing copies experts between GPUs while requests wait. On eight PCIe GPUs the hand-made campaign "
    "reported 7.7 instead of 65 tok/s at C=1 and a peak of 862 instead of 1538.",
    "The campaign that this project grew out of (reported, not measured here); sgl-project/sglang#6017",
    None,
    "Raise eplb_rebalance_num_iterations, and compare with a configuration that differs in enable_eplb alone.",
)
_DISPATCH = Rule(
    "eplb-dispatch",
    "Without an all-to-all backend only dynamic dispatch is right",
    "Without one every rank routes every token and the results are summed, so all must choose the same replica "
    "of an expert. static and lp choose by rank. Since 0.5.17 the engine refuses them; before, static was the default.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:772-788; 0.5.11 server_args.py:3133",
    "--ep-dispatch-algorithm static picks a different physical replica per rank, ... Use --ep-dispatch-algorithm "
    "dynamic with --moe-a2a-backend none.",
    "Write ep_dispatch_algorithm: dynamic.",
)
_TBO = Rule(
    "two-batch-overlap",
    "Two-batch overlap needs something to overlap",
    "It hides communication behind the other half of a batch. Up to 0.5.13 that is an all-to-all backend; since "
    "0.5.15 attention DP will do.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:769; 0.5.11 server_args.py:6937",
    "When enabling two batch overlap without an EP a2a backend (moe_a2a_backend='none'), attention DP "
    "(--attn-dp-size) is required",
    "Take enable_two_batch_overlap out.",
)

RULES = (
    _COUNT, _FEWER, _NO_EXPERTS, _WIDTH, _BLOCK, _BLOCK_OTHER, _GROUP, _A2A_EP, _A2A_MARLIN, _A2A_PCIE,
    _A2A_FLASHINFER, _FLASHINFER_RUNNER, _FLASHINFER_QUANT, _CUTLASS_FP8, _TRITON_KERNEL, _EPLB, _EPLB_COST,
    _DISPATCH, _TBO,
)  # fmt: skip

# Models that put a lone shared expert among the routed ones, where it is cut like them.
_FUSE_SHARED = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM"})

# Models that compare the two when they are built; Mixtral, gpt-oss and Llama 4 do not.
_REFUSE_MORE_RANKS = (
    "DeepseekV2ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MiniMaxM2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on experts. Widths that do not nest are another rule's matter."""
    shape, layout = subject.shape, subject.layout
    yield from _backends(subject)
    yield from _balancing(subject)
    if shape is None:
        return
    if not shape.experts:
        if subject.given("ep_size") and subject.whole_number("ep_size") > 1:
            yield _NO_EXPERTS.verdict("note", f"{shape.name} has no experts; ep_size changes nothing.")
        if layout.whole:
            yield from _other_blocks(subject, shape)
        return
    if layout.tp > shape.experts and shape.architecture in _REFUSE_MORE_RANKS:
        message = f"Tensor parallel size {layout.tp} is greater than the number of experts {shape.experts}."
        sentence = f"tp {layout.tp} is more than the {shape.experts} experts of {shape.name}."
        yield _FEWER.verdict("reject", sentence, message=message)
    yield from _division(subject, shape)
    if layout.whole and subject.moe_tp:
        yield from _width(subject, shape)
        yield from _other_blocks(subject, shape)


def _division(subject: Subject, shape: ModelShape) -> Iterator[Verdict]:
    ep, extra = subject.layout.ep, subject.redundant_experts
    left = (shape.experts + extra) % ep
    if left and ep <= subject.layout.tp:
        with_extra = f" + {extra} redundant" if extra else ""
        advice = f"Use an ep_size that divides {shape.experts}, or ep_num_redundant_experts: {extra + ep - left}."
        sentence = f"{shape.experts}{with_extra} experts do not divide into {ep} expert groups; {left} are left over."
        yield _COUNT.verdict("reject", sentence, advice=advice)


def _width(subject: Subject, shape: ModelShape) -> Iterator[Verdict]:
    layout, ranks, width = subject.layout, subject.moe_tp, shape.moe_intermediate
    cut = f"{width} wide experts cut over {ranks} ranks (tp {layout.tp} / ep {layout.ep})"
    if width % ranks:
        message = (
            f"moe_intermediate_size {width} must be divisible by moe_tp_size ({ranks}) which is tp_size "
            f"({layout.tp}) divided by moe_ep_size ({layout.ep})."
        )
        yield _WIDTH.verdict("reject", f"{cut} leave a rest.", message=message, advice=_larger_ep(subject, shape))
        return
    shard, form = width // ranks, shape.formats.experts
    if form.block[0] and (shard % form.block[0] or (ranks > 1 and shard % form.block[1])):
        block = form.block[0] if shard % form.block[0] else form.block[1]
        message = (
            f"For quantized MoE models, please make sure (moe_intermediate_size={width} / moe_tp_size={ranks}) % "
            f"weight_block_size_n={block} == 0"
        )
        sentence = f"{cut} are {shard} wide, not a multiple of the {form.name} block of {block}."
        yield _BLOCK.verdict("reject", sentence, message=message, advice=_larger_ep(subject, shape))
    elif form.name.startswith("int") and form.group and ranks > 1 and shard % form.group:
        # Other methods (AWQ, GPTQ) can fall back to smaller groups.
        severity = "reject" if shape.quantization.replace("_", "-") == "compressed-tensors" else "doubt"
        sentence = f"{cut} are {shard} wide, not a multiple of the {form.name} group of {form.group}."
        yield _GROUP.verdict(severity, sentence, advice=_larger_ep(subject, shape))


def _larger_ep(subject: Subject, shape: ModelShape) -> str:
    """Advice: expert groups of this tensor-parallel width whose shards are whole."""
    tp, form = subject.layout.tp, shape.formats.experts
    unit = form.block[0] or (form.group if form.name.startswith("int") else 0) or 1
    fitting = [
        ep
        for ep in range(1, tp + 1)
        if tp % ep == 0 and shape.experts % ep == 0 and shape.moe_intermediate % (tp // ep * unit) == 0
    ]
    if not fitting:
        return "Use a smaller tp_size with more pipeline stages."
    return f"With tp_size {tp} use ep_size {' or '.join(str(ep) for ep in fitting)}."


def _other_blocks(subject: Subject, shape: ModelShape) -> Iterator[Verdict]:
    tp = subject.layout.tp
    if shape.shared_intermediate and subject.a2a == "none" and not subject.allows("SGLANG_SHARED_EXPERT_TP1"):
        fused = shape.architecture in _FUSE_SHARED and not subject.on("disable_shared_experts_fusion")
        severity = "doubt" if fused else "reject"
        yield from _whole_blocks(shape.shared_intermediate, tp, shape.formats.shared, "Shared experts", severity)
    yield from _linear_gates(subject, shape)
    if shape.intermediate and not all(shape.moe):
        size = subject.whole_number("moe_dense_tp_size") if subject.given("moe_dense_tp_size") else tp
        if size >= 1:
            yield from _whole_blocks(shape.intermediate, size, shape.formats.dense, "Dense layers", "reject")


def _linear_gates(subject: Subject, shape: ModelShape) -> Iterator[Verdict]:
    """The small projections of linear attention, in_proj_b and in_proj_a: one output for each value head."""
    block = shape.formats.linear_gates.block[0]
    if not shape.linear or not block or not subject.attention_tp:
        return
    shard = shape.linear.value_heads // subject.attention_tp
    if shard % block:
        message = f"Weight output_partition_size = {shard} is not divisible by weight quantization block_n = {block}."
        sentence = (
            f"Linear attention's gates of {shape.linear.value_heads} heads over {subject.attention_tp} ranks are "
            f"{shard} wide, not a multiple of the block of {block}, and the checkpoint does not leave them unquantized."
        )
        advice = "Use a checkpoint whose modules_to_not_convert name linear_attn.in_proj_b and in_proj_a."
        yield _BLOCK_OTHER.verdict("doubt", sentence, message=message, advice=advice)


def _whole_blocks(width: int, ranks: int, form: Format, what: str, severity: str) -> Iterator[Verdict]:
    block = form.block[0]
    if ranks > 1 and block and width % ranks == 0 and width // ranks % block:
        shard = width // ranks
        message = f"Weight output_partition_size = {shard} is not divisible by weight quantization block_n = {block}."
        sentence = f"{what} of {width} cut over tp {ranks} are {shard} wide, not a multiple of the block of {block}."
        yield _BLOCK_OTHER.verdict(severity, sentence, message=message)


def _backends(subject: Subject) -> Iterator[Verdict]:
    layout, shape, runner = subject.layout, subject.shape, subject.word("moe_runner_backend", "auto")
    if subject.a2a_forces_ep:
        asked = subject.whole_number("ep_size")
        if subject.given("ep_size") and asked != layout.tp:
            sentence = f"moe_a2a_backend {subject.a2a} makes ep {layout.tp} of the ep_size {asked} that was asked."
            yield _A2A_EP.verdict("note", sentence)
        yield from _all_to_all(subject)
    if runner in ("flashinfer_cutlass", "flashinfer_cutedsl") and layout.ep not in (1, layout.tp):
        yield _FLASHINFER_RUNNER.verdict("reject", f"{runner} takes ep 1 or {layout.tp}; ep is {layout.ep}.")
    quantization = subject.word("quantization")
    if runner == "flashinfer_cutlass" and quantization and not quantization.startswith("modelopt"):
        yield _FLASHINFER_QUANT.verdict("reject", f"flashinfer_cutlass does not take quantization {quantization}.")
    if runner == "cutlass" and quantization in ("fp8", "mxfp8") and layout.ep > 1:
        yield _CUTLASS_FP8.verdict("reject", f"The cutlass runner with {quantization} takes ep 1; ep is {layout.ep}.")
    if runner == "triton_kernel" and layout.ep > 1 and shape and shape.architecture == "GptOssForCausalLM":
        yield _TRITON_KERNEL.verdict("reject", f"triton_kernel takes ep 1 for {shape.name}; ep is {layout.ep}.")


def _all_to_all(subject: Subject) -> Iterator[Verdict]:
    shape, layout, backend = subject.shape, subject.layout, subject.a2a
    marlin = shape is not None and shape.formats.experts.name == "int4" and shape.quantization.startswith("compressed")
    if marlin:
        severity = "reject" if subject.since("0.5.8.post1") else "doubt"
        message = f"Runner backend marlin requires a fused func for a2a backend {backend}, but none is registered."
        sentence = f"The INT4 experts of {shape.name} run in Marlin, which does not work with {backend}."
        yield _A2A_MARLIN.verdict(severity, sentence, message=message)
    elif subject.pcie_only:
        sentence = f"{backend} wants NVLink or RDMA, and the {subject.host.count} GPUs have PCIe alone."
        yield _A2A_PCIE.verdict("doubt", sentence)
    if backend != "flashinfer":
        return
    if subject.since("0.5.13.post1"):
        if layout.attention_dp != layout.tp:
            sentence = f"FlashInfer's all-to-all wants attention DP {layout.tp} (tp); it is {layout.attention_dp}."
            yield _A2A_FLASHINFER.verdict("reject", sentence)
    elif subject.word("moe_runner_backend") != "flashinfer_cutlass":
        message = "Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend"
        advice = "Set moe_runner_backend: flashinfer_cutlass, or take moe_a2a_backend out."
        sentence = "FlashInfer's all-to-all wants moe_runner_backend flashinfer_cutlass in this release."
        yield _A2A_FLASHINFER.verdict("reject", sentence, message=message, advice=advice)


def _balancing(subject: Subject) -> Iterator[Verdict]:
    layout, eplb = subject.layout, subject.on("enable_eplb")
    if eplb and layout.ep <= 1:
        yield _EPLB.verdict("reject", f"enable_eplb with ep {layout.ep}: there is one expert group.")
    elif eplb and subject.pcie_only:
        yield _EPLB_COST.verdict("note", "EPLB copies experts over PCIe while requests wait.")
    algorithm = subject.word("ep_dispatch_algorithm")
    moves = eplb or subject.word("init_expert_location", "trivial") != "trivial"
    if subject.a2a == "none":
        if subject.since("0.5.17"):
            if algorithm in ("static", "lp"):
                sentence = f"ep_dispatch_algorithm {algorithm} needs an all-to-all backend, and there is none."
                yield _DISPATCH.verdict("reject", sentence)
        elif moves and algorithm in ("", "static"):
            sentence = "Static dispatch without an all-to-all backend may sum different replicas of an expert."
            yield _DISPATCH.verdict("doubt", sentence)
    if subject.on("enable_two_batch_overlap") and subject.a2a == "none":
        yield from _overlap(subject)


def _overlap(subject: Subject) -> Iterator[Verdict]:
    if subject.since("0.5.15.post1"):
        if subject.layout.attention_dp == 1:
            yield _TBO.verdict("reject", "enable_two_batch_overlap has neither an all-to-all backend nor attention DP.")
        return
    severity = "reject" if subject.since("0.5.8.post1") else "doubt"
    message = "When enabling two batch overlap, moe_a2a_backend cannot be 'none'."
    sentence = "enable_two_batch_overlap needs an all-to-all backend in this release."
    yield _TBO.verdict(severity, sentence, message=message)
