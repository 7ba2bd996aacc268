"""What the records say: who won, what each experiment showed, and why each loser lost. Pure."""

from __future__ import annotations

from typing import Any

from ..engine.configuration import difference
from ..engine.rules import dead_flags
from .record import Point, Record

OBJECTIVES = {
    "peak": "output tokens a second at the best concurrency",
    "single_stream": "output tokens a second of one stream",
}
CLOSE = 0.02
"""Relative difference below which one sample a point names no winner: two repeats of a point agree within it."""


def decide(records: list[Record]) -> dict[str, Any]:
    """Rank the records and read their experiments.

    Returns:
        {"simulated", "winner": {"configuration", "host", "objective", "value", "sentence"} | None,
        "winners": {objective: ...}, "ranking": [...], "experiments": [...], "notes": [...]}.
    """
    winners = {objective: _winner(records, objective) for objective in OBJECTIVES}
    return {
        "simulated": any(record.simulated for record in records),
        "winner": winners["peak"],
        "winners": {objective: winner for objective, winner in winners.items() if winner},
        "ranking": _ranking(records, winners["peak"]),
        "experiments": [found for record in records if (found := _experiment(record, records))],
        "notes": _notes(records),
    }


def value_of(record: Record, objective: str) -> float | None:
    point = _point(record, objective)
    return point.output_tokens_per_second if point else None


def _point(record: Record, objective: str) -> Point | None:
    if record.outcome != "measured":
        return None
    return record.peak() if objective == "peak" else record.at(1)


def _winner(records: list[Record], objective: str) -> dict[str, Any] | None:
    ranked = _ranked(records, objective)
    if not ranked:
        return None
    value, best = ranked[0]
    point = _point(best, objective)
    sentence = f"{best.configuration.name} reached {value:,.1f} output tokens a second"
    sentence += f" at concurrency {point.concurrency}" if point and objective == "peak" else " with one stream"
    close = [record.configuration.name for other, record in ranked[1:] if other >= value * (1 - CLOSE)]
    if close:
        sentence += f"; {_listed(close)} came within {CLOSE:.0%}, which one sample cannot tell apart"
    elif len(ranked) > 1:
        runner_up = ranked[1][1].configuration.name
        sentence += f", {value / ranked[1][0] - 1:+.1%} over {runner_up}, the next"
    return {
        "configuration": best.configuration.name,
        "host": best.host.name,
        "objective": objective,
        "value": value,
        "sentence": sentence + ".",
        "close": close,
    }


def _ranked(records: list[Record], objective: str) -> list[tuple[float, Record]]:
    valued = [(value, record) for record in records if (value := value_of(record, objective)) is not None]
    return sorted(valued, key=lambda pair: -pair[0])


def _ranking(records: list[Record], winner: dict[str, Any] | None) -> list[dict[str, Any]]:
    measured = [record for _, record in _ranked(records, "peak")]
    others = [record for record in records if record not in measured]
    return [_row(record, winner) for record in [*measured, *others]]


def _row(record: Record, winner: dict[str, Any] | None) -> dict[str, Any]:
    peak = record.peak() if record.outcome == "measured" else None
    return {
        "configuration": record.configuration.name,
        "host": record.host.name,
        "outcome": record.outcome,
        "peak": peak.output_tokens_per_second if peak else None,
        "peak_concurrency": peak.concurrency if peak else None,
        "single_stream": value_of(record, "single_stream"),
        "interval": None,
        "sentence": _why(record, peak, winner),
    }


def _why(record: Record, peak: Point | None, winner: dict[str, Any] | None) -> str:
    """Why this one won, lost, or has no number."""
    if record.failure is not None:
        return record.failure.sentence
    if peak is None:
        invalid = [flag.message for point in record.points for flag in point.flags if flag.severity == "invalid"]
        return f"No valid point: {invalid[0]}" if invalid else "Not measured."
    if winner is None or record.configuration.name == winner["configuration"]:
        return "The highest peak."
    if record.configuration.name in winner["close"]:
        return "As fast as the winner, as far as one sample can tell."
    ratio = (peak.output_tokens_per_second or 0.0) / winner["value"]
    limit = (record.start.max_running_requests if record.start else None) or 0
    if limit and limit < peak.concurrency:
        return f"{ratio - 1:+.0%} against the winner's peak; it runs at most {limit} requests at once."
    return f"{ratio - 1:+.0%} against the winner's peak."


def _experiment(record: Record, records: list[Record]) -> dict[str, Any] | None:
    """A configuration held against another: what differs, what it did, and whether the hypothesis may stand.

    One start each gives no interval, so the verdict is `undecided` unless the sides cannot be compared at all.
    """
    against = record.configuration.against
    if against is None:
        return None
    baseline = next((r for r in records if r.configuration.name == against and r.host.name == record.host.name), None)
    found: dict[str, Any] = {
        "configuration": record.configuration.name,
        "against": against,
        "hypothesis": record.configuration.hypothesis,
        "host": record.host.name,
        "changes": [],
        "ignored": [],
        "effect": {},
        "verdict": "undecided",
    }
    if baseline is None:
        return found | {"sentence": f"{against} was not measured, so there is nothing to hold it against."}
    changes = difference(_settings(baseline), _settings(record))
    unread = dead_flags(record.engine.version)
    found["changes"] = [change for change in changes if change[0] not in unread]
    found["ignored"] = [change[0] for change in changes if change[0] in unread]
    for objective in OBJECTIVES:
        ours, theirs = value_of(record, objective), value_of(baseline, objective)
        if ours and theirs:
            found["effect"][objective] = {"ratio": ours / theirs, "low": None, "high": None}
    return found | {"sentence": _experiment_sentence(record, baseline, found)}


def _settings(record: Record) -> dict[str, Any]:
    return {"engine": record.configuration.engine, "environment": record.configuration.environment}


def _experiment_sentence(record: Record, baseline: Record, found: dict[str, Any]) -> str:
    name, against = record.configuration.name, baseline.configuration.name
    keys = [f"{key} {_shown(before)} to {_shown(after)}" for key, before, after in found["changes"]]
    sentence = f"{name} changes {_listed(keys)} of {against}" if keys else f"{name} runs as {against} does"
    if found["ignored"]:
        sentence += f" ({_listed(found['ignored'])} differs too, and is read by nothing)"
    for side in (record, baseline):
        if side.outcome != "measured":
            return f"{sentence}; {side.configuration.name} was {side.outcome}, so there is no effect to see."
    peak = found["effect"].get("peak")
    if peak is None:
        return f"{sentence}; no valid point of both."
    sentence += f": peak {peak['ratio'] - 1:+.1%}"
    if single := found["effect"].get("single_stream"):
        sentence += f", single stream {single['ratio'] - 1:+.1%}"
    if len(found["changes"]) > 1:
        sentence += "; confounded, because more than one thing changed"
    return f"{sentence}. One start each: another start is needed before this is more than a hint."


def _notes(records: list[Record]) -> list[str]:
    notes = []
    if any(record.simulated for record in records):
        notes.append("The engine was simulated: these numbers come from a model of it, not from a GPU.")
    if any(record.outcome == "measured" for record in records):
        notes.append("One start a configuration: no interval, and close calls are not decided.")
    return notes


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "nothing"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
