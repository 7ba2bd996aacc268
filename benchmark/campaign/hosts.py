"""Comparing across hosts: which are alike, and what configurations in common say about their difference. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .objectives import Objective, Starts
from .record import Record

Kind = tuple[Any, ...]


def kind_of(record: Record) -> Kind:
    """What two hosts must have in common before a number of one says anything about the other."""
    host, engine = record.host, record.engine
    gpus = sorted(str(gpu.get("name")) for gpu in host.gpus)
    return host.hardware, *gpus, host.driver, engine.name, engine.version


def kinds(groups: Iterable[Starts]) -> dict[str, Kind]:
    """The kind of each host, by its newest record."""
    newest: dict[str, Record] = {}
    for found in groups:
        for record in found.records:
            newest[found.host] = max(newest.get(found.host, record), record, key=lambda r: r.updated_at)
    return {host: kind_of(record) for host, record in newest.items()}


@dataclass(frozen=True)
class Shifts:
    """How hosts differ by one objective, where that is known.

    `between` has, for two hosts, (log of the first over the second, its variance in starts).
    """

    between: Mapping[tuple[str, str], tuple[float, float]]

    def comparable(self, first: str, second: str) -> bool:
        return first == second or (first, second) in self.between

    def log(self, host: str, home: str) -> float:
        """What to take from a logarithm read on `host` to have it as it would be on `home`; 0 where none is known."""
        return self.between.get((host, home), (0.0, 0.0))[0]

    def peers(self, host: str, hosts: Iterable[str]) -> list[str]:
        """The host and those that it can be compared with, the host first."""
        return [host, *(other for other in dict.fromkeys(hosts) if other != host and self.comparable(host, other))]


NO_SHIFTS = Shifts({})
"""Of one host."""


def host_shifts(groups: Sequence[Starts], by: Objective) -> Shifts:
    """The shifts between hosts of one kind that measured a configuration in common, directly or by way of another host.

    Of two hosts: the mean, over the configurations in common, of the difference of their mean logarithms. Hosts of
    different hardware, driver or engine are never compared: the same configuration may win on one and lose on the
    other.
    """
    kind = kinds(groups)
    table: dict[str, dict[str, list[float]]] = {}
    for found in groups:
        if logs := found.logs(by):
            table.setdefault(found.host, {})[found.name] = logs
    shifts = {}
    for first, mine in table.items():
        for second, theirs in table.items():
            shared = [name for name in mine if name in theirs]
            if first == second or not shared or kind[first] != kind[second]:
                continue
            differences = [_mean(mine[name]) - _mean(theirs[name]) for name in shared]
            variance = sum(1 / len(mine[name]) + 1 / len(theirs[name]) for name in shared) / len(shared) ** 2
            shifts[first, second] = (_mean(differences), variance)
    return Shifts(_closed(shifts, list(table)))


def _closed(
    shifts: dict[tuple[str, str], tuple[float, float]], hosts: Sequence[str]
) -> dict[tuple[str, str], tuple[float, float]]:
    """Add what two hosts have in common by way of a third (the shortest way; differences add, and so do variances)."""
    direct = dict(shifts)
    for first in hosts:
        reached, known = [first], {first: (0.0, 0.0)}
        for middle in reached:
            for second in hosts:
                if second not in known and (middle, second) in direct:
                    known[second] = tuple(  # type: ignore[assignment]
                        a + b for a, b in zip(known[middle], direct[middle, second], strict=True)
                    )
                    reached.append(second)
        shifts |= {(first, second): found for second, found in known.items() if second != first}
    return shifts


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
