"""How a host's GPUs hang together: sockets, switches, links, from `nvidia-smi topo -m` as the record keeps it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..campaign.record import Record
from . import text
from .summary import Row, mapping, number

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_SAME_SWITCH = ("PIX", "PXB")
_SAME_SOCKET = (*_SAME_SWITCH, "PHB", "NODE")
MEANINGS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through the host bridge",
    "NODE": "across host bridges of one socket",
    "SYS": "across sockets",
}


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    link: str
    """`PCIe 5.0 x16`, or empty."""
    narrow: bool
    """The link is narrower than the card allows."""


@dataclass(frozen=True)
class HostView:
    """A host as nested boxes: sockets of switches of GPUs. `matrix` is the link of each pair, empty if unknown."""

    name: str
    hardware: str
    sockets: tuple[tuple[str, tuple[tuple[Gpu, ...], ...]], ...]
    matrix: tuple[tuple[str, ...], ...]
    transports: tuple[tuple[str, str], ...]
    """(which configurations, what NCCL chose)."""
    sentence: str


def parse_matrix(raw: Any) -> list[list[str]]:
    """The GPU-to-GPU part of `nvidia-smi topo -m`, row by row; [] where it cannot be read.

    The header is underlined by escape codes and its last columns are not separated as the rows' are, so only the
    rows count: `GPU0`, then one link for each GPU.
    """
    if not isinstance(raw, str):
        return []
    rows = []
    for line in _ESCAPES.sub("", raw).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if re.fullmatch(r"GPU\d+", cells[0]) and len(cells) > 1 and not re.fullmatch(r"GPU\d+", cells[1]):
            rows.append(cells[1:])
    links = [row[: len(rows)] for row in rows]
    return links if all(len(row) == len(rows) and all(_is_link(c) for c in row) for row in links) else []


def _is_link(cell: str) -> bool:
    return bool(re.fullmatch(r"X|PIX|PXB|PHB|NODE|SYS|NV\d+", cell))


def groups(matrix: list[list[str]], kinds: tuple[str, ...]) -> list[list[int]]:
    """GPUs that are joined, directly or through others, by links of these kinds (NVLink counts always)."""
    left, found = set(range(len(matrix))), []
    while left:
        todo, group = [min(left)], set()
        while todo:
            gpu = todo.pop()
            group.add(gpu)
            links = matrix[gpu]
            todo += [o for o in left - group if links[o] in kinds or links[o].startswith("NV")]
        left -= group
        found.append(sorted(group))
    return found


def hosts(found: list[Row]) -> list[HostView]:
    """One view a host, from the newest record that tells most about it."""
    views = []
    for name in dict.fromkeys(row.host for row in found):
        mine = [row for row in found if row.host == name]
        best = max((row.shown for row in mine), key=lambda r: (len(parse_matrix(_raw(r))), len(r.host.gpus)))
        views.append(_view(best, mine))
    return _together(views)


def _together(views: list[HostView]) -> list[HostView]:
    """Hosts of the same build and transports as one view, with the names of all."""
    kinds: dict[Any, list[HostView]] = {}
    for view in views:
        kinds.setdefault((view.hardware, view.sockets, view.matrix, tuple(t for _, t in view.transports)), []).append(
            view
        )
    merged = []
    for same in kinds.values():
        transports = [
            ("; ".join(dict.fromkeys(view.transports[i][0] for view in same)), told)
            for i, (_, told) in enumerate(same[0].transports)
        ]
        name = text.joined([view.name for view in same])
        merged.append(replace(same[0], name=name, transports=tuple(transports)))
    return merged


def _raw(record: Record) -> Any:
    return record.host.details.get("topology")


def _view(record: Record, mine: list[Row]) -> HostView:
    gpus = [_gpu(i, mapping(gpu)) for i, gpu in enumerate(record.host.gpus)]
    matrix = parse_matrix(_raw(record))
    if len(matrix) != len(gpus):
        matrix = []
    sockets: list[tuple[str, tuple[tuple[Gpu, ...], ...]]] = []
    if matrix:
        switches = groups(matrix, _SAME_SWITCH)
        for number_, socket in enumerate(groups(matrix, _SAME_SOCKET)):
            inside = tuple(tuple(gpus[i] for i in s) for s in switches if s[0] in socket)
            sockets.append((f"socket {number_}", inside))
    elif gpus:
        sockets.append(("how they are connected was not recorded", (tuple(gpus),)))
    return HostView(
        name=record.host.name,
        hardware=record.host.hardware or (f"{len(gpus)}x {gpus[0].name}" if gpus else "no GPU told"),
        sockets=tuple(sockets),
        matrix=tuple(tuple(row) for row in matrix),
        transports=_transports(mine),
        sentence=_sentence(gpus, matrix),
    )


def _gpu(place: int, gpu: Mapping[str, Any]) -> Gpu:
    width, widest = number(gpu.get("pcie_width")), number(gpu.get("pcie_width_max"))
    # The generation drops while a GPU idles, so only its maximum says anything.
    generation = number(gpu.get("pcie_generation_max")) or number(gpu.get("pcie_generation"))
    link = " ".join(
        part for part in (f"PCIe {generation:.0f}.0" if generation else "", f"x{width:.0f}" if width else "") if part
    )
    index = number(gpu.get("index"))
    return Gpu(
        int(index) if index is not None else place,
        text.clean(gpu.get("name") or "GPU"),
        link,
        bool(width and widest and width < widest),
    )


def _transports(mine: list[Row]) -> tuple[tuple[str, str], ...]:
    """What NCCL chose, configurations with the same choice together."""
    chosen: dict[str, list[str]] = {}
    counted_rows = [row for row in mine if row.shown.start and row.shown.start.transports]
    for row in counted_rows:
        counted = row.shown.start.transports if row.shown.start else {}
        if counted:
            told = ", ".join(f"{kind}: {text.plural(n, 'channel')}" for kind, n in sorted(counted.items()))
            chosen.setdefault(told, []).append(row.label)
    return tuple(
        (text.joined(labels, 4) if len(counted_rows) > len(labels) else "every configuration", told)
        for told, labels in chosen.items()
    )


def _sentence(gpus: list[Gpu], matrix: list[list[str]]) -> str:
    if not gpus:
        return "No GPU was recorded."
    parts = [f"{text.plural(len(gpus), 'GPU')}"]
    if matrix:
        sockets, switches = len(groups(matrix, _SAME_SOCKET)), len(groups(matrix, _SAME_SWITCH))
        parts.append(f"on {text.plural(sockets, 'socket')}, {text.plural(switches, 'PCIe branch', 'PCIe branches')}")
    narrow = [gpu for gpu in gpus if gpu.narrow]
    told = " ".join(parts) + "."
    if narrow:
        told += f" The link of GPU {text.joined([str(g.index) for g in narrow])} is narrower than the card allows."
    return told
