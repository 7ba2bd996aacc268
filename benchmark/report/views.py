"""What the page's template shows, as plain data: the winner, the table, experiments, failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import command, text
from .reported import Reported, pairs
from .summary import Row, bounds, mapping, number, planned, sequence, workloads


def winner_view(won: Row, decision: Mapping[str, Any]) -> dict[str, Any]:
    """The winner's numbers with intervals, its command and its unit."""
    numbers = []

    def add(name: str, value: str, unit: str = "", interval: str = "") -> None:
        if value != text.UNKNOWN:
            amount, _, own = value.partition(" ")
            numbers.append({"name": name, "value": amount, "unit": unit or own, "interval": interval})

    peak = won.peak
    interval = f"interval {text.span(*won.peak_interval)}" if won.peak_interval else ""
    add(
        f"peak, {text.plural(peak.concurrency, 'user')}" if peak else "peak",
        text.rate(won.peak_value),
        "tok/s",
        interval,
    )
    add("single stream", text.rate(won.single_stream), "tok/s")
    if peak and peak.per_user:
        add("each user at the peak", text.rate(peak.per_user.value), "tok/s")
    for quantile in ("p50", "p95"):
        add(f"TTFT {quantile} at the peak", text.seconds(won.at_peak("ttft", quantile)))
    add("TPOT p50 at the peak", text.seconds(won.at_peak("tpot", "p50")))
    add("KV cache", text.count(won.kv_tokens), "tokens")
    add("energy", text.rate(won.joules_per_token), "J a token")
    return {
        "numbers": numbers,
        "against": won.baseline,
        "changes": [text.change(*c) for c in won.changes],
        "others": [
            {"objective": text.objective(name), **_only(mapping(entry), "configuration", "sentence")}
            for name, entry in mapping(decision.get("winners")).items()
        ],
        "texts": [
            item
            for item in (
                ("launch", "Launch command", command.launch_command(won.shown)),
                ("unit", "systemd unit", command.unit(won.shown)),
            )
            if item[2]
        ],
    }


def _only(entry: Mapping[str, Any], *keys: str) -> dict[str, str]:
    return {key: str(entry.get(key) or "") for key in keys}


def standing(decision: Mapping[str, Any], found: list[Row]) -> dict[str, Any]:
    """How far the decision carries: who won on hosts that cannot be compared, what none beats, what would settle close
    calls, what was not measured and why."""
    several = len({row.host for row in found}) > 1
    pareto = [mapping(entry) for entry in sequence(decision.get("pareto"))]
    names = list(dict.fromkeys(name for entry in pareto for name in mapping(entry.get("objectives"))))
    return {
        "objectives": [text.objective(name) for name in names],
        "pareto": [
            {
                "label": _label(entry, several),
                "values": [text.objective_value(name, mapping(entry.get("objectives")).get(name)) for name in names],
            }
            for entry in pareto
        ],
        "hosts": [
            {"host": text.clean(host), **_only(mapping(entry), "configuration", "sentence")}
            for host, entry in mapping(decision.get("winners_by_host")).items()
            if entry
        ],
        "more": [_wanted(entry, several) for entry in map(mapping, sequence(decision.get("more_starts")))],
        "skipped": [_reasoned(entry, "reason", several) for entry in map(mapping, sequence(decision.get("skipped")))],
        "confidence": str(decision.get("confidence") or ""),
    }


def _label(entry: Mapping[str, Any], several: bool) -> str:
    name = text.clean(entry.get("configuration") or "")
    return f"{name} @ {text.clean(entry.get('host') or '')}" if several and entry.get("host") else name


def _wanted(entry: Mapping[str, Any], several: bool) -> dict[str, str]:
    starts = int(number(entry.get("starts")) or 1)
    amount = "One more start" if starts == 1 else text.plural(starts, "more start")
    return _reasoned(entry, "why", several) | {"amount": amount}


def _reasoned(entry: Mapping[str, Any], key: str, several: bool) -> dict[str, str]:
    return {"label": _label(entry, several), "reason": str(entry.get(key) or "")}


def drifts(decision: Mapping[str, Any]) -> list[str]:
    """The decision's sentences about drift, one a host."""
    return [str(entry["sentence"]) for entry in map(mapping, sequence(decision.get("drift"))) if entry.get("sentence")]


# The table


COLUMNS = [
    ("Configuration", "", "Name, and how often it was started", False),
    ("Outcome", "", "measured, failed, rejected or skipped", False),
    ("Differs by", "", "What differs from its baseline", False),
    ("C=1", "tok/s", "Output tokens a second with one user", True),
    ("Peak", "tok/s", "Highest output tokens a second of all users", True),
    ("@C", "", "Concurrent requests at the peak", True),
    ("Goodput", "req/s", "Requests a second inside the stated limits, open loop", True),
    ("TTFT", "p50", "Time to first token at the peak, median; p95 below, p99 where there are samples enough", True),
    ("TPOT", "p50", "Time per output token at the peak, median; p95 below", True),
    ("Weights", "GiB", "Weights on the fullest GPU", True),
    ("KV", "tokens", "Tokens that the KV cache holds", True),
    ("Headroom", "GiB", "Memory of the fullest GPU that nothing claimed once ready", True),
    ("Energy", "J/tok", "Energy of all GPUs for one output token at the peak", True),
    ("Plan", "tok/s", "Predicted peak; measured over predicted below", True),
]


def table_view(found: list[Row], won: Row | None) -> dict[str, Any]:
    """Rows of the big table; each with its sort keys, since a failed row has one wide cell."""
    columns = [dict(zip(("name", "unit", "title", "numeric"), c, strict=True)) for c in COLUMNS]
    note = "Select a heading to sort. Latencies and energy are those at the peak of each configuration."
    others = [w for w in workloads(r for row in found for r in row.records) if found and w != found[0].workload]
    if others:
        shown = found[0].workload
        note += f" Table and pictures show the workload {shown}; {text.joined(others)} is among the points below."
    return {"columns": columns, "note": note, "rows": [_table_row(row, row is won) for row in found]}


def _table_row(row: Row, won: bool) -> dict[str, Any]:
    starts = text.plural(row.starts, "start") if row.starts > 1 else ""
    ignored = [str(flag) for flag in sequence(row.experiment.get("ignored"))]
    measured = _measured_cells(row) if row.outcome == "measured" else []
    differs = text.changes(row.changes) or ("baseline" if row.baseline is None else text.UNKNOWN)
    keys = [row.label, row.outcome, differs, *(key for key, _, _ in measured)]
    keys += [None] * (len(COLUMNS) - len(keys))
    return {
        "label": row.label,
        "outcome": row.outcome,
        "won": won,
        "starts": starts,
        "differs": [text.change(*c) for c in row.changes] or [differs],
        "ignored": f"not read by the engine: {', '.join(ignored)}" if ignored else "",
        "cells": [{"text": shown, "sub": sub} for _, shown, sub in measured],
        "reason": row.reason or "No reason was recorded.",
        "advice": row.advice,
        "sort": json.dumps(keys),
    }


def _measured_cells(row: Row) -> list[tuple[float | None, str, list[str]]]:
    """(sort key, text, small lines below) of the columns after the third."""
    interval = [text.span(*row.peak_interval)] if row.peak_interval else []
    ttft, tpot = row.at_peak("ttft", "p50"), row.at_peak("tpot", "p50")
    at = row.peak.concurrency if row.peak else None
    return [
        (row.single_stream, text.rate(row.single_stream), []),
        (row.peak_value, text.rate(row.peak_value), interval),
        (at, text.count(at), []),
        (row.goodput, text.rate(row.goodput), []),
        (ttft, text.seconds(ttft), _tails(row, "ttft")),
        (tpot, text.seconds(tpot), _tails(row, "tpot")),
        (row.weights_bytes, text.gib(row.weights_bytes), []),
        (row.kv_tokens, text.count(row.kv_tokens), []),
        (row.headroom_bytes, text.gib(row.headroom_bytes), []),
        (row.joules_per_token, text.rate(row.joules_per_token), []),
        _planned(row),
    ]


def _tails(row: Row, name: str) -> list[str]:
    known = {q: row.at_peak(name, q) for q in ("p95", "p99")}
    return [f"{q} {text.seconds(value)}" for q, value in known.items() if value is not None]


def _planned(row: Row) -> tuple[float | None, str, list[str]]:
    """The plan at the concurrency of the measured peak, and how the measurement compares."""
    found = planned(row.shown.plan, row.peak.concurrency if row.peak else None)
    if found is None:
        return None, text.UNKNOWN, []
    low, expected, high = found
    measured = row.peak.throughput.value if row.peak and row.peak.throughput else None
    told = [text.span(low, high)]
    if measured and expected > 0:
        told.append(f"measured {text.percent(measured / expected)}")
    return expected, text.rate(expected), told


# Experiments and failures


def experiments(decision: Mapping[str, Any], found: list[Row]) -> list[dict[str, Any]]:
    """Each experiment in sentences: hypothesis, change, effect, verdict."""
    return [_experiment(mapping(entry), found) for entry in sequence(decision.get("experiments"))]


def _experiment(entry: Mapping[str, Any], found: list[Row]) -> dict[str, Any]:
    name, against = str(entry.get("configuration") or ""), str(entry.get("against") or "")
    row = next((r for r in found if r.configuration == name and entry.get("host") in (r.host, None)), None)
    changes = [tuple(c) for c in sequence(entry.get("changes")) if len(sequence(c)) == 3]
    ignored = [str(flag) for flag in sequence(entry.get("ignored"))]
    counted = [c for c in changes if c[0] not in ignored]
    return {
        "configuration": row.label if row else name,
        "against": against,
        "hypothesis": str(entry.get("hypothesis") or ""),
        "changes": [text.change(str(k), old, new) for k, old, new in changes],
        "ignored": ignored,
        # The decision knows which keys can only change together; one without it is read by the count.
        "several": bool(sequence(entry["confounded_by"])) if "confounded_by" in entry else len(counted) > 1,
        "effects": [_effect(str(objective), mapping(e)) for objective, e in mapping(entry.get("effect")).items()],
        "verdict": str(entry.get("verdict") or "no verdict"),
        "sentence": str(entry.get("sentence") or ""),
    }


def _effect(objective: str, effect: Mapping[str, Any]) -> dict[str, str]:
    interval = bounds(effect)
    return {
        "objective": text.clean(objective).replace("_", " "),
        "change": text.percent(effect.get("ratio")),
        "interval": text.span(*interval, text.percent) if interval else "no interval: one start is not enough",
    }


def failures(found: list[Row]) -> list[dict[str, Any]]:
    """What did not run and why, with the log's own lines; also failures of a row that another start measured."""
    told = []
    for row in found:
        for record in row.records:
            failure = record.failure
            if failure is None:
                continue
            told.append(
                {
                    "label": row.label,
                    "outcome": record.outcome,
                    "kind": failure.kind,
                    "stage": failure.stage.replace("_", " "),
                    "sentence": failure.sentence,
                    "evidence": "\n".join(command.hide_in_text(line) for line in failure.evidence),
                    "advice": "" if failure.advice in failure.sentence else failure.advice,
                    "may_pass": failure.may_pass,
                    "command": command.launch_command(record),
                }
            )
    return told


def reported_views(campaigns: list[Reported], found: list[Row]) -> list[dict[str, Any]]:
    """Reported figures beside the user's own; no verdict, because their conditions were not told."""
    return [
        {"campaign": campaign, "rows": [_beside(*pair) for pair in pairs(campaign, found)]} for campaign in campaigns
    ]


def _beside(told: Mapping[str, Any], row: Row | None) -> dict[str, str]:
    own = {"single": text.UNKNOWN, "peak": text.UNKNOWN, "outcome": "not in this campaign"}
    if row is not None:
        own = {
            "single": text.rate(row.single_stream),
            "peak": text.rate(row.peak_value),
            "outcome": row.outcome if row.outcome != "measured" else "",
        }
    return {
        "name": told["name"],
        "flags": told["flags"],
        "note": told["note"],
        "reported_single": text.rate(told["single_stream"]),
        "reported_peak": text.rate(told["peak"]),
        **own,
    }
