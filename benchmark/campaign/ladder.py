"""Climbing one engine start's ladder: which rung is next, and when measurement allows to leave the rest. Pure.

Runs on the GPU host, between two points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

BEYOND_NOISE = 0.06
"""Three deviations between starts: another's best reading may be too high by as much, and this start's too low."""


def reach(points: Mapping[int, float], rungs: Iterable[int]) -> float:
    """The most that throughput can be at any of the rungs, given the points measured (concurrency -> throughput).

    Throughput at C' is at most that at C times C'/C for C' above C: one user is not served faster when there are more.
    Below the lowest measured rung nothing is known, and the bound is infinite.
    """
    highest = 0.0
    for rung in rungs:
        below = [value * rung / c for c, value in points.items() if c <= rung]
        highest = max(highest, points[rung] if rung in points else min(below, default=math.inf))
    return highest


def next_rung(
    ladder: Sequence[int],
    points: Mapping[int, float],
    failed: Iterable[int] = (),
    best: float | None = None,
    needed: Iterable[int] = (),
) -> tuple[int | None, str]:
    """The next rung of the ladder to measure, or (None, why the rest is left).

    `points` are measured (concurrency -> throughput), `failed` had no valid point, `best` is the peak to beat, and
    `needed` are rungs that other objectives ask for: the bound does not skip those.
    """
    failed, needed = sorted(failed), set(needed)
    done = set(points) | set(failed)
    left = [rung for rung in sorted(ladder) if rung not in done]
    if failed and (above := [rung for rung in left if rung > failed[0]]):
        left = [rung for rung in left if rung < failed[0]]
        if not left:
            return None, f"Concurrency {failed[0]} failed, so {_rungs(above)} would too."
    if not left:
        return None, ""
    if best and points and (most := reach(points, left)) < best * (1 - BEYOND_NOISE):
        asked = [rung for rung in left if rung in needed]
        if asked:
            return asked[0], ""
        last = max(points)
        return None, (
            f"{points[last]:,.0f} tokens a second at concurrency {last} allow at most {most:,.0f} at {max(left)}, "
            f"below the {best:,.0f} that another reached."
        )
    return left[0], ""


def _rungs(rungs: Sequence[int]) -> str:
    return f"concurrency {rungs[0]}" if len(rungs) == 1 else f"concurrencies {rungs[0]} to {rungs[-1]}"


def reason_to_leave(
    ladder: Sequence[int],
    points: Mapping[int, float],
    failed: Iterable[int],
    rung: int,
    best: float | None = None,
    needed: Iterable[int] = (),
) -> str:
    """Why this rung need not be measured, given what is known by now; empty where it is to be measured."""
    above = [other for other in ladder if other >= rung]
    wanted, why = next_rung(above, points, failed, None if rung in set(needed) else best)
    return why if wanted is None else ""
