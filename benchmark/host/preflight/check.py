"""One check of a host: what was looked at, the verdict, what was seen, and the command that mends it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "warning", "fail", "unknown"]
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "warning", "unknown", "ok")
_WIDTH = 110


class Check(msgspec.Struct, frozen=True):
    id: str
    verdict: Verdict
    """`fail`: an engine will not start, or will hang or be wrong. `warning`: slower or at risk. `unknown`: not visible
    from here, which is never the same as ok."""
    seen: str
    mend: str = ""
    """A command, or the setting to change; empty where nothing is to be done."""


def counted(checks: Iterable[Check]) -> dict[str, int]:
    """How many checks have each verdict, the worst first."""
    verdicts = [check.verdict for check in checks]
    return {verdict: verdicts.count(verdict) for verdict in _WORST_FIRST}


def listed(items: Iterable[object]) -> str:
    """`0`, `0 and 3`, `0, 1 and 2`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def lines(checks: Sequence[Check]) -> list[str]:
    """One line a check (long ones wrapped), `mend:` below what is not ok, and the count of each verdict last."""
    wide = max((len(check.id) for check in checks), default=0)
    found: list[str] = []
    for check in sorted(checks, key=lambda check: _WORST_FIRST.index(check.verdict)):
        head = f"{check.verdict:<8} {check.id:<{wide}}  "
        found += _wrapped(head, check.seen)
        if check.mend and check.verdict != "ok":
            found += _wrapped(" " * len(head) + "mend: ", check.mend)
    told = ", ".join(f"{number} {verdict}" for verdict, number in counted(checks).items() if number)
    return [*found, told or "nothing was checked"]


def _wrapped(head: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        max(_WIDTH, len(head) + 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
