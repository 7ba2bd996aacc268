"""What nvidia-smi prints, as data: the query's table, `topo -m`, `topo -p2p`, and the few lines of `-q` that matter."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

import msgspec

from ..gpus import bus_id

QUERY = (
    "index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used", "driver_version", "compute_cap",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "persistence_mode", "mig.mode.current", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total",
    "power.draw", "power.limit", "power.default_limit", "utilization.gpu", "temperature.gpu",
    "clocks_event_reasons.active",
)  # fmt: skip
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d+)")
_LINK = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|NV\d+")
_P2P = re.compile(r"X|OK|CNS|GNS|TNS|NS|U")
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')


class Row(msgspec.Struct, frozen=True):
    """One GPU of `--query-gpu`: the cells as printed, by field, without their units."""

    cells: Mapping[str, str]

    def text(self, field: str) -> str | None:
        """A cell; None for `[N/A]`, `[Not Supported]`, `[GPU requires reset]` and the like, and for what is missing."""
        cell = self.cells.get(field, "")
        return None if not cell or cell.startswith("[") or cell == "N/A" else cell

    def number(self, field: str) -> float | None:
        match = re.match(r"-?\d+(?:\.\d+)?", self.text(field) or "")
        return float(match.group()) if match else None

    @property
    def index(self) -> str:
        return self.cells.get("index", "?")

    @property
    def bus(self) -> str:
        """As sysfs writes it: four digits of domain, lower case."""
        return bus_id(self.cells.get("pci.bus_id", ""))


def rows(text: str) -> list[Row]:
    """The table of `--query-gpu=... --format=csv`, header line included; lines of another length are left out."""
    try:
        table = list(csv.reader(text.splitlines(), skipinitialspace=True))
    except csv.Error:
        return []
    lines = [[cell.strip() for cell in line] for line in table if line]
    if not lines:
        return []
    names = [re.sub(r"\s*\[[^\]]*\]$", "", title) for title in lines[0]]
    return [Row(dict(zip(names, line, strict=True))) for line in lines[1:] if len(line) == len(names)]


def unknown_field(text: str) -> str | None:
    """The field that this nvidia-smi does not have, where it refused the query for it."""
    match = _UNKNOWN_FIELD.search(text)
    return match.group(1) if match else None


class Topology(msgspec.Struct, frozen=True):
    """`nvidia-smi topo -m`: the link of each pair of GPUs, and where each GPU's processors and memory are."""

    links: list[list[str]]
    """Square, by place: X, PIX, PXB, PHB, NODE, SYS or NV and a number."""
    cpus: list[str]
    numa: list[str]

    @property
    def kinds(self) -> list[str]:
        """The kinds of link between different GPUs, each once."""
        return list(dict.fromkeys(link for row in self.links for link in row if link != "X"))


def topology(text: str) -> Topology | None:
    """None where the text is no whole matrix.

    The header is underlined by escape codes even in a pipe, and two tabs stand before its last column's values: so
    cells are taken by the header's names from the left. Rows and columns of network cards (NIC0) are left out.
    """
    header: list[str] = []
    found: list[list[str]] = []
    for line in _ESCAPES.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.rstrip().split("\t")]
        if not header and len(cells) > 1 and cells[0] == "" and _GPU.fullmatch(cells[1]):
            header = cells[1:]
        elif header and _GPU.fullmatch(cells[0]):
            found.append(cells[1:])
        elif found and not any(cells):
            break
    places = [place for place, name in enumerate(header) if _GPU.fullmatch(name)]
    links = [[row[place] if place < len(row) else "" for place in places] for row in found]
    if not links or len(links) != len(places) or not all(_LINK.fullmatch(link) for row in links for link in row):
        return None
    return Topology(links, *([_cell(row, header, name) for row in found] for name in ("CPU Affinity", "NUMA Affinity")))


def _cell(row: list[str], header: list[str], name: str) -> str:
    place = header.index(name) if name in header else len(row)
    return row[place] if place < len(row) else ""


def peers(text: str) -> list[list[str]] | None:
    """The first matrix of `nvidia-smi topo -p2p r` (X, OK, CNS, GNS, TNS, NS, U), or None where there is none."""
    found: list[list[str]] = []
    for line in _ESCAPES.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.strip(" \r").rstrip("\t").split("\t")]
        if _GPU.fullmatch(cells[0]) and len(cells) > 1 and not _GPU.fullmatch(cells[1]):
            found.append(cells[1:])
        elif found:
            break
    square = all(len(row) == len(found) and all(_P2P.fullmatch(cell) for cell in row) for row in found)
    return found if found and square else None


def details(text: str) -> dict[str, dict[str, str]]:
    """`nvidia-smi -q` as {bus id: {"BAR1 Memory Usage/Total": "131072 MiB", ...}}.

    Of a name that stands twice below one title (a second block of power readings has N/A everywhere) the first counts.
    """
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    path: list[str] = []
    for line in text.splitlines():
        if line.startswith("GPU ") and ":" in line:
            current, path = found.setdefault(bus_id(line.removeprefix("GPU ")), {}), []
        elif current is not None and line.startswith("    "):
            depth = (len(line) - len(line.lstrip(" "))) // 4
            name, colon, value = line.strip().partition(" : ")
            path = [*path[: depth - 1], name.strip()]
            if colon:
                current.setdefault("/".join(path), value.strip())
    return found


def megabytes(told: str | None) -> int | None:
    """`131072 MiB` -> 131072."""
    match = re.match(r"(\d+)\s*MiB", told or "")
    return int(match.group(1)) if match else None
