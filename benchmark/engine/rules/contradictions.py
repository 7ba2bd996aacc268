"""Settings that do not go together, as the engine's own last check of its arguments has them."""

from __future__ import annotations

from collections.abc import Iterator

from ..verdict import Rule, Verdict
from .subject import Subject

_CONTRADICTION = Rule(
    "settings-contradict",
    "Settings that exclude one another",
    "Once all defaults are set, the engine checks its arguments against one another and ends at the first pair that "
    "does not go together: caches that need each other, multiplexing, priorities, numbers out of their range.",
    "SGLang 0.5.11 server_args.py:3947, 3963 and 6773-6916 (check_server_args); 0.5.23 "
    "arg_groups/validation_hook.py:180-315",
    "AssertionError",
    "Take one of the two out.",
)

RULES = (_CONTRADICTION,)

_PRIORITY_POLICIES = ("fcfs", "lof")
# (setting, smallest value, the engine's message)
_SMALLEST = (
    ("base_gpu_id", 0, "base_gpu_id must be non-negative"),
    ("gpu_id_step", 1, "gpu_id_step must be positive"),
    ("pp_max_micro_batch_size", 1, "pp_max_micro_batch_size must be a positive integer or None (for auto-compute)."),
    ("tokenizer_worker_num", 1, "Tokenizer worker num must >= 1"),
    ("schedule_conservativeness", 0, "schedule_conservativeness must be non-negative"),
)


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on pairs of settings, and on numbers out of their range."""
    for sentence, message in (*_caches(subject), *_multiplexing(subject), *_priorities(subject), *_ranges(subject)):
        yield _CONTRADICTION.verdict("reject", sentence, message=message)


def _caches(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.on("enable_hierarchical_cache") and subject.on("disable_radix_cache"):
        yield (
            "enable_hierarchical_cache keeps a radix cache in host memory, and disable_radix_cache has none.",
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive",
        )
    if not subject.on("enable_hisparse"):
        return
    shape = subject.shape
    if shape is not None and not shape.index_dim:
        yield (
            f"enable_hisparse is for models with sparse attention; {shape.name} has none.",
            "--enable-hisparse is only supported for DSA (DeepSeek Sparse Attention) models now",
        )
    if not subject.on("disable_radix_cache"):
        yield (
            "enable_hisparse needs disable_radix_cache.",
            "Hierarchical sparse attention currently requires --disable-radix-cache.",
        )
    cache = subject.word("kv_cache_dtype", "auto")
    if cache not in ("auto", "bfloat16") and not subject.since("0.5.23"):
        yield (
            f"enable_hisparse needs kv_cache_dtype bfloat16; it is {cache}.",
            f"HiSparse requires bfloat16 KV cache, but got --kv-cache-dtype={cache}.",
        )


def _multiplexing(subject: Subject) -> Iterator[tuple[str, str]]:
    if not subject.on("enable_pdmux"):
        return
    if subject.layout.pp > 1:
        yield (
            f"enable_pdmux needs pp_size 1; it is {subject.layout.pp}.",
            "PD-Multiplexing is only supported with pipeline parallelism disabled (pp_size=1).",
        )
    if subject.whole_number("chunked_prefill_size", 0) != -1:
        yield (
            "enable_pdmux needs whole prefills: chunked_prefill_size -1.",
            "PD-Multiplexing is not compatible with chunked prefill.",
        )
    if subject.word("disaggregation_mode", "null") != "null":
        yield (
            "enable_pdmux does not go with disaggregation_mode.",
            "PD-Multiplexing is not compatible with disaggregation mode.",
        )
    if not subject.on("disable_overlap_schedule"):
        yield (
            "enable_pdmux needs disable_overlap_schedule.",
            "PD-Multiplexing is not compatible with overlap schedule.",
        )


def _priorities(subject: Subject) -> Iterator[tuple[str, str]]:
    policy = subject.word("schedule_policy", "fcfs")
    if subject.on("enable_priority_scheduling") and policy not in _PRIORITY_POLICIES:
        yield (
            f"enable_priority_scheduling goes with schedule_policy fcfs or lof; it is {policy}.",
            f"To use priority scheduling, schedule_policy must be 'fcfs' or 'lof'. '{policy}' is not supported.",
        )


def _ranges(subject: Subject) -> Iterator[tuple[str, str]]:
    ratio = subject.number("swa_full_tokens_ratio")
    if ratio is not None and not 0 < ratio <= 1:
        yield (
            f"swa_full_tokens_ratio is {ratio:g}; it is above 0 and at most 1.",
            "--swa-full-tokens-ratio should be in range (0, 1.0].",
        )
    for key, smallest, message in _SMALLEST:
        number = subject.number(key)
        if number is not None and number < smallest:
            yield f"{key} is {number:g}; it is at least {smallest}.", message
