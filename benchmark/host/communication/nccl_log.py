"""NCCL's own log lines: which transport it chose, what it read from the environment, what it warned of."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from ...engine.nccl import transport

# "host:pid:tid [gpu] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"; SHM has no "/0" after the channel's number.
_CHANNEL = re.compile(r"NCCL INFO Channel (\d+)(?:/\d+)? ?: (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[\w+\])? via (\S+)")
_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]+ set by environment to .*?)\.?\s*$")
_WARNING = re.compile(r"NCCL WARN (.*\S)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")


class Log(msgspec.Struct, frozen=True):
    transports: dict[str, int]
    """P2P/CUMEM, P2P/IPC, P2P/direct, SHM or NET -> channels."""
    pairs: dict[str, str]
    """`0-1` -> the transport between these ranks; where both ways differ, the slower."""
    environment: list[str]
    """`NCCL_P2P_LEVEL set by environment to SYS`: the proof that NCCL took a variable."""
    warnings: list[str]
    version: str | None = None


_SLOWER = ("P2P/CUMEM", "P2P/IPC", "P2P/direct", "P2P/indirect", "SHM", "NET")


def read(lines: Iterable[str]) -> Log:
    """The log of all ranks together, in any order."""
    transports: dict[str, int] = {}
    pairs: dict[str, str] = {}
    environment: dict[str, None] = {}
    warnings: dict[str, None] = {}
    version = None
    for line in lines:
        if match := _CHANNEL.search(line):
            kind = transport(match.group(4))
            transports[kind] = transports.get(kind, 0) + 1
            pair = "-".join(sorted((match.group(2), match.group(3)), key=int))
            pairs[pair] = max(pairs.get(pair, kind), kind, key=_place)
        elif match := _SET.search(line):
            environment.setdefault(match.group(1))
        elif match := _WARNING.search(line):
            warnings.setdefault(match.group(1)[:300])
        elif match := _VERSION.search(line):
            version = match.group(1)
    return Log(transports, pairs, list(environment), list(warnings)[:20], version)


def _place(kind: str) -> int:
    return _SLOWER.index(kind) if kind in _SLOWER else len(_SLOWER)
