"""Pipeline stages: which models and releases have them, and what does not go with them."""

from __future__ import annotations

from collections.abc import Iterator

from ..verdict import Rule, Verdict
from .subject import Subject

_MODEL = Rule(
    "model-release",
    "The release must know the model",
    "SGLang has one class for each architecture. A release without it falls back to Transformers, which does not "
    "serve these models.",
    "SGLang wheels 0.5.4.post3 to 0.5.23, models/: EntryClass of each file",
    "no SGlang implementation and the Transformers implementation is not compatible with SGLang.",
    "Use a newer SGLang.",
)
_SUPPORT = Rule(
    "pipeline-support",
    "The model must know pipeline stages",
    "The engine asks the model's forward for pp_proxy_tensors, and only after the weights are loaded: an hour for a "
    "large model. Kimi K2.5 and MiniMax M2 have it since 0.5.10.",
    "SGLang 0.5.11 model_executor/model_runner.py:531-534; sgl-project/sglang#18434, #18925, #19503",
    "AssertionError: Pipeline Parallel is not compatible with this model.",
    "Use pp_size 1, or a newer SGLang.",
)
_LAYERS = Rule(
    "pipeline-layers",
    "Every stage needs a layer",
    "Layers are dealt evenly, the rest to the last stages. A stage without layers has no KV cache, and the engine "
    "divides by its size.",
    "SGLang 0.5.23 distributed/utils.py:110-150; 0.5.11 model_executor/pool_configurator.py:173",
    "ZeroDivisionError",
    "Use a pp_size no larger than the number of layers.",
)
_PARTITION = Rule(
    "pipeline-partition",
    "SGLANG_PP_LAYER_PARTITION must fit",
    "It names the layers of each stage: as many numbers as stages, and all layers together.",
    "SGLang 0.5.23 distributed/utils.py:118-133",
    "sum(partitions)=X does not match num_hidden_layers=Y.",
    "Correct the list, or take it out: the engine deals layers evenly.",
)
_CONTEXT = Rule(
    "pipeline-context-parallel",
    "Pipeline stages and expert data parallelism exclude each other",
    "The engine refuses moe_dp_size above 1 with several stages.",
    "SGLang 0.5.23 arg_groups/parallel_hook.py:178; 0.5.11 server_args.py:2912",
    "PP is not supported with context parallelism",
    "Use pp_size 1, or take moe_dp_size out.",
)
_SPECULATIVE = Rule(
    "pipeline-speculative",
    "Pipeline stages and speculative decoding",
    "Up to 0.5.20 they exclude each other. Since 0.5.21 EAGLE runs on prefill nodes of a disaggregated service, or "
    "everywhere with SGLANG_ENABLE_PP_SPEC=1.",
    "SGLang 0.5.23 arg_groups/validation_hook.py:119-160; 0.5.11 server_args.py:6786; sgl-project/sglang#30775",
    "PP + speculative decoding (MTP) is only supported on prefill nodes (disaggregation-mode=prefill)",
    "Take speculative_algorithm out, or use pp_size 1.",
)
_GRAMMAR = Rule(
    "pipeline-grammar",
    "Structured output and pipeline stages",
    "With several stages, answers that a grammar constrains (xgrammar) have been reported as unsafe.",
    "sgl-project/sglang#28424",
    None,
    "Write grammar_backend: none if nobody asks for structured output.",
)
_OVERLAP = Rule(
    "pipeline-overlap",
    "Pipeline stages turn the overlap schedule off",
    "With several stages the scheduler no longer prepares the next batch while the GPU works, and prefill runs "
    "without CUDA graphs.",
    "SGLang 0.5.23 arg_groups/overrides.py:1624; 0.5.11 server_args.py:3176-3179",
    "Pipeline parallelism is incompatible with overlap schedule.",
    "Nothing to do; expect a lower speed at C=1.",
)

RULES = (_MODEL, _SUPPORT, _LAYERS, _PARTITION, _CONTEXT, _SPECULATIVE, _GRAMMAR, _OVERLAP)

# Read from the wheels of 17 releases. Architectures that are not named are in all of them.
_MODEL_SINCE = {
    "GlmMoeDsaForCausalLM": "0.5.9",
    "KimiK25ForConditionalGeneration": "0.5.9",
    "Qwen3_5ForConditionalGeneration": "0.5.9",
    "Qwen3_5MoeForConditionalGeneration": "0.5.9",
}
# First release whose class takes pp_proxy_tensors; None if none up to 0.5.23 does.
_STAGES_SINCE = {
    "KimiK25ForConditionalGeneration": "0.5.10.post1",
    "Llama4ForConditionalGeneration": None,
    "MiniMaxM2ForCausalLM": "0.5.10.post1",
    "Qwen3NextForCausalLM": None,
}


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on the model in this release and on pipeline stages."""
    pp, shape = subject.layout.pp, subject.shape
    certain = "reject" if subject.exact else "doubt"
    if shape is not None:
        since = _MODEL_SINCE.get(shape.architecture)
        if since and not subject.since(since):
            sentence = f"SGLang {subject.release} does not know {shape.architecture}; {since} is the first that does."
            yield _MODEL.verdict(certain, sentence, advice=f"Use SGLang {since} or newer.")
            return
    if pp < 2:
        return
    if shape is not None:
        yield from _stages(subject, certain)
    yield from _partition(subject)
    if subject.whole_number("moe_dp_size") > 1:
        yield _CONTEXT.verdict("reject", f"pp {pp} does not go with moe_dp_size {subject.engine['moe_dp_size']}.")
    yield from _speculative(subject)
    if subject.word("grammar_backend", "xgrammar") == "xgrammar":
        yield _GRAMMAR.verdict("note", f"pp {pp} with xgrammar: structured answers may be wrong.")
    yield _OVERLAP.verdict("note", f"pp {pp} turns the overlap schedule off.")


def _stages(subject: Subject, certain: str) -> Iterator[Verdict]:
    shape, pp = subject.shape, subject.layout.pp
    if shape is None:
        return
    if shape.architecture in _STAGES_SINCE:
        since = _STAGES_SINCE[shape.architecture]
        if since is None:
            sentence = f"{shape.architecture} knows no pipeline stages up to SGLang 0.5.23; pp is {pp}."
            yield _SUPPORT.verdict(certain, sentence, advice="Use pp_size 1.")
        elif not subject.since(since):
            sentence = f"{shape.architecture} knows no pipeline stages in SGLang {subject.release}; pp is {pp}."
            yield _SUPPORT.verdict(certain, sentence, advice=f"Use pp_size 1, or SGLang {since} or newer.")
    if pp > shape.layers:
        yield _LAYERS.verdict("reject", f"{pp} stages for {shape.layers} layers leave some without any.")


def _partition(subject: Subject) -> Iterator[Verdict]:
    text = str(subject.environment.get("SGLANG_PP_LAYER_PARTITION") or "").strip()
    if not text:
        return
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        message = f"Invalid partition string: {text}"
        sentence = f"SGLANG_PP_LAYER_PARTITION='{text}' is no list of numbers."
        yield _PARTITION.verdict("reject", sentence, message=message)
        return
    layers = [int(part) for part in parts]
    if len(layers) != subject.layout.pp:
        sentence = f"SGLANG_PP_LAYER_PARTITION names {len(layers)} stages; pp is {subject.layout.pp}."
        message = f"len(partitions)={len(layers)} does not match pp_size={subject.layout.pp}."
        yield _PARTITION.verdict("reject", sentence, message=message)
    elif subject.shape is not None and sum(layers) != subject.shape.layers:
        sentence = f"SGLANG_PP_LAYER_PARTITION names {sum(layers)} layers; the model has {subject.shape.layers}."
        message = f"sum(partitions)={sum(layers)} does not match num_hidden_layers={subject.shape.layers}."
        yield _PARTITION.verdict("reject", sentence, message=message)


def _speculative(subject: Subject) -> Iterator[Verdict]:
    algorithm, pp = subject.word("speculative_algorithm").upper(), subject.layout.pp
    if not algorithm:
        return
    sentence = f"pp {pp} with speculative_algorithm {algorithm} is not supported in SGLang {subject.release}."
    if not subject.since("0.5.21"):
        message = "Pipeline parallelism is not compatible with overlap schedule, speculative decoding"
        yield _SPECULATIVE.verdict("reject", sentence, message=message)
    elif algorithm not in ("EAGLE", "NEXTN", "DSPARK") or subject.on("enable_multi_layer_eagle"):
        message = "Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative decoding"
        yield _SPECULATIVE.verdict("reject", sentence, message=message)
    elif subject.word("disaggregation_mode", "null") != "prefill" and not (
        algorithm != "DSPARK" and subject.allows("SGLANG_ENABLE_PP_SPEC")
    ):
        sentence = f"pp {pp} with speculative_algorithm {algorithm} needs SGLANG_ENABLE_PP_SPEC=1."
        advice = "Add SGLANG_ENABLE_PP_SPEC: 1 to the environment, or take speculative_algorithm out."
        yield _SPECULATIVE.verdict("reject", sentence, advice=advice)
