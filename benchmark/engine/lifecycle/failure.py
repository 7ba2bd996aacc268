"""A failure, the lines it is found in, and what may be shown of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..secrets import masked

GIB = 1 << 30
LONGEST_LINE = 2000
"""Characters of a line that are looked at."""
LEFT_OUT = "... (the middle of the log is left out) ..."
"""A line in place of those that are not read; no traceback goes on behind it."""
FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7})')
"""Of a traceback: file and line."""
_LOOKED_AT = 8 * LONGEST_LINE
"""And for secrets."""


def shown(text: str) -> str:
    """A line fit to be kept and shown: no secrets, not longer than LONGEST_LINE.

    Secrets are looked for before the line is cut: half of one would not look like one.
    """
    said = masked(text[:_LOOKED_AT])
    if len(text) > _LOOKED_AT and len(said) < 2 * LONGEST_LINE:
        # So much was removed that what is shown may reach to where the looking ended, in the middle of a word.
        said = said[: said.rfind(" ") + 1]
    return said[:LONGEST_LINE]


@dataclass(frozen=True)
class Failure:
    """One named failure of a start or of a running engine."""

    kind: str
    stage: str
    """Of lifecycle.STAGES; `ready` for an engine that ran."""
    sentence: str
    evidence: tuple[str, ...] = ()
    """Lines of the log, the cause first."""
    advice: str = ""
    may_pass: bool = False
    """Whether another try, with nothing changed, could end differently."""


@dataclass
class Line:
    """One line of a log without its prefixes."""

    text: str
    rank: str = ""
    """`TP0 EP0`; empty for the server itself."""
    seconds: float | None = None
    stamped: bool = False
    stage: str = "process"


@dataclass(frozen=True)
class Case:
    """What the builders of a failure know."""

    line: Line
    match: re.Match[str]
    block: Sequence[str]
    """The traceback that the line ends, if it ends one."""
    figures: Mapping[str, Any]
    before: Sequence[Line] = ()
    """The log up to the line."""
    after: Sequence[Line] = ()
    """And some of what is behind it."""

    @property
    def stage(self) -> str:
        return self.line.stage

    def setting(self, name: str) -> Any:
        return (self.figures.get("server_args") or {}).get(name)


Builder = Callable[[Case], Failure | None]
"""None: the line fits the pattern, and what is around it says that it is something else."""


def plain(kind: str, sentence: str, advice: str, *, stage: str | None = None, may_pass: bool = False) -> Builder:
    """A failure whose words hold `{0}`, `{1}`... for the groups of the pattern."""

    def build(case: Case) -> Failure:
        groups = [(group or "").strip() for group in case.match.groups()]
        return Failure(
            kind,
            stage or case.stage,
            _fill(sentence, groups),
            advice=_fill(advice, groups),
            may_pass=may_pass,
        )

    return build


def _fill(text: str, groups: Sequence[str]) -> str:
    for number, group in enumerate(groups):
        text = text.replace("{" + str(number) + "}", group[:300])
    return text.replace(" ()", "")
