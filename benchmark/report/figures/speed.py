"""Throughput and speed: over concurrency, over time to first token, against each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...campaign.statistics import ERROR, Noise, bounded_exp, pooled_noise, t_point
from .. import text
from ..summary import Estimate, Row, Rung
from .base import COLOURED, Picture, axis, figure, ladder_axis, log_ticks, look, measured, plain

LEAST_DEGREES = 2
"""With one degree of freedom an interval is thirteen deviations wide, and hides what was measured."""
_Read = Callable[[Rung], Estimate | None]


def over_concurrency(found: list[Row], name: str, title: str, unit: str, read: _Read) -> Picture:
    """A number over the ladder, one line a row: gaps where points are invalid, whiskers where noise is known."""
    drawn = measured(found)
    noise = pooled_noise(row.start_logs(row.peak.concurrency, read) for row in drawn if row.peak)
    traces = []
    for place, row in reversed(list(enumerate(drawn))):
        traces.append(_line(row, place, unit, read, noise))
        traces += _gaps(row, place)
    if not drawn:
        return Picture(name, title, ["Not drawn: no configuration has a valid point."])
    picture = figure(traces, ladder_axis(drawn), axis(unit, rangemode="tozero"))
    picture["layout"]["legend"]["traceorder"] = "reversed"
    concurrencies = sorted({r.concurrency for row in drawn for r in row.rungs})
    cells = [[row.label, *(_shown(row.rung(c), read) for c in concurrencies)] for row in drawn]
    headers = ["configuration", *(f"C={c}" for c in concurrencies)]
    return Picture(name, title, _about_ladder(drawn, unit, read, noise), picture, headers, cells)


def _shown(rung: Rung | None, read: _Read) -> str:
    estimate = read(rung) if rung else None
    if estimate is None:
        return "left out" if rung and rung.invalid else text.UNKNOWN
    return text.rate(estimate.value)


def _whisker(row: Row, rung: Rung, found: Estimate | None, read: _Read, noise: Noise) -> tuple[float, float]:
    """How far an interval reaches (up, down): of 95 % by the noise between starts, else over what was repeated."""
    if found is None:
        return 0.0, 0.0
    if noise.degrees < LEAST_DEGREES:
        return found.high - found.value, found.value - found.low
    starts = max(1, len(row.start_logs(rung.concurrency, read)))
    half = t_point(ERROR, noise.degrees) * noise.deviation / math.sqrt(starts)
    return found.value * (bounded_exp(half) - 1), found.value * (1 - bounded_exp(-half))


def _line(row: Row, place: int, unit: str, read: _Read, noise: Noise) -> dict[str, Any]:
    values = [(rung, read(rung)) for rung in row.rungs]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(row.label),
        "legendgroup": row.key,
        "x": [rung.concurrency for rung, _ in values],
        "y": [e.value if e else None for _, e in values],
        "text": [_hover(row, rung, e, unit) if e else "" for rung, e in values],
        "hoverinfo": "text",
        "connectgaps": False,
    } | look(place)
    whiskers = [_whisker(row, rung, e, read, noise) for rung, e in values]
    if any(up or down for up, down in whiskers) and place < COLOURED:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [up for up, _ in whiskers],
            "arrayminus": [down for _, down in whiskers],
            "thickness": 1.25,
            "width": 3,
            "color": trace["line"]["color"],
        }
    return trace


def _hover(row: Row, rung: Rung, estimate: Estimate, unit: str) -> str:
    lines = [f"<b>{plain(row.label)}</b>, C={rung.concurrency}", f"{text.rate(estimate.value)} {unit}"]
    if estimate.count > 1:
        lines.append(f"{text.span(estimate.low, estimate.high)} in {estimate.count} measurements")
    ttft = rung.seconds("ttft", "p50")
    if ttft:
        lines.append(f"TTFT p50 {text.seconds(ttft.value)}")
    return "<br>".join(lines)


def _gaps(row: Row, place: int) -> list[dict[str, Any]]:
    """On the floor of the picture: rungs whose points were all taken out, and those not measured; why, on hover."""
    gaps = {r.concurrency: r.reasons for r in row.rungs if r.invalid and not r.valid}
    skipped = {rung: [reason] for rung, reason in row.left.items()}
    if place >= COLOURED:
        return []
    drawn = (("left out", "x-thin", gaps), ("not measured", "circle-open", skipped))
    return [_floor(row, place, what, symbol, reasons) for what, symbol, reasons in drawn if reasons]


def _floor(row: Row, place: int, what: str, symbol: str, reasons: dict[int, list[str]]) -> dict[str, Any]:
    colour = look(place)["line"]["color"]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(f"{row.label}: {what}"),
        "legendgroup": row.key,
        "showlegend": False,
        "x": list(reasons),
        "y": [0 for _ in reasons],
        "text": [
            f"<b>{plain(row.label)}</b>, C={rung}: {what}<br>" + "<br>".join(plain(reason) for reason in told)
            for rung, told in reasons.items()
        ],
        "hoverinfo": "text",
        "cliponaxis": False,
        "marker": {"symbol": symbol, "size": 9, "color": colour, "line": {"width": 2, "color": colour}},
    }


def _about_ladder(drawn: list[Row], unit: str, read: _Read, noise: Noise) -> list[str]:
    tops = []
    for row in drawn:
        best = max((e for e in map(read, row.rungs) if e), key=lambda e: e.value, default=None)
        if best:
            tops.append((best.value, row))
    tops.sort(key=lambda top: -top[0])
    sentences = []
    if tops:
        sentences.append(f"{tops[0][1].label} reaches {text.rate(tops[0][0])} {unit}.")
    if len(tops) > 1:
        sentences.append(f"The next is {tops[1][1].label} with {text.rate(tops[1][0])}.")
    left_out = sum(1 for row in drawn for r in row.rungs if r.invalid and not r.valid)
    if left_out:
        sentences.append(f"{text.plural(left_out, 'point')} left out as invalid (crosses; hover for the reason).")
    skipped = sum(len(row.left) for row in drawn)
    if skipped:
        sentences.append(
            f"{text.plural(skipped, 'rung')} not measured on purpose (open circles; hover for the reason)."
        )
    if noise.degrees >= LEAST_DEGREES:
        sentences.append(f"Whiskers are intervals of 95 % by the noise between starts, {noise.deviation:.1%}.")
    elif any(len(r.valid) > 1 for row in drawn for r in row.rungs):
        sentences.append("Whiskers span the lowest and the highest of repeated measurements.")
    if len(drawn) > COLOURED:
        sentences.append(f"The first {COLOURED} of the ranking have a colour, the rest is grey.")
    return sentences


def throughput(found: list[Row]) -> Picture:
    """Output tokens a second of all users over concurrency."""
    return over_concurrency(
        found, "throughput", "Throughput over concurrency", "output tokens/s", lambda r: r.throughput
    )


def speed(found: list[Row]) -> Picture:
    """What one user sees, over concurrency."""
    return over_concurrency(
        found, "speed", "Speed of one user over concurrency", "tokens/s for each user", lambda r: r.per_user
    )


def throughput_over_ttft(found: list[Row]) -> Picture:
    """Throughput against the median time to first token: up and to the left is better."""
    title = "Throughput over time to first token"
    return _pairs(
        found,
        "throughput-ttft",
        title,
        lambda r: r.seconds("ttft", "p50"),
        axis("TTFT p50, seconds (log)", type="log"),
        "Up and to the left is better. Each line follows the ladder from low to high concurrency.",
    )


def _pairs(
    found: list[Row],
    name: str,
    title: str,
    read_x: _Read,
    xaxis: dict[str, Any],
    about: str,
) -> Picture:
    traces, cells = [], []
    drawn = [row for row in measured(found) if any(read_x(r) and r.throughput for r in row.rungs)]
    for place, row in reversed(list(enumerate(drawn))):
        points = [(r, x, r.throughput) for r in row.rungs if (x := read_x(r)) and r.throughput and x.value > 0]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(row.label),
                "legendgroup": row.key,
                "x": [x.value for _, x, _ in points],
                "y": [y.value for _, _, y in points],
                "text": [_hover(row, r, y, "output tokens/s") for r, _, y in points],
                "hoverinfo": "text",
            }
            | look(place)
        )
        cells[:0] = [[row.label, str(r.concurrency), f"{x.value:.4g}", text.rate(y.value)] for r, x, y in points]
    if not drawn:
        return Picture(name, title, ["Not drawn: no valid point has both numbers."])
    if xaxis.get("type") == "log":
        xaxis = xaxis | log_ticks([x for trace in traces for x in trace["x"]])
    picture = figure(traces, xaxis, axis("output tokens/s", rangemode="tozero"))
    picture["layout"]["legend"]["traceorder"] = "reversed"
    headers = ["configuration", "concurrency", xaxis["title"]["text"].removesuffix(" (log)"), "output tokens/s"]
    return Picture(name, title, [about], picture, headers, cells)


def pareto(found: list[Row]) -> Picture:
    """Speed of each user against total throughput, with the points that no other point beats on both."""
    title = "Speed of one user against total throughput"
    picture = _pairs(
        found,
        "pareto",
        title,
        lambda r: r.per_user,
        axis("tokens/s for each user", rangemode="tozero"),
        "Up and to the right is better: many users at speed.",
    )
    best = frontier(found)
    if picture.figure is None or len(best) < 2:
        return picture
    picture.figure["data"].insert(
        0,
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best of all",
            "x": [x for _, _, x, _ in best],
            "y": [y for _, _, _, y in best],
            "hoverinfo": "skip",
            "line": {"color": "@band", "width": 12, "shape": "linear"},
        },
    )
    names = list(dict.fromkeys(row.label for row, _, _, _ in best))
    picture.sentences.append(f"On the broad line, where no point is better in both: {text.joined(names)}.")
    return picture


def frontier(found: list[Row]) -> list[tuple[Row, int, float, float]]:
    """The Pareto set as (row, concurrency, per-user speed, throughput), from fast users to high throughput."""
    points = [
        (row, r.concurrency, r.per_user.value, r.throughput.value)
        for row in measured(found)
        for r in row.rungs
        if r.per_user and r.throughput
    ]
    best: list[tuple[Row, int, float, float]] = []
    for point in sorted(points, key=lambda p: (-p[2], -p[3])):
        if not best or point[3] > best[-1][3]:
            best.append(point)
    return best
