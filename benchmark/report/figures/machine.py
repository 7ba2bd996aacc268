"""The machine's side: memory by part against the card, the start stage by stage, the baseline's drift. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import text
from ..summary import Row, mapping, number
from .base import Picture, axis, figure, legend_above, look, plain, tick
from .latency import SHOWN

_PART_COLOURS = {
    "weights": "@p1",
    "kv cache": "@p2",
    "graphs": "@p3",
    "engine and driver": "@p4",
}


# Memory


def memory(found: list[Row]) -> Picture:
    """One bar a configuration: what lies on the fullest GPU, as measured or else as planned, against its size."""
    title = "Memory of the fullest GPU"
    parts = {row.key: parts_of(row) for row in found}
    known = [row for row in found if parts[row.key][0]]
    if not known:
        return Picture("memory", title, ["Not drawn: no record tells the size of its weights."])
    too_big = [row for row in known if _overflow(row, parts[row.key][0])]
    # The one that did not fit is what people look for: it is drawn even when others have to be left out.
    shown = (too_big + [row for row in known if row not in too_big])[:SHOWN]
    shown = [row for row in known if row in shown]
    names = list(dict.fromkeys(name for row in shown for name in parts[row.key][0]))
    traces = [_part(name, shown, parts, index) for index, name in enumerate(names)]
    cards = sorted({size for row in shown if (size := row.card_bytes)})
    picture = figure(
        traces,
        axis("GiB", rangemode="tozero"),
        _rows_axis(shown),
        barmode="stack",
        bargap=0.35,
        height=122 + 26 * max(len(shown), 3),
        shapes=[_card_line(size) for size in cards],
        annotations=[_card_text(size) for size in cards],
    )
    legend_above(picture)
    headers = ["configuration", "known from", *(f"{name}, GiB" for name in names), "card, GiB"]
    cells = [
        [
            row.label,
            parts[row.key][1],
            *(text.gib(parts[row.key][0].get(name)) for name in names),
            text.gib(row.card_bytes),
        ]
        for row in known
    ]
    return Picture("memory", title, _about_memory(known, too_big, parts), picture, headers, cells)


def parts_of(row: Row) -> tuple[dict[str, float], str]:
    """({part: bytes} of one GPU, `measured` or `planned`); an empty mapping where nothing is known."""
    start = row.shown.start
    if start is not None and start.weights_bytes and start.kv_bytes:
        found = {"weights": float(start.weights_bytes), "kv cache": float(start.kv_bytes)}
        if start.graph_bytes:
            found["graphs"] = float(start.graph_bytes)
        card = row.card_bytes
        if card and start.available_before_load_bytes and card > start.available_before_load_bytes:
            found["engine and driver"] = card - start.available_before_load_bytes
        return found, "measured"
    plan = mapping(row.shown.plan.get("memory"))
    sizes = {
        "weights": number(plan.get("weights_bytes")),
        "kv cache": number(plan.get("kv_pool_bytes")),
        "graphs": number(plan.get("graph_bytes")),
    }
    known = {name: size for name, size in sizes.items() if size and size > 0}
    if not known and row.weights_bytes:
        known = {"weights": row.weights_bytes}
    return known, "planned"


def _overflow(row: Row, parts: dict[str, float]) -> bool:
    card = row.card_bytes
    return card is not None and sum(parts.values()) > card


def _part(name: str, shown: list[Row], parts: dict[str, tuple[dict[str, float], str]], index: int) -> dict[str, Any]:
    colour = _PART_COLOURS.get(name, f"@p{index % 6 + 1}")
    values = [parts[row.key][0].get(name, 0.0) / text.GIB for row in shown]
    planned = [parts[row.key][1] == "planned" for row in shown]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(name),
        "y": [row.key for row in shown],
        "x": values,
        "hovertext": [
            f"<b>{plain(row.label)}</b><br>{plain(name)} {v:.1f} GiB{', planned' if p else ''}"
            for row, v, p in zip(shown, values, planned, strict=True)
        ],
        "hoverinfo": "text",
        "marker": {
            "color": colour,
            "line": {"width": 0},
            "pattern": {
                "shape": ["/" if p else "" for p in planned],
                "fgcolor": colour,
                "fillmode": "overlay",
                "size": 5,
                "solidity": 0.35,
                "bgcolor": "@paper",
            },
        },
    }


def _card_line(size: float) -> dict[str, Any]:
    x = size / text.GIB
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": "@bad", "width": 2}}


def _card_text(size: float) -> dict[str, Any]:
    return {
        "x": size / text.GIB,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "right",
        "showarrow": False,
        "text": f"card: {size / text.GIB:.1f} GiB",
        "font": {"color": "@bad", "size": 12},
    }


def _about_memory(known: list[Row], too_big: list[Row], parts: dict[str, tuple[dict[str, float], str]]) -> list[str]:
    sentences = []
    for row in too_big[:2]:
        card = row.card_bytes
        total = sum(parts[row.key][0].values())
        sentences.append(f"{row.label} needs {text.gib(total)} GiB of {text.gib(card)}: it does not fit.")
    if any(parts[row.key][1] == "planned" for row in known):
        sentences.append("Hatched bars are planned, the others measured.")
    measured = [row for row in known if row.headroom_bytes is not None]
    if measured:
        least = min(measured, key=lambda row: row.headroom_bytes or 0.0)
        sentences.append(f"The least headroom is {text.gib(least.headroom_bytes)} GiB, with {least.label}.")
    if len(known) > SHOWN:
        sentences.append(f"{SHOWN} of {len(known)} are drawn, all in the table.")
    return sentences


def _rows_axis(shown: list[Row]) -> dict[str, Any]:
    return axis(
        "",
        type="category",
        categoryorder="array",
        categoryarray=[row.key for row in reversed(shown)],
        tickvals=[row.key for row in shown],
        ticktext=[tick(row.label) for row in shown],
        gridcolor="rgba(0,0,0,0)",
        ticks="",
    )


# The start


def startup(found: list[Row]) -> Picture:
    """One bar a configuration from launch to ready, cut into stages; a cross where a start ended in failure."""
    title = "Start-up, stage by stage"
    known = [row for row in found if row.shown.start is not None and row.shown.start.stages]
    if not known:
        return Picture("startup", title, ["Not drawn: no start was recorded."])
    shown = known[:SHOWN]
    spans = {row.key: stage_spans(row) for row in known}
    names = list(dict.fromkeys(name for row in shown for name, _, _ in spans[row.key]))
    traces = [_stage(name, shown, spans, index) for index, name in enumerate(names)]
    dead = [row for row in shown if row.outcome == "failed"]
    if dead:
        traces.append(_deaths(dead, spans))
    picture = figure(
        traces,
        axis("seconds since launch", rangemode="tozero"),
        _rows_axis(shown),
        barmode="overlay",
        bargap=0.4,
        height=122 + 26 * max(len(shown), 3),
    )
    legend_above(picture)
    headers = ["configuration", *names, "ready"]
    cells = []
    for row in known:
        lengths = {name: end - begin for name, begin, end in spans[row.key]}
        ready = row.shown.start.ready_seconds if row.shown.start else None
        cells.append([row.label, *(text.seconds(lengths.get(name)) for name in names), text.seconds(ready)])
    return Picture("startup", title, _about_start(known, spans), picture, headers, cells)


def stage_spans(row: Row) -> list[tuple[str, float, float]]:
    """(stage, begin, end) in seconds since launch: a stage lasts until the next one, the last until ready."""
    start = row.shown.start
    if start is None:
        return []
    stages = sorted(((s.name, number(s.seconds)) for s in start.stages), key=lambda s: s[1] or 0.0)
    begins = [(name, at) for name, at in stages if at is not None and at >= 0]
    if begins and begins[0][1] > 0:
        begins.insert(0, ("launch", 0.0))
    ends = [at for _, at in begins[1:]] + [max(begins[-1][1], start.ready_seconds or 0.0)] if begins else []
    return [(name.replace("_", " "), at, end) for (name, at), end in zip(begins, ends, strict=True) if name != "ready"]


def _stage(name: str, shown: list[Row], spans: dict[str, list[tuple[str, float, float]]], index: int) -> dict[str, Any]:
    bars = [(row, begin, end) for row in shown for stage, begin, end in spans[row.key] if stage == name]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(name),
        "y": [row.key for row, _, _ in bars],
        "base": [begin for _, begin, _ in bars],
        "x": [end - begin for _, begin, end in bars],
        "hovertext": [
            f"<b>{plain(row.label)}</b><br>{plain(name)}: {text.seconds(end - begin)}, from {text.seconds(begin)}"
            for row, begin, end in bars
        ],
        "hoverinfo": "text",
        "marker": {"color": f"@p{index % 6 + 1}", "line": {"width": 1, "color": "@paper"}},
    }


def _deaths(dead: list[Row], spans: dict[str, list[tuple[str, float, float]]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "failed",
        "y": [row.key for row in dead],
        "x": [spans[row.key][-1][2] if spans[row.key] else 0 for row in dead],
        "hovertext": [f"<b>{plain(row.label)}</b><br>{plain(row.reason)}" for row in dead],
        "hoverinfo": "text",
        "marker": {"symbol": "x", "size": 10, "color": "@bad"},
    }


def _about_start(known: list[Row], spans: dict[str, list[tuple[str, float, float]]]) -> list[str]:
    ready = [(row.shown.start.ready_seconds, row) for row in known if row.shown.start and row.shown.start.ready_seconds]
    if not ready:
        return ["No start was seen to become ready."]
    ready.sort(key=lambda item: item[0])
    slowest = ready[-1][1]
    first, last = text.seconds(ready[0][0]), text.seconds(ready[-1][0])
    told = f"{first} at the earliest ({ready[0][1].label}), {last} at the latest ({slowest.label})"
    sentences = [f"Ready after {told if first != last else last}."]
    if spans[slowest.key]:
        name, begin, end = max(spans[slowest.key], key=lambda s: s[2] - s[1])
        sentences.append(f"The longest stage of {slowest.label} is {name}: {text.seconds(end - begin)}.")
    return sentences


# Drift


def baseline_rows(found: list[Row]) -> list[Row]:
    """The rows, one a host, of the configuration that most others are held against."""
    counted = Counter(row.baseline for row in found if row.baseline)
    for name, _ in counted.most_common():
        rows = [row for row in found if row.configuration == name and row.peak]
        if rows:
            return rows
    return []


def drift(found: list[Row], told: Sequence[str] = ()) -> Picture:
    """The baseline's throughput at each start, against its own mean: what changed while nothing was changed."""
    title = "Drift of the baseline"
    bases = [row for row in baseline_rows(found) if row.starts > 1]
    if not bases:
        names = list(dict.fromkeys(row.label for row in baseline_rows(found)))
        why = f"{text.joined(names)} was started once" if names else "No baseline was measured"
        return Picture("drift", title, [f"{why}, so drift between starts cannot be told."])
    traces, cells, worst = [], [], 0.0
    for place, row in enumerate(bases):
        points = _starts(row)
        mean = sum(rate for _, rate in points) / len(points)
        shares = [(rate / mean - 1) * 100 for _, rate in points]
        worst = max(worst, *(abs(share) for share in shares))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(row.label),
                "x": [when for when, _ in points],
                "y": shares,
                "hovertext": [
                    f"<b>{plain(row.label)}</b><br>{text.rate(rate)} tok/s, {s:+.1f} %"
                    for (_, rate), s in zip(points, shares, strict=True)
                ],
                "hoverinfo": "text",
            }
            | look(place % 8)
        )
        cells += [
            [row.label, when, text.rate(rate), f"{s:+.1f} %"] for (when, rate), s in zip(points, shares, strict=True)
        ]
    reach = max(5.0, worst * 1.3)
    picture = figure(
        traces,
        axis("start (UTC)", type="date"),
        axis("% of its mean", range=[-reach, reach], zeroline=True, zerolinecolor="@rule"),
    )
    sentences = [f"The same configuration, started again, stayed within {worst:.1f} % of its mean.", *told]
    if not told:
        sentences.append("Nothing is corrected by it.")
    headers = ["configuration", "start", "output tokens/s", "against its mean"]
    return Picture("drift", title, sentences, picture, headers, cells)


def _starts(row: Row) -> list[tuple[str, float]]:
    """(when, tokens a second at the row's peak concurrency) of each start, oldest first."""
    found = []
    for record in row.records:
        at = record.at(row.peak.concurrency) if row.peak else None
        if at and at.output_tokens_per_second and _is_date(at.started_at):
            found.append((at.started_at, at.output_tokens_per_second))
    return sorted(found)


def _is_date(stamp: str) -> bool:
    try:
        dt.datetime.fromisoformat(stamp)
    except ValueError:
        return False
    return True
