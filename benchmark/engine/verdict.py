"""A rule of the engine, and what it says about one configuration."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("reject", "doubt", "note")
"""`reject`: it cannot start, or cannot do what it says. `doubt`: it may. `note`: worth knowing."""


@dataclass(frozen=True)
class Verdict:
    """What one rule says about one configuration."""

    rule: str
    severity: str
    sentence: str
    engine_message: str | None
    source: str
    advice: str


@dataclass(frozen=True)
class Rule:
    """Something that the engine, NCCL or the host demands of a configuration."""

    id: str
    title: str
    text: str
    """Why it is so, in a few sentences."""
    source: str
    """File and line in an engine release, or a public issue."""
    engine_message: str | None
    """What the engine prints; None where it says nothing."""
    advice: str

    def verdict(
        self, severity: str, sentence: str, *, message: str | None = None, advice: str | None = None
    ) -> Verdict:
        """This rule's word on one configuration; `message` and `advice` replace the general ones."""
        return Verdict(
            rule=self.id,
            severity=severity,
            sentence=sentence,
            engine_message=message or self.engine_message,
            source=self.source,
            advice=advice or self.advice,
        )
