"""Numbers and names as a reader sees them: three significant figures, units, a dash for what is not known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .summary import number

GIB = 1024**3
UNKNOWN = "\N{EN DASH}"
"""What stands where there is no value."""


def rate(value: Any) -> str:
    """Tokens (or requests) a second: `1,538`, `65.3`, `7.70`."""
    known = number(value)
    if known is None:
        return UNKNOWN
    if abs(known) >= 100:
        return f"{known:,.0f}"
    return f"{known:.1f}" if abs(known) >= 10 else f"{known:.2f}"


def seconds(value: Any) -> str:
    """A time with its unit: `840 µs`, `18.2 ms`, `1.84 s`, `3 min 20 s`."""
    known = number(value)
    if known is None:
        return UNKNOWN
    size = abs(known)
    if size < 0.001:
        return f"{known * 1e6:.0f} µs"
    if size < 1:
        return f"{known * 1e3:.0f} ms" if size >= 0.1 else f"{known * 1e3:.{1 if size >= 0.01 else 2}f} ms"
    if size < 120:
        return f"{known:.{2 if size < 10 else 1}f} s"
    if size < 7200:
        return f"{int(known) // 60} min {int(known) % 60} s"
    return f"{int(known) // 3600} h {int(known) % 3600 // 60} min"


def gib(value: Any) -> str:
    """Bytes as GiB, without the unit: `69.5`."""
    known = number(value)
    return UNKNOWN if known is None else f"{known / GIB:.1f}"


def count(value: Any) -> str:
    """A whole number with separators."""
    known = number(value)
    return UNKNOWN if known is None else f"{known:,.0f}"


def percent(ratio: Any) -> str:
    """A ratio as a change: 1.07 is `+7.0 %`, 0.9 is minus 10.0 %."""
    known = number(ratio)
    if known is None:
        return UNKNOWN
    change = (known - 1) * 100
    sign = "+" if change >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{abs(change):.1f} %"


def span(low: Any, high: Any, show: Any = rate) -> str:
    """An interval: `1,510 to 1,566`."""
    return f"{show(low)} to {show(high)}"


def value(item: Any) -> str:
    """A setting's value as the catalogue would write it; what is absent reads `not set`."""
    if item is None:
        return "not set"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return item
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    return json.dumps(item, ensure_ascii=False, default=str)


def change(key: str, old: Any, new: Any) -> str:
    """One difference: `ep_size 8 → 4`."""
    return f"{key} {value(old)} → {value(new)}"


def changes(items: Any) -> str:
    """Several differences in one line."""
    return ", ".join(change(*item) for item in items)


def plural(amount: int, word: str, many: str | None = None) -> str:
    """`1 point`, `3 points`."""
    return f"{amount:,} {word if amount == 1 else many or word + 's'}"


def joined(names: list[str], most: int = 6) -> str:
    """`a, b and c`; a long list ends in how many more there are."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def clean(text: Any) -> str:
    """One line without control characters: terminal escapes and line breaks from a record stay out."""
    flat = " ".join(str(text).split())
    return "".join(c for c in flat if c.isprintable())


def standing(winner: Mapping[str, Any]) -> str:
    """What may be said of a winner: one that a few starts cannot tell from the next leads, and has not won."""
    return {"undecided": "leads, undecided", "tie": "leads, in a tie"}.get(str(winner.get("verdict")), "wins")


def objective(name: Any) -> str:
    """An objective's name as words: `tokens per joule`."""
    return clean(name).replace("_", " ")


def objective_value(name: str, value: Any) -> str:
    """A value of an objective: a time for TTFT, a rate for the others."""
    return seconds(value) if name == "ttft" else rate(value)
