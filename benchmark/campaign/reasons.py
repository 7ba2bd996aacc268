"""Why a configuration won, lost, or has no number, in one or two sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .objectives import PEAK, Objective, Starts
from .record import Record
from .statistics import Noise

MATTERS = 0.05
"""A difference at a rung smaller than this explains nothing."""


def why(found: Starts, won: Starts | None, winner: Mapping[str, Any] | None, by: Objective, noise: Noise | None) -> str:
    """The sentence beside a configuration in the ranking."""
    if not found.measured:
        return _no_number(found.newest)
    value = found.value(by)
    if value is None:
        return "It has no valid point for this objective."
    if winner is None or won is None:
        return "Measured."
    if found is won:
        return _won(winner, by)
    if found.name == winner["configuration"]:
        return f"The winner, on another host: {by.shown(value)}."
    if found.name in winner["ties"]:
        return "Within 2 % of the winner: a tie."
    ratio = value / winner["value"]
    if found.name in winner["close"]:
        starts = min(len(found.values(by)), winner["starts"])
        told = "one start" if starts == 1 else f"{starts} starts"
        return f"{ratio - 1:+.1%} against the winner, which {told} cannot tell apart from noise."
    if found.cut_short and by is PEAK:
        return f"Left early: {found.cut_short.reason}"
    cause = " ".join(_causes(found, won)) if by is PEAK and found.host == won.host else ""
    what = "the winner's peak" if by is PEAK else "the winner"
    return f"{ratio - 1:+.0%} against {what}.{' ' + cause if cause else ''}"


def _won(winner: Mapping[str, Any], by: Objective) -> str:
    best = "The highest peak" if by is PEAK else f"The best by {by.title}"
    if winner["verdict"] == "tie":
        return "As fast as any, and of those that tie the one with the fewest settings."
    if winner["verdict"] == "undecided":
        return f"{best} so far; close calls are not decided."
    return f"{best}."


def _no_number(record: Record) -> str:
    if record.failure is not None:
        return record.failure.sentence
    invalid = [flag.message for point in record.points for flag in point.flags if flag.severity == "invalid"]
    return f"No valid point: {invalid[0]}" if invalid else "Not measured."


def _causes(loser: Starts, winner: Starts) -> list[str]:
    """What the records say about where it lost: a limit, the shape of its curve, the transport."""
    mine, theirs = loser.shown, winner.shown
    at = winner.rung(PEAK) or 0
    causes = []
    limit = _running(mine)
    if limit and limit < at and limit < (_running(theirs) or math.inf):
        causes.append(f"It runs at most {limit} requests at once; the winner's peak has {at}.")
    elif (holds := _held(mine)) and holds < at and holds < (_held(theirs) or math.inf):
        causes.append(f"Its KV cache holds about {holds} requests; the winner's peak has {at}.")
    if shape := _shape(mine, theirs):
        causes.append(shape)
    if mine.start and theirs.start and mine.start.transports and theirs.start.transports:
        ours, others = (sorted(r.start.transports) for r in (mine, theirs) if r.start)
        if ours != others:
            causes.append(f"Its ranks talk over {', '.join(ours)}, the winner's over {', '.join(others)}.")
    return causes


def _running(record: Record) -> int | None:
    told = record.start.max_running_requests if record.start else None
    return told or record.configuration.engine.get("max_running_requests")


def _held(record: Record) -> int | None:
    """Whole requests of the workload that the KV cache holds."""
    lengths = [record.workload.get(key) for key in ("prompt_tokens", "output_tokens")]
    if not record.start or not record.start.kv_tokens or not all(isinstance(n, int) for n in lengths):
        return None
    return record.start.kv_tokens // max(1, sum(n for n in lengths if isinstance(n, int)))


def _shape(mine: Record, theirs: Record) -> str:
    """At which rungs it is behind: from one stream on, or only with many."""
    ratios = {}
    for c in sorted({p.concurrency for p in mine.points} & {p.concurrency for p in theirs.points}):
        a, b = mine.at(c), theirs.at(c)
        if a and b and a.output_tokens_per_second and b.output_tokens_per_second:
            ratios[c] = a.output_tokens_per_second / b.output_tokens_per_second
    if len(ratios) < 2:
        return ""
    low, high = min(ratios), max(ratios)
    streams = "one stream" if low == 1 else f"{low} streams"
    behind = [c for c, ratio in ratios.items() if ratio < 1 - MATTERS]
    if len(behind) == len(ratios):
        return f"Behind at every concurrency, already {ratios[low] - 1:+.0%} with {streams}."
    if behind and behind[0] > low:
        ahead = f"{ratios[low] - 1:+.0%}" if abs(ratios[low] - 1) > MATTERS else "as fast"
        return f"{ahead.capitalize()} with {streams}, behind from {behind[0]} on ({ratios[high] - 1:+.0%} at {high})."
    if behind and ratios[high] >= 1 - MATTERS:
        return f"Behind with few streams only ({ratios[low] - 1:+.0%} at {low})."
    return ""
