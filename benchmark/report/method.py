"""What a sceptic asks for: workload, window, checks, versions, environment, every point, and the raw files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..campaign.record import Record, folder_name
from ..load import agreement
from . import command, text
from .summary import Row, number


def method(records: list[Record], found: list[Row], campaign: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a sceptic asks for: workload, window, checks, versions, environment."""
    points = [p for r in records for p in r.points]
    return {
        "workloads": _workloads(records),
        "measuring": _measuring(records),
        "checks": _checks(records),
        "answers": answers(records),
        "client": _ranges([p.client for p in points]),
        "telemetry": _ranges([p.telemetry for p in points]),
        "versions": _versions(records),
        "environment": _common_environment(found),
        "settings": [(str(k), text.value(v)) for k, v in campaign.items() if isinstance(v, str | int | float | bool)],
    }


def _workloads(records: list[Record]) -> list[list[tuple[str, str]]]:
    distinct = {json.dumps(r.workload, sort_keys=True, default=str): r.workload for r in records if r.workload}
    return [
        [(str(k).replace("_", " "), text.value(v)) for k, v in w.items() if v is not None] for w in distinct.values()
    ]


def _measuring(records: list[Record]) -> list[tuple[str, str]]:
    points = [p for r in records for p in r.points]
    ladders = list(dict.fromkeys(tuple(r.ladder) for r in records if r.ladder))
    told = [("ladder", "; ".join(", ".join(map(str, ladder)) for ladder in ladders) or text.UNKNOWN)]
    if points:
        told += [
            ("window", _range_of([p.window_seconds for p in points], text.seconds)),
            ("whole point", _range_of([p.duration_seconds for p in points], text.seconds)),
            ("requests a point", _range_of([p.requests_completed for p in points], text.count)),
            ("failed requests", text.count(sum(p.requests_failed for p in points))),
            ("engine starts", text.count(sum(1 for r in records if r.points))),
        ]
    return told


def _range_of(values: Iterable[Any], show: Any) -> str:
    known = [v for v in map(number, values) if v is not None]
    if not known:
        return text.UNKNOWN
    low, high = show(min(known)), show(max(known))
    return low if low == high else f"{low} to {high}"


def _checks(records: list[Record]) -> list[dict[str, Any]]:
    """Every kind of remark about points, the grave ones first, with how often and where it was made."""
    kinds: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for record in records:
        for point in record.points:
            for flag in point.flags:
                where = f"{record.configuration.name} C={point.concurrency}"
                kinds.setdefault((flag.severity, flag.id), []).append((where, flag.message))
    order = ("invalid", "warning", "note")
    return [
        {
            "severity": severity,
            "id": id_,
            "count": len(told),
            "where": text.joined(list(dict.fromkeys(where for where, _ in told)), 4),
            "message": told[0][1],
        }
        for (severity, id_), told in sorted(kinds.items(), key=lambda k: (order.index(k[0][0]), k[0][1]))
    ]


def answers(records: list[Record]) -> list[dict[str, str]]:
    """Each configuration's answers to the fixed prompts against its baseline's, what differs first."""
    order = ("different", "unknown", "close", "same")
    found = [
        {
            "configuration": text.clean(record.configuration.name),
            "host": text.clean(record.host.name),
            "baseline": text.clean(against.configuration.name),
            "verdict": told.verdict,
            "sentence": told.sentence,
        }
        for record, against, told in agreement.held_against_baseline(records)
    ]
    return sorted(found, key=lambda row: order.index(row["verdict"]))


def _ranges(told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Lowest to highest of every number that points tell under one key, and the distinct texts."""
    values: dict[str, list[Any]] = {}
    for entry in told:
        for key, value in entry.items():
            values.setdefault(str(key), []).append(value)
    rows = []
    for key, found in values.items():
        known = [v for v in map(number, found) if v is not None]
        if known:
            rows.append((key.replace("_", " "), _range_of(known, _short)))
        elif all(isinstance(v, str | bool) for v in found):
            rows.append((key.replace("_", " "), text.joined(list(dict.fromkeys(map(text.value, found))), 4)))
    return rows


def _short(item: float) -> str:
    return text.rate(item) if abs(item) >= 0.1 or item == 0 else f"{item:.2g}"


def _versions(records: list[Record]) -> list[tuple[str, str]]:
    """Version of everything that was told, with each distinct value."""
    told: dict[str, list[str]] = {}

    def add(name: str, value: Any) -> None:
        if value:
            told.setdefault(name, []).append(text.clean(value))

    for record in records:
        add("engine", f"{record.engine.name} {record.engine.version}")
        for package, version in sorted(record.engine.packages.items()):
            add(package, version)
        add("driver", record.host.driver)
        add("model", record.model.name)
        add("model path", record.model.path)
        add("model revision", record.model.revision)
        add("shardsweep", record.tools_version)
    return [(name, text.joined(sorted(set(values)), 4)) for name, values in told.items()]


def _common_environment(found: list[Row]) -> list[tuple[str, str]]:
    counted = Counter(pair for row in found for pair in command.environment(row.shown).items())
    return [
        (f"{name}={value}", "all" if times == len(found) else text.plural(times, "configuration"))
        for (name, value), times in sorted(counted.items())
    ]


POINT_COLUMNS = [
    "Configuration",
    "Workload",
    "C",
    "Start",
    "Engine started",
    "Repeat",
    "tok/s",
    "for each user",
    "TTFT p50",
    "TTFT p95",
    "ITL p50",
    "Requests",
    "Failed",
    "Window",
    "Remarks",
]


def points(found: list[Row]) -> dict[str, Any]:
    """Every point as measured, valid or not."""
    rows = []
    for row in found:
        for record in row.records:
            for p in record.points:
                ttft, itl = p.ttft_seconds, p.itl_seconds
                remarks = "; ".join(f"{flag.severity}: {flag.message}" for flag in p.flags)
                cells = [
                    (p.workload, text.clean(p.workload)),
                    (p.concurrency, text.count(p.concurrency)),
                    (record.start_number, text.count(record.start_number)),
                    (None, (p.engine_started_at or text.UNKNOWN)[:19].replace("T", " ")),
                    (p.repeat, text.count(p.repeat)),
                    (p.output_tokens_per_second, text.rate(p.output_tokens_per_second)),
                    (p.output_tokens_per_second_per_user, text.rate(p.output_tokens_per_second_per_user)),
                    *((getattr(d, q), text.seconds(getattr(d, q))) if d else (None, text.UNKNOWN)
                      for d, q in ((ttft, "p50"), (ttft, "p95"), (itl, "p50"))),
                    (p.requests_completed, text.count(p.requests_completed)),
                    (p.requests_failed, text.count(p.requests_failed)),
                    (p.window_seconds, text.seconds(p.window_seconds)),
                ]  # fmt: skip
                keys = [row.label, p.workload, *(number(key) for key, _ in cells[1:]), remarks]
                rows.append(
                    {
                        "label": row.label,
                        "valid": p.valid,
                        "cells": [shown for _, shown in cells],
                        "remarks": remarks,
                        "sort": json.dumps(keys),
                    }
                )
    return {"columns": POINT_COLUMNS, "rows": rows}


def files(found: list[Row], folder: Path | None) -> list[dict[str, Any]]:
    """Links to each record's folder below the report's own, for what is really there."""
    if folder is None:
        return []
    told = []
    for row in found:
        for record in row.records:
            links = _links(folder, record)
            if links:
                name = folder_name(record.fingerprint[:12], record.start_number)
                told.append({"label": row.label, "fingerprint": name, "links": links})
    return told


def _links(folder: Path, record: Record) -> list[dict[str, str]]:
    """Files beside the record; none where its names would lead out of the campaign's folder."""
    parts = (record.host.name, record.configuration.name, record.folder_name)
    if any(not part or part in (".", "..") or "/" in part or "\0" in part for part in parts):
        return []
    place = folder.joinpath(*parts)
    if not place.is_dir():
        return []
    names = sorted(entry.name for entry in place.iterdir() if entry.is_file() and not entry.name.startswith("."))
    return [{"name": name, "href": "/".join(quote(part, safe="") for part in (*parts, name))} for name in names]
