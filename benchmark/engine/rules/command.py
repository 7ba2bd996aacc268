"""The command line: settings that a release does not have under this name, or reads and forgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..flags import FlagError, flag_arguments, flag_name, flag_table, launch_arguments, release_at_least, releases
from ..verdict import Rule, Verdict
from .subject import Subject

_RELEASE = Rule(
    "release-unknown",
    "A release that is not in the tables",
    "Flags and rules were read from the wheels of the releases listed by `shardsweep plan --explain "
    "release-unknown`. A release between two of them is judged by the older one.",
    f"Known: {', '.join(releases())}",
    None,
    "Install one of the known releases, or take the verdicts as likely, not certain.",
)
_COMMAND = Rule(
    "command-line",
    "The engine must take every setting",
    "Every setting is a flag of the release, with a value of its kind and among its choices.",
    "Argument parsers of the SGLang wheels; tests/captures/failures/bad_flag.log",
    "error: unrecognized arguments: --no-such-flag 1",
    "Use the name and the values that this release has.",
)
_RENAMED = Rule(
    "flag-renamed",
    "A setting has another name in this release",
    "SGLang renames flags between releases; the old name is refused, or is an ambiguous prefix of the new ones.",
    "Argument parsers of the SGLang wheels 0.5.4.post3 to 0.5.23",
    "error: unrecognized arguments",
    "Use the name that this release has.",
)
_PREFIX = Rule(
    "flag-prefix",
    "A short form that argparse would complete or refuse",
    "The engine's parser completes prefixes that are unique and refuses others, and which are unique changes "
    "between releases. Write full names.",
    "SGLang 0.5.23 server_args.py (argparse with allow_abbrev)",
    "error: ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size, --pp-async-batch-depth",
    "Write the full name.",
)
_DEAD = Rule(
    "dead-flag",
    "A setting that nothing reads",
    "The parser takes it and no code of this release reads it. An experiment that changes it changes nothing.",
    "Every attribute read in the SGLang wheels 0.5.4.post3 to 0.5.23, by syntax tree",
    None,
    "Take it out, and do not count it as a change.",
)
ENGINE_PARSER = Rule(
    "engine-arguments",
    "The installed engine must take the command line",
    "On a host with the engine installed, its own argument parser is asked before anything is stopped. It knows what "
    "is really installed, which the tables of the releases only assume.",
    "ServerArgs.add_cli_args of the engine that is installed on the host",
    None,
    "Use the name and the values that the installed release has; its --help lists them.",
)

RULES = (_RELEASE, _COMMAND, _RENAMED, _PREFIX, _DEAD, ENGINE_PARSER)

# Setting -> (first, last) release in which no code reads it; None for all up to the newest.
_DEAD_IN: dict[str, tuple[str, str | None]] = {
    "num_continuous_decode_steps": ("0.5.4.post3", None),
    "triton_attention_reduce_in_fp32": ("0.5.11", None),
    "spec_trace_dir": ("0.5.15.post1", None),
    "file_storage_path": ("0.5.4.post3", "0.5.21"),
    "debug_tensor_dump_inject": ("0.5.6.post2", "0.5.13.post1"),
}

# Setting -> what a release that lacks it calls it; used only if that release has it.
_OTHER_NAMES = {
    "attn_dp_size": "dp_size: N with enable_dp_attention: true",
    "cuda_graph_max_bs": "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "cuda_graph_bs": "cuda_graph_bs_decode",
    "cuda_graph_bs_decode": "cuda_graph_bs",
    "disable_decode_cuda_graph": "disable_cuda_graph",
    "disable_prefill_cuda_graph": "disable_piecewise_cuda_graph",
    "disable_piecewise_cuda_graph": "disable_prefill_cuda_graph",
    "piecewise_cuda_graph_max_tokens": "cuda_graph_max_bs_prefill",
    "piecewise_cuda_graph_tokens": "cuda_graph_bs_prefill",
    "nsa_prefill_backend": "dsa_prefill_backend",
    "nsa_decode_backend": "dsa_decode_backend",
    "dsa_prefill_backend": "nsa_prefill_backend",
    "dsa_decode_backend": "nsa_decode_backend",
    "enable_ep_moe": "ep_size: N",
    "enable_deepep_moe": "moe_a2a_backend: deepep",
    "enable_flashinfer_moe": "moe_runner_backend: flashinfer_cutlass",
    "stream_output": "incremental_streaming_output",
    "enable_expert_distribution_metrics": "expert_distribution_recorder_mode: stat",
}


def dead_flags(release: str) -> frozenset[str]:
    """Settings (`num_continuous_decode_steps`) that the release's parser takes and no code reads.

    Raises:
        FlagError: the release cannot be placed among the known ones.
    """
    table = flag_table(release)
    return frozenset(
        key
        for key, (first, last) in _DEAD_IN.items()
        if flag_name(key) in table
        and release_at_least(release, first)
        and (last is None or release_at_least(last, release))
    )


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on the settings as a command line of the release."""
    for key, value in subject.engine.items():
        yield from _setting(key, value, subject.release)
    for key in sorted(dead_flags(subject.release) & {key for key in subject.engine if subject.given(key)}):
        sentence = f"{key} is parsed by SGLang {subject.release} and read by nothing: it changes nothing."
        yield _DEAD.verdict("note", sentence)


def twice(engine: Mapping[str, Any], release: str) -> list[Verdict]:
    """The verdict on two spellings of one setting."""
    try:
        launch_arguments(engine, release)
    except FlagError as error:
        return [_COMMAND.verdict("reject", str(error))]
    return []


def refuse(error: str) -> Verdict:
    """A configuration whose settings could not even be read as numbers."""
    return _COMMAND.verdict("reject", error)


def released(asked: str, judged_by: str) -> Verdict:
    """The verdict on a release that is not in the tables."""
    sentence = f"SGLang {asked} is not in the tables; it is judged as {judged_by}."
    return _RELEASE.verdict("note", sentence)


def unplaced(judged_by: str, why: str) -> Verdict:
    """The verdict on a release that cannot be placed among the known ones."""
    return _RELEASE.verdict("doubt", f"{why} It is judged as {judged_by}.")


def _setting(key: str, value: Any, release: str) -> Iterator[Verdict]:
    try:
        flag_arguments(key, value, release)
        return
    except FlagError as error:
        text = str(error)
    table = flag_table(release)
    flag = flag_name(key)
    if flag in table:
        yield _COMMAND.verdict("reject", text, message=f"error: argument {flag}: invalid value")
        return
    longer = sorted((name for name in table if name.startswith(flag)), key=len)
    message = _parser_message(flag, longer)
    other = _other_name(key, table)
    if other:
        sentence = f"SGLang {release} has no {flag}; there it is {other}."
        yield _RENAMED.verdict("reject", sentence, message=message, advice=f"Write {other}.")
    elif longer:
        names = [name.lstrip("-").replace("-", "_") for name in longer]
        sentence = f"{key} is not a flag but the beginning of {', '.join(names[:4])}."
        if len(names) == 1:
            sentence = f"{key} is short for {names[0]}, and a configuration's flags are written out: releases differ."
        yield _PREFIX.verdict("reject", sentence, message=message, advice=f"Write {names[0]} if that is meant.")
    else:
        yield _COMMAND.verdict("reject", text, message=message)


def _parser_message(flag: str, longer: list[str]) -> str:
    """What argparse says of a flag that is not there: it completes a prefix if only one flag begins so."""
    if len(longer) > 1:
        return f"error: ambiguous option: {flag} could match {', '.join(longer)}"
    return f"error: unrecognized arguments: {flag}" if not longer else f"(taken as {longer[0]})"


def _other_name(key: str, table: Mapping[str, Any]) -> str | None:
    other = _OTHER_NAMES.get(key)
    if other is None:
        return None
    return other if flag_name(other.split(":")[0]) in table else None
