"""Comparing across hosts: what a common baseline says about their difference. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .objectives import Objective, Starts


def host_shifts(groups: Sequence[Starts], by: Objective) -> dict[tuple[str, str], tuple[float, float]]:
    """For two hosts that measured a configuration in common: (log of first over second, its variance in starts).

    The mean over the configurations in common of the difference of their mean logarithms. Pairs without any are left
    out: between those nothing is corrected.
    """
    table: dict[str, dict[str, list[float]]] = {}
    for found in groups:
        if logs := found.logs(by):
            table.setdefault(found.host, {})[found.name] = logs
    shifts = {}
    for first, mine in table.items():
        for second, theirs in table.items():
            shared = [name for name in mine if name in theirs]
            if first == second or not shared:
                continue
            differences = [_mean(mine[name]) - _mean(theirs[name]) for name in shared]
            variance = sum(1 / len(mine[name]) + 1 / len(theirs[name]) for name in shared) / len(shared) ** 2
            shifts[first, second] = (_mean(differences), variance)
    return shifts


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
