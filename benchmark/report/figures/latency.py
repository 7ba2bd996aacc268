"""How latencies spread: time to first token, and the time between tokens. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .. import text
from ..summary import Row
from .base import COLOURED, Picture, axis, figure, log_ticks, look, measured, plain, tick

SHOWN = 24
"""Rows of a picture with one line a configuration; the table below it has them all."""
QUANTILES = ("min", "p50", "p90", "p95", "p99", "max")


def common_concurrency(found: list[Row], name: str) -> int | None:
    """The concurrency that most rows have a valid latency at; of several, the highest."""
    counted = Counter(r.concurrency for row in found for r in row.rungs if r.seconds(name, "p50"))
    return max(counted, key=lambda c: (counted[c], c), default=None)


def distribution(found: list[Row], name: str, title: str) -> Picture:
    """The spread of one latency at one concurrency that the rows share."""
    concurrency = common_concurrency(found, name)
    drawn = [row for row in measured(found) if (r := row.rung(concurrency)) and r.seconds(name, "p50")]
    if concurrency is None or not drawn:
        return Picture(name, title, ["Not drawn: no valid point has this latency."])
    samples = {row.key: _sample(row, concurrency, name) for row in drawn}
    traces: list[dict[str, Any]] = []
    for place, row in enumerate(drawn[:SHOWN]):
        traces += _spread(row, samples[row.key], place)
    shown = drawn[:SHOWN]
    lows = [v for row in shown for v in samples[row.key].values() if v > 0]
    xaxis = axis("seconds (log)", type="log") | log_ticks(lows)
    yaxis = axis(
        "",
        type="category",
        categoryarray=[row.key for row in reversed(shown)],
        tickvals=[row.key for row in shown],
        ticktext=[tick(row.label) for row in shown],
        gridcolor="rgba(0,0,0,0)",
        ticks="",
    )
    picture = figure(traces, xaxis, yaxis, height=90 + 26 * max(len(shown), 3), showlegend=False)
    picture["layout"]["meta"] = "rows"
    headers = ["configuration", *QUANTILES]
    cells = [[row.label, *(text.seconds(samples[row.key].get(q)) for q in QUANTILES)] for row in drawn]
    sentences = [
        f"With {text.plural(concurrency, 'user')}, the highest concurrency that most configurations share. "
        "Dot: median; bar: to the 95th percentile; tick: the 99th, where there are samples enough; "
        "thin line: shortest to longest.",
        _lowest(drawn, samples),
    ]
    if len(drawn) > SHOWN:
        sentences.append(f"The first {SHOWN} of {len(drawn)} are drawn.")
    return Picture(name, f"{title}, C={concurrency}", sentences, picture, headers, cells)


def _lowest(drawn: list[Row], samples: dict[str, dict[str, float]]) -> str:
    best = min(drawn, key=lambda row: samples[row.key]["p50"])
    sample = samples[best.key]
    return (
        f"The lowest median is that of {best.label}: {text.seconds(sample['p50'])}, "
        f"with a 95th percentile of {text.seconds(sample.get('p95'))}."
    )


def _sample(row: Row, concurrency: int, name: str) -> dict[str, float]:
    rung = row.rung(concurrency)
    found = {q: rung.seconds(name, q) for q in QUANTILES} if rung else {}
    return {q: estimate.value for q, estimate in found.items() if estimate}


def _spread(row: Row, sample: dict[str, float], place: int) -> list[dict[str, Any]]:
    colour = look(place)["line"]["color"] if place < COLOURED else "@muted"
    told = "<br>".join(f"{q} {text.seconds(v)}" for q, v in sample.items())
    shared = {
        "type": "scatter",
        "y": [row.key, row.key],
        "hoverinfo": "text",
        "text": f"<b>{plain(row.label)}</b><br>{told}",
    }
    ends = [sample.get("min", sample["p50"]), sample.get("max", sample["p50"])]
    bar = [sample["p50"], sample.get("p95", sample["p50"])]
    dots = [sample["p50"], *([sample["p99"]] if "p99" in sample else [])]
    marker = {"color": colour, "size": 9, "symbol": ["circle", "line-ns"], "line": {"color": colour, "width": [0, 2]}}
    return [
        shared | {"mode": "lines", "x": ends, "line": {"color": "@faint", "width": 1.5}},
        shared | {"mode": "lines", "x": bar, "line": {"color": colour, "width": 7}, "opacity": 0.45},
        shared | {"mode": "markers", "x": dots, "y": [row.key for _ in dots], "marker": marker},
    ]


def ttft(found: list[Row]) -> Picture:
    return distribution(found, "ttft", "Time to first token")


def itl(found: list[Row]) -> Picture:
    return distribution(found, "itl", "Time between tokens (ITL)")
