"""Configurations that the engine itself refuses, as `benchmark.engine.rules` knows them, in the engine's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.engine import rules
from benchmark.engine.hardware import Host
from benchmark.engine.models import ModelShape

from .arguments import ServerArguments

# Told by the parser, by the spawning of ranks, or by what memory there is.
_TOLD_ELSEWHERE = frozenset(
    {
        "command-line",
        "ep-divides-tp",
        "ep-larger-than-tp",
        "flag-prefix",
        "flag-renamed",
        "mem-fraction-range",
        "mem-fraction-unset",
        "width-positive",
        "world-size",
    }
)
# Found while arguments are resolved: the server exits 1 before it has ranks. Every other one is found in the ranks.
_IN_ARGUMENTS = frozenset(
    {
        "attention-dp-divides-tp",
        "chunk-page",
        "compile-padding",
        "context-length",
        "context-parallel",
        "dp-lm-head",
        "eplb-dispatch",
        "eplb-needs-ep",
        "flashinfer-runner-ep",
        "mixed-chunk-speculative",
        "moe-dense-tp-size",
        "nodes-divide-world",
        "pipeline-context-parallel",
        "replicas-over-nodes",
        "replicas-with-attention-dp",
        "served-name-colon",
        "two-batch-overlap",
        "visible-devices-uuid",
    }
)
_ENVIRONMENT = re.compile(r"(?:NCCL|CUDA|SGLANG|SGL|PYTORCH)_[A-Z0-9_]+")


@dataclass(frozen=True)
class Refusal:
    """The last line of a traceback, with its type, and where it happens."""

    text: str
    in_arguments: bool


def find(arguments: ServerArguments, shape: ModelShape, host: Host, environment: Mapping[str, str]) -> Refusal | None:
    """The first rule that says `reject` and knows the engine's message."""
    configuration = {
        "name": "simulated",
        "engine": arguments.engine(),
        "environment": {key: value for key, value in environment.items() if _ENVIRONMENT.fullmatch(key)},
    }
    for verdict in rules.check(configuration, shape, host, arguments.release):
        if verdict.severity != "reject" or not verdict.engine_message or verdict.rule in _TOLD_ELSEWHERE:
            continue
        return Refusal(_last_line(verdict.engine_message), verdict.rule in _IN_ARGUMENTS)
    return None


def _last_line(message: str) -> str:
    assertion = re.fullmatch(r"AssertionError \((assert .*)\)", message)
    if assertion:
        return f"    {assertion.group(1)}\nAssertionError"
    return message if re.match(r"\w*(?:Error|Exception)\b", message) else f"ValueError: {message}"
