"""Settings against one another, the model and the GPUs: memory, chunks, graphs, attention backends."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory import plan_memory
from ..models import ModelShape
from ..verdict import Rule, Verdict
from .subject import Subject

_FRACTION = Rule(
    "mem-fraction-range",
    "mem_fraction_static is a share",
    "Weights and KV pool together get this share of the GPU's memory.",
    "SGLang 0.5.23 arg_groups/memory_hook.py:47-70",
    "Not enough memory. Please try to increase --mem-fraction-static.",
    "Use a number between 0 and 1; 0.85 to 0.94 is usual.",
)
_FRACTION_DEFAULT = Rule(
    "mem-fraction-unset",
    "The engine's own memory share may not do",
    "Without mem_fraction_static the engine keeps a share for activations and graphs that grows with GPUs, chunk and "
    "batch, and less for a vision model. For a large model on smaller cards the rest is less than the weights.",
    "SGLang 0.5.23 arg_groups/memory_hook.py:281-415; 0.5.11 server_args.py:1436-1500",
    "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=X.",
    "Set mem_fraction_static.",
)
_CHUNK = Rule(
    "chunk-page",
    "A prefill chunk is whole pages",
    "chunked_prefill_size must be a multiple of page_size, after attention DP has divided it. Some attention "
    "backends set the page size themselves.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:245; 0.5.11 server_args.py:6824",
    "chunked_prefill_size must be divisible by page_size",
    "Use a multiple of page_size x attention DP.",
)
_REQUESTS = Rule(
    "running-requests",
    "Attention DP divides max_running_requests",
    "The limit is for the whole engine; each attention group gets its share, and at least one is needed.",
    "SGLang 0.5.23 mem_cache/kv_cache_configurator.py:3119, managers/tp_worker.py:420; 0.5.11 "
    "managers/tp_worker.py:297",
    "AssertionError: max_running_request is zero",
    "Raise max_running_requests to a multiple of attention DP.",
)
_NAME = Rule(
    "served-name-colon",
    "No colon in the served name",
    "The colon separates a model from its LoRA adapter.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:216; 0.5.11 server_args.py:6805",
    "served_model_name cannot contain a colon (':') character.",
    "Use another character.",
)
_CONTEXT = Rule(
    "context-length",
    "context_length beyond the model's positions",
    "The engine refuses more than the model's own context unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.",
    "SGLang 0.5.11 configs/model_config.py:460; 0.5.23 configs/model_config.py:1299",
    "User-specified context_length (X) is greater than the derived context_length (Y).",
    "Lower context_length.",
)
_REMOTE = Rule(
    "trust-remote-code",
    "The model brings code of its own",
    "Kimi's tokenizer and configuration are Python files beside the weights. Without trust_remote_code, Transformers "
    "does not load them.",
    "SGLang 0.5.11 utils/hf_transformers/tokenizer.py:189",
    "... consider setting `trust_remote_code=True` ...",
    "Add trust_remote_code: true, having read the files.",
)
_GRAPH_LIMIT = Rule(
    "graph-limit",
    "Batches above the largest graph run without one",
    "Decode steps are replayed from CUDA graphs up to a batch size; larger batches launch every kernel by itself.",
    "SGLang 0.5.23 arg_groups/memory_hook.py:182; 0.5.11 server_args.py:1300",
    None,
    "Raise the largest graph to max_running_requests, if memory allows.",
)
_GRAPH_OFF = Rule(
    "graph-off",
    "Decode without CUDA graphs",
    "Without graphs each decode step launches hundreds of kernels by hand. The engine itself calls it a huge "
    "performance loss.",
    "SGLang 0.5.11 model_executor/cuda_graph_runner.py:716 (tests/captures/failures/graph_oom.log)",
    "disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)",
    "Lower the largest graph instead of turning graphs off.",
)
_PADDING = Rule(
    "compile-padding",
    "torch.compile needs padded batches",
    "Without padding every batch size is compiled by itself. Since 0.5.12 the engine refuses it.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:189",
    "--disable-cuda-graph-padding is incompatible with --enable-torch-compile.",
    "Take one of the two out.",
)
_MIXED = Rule(
    "mixed-chunk-speculative",
    "Mixed chunks and speculative decoding",
    "A batch that mixes prefill and decode cannot verify drafts. Since 0.5.19 some algorithms can.",
    "SGLang 0.5.11 server_args.py:6816; 0.5.23 arg_groups/validation_hook.py:236",
    "enable_mixed_chunk is required for speculative decoding",
    "Take enable_mixed_chunk out.",
)
_BACKEND_GPU = Rule(
    "attention-backend-gpu",
    "An attention backend is built for some GPUs",
    "FlashAttention 3 runs on Ampere (not with MLA) and Hopper, the TensorRT-LLM backends on Blackwell and, for "
    "parts and releases, on Hopper.",
    "SGLang 0.5.23 layers/attention/attention_registry.py:238, arg_groups/overrides.py:1212, "
    "arg_groups/attention_hook.py:204; 0.5.11 server_args.py:2602, :2631",
    "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`.",
    "Use attention_backend: triton or flashinfer.",
)
_BACKEND_KERNELS = Rule(
    "attention-backend-kernels",
    "FlashMLA and CUTLASS MLA are for data-center GPUs",
    "Their kernels are built for Hopper and data-center Blackwell (FlashMLA) or the latter alone (CUTLASS MLA). The "
    "engine does not check; the first step fails.",
    "SGLang 0.5.11 layers/attention/flashmla_backend.py, cutlass_mla_backend.py",
    None,
    "Use attention_backend: triton or flashinfer.",
)
_BACKEND_MODEL = Rule(
    "attention-backend-model",
    "An attention backend is built for one kind of attention",
    "Backends named _mla take latent attention (DeepSeek, Kimi) only, trtllm_mha takes the other kind only.",
    "SGLang 0.5.23 layers/attention/attention_registry.py:97, :280; 0.5.11 attention_registry.py:59, :170",
    "trtllm_mla backend can only be used with MLA models.",
    "Use attention_backend: triton or flashinfer.",
)
_FP8_KV = Rule(
    "fp8-kv-flashinfer",
    "8-bit KV cache with FlashInfer on RTX PRO 6000",
    "On this GPU the pair has been reported at 16 tok/s where bf16 reached 73, and with garbled answers on GLM-5.",
    "local-inference-lab/rtx6kpro models/kimi-k25.md, models/glm5.md; sgl-project/sglang#20479",
    None,
    "Use attention_backend: triton with the 8-bit cache, or kv_cache_dtype: auto.",
)
_FP8_GPU = Rule(
    "weights-gpu",
    "The GPU has no arithmetic for this format",
    "FP8 kernels want compute capability 8.9 (Ada, Hopper, Blackwell), NVFP4 kernels 10.0 (Blackwell). Releases "
    "differ in whether they fall back to Marlin.",
    "gpustack docs/performance-lab/glm-4.x/a100.md",
    "type fp8e4nv not supported in this architecture",
    "Use a checkpoint in INT4 or bfloat16.",
)

_QUANTIZATION_FILE = Rule(
    "quantization-settings",
    "A quantization method needs the checkpoint's settings",
    "AWQ, GPTQ and the like are properties of a checkpoint: groups, bits and ignored modules stand in its config.json, "
    "or in a file beside it. A checkpoint without them cannot be read that way; only FP8 and some INT8 methods "
    "quantize while they load.",
    "SGLang 0.5.11 model_loader/loader.py:232, model_loader/weight_utils.py (get_quant_config)",
    "Cannot find the config file for X",
    "Leave quantization out, or use a checkpoint that is quantized so.",
)
_QUANTIZATION_OTHER = Rule(
    "quantization-mismatch",
    "A checkpoint is quantized in one way",
    "What a checkpoint is quantized with stands in its config.json. Another method is refused, apart from other "
    "kernels for the same format.",
    "SGLang 0.5.11 and 0.5.23 configs/model_config.py, _verify_quantization",
    "Quantization method specified in the model config (X) does not match the quantization method specified in the "
    "`quantization` argument (Y).",
    "Leave quantization out: the engine reads it from the checkpoint.",
)
_QUANTIZATION_ONLINE = Rule(
    "quantization-online",
    "Quantized while it loads",
    "The engine may first hold a layer, or the model, as it is stored. The plan counts weights as stored.",
    "SGLang 0.5.11 layers/quantization/fp8.py, process_weights_after_loading",
    None,
    "Use a checkpoint that is stored quantized.",
)

RULES = (
    _FRACTION, _FRACTION_DEFAULT, _CHUNK, _REQUESTS, _NAME, _CONTEXT, _REMOTE, _GRAPH_LIMIT, _GRAPH_OFF, _PADDING,
    _MIXED, _BACKEND_GPU, _BACKEND_KERNELS, _BACKEND_MODEL, _FP8_KV, _FP8_GPU,
    _QUANTIZATION_FILE, _QUANTIZATION_OTHER, _QUANTIZATION_ONLINE,
)  # fmt: skip

# Backends that fix the page size (0.5.23 arg_groups/overrides.py:1144; 0.5.11 server_args.py:2576).
_PAGE_OF_BACKEND = {"flashmla": 64, "cutlass_mla": 128}
_BACKEND_KEYS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
_RTX_BLACKWELL = 12


# Methods whose settings must come with the checkpoint: their classes name a file that must be there.
_NEEDS_SETTINGS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "moe_wna16")
# Other kernels for one format (model_config.py, compatible_quantization_methods, override_quantization_method).
_SAME_FORMAT = (
    {"awq", "awq_marlin", "moe_wna16"},
    {"gptq", "gptq_marlin", "marlin", "moe_wna16"},
    {"modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "petit_nvfp4", "nvfp4", "fp8"},
    {"compressed-tensors", "compressed_tensors", "w8a8_int8", "w8a8_fp8"},
    {"fp8", "w4afp8", "mxfp8"},
)


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on single settings and on pairs of them."""
    yield from _memory(subject)
    yield from _limits(subject)
    yield from _names(subject)
    yield from _graphs(subject)
    yield from _attention(subject)
    yield from _formats(subject)
    yield from _quantization(subject)


def _quantization(subject: Subject) -> Iterator[Verdict]:
    asked, shape = subject.word("quantization").lower(), subject.shape
    if not asked or asked in ("none", "unquant", "auto") or shape is None:
        return
    stored = shape.quantization.lower()
    if stored:
        if asked != stored and not any({asked, stored} <= methods for methods in _SAME_FORMAT):
            message = (
                f"Quantization method specified in the model config ({stored}) does not match the quantization method "
                f"specified in the `quantization` argument ({asked})."
            )
            sentence = f"{shape.name} is quantized with {stored}, and quantization asks for {asked}."
            # Which methods stand in for one another grows with the releases.
            yield _QUANTIZATION_OTHER.verdict("doubt", sentence, message=message)
    elif asked in _NEEDS_SETTINGS:
        sentence = f"quantization {asked} needs settings of the checkpoint, and {shape.name} is stored without any."
        yield _QUANTIZATION_FILE.verdict("reject", sentence, message=f"Cannot find the config file for {asked}")
    else:
        sentence = f"{shape.name} is quantized to {asked} while it loads; its weights are counted as stored."
        yield _QUANTIZATION_ONLINE.verdict("note", sentence)


def _memory(subject: Subject) -> Iterator[Verdict]:
    fraction = subject.number("mem_fraction_static")
    if subject.given("mem_fraction_static"):
        if fraction is None or not 0 < fraction < 1:
            shown = subject.engine["mem_fraction_static"]
            message = None
            if fraction is not None and fraction <= 0:
                message = (
                    "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
                    f"mem_fraction_static={shown}"
                )
            sentence = f"mem_fraction_static is {shown}; it is a share between 0 and 1."
            yield _FRACTION.verdict("reject", sentence, message=message)
        return
    shape, host, layout = subject.shape, subject.host, subject.layout
    if shape is None or host is None or not layout.whole or layout.gpus > (subject.gpus_there or 0):
        return
    try:
        plan = plan_memory(shape, layout, subject.engine, host, subject.release)
    except (TypeError, ValueError, ArithmeticError):
        return  # a value that is no number; the command line's rules say so
    if plan.failure is None or plan.min_fraction >= plan.max_fraction:
        return
    low = plan.min_fraction
    high = plan.roomy_fraction if plan.roomy_fraction > low else plan.max_fraction
    sentence = (
        f"Without mem_fraction_static SGLang takes {plan.mem_fraction_static:.3f}, and this split starts between "
        f"{low:.3f} and {plan.max_fraction:.3f}."
    )
    advice = f"Set mem_fraction_static between {low:.2f} and {high:.2f}, such as {(low + high) / 2:.2f}."
    message = (
        f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={plan.mem_fraction_static}."
    )
    if plan.failure.stage == "graphs":
        message = "Capture cuda graph failed: CUDA out of memory."
    elif not subject.since("0.5.17"):
        message = (
            "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            f"mem_fraction_static={plan.mem_fraction_static}"
        )
    yield _FRACTION_DEFAULT.verdict("doubt", sentence, message=message, advice=advice)


def _limits(subject: Subject) -> Iterator[Verdict]:
    groups = max(1, subject.layout.attention_dp)
    shared = f" (for each of {groups} attention groups)" if groups > 1 else ""
    chunk, page = subject.whole_number("chunked_prefill_size", 0), subject.whole_number("page_size", 1)
    for key in ("attention_backend", "decode_attention_backend"):
        page = _PAGE_OF_BACKEND.get(subject.word(key), page)
    if chunk > 0 and page > 0 and chunk // groups % page and subject.word("disaggregation_mode") != "decode":
        sentence = f"A chunk of {chunk // groups} tokens{shared} is not a multiple of the page size {page}."
        yield _CHUNK.verdict("reject", sentence)
    requests = subject.number("max_running_requests")
    if requests is not None and requests < groups:
        sentence = f"max_running_requests {requests:g} leaves none{shared}." if groups > 1 else "No request may run."
        yield _REQUESTS.verdict("reject", sentence)
    context = subject.number("context_length")
    shape = subject.shape
    if shape is not None and context is not None and context > shape.max_positions:
        if subject.allows("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN") or subject.given("json_model_override_args"):
            return
        sentence = f"context_length {context:g} is above the {shape.max_positions} positions of {shape.name}."
        yield _CONTEXT.verdict("doubt", sentence, advice=f"Use at most {shape.max_positions}.")


def _names(subject: Subject) -> Iterator[Verdict]:
    name = subject.word("served_model_name")
    if ":" in name and "://" not in name and subject.since("0.5.6.post2"):
        yield _NAME.verdict("reject", f"served_model_name '{name}' has a colon in it.")
    shape = subject.shape
    allowed = subject.on("trust_remote_code") or subject.on("skip_tokenizer_init")
    if shape is not None and needs_remote_code(shape) and not allowed:
        yield _REMOTE.verdict("doubt", f"{shape.name} needs trust_remote_code for its tokenizer.")


def needs_remote_code(shape: ModelShape) -> bool:
    """Whether the model brings its tokenizer as code."""
    return shape.architecture == "KimiK25ForConditionalGeneration" or "kimi" in shape.name.lower()


def _graphs(subject: Subject) -> Iterator[Verdict]:
    off = subject.on("disable_cuda_graph") or subject.on("disable_decode_cuda_graph")
    largest = subject.number("cuda_graph_max_bs_decode") or subject.number("cuda_graph_max_bs")
    requests = subject.number("max_running_requests")
    if off:
        contradiction = f"; the largest graph of {largest:g} is then ignored" if largest else ""
        yield _GRAPH_OFF.verdict("note", f"Decode graphs are off{contradiction}.")
    elif largest and requests:
        each = requests // max(1, subject.layout.attention_dp)
        if largest < each:
            sentence = f"Batches of {largest + 1:g} to {each:g} requests run without a graph."
            yield _GRAPH_LIMIT.verdict("note", sentence)
    if subject.on("disable_cuda_graph_padding") and subject.on("enable_torch_compile"):
        severity = "reject" if subject.since("0.5.12.post1") else "doubt"
        yield _PADDING.verdict(severity, "disable_cuda_graph_padding does not go with enable_torch_compile.")
    if subject.on("enable_mixed_chunk") and subject.given("speculative_algorithm"):
        new = subject.since("0.5.19")
        algorithm = subject.word("speculative_algorithm")
        message = f"enable_mixed_chunk is not supported with speculative_algorithm={algorithm}" if new else None
        sentence = f"enable_mixed_chunk does not go with speculative_algorithm {algorithm}."
        yield _MIXED.verdict("doubt" if new else "reject", sentence, message=message)


def _attention(subject: Subject) -> Iterator[Verdict]:
    chosen = {key: subject.word(key) for key in _BACKEND_KEYS if subject.given(key)}
    for backend in dict.fromkeys(chosen.values()):
        yield from _backend_for_model(subject, backend)
        yield from _backend_for_gpu(subject, backend, chosen)


def _backend_for_model(subject: Subject, backend: str) -> Iterator[Verdict]:
    shape = subject.shape
    if shape is None:
        return
    latent = shape.attention == "mla"
    if latent and backend == "trtllm_mha":
        message = "trtllm_mha backend can only be used with non-MLA models."
        sentence = f"{shape.name} has latent attention (MLA); trtllm_mha does not take it."
        yield _BACKEND_MODEL.verdict("reject", sentence, message=message)
    elif not latent and backend == "trtllm_mla":
        yield _BACKEND_MODEL.verdict("reject", f"{shape.name} has no latent attention (MLA); {backend} takes no other.")
    elif not latent and backend in ("flashmla", "cutlass_mla", "cutedsl_mla", "tokenspeed_mla"):
        yield _BACKEND_MODEL.verdict("doubt", f"{shape.name} has no latent attention (MLA); {backend} is made for it.")


def _backend_for_gpu(subject: Subject, backend: str, chosen: dict[str, str]) -> Iterator[Verdict]:
    capability, shape = subject.capability, subject.shape
    if capability is None or subject.host is None:
        return
    major, gpu = capability[0], subject.host.gpu.name
    sentence = f"{backend} does not run on {gpu} (compute capability {capability[0]}.{capability[1]})."
    if backend == "fa3":
        latent = shape is not None and shape.attention == "mla"
        if major not in (8, 9) or (major == 8 and latent):
            yield _BACKEND_GPU.verdict("reject", sentence)
    elif backend == "trtllm_mla" and major < 10:
        message = "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x)."
        yield _BACKEND_GPU.verdict("reject", sentence, message=message)
    elif backend == "trtllm_mha":
        yield from _trtllm_mha(subject, chosen, sentence)
    elif (backend == "flashmla" and major not in (9, 10)) or (backend == "cutlass_mla" and major != 10):
        yield _BACKEND_KERNELS.verdict("doubt", f"{backend} has kernels for data-center GPUs; this is {gpu}.")


def _trtllm_mha(subject: Subject, chosen: dict[str, str], sentence: str) -> Iterator[Verdict]:
    major = subject.capability[0] if subject.capability else 0
    prefill = chosen.get("prefill_attention_backend", chosen.get("attention_backend")) == "trtllm_mha"
    if major < 9:
        yield _BACKEND_GPU.verdict("reject", sentence, message="TRTLLM MHA backend for decode is only supported on ...")
    elif prefill and major != 10 and not subject.since("0.5.19"):
        message = "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."
        advice = "Set decode_attention_backend: trtllm_mha and prefill_attention_backend: flashinfer."
        yield _BACKEND_GPU.verdict("reject", "For prefill, " + sentence, message=message, advice=advice)


def _formats(subject: Subject) -> Iterator[Verdict]:
    capability, shape = subject.capability, subject.shape
    if capability is None or subject.host is None:
        return
    gpu = subject.host.gpu.name
    cache = subject.word("kv_cache_dtype")
    if shape is None:
        return
    flashinfer = any(subject.word(key) == "flashinfer" for key in _BACKEND_KEYS)
    if flashinfer and cache.startswith("fp8") and shape.attention == "mla" and capability[0] == _RTX_BLACKWELL:
        yield _FP8_KV.verdict("doubt", f"kv_cache_dtype {cache} with flashinfer is slow or wrong on {gpu}.")
    form = shape.formats.experts if shape.experts else shape.formats.dense
    if (form.name == "fp8" and capability < (8, 9)) or (form.name == "nvfp4" and capability < (10, 0)):
        sentence = f"{shape.name} is stored in {form.name}, and {gpu} computes none (capability {capability[0]}."
        yield _FP8_GPU.verdict("doubt", sentence + f"{capability[1]}).")
