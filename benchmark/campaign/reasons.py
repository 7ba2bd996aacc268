"""Why a configuration won, lost, or has no number, in one or two sentences. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .experiments import changed, listed, shown
from .hosts import NO_SHIFTS, Shifts
from .objectives import GOODPUT, PEAK, Objective, Starts
from .record import Distribution, Point, Record

MATTERS = 0.05
"""A difference at a rung smaller than this explains nothing."""
FEW_CHANGES = 3
"""So many settings that differ are named; more explain nothing."""


def why(
    found: Starts, won: Starts | None, winner: Mapping[str, Any] | None, by: Objective, shifts: Shifts = NO_SHIFTS
) -> str:
    """The sentence beside a configuration in the ranking; `shifts` are those between hosts by this objective."""
    if not found.measured:
        return _no_number(found.newest)
    value = found.value(by)
    if value is None:
        return _none_of(found, by)
    if winner is None or won is None:
        return "Measured."
    if found is won:
        return _won(winner, by)
    if found.name == winner["configuration"]:
        return f"The winner, on another host: {by.shown(value)}."
    if found.name in winner["ties"]:
        return "Within 2 % of the winner: a tie."
    ratio = value / winner["value"] / math.exp(shifts.log(found.host, won.host))
    if found.cut_short and by is not PEAK and found.best_unknown(by):
        return f"Its ladder was left early, so what it would reach is not known: {found.cut_short.reason}"
    if found.name in winner["close"]:
        starts = min(len(found.values(by)), winner["starts"])
        told = "one start" if starts == 1 else f"{starts} starts"
        return f"{ratio - 1:+.1%} against the winner, which {told} cannot tell apart from noise."
    if found.cut_short and by is PEAK:
        return f"Left early: {found.cut_short.reason}"
    what = "the winner's peak" if by is PEAK else "the winner"
    return " ".join([f"{ratio - 1:+.0%} against {what}.", *_causes(found, won, by)])


def _none_of(found: Starts, by: Objective) -> str:
    """Why a configuration that was measured has no value of an objective."""
    if by is GOODPUT:
        offered = [p for r in found.measured for p in r.points if p.valid and p.rate is not None]
        if any(point.goodput_requests_per_second == 0 for point in offered):
            rates = listed(sorted({f"{point.rate:g}" for point in offered}))
            return f"No request met the limits at {rates} requests a second{_medians(offered[-1])}."
    return "It has no valid point for this objective."


def _medians(point: Point) -> str:
    told = [
        f"{name} {spread.p50:.3g} s"
        for name, spread in (("TTFT", point.ttft_seconds), ("TPOT", point.tpot_seconds))
        if spread is not None
    ]
    return f" (median {', '.join(told)})" if told else ""


def _won(winner: Mapping[str, Any], by: Objective) -> str:
    best = "The highest peak" if by is PEAK else f"The best by {by.title}"
    if winner["verdict"] == "tie":
        return "As fast as any, and of those that tie the one with the fewest settings."
    if winner["verdict"] == "undecided" and winner["ahead"]:
        return f"Within 2 % of {winner['ahead']}, with fewer settings; close calls are not decided."
    if winner["verdict"] == "undecided":
        return f"{best} so far; close calls are not decided."
    return f"{best}."


def _no_number(record: Record) -> str:
    if record.failure is not None:
        return record.failure.sentence
    invalid = [flag.message for point in record.points for flag in point.flags if flag.severity == "invalid"]
    return f"No valid point: {invalid[0]}" if invalid else "Not measured."


def _causes(loser: Starts, winner: Starts, by: Objective) -> list[str]:
    """What the records say about where it lost: a limit, the shape of its curve, the transport; else what differs."""
    mine, theirs = loser.shown, winner.shown
    at, what = winner.rung(by) or 0, "the winner's peak has" if by is PEAK else "the winner was read at"
    causes = []
    limit = _running(mine)
    if limit and limit < at and limit < (_running(theirs) or math.inf):
        causes.append(f"It runs at most {limit} requests at once; {what} {at}.")
    elif (holds := _held(mine)) and holds < at and holds < (_held(theirs) or math.inf):
        causes.append(f"Its KV cache holds about {holds} requests; {what} {at}.")
    # The curves of two hosts differ by more than the configuration.
    if loser.host == winner.host and (part := _part(loser, winner, by)):
        causes.append(part)
    if mine.start and theirs.start and mine.start.transports and theirs.start.transports:
        ours, others = (sorted(r.start.transports) for r in (mine, theirs) if r.start)
        if ours != others:
            causes.append(f"Its ranks talk over {', '.join(ours)}, the winner's over {', '.join(others)}.")
    return causes or _differences(loser, winner)


def _differences(loser: Starts, winner: Starts) -> list[str]:
    """Where no number explains it: the settings that the engine reads and in which it differs, if they are few."""
    changes, _ = changed(winner.newest, loser.newest)
    if not 0 < len(changes) <= FEW_CHANGES:
        return []
    return [f"It differs in {listed([f'{key} ({shown(old)} to {shown(new)})' for key, old, new in changes])}."]


def _part(loser: Starts, winner: Starts, by: Objective) -> str:
    """Which part of what the objective is made of is behind."""
    if by.of_point is PEAK.of_point:
        return _shape(loser.shown, winner.shown)
    mine, theirs = loser.point(by), winner.point(by)
    if mine is None or theirs is None:
        return ""
    if by.long_prompts:
        return _joined(
            _times("prompts are read {} times as fast", mine.prompt_tokens_per_second, theirs.prompt_tokens_per_second)
        )
    if by is GOODPUT:
        return _joined(
            _times("a first token takes {} times as long", _median(mine.ttft_seconds), _median(theirs.ttft_seconds)),
            _times("a further one takes {} times as long", _median(mine.tpot_seconds), _median(theirs.tpot_seconds)),
        )
    watts = (point.telemetry.get("power_watts_mean") for point in (mine, theirs))
    return _joined(
        _times("it gives {} times as many tokens", mine.output_tokens_per_second, theirs.output_tokens_per_second),
        _times("it draws {} times the power", *watts),
    )


def _median(spread: Distribution | None) -> float | None:
    return spread.p50 if spread else None


def _times(what: str, mine: float | None, theirs: float | None) -> str:
    """`prompts are read 0.80 times as fast`; empty where the two are alike."""
    return what.format(f"{mine / theirs:.2f}") if mine and theirs and abs(mine / theirs - 1) >= MATTERS else ""


def _joined(*parts: str) -> str:
    told = "; ".join(part for part in parts if part)
    return f"{told[0].upper()}{told[1:]}." if told else ""


def _running(record: Record) -> int | None:
    return record.running_limit or record.configuration.engine.get("max_running_requests")


def _held(record: Record) -> int | None:
    """Whole requests of the workload that the KV cache holds."""
    lengths = [record.workload.get(key) for key in ("prompt_tokens", "output_tokens")]
    if not record.kv_tokens or not all(isinstance(n, int) for n in lengths):
        return None
    return record.kv_tokens // max(1, sum(n for n in lengths if isinstance(n, int)))


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
