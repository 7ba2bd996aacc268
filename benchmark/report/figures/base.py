"""What all pictures share: the look, escaping, and which row gets which colour.

Figures are plain plotly JSON. Colours are names (`@s1`, `@ink`, ...) that the page replaces by the reader's light or
dark theme. Texts that come from records are escaped here, because plotly reads some HTML in every text.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

from .. import text
from ..summary import Row

COLOURED = 8
"""So many rows get a colour of their own; more would not be told apart. The rest is grey, named on hover."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
_DASHES = ("solid", "solid", "dash", "dot", "dashdot", "longdash", "dash", "dot")
WINNER_WIDTH = 3.0


@dataclass(frozen=True)
class Picture:
    """A figure with what it says in words. `figure` is None where there is nothing to draw."""

    id: str
    title: str
    sentences: list[str]
    figure: dict[str, Any] | None = None
    headers: list[str] = field(default_factory=list)
    """Of the same data as a table."""
    cells: list[list[str]] = field(default_factory=list)
    wide: bool = False


def plain(item: Any) -> str:
    """Text for plotly: one line, with what it would read as markup escaped."""
    return html.escape(text.clean(item), quote=False)


def tick(label: str) -> str:
    """A row's name beside an axis, cut where it would take the picture's place; the hover has all of it."""
    return plain(label if len(label) <= 26 else label[:25] + "…")


def axis(title: str, **others: Any) -> dict[str, Any]:
    """An axis in the report's look: thin grid, no box, its title above or beside it."""
    base = {
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "@muted"}},
        "gridcolor": "@grid",
        "linecolor": "@rule",
        "tickcolor": "@rule",
        "tickfont": {"size": 11, "color": "@muted"},
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 3,
        "automargin": True,
        "fixedrange": True,
    }
    return base | others


def figure(traces: list[dict[str, Any]], xaxis: dict[str, Any], yaxis: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Traces and axes with the shared layout. `height` is in pixels."""
    layout = {
        "height": 360,
        "margin": {"l": 52, "r": 16, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12, "color": "@ink"},
        "hoverlabel": {"bgcolor": "@raised", "bordercolor": "@rule", "align": "left", "font": {"color": "@ink"}},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 12, "color": "@ink"},
            "itemclick": "toggle",
            "itemdoubleclick": "toggleothers",
        },
        "xaxis": xaxis,
        "yaxis": yaxis,
    }
    return {"data": traces, "layout": layout | others}


def legend_above(picture: dict[str, Any]) -> None:
    """The legend at the very top, clear of what stands above the bars; the page makes room where it wraps."""
    layout = picture["layout"]
    layout["meta"] = "rows"
    layout["margin"]["t"] = 44
    layout["legend"] |= {"yref": "container", "y": 1, "yanchor": "top", "traceorder": "normal"}


def ladder_axis(found: list[Row]) -> dict[str, Any]:
    """Concurrency on a log scale with a tick at each rung."""
    rungs = sorted({c for row in found for c in (*(r.concurrency for r in row.rungs), *row.left) if c > 0})
    while len(rungs) > 9:
        rungs = rungs[::2]
    return axis("concurrent requests", type="log", tickvals=rungs, ticktext=[f"{c:,}" for c in rungs])


def look(place: int) -> dict[str, Any]:
    """Line and marker of the row at this place of the ranking."""
    if place >= COLOURED:
        return {
            "line": {"color": "@faint", "width": 1},
            "marker": {"color": "@faint", "size": 4},
            "showlegend": False,
        }
    colour = f"@s{place + 1}"
    return {
        "line": {"color": colour, "width": WINNER_WIDTH if place == 0 else 1.75, "dash": _DASHES[place]},
        "marker": {"color": colour, "size": 8 if place == 0 else 7, "symbol": _SYMBOLS[place]},
        "showlegend": True,
    }


def measured(found: list[Row]) -> list[Row]:
    """The rows that have at least one valid point with a throughput."""
    return [row for row in found if row.peak is not None]


def log_ticks(values: list[float]) -> dict[str, Any]:
    """Round ticks, more of them in a narrow range; plotly's own mix sizes of figures."""
    known = [v for v in values if v > 0]
    if not known:
        return {}
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    reach = max(known) / min(known)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if reach < 6 else (1, 2, 5) if reach < 1000 else (1,)
    ticks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
