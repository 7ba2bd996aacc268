"""What the simulated engine takes from its environment; its command line is SGLang's and has no room for more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .ledger import Ledger

PREFIX = "SHARDSWEEP_SIMULATED_"

FAULT_KINDS = {
    "slow_load": "seconds that loading the weights takes longer",
    "hang_load": "loading the weights never ends",
    "hang_init": "the first collective never ends: full utilization at low power",
    "crash_load": "a rank fails while it loads the weights",
    "crash_at_token": "a rank fails when the engine has made this many tokens",
    "oom_at_tokens": "a prefill fails for memory when this many prompt tokens are in flight",
    "leak": "bytes of every GPU that stay held after the engine died",
    "orphan": "a child in another session outlives the engine and holds this many bytes (0 unless given)",
    "lying_health": "/health stays 200 this many seconds after start (0 unless given) over a dead scheduler",
    "hang_stop": "SIGTERM is answered but the drain never ends",
    "wrong_answers": "answers are another model's: as fast as ever, and wrong",
}
_NEEDS_ARGUMENT = {"slow_load", "crash_at_token", "oom_at_tokens", "leak"}
_TAKES_ARGUMENT = _NEEDS_ARGUMENT | {"orphan", "lying_health"}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SettingsError(ValueError):
    """A SHARDSWEEP_SIMULATED_* variable that makes no sense; the text says which and what it takes."""


def parse_amount(text: str) -> float:
    """`1536`, `2.5` or `12G` (binary units, optional `iB`) as a number.

    Raises:
        ValueError: anything else.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if not found:
        raise ValueError(f"'{text}' is not an amount")
    return float(found.group(1)) * _UNITS[found.group(2)]


@dataclass(frozen=True)
class Faults:
    """Failures on request: kind -> its argument (0 where it has none)."""

    requested: Mapping[str, float]

    def __contains__(self, kind: str) -> bool:
        return kind in self.requested

    def __getitem__(self, kind: str) -> float:
        return self.requested[kind]

    def get(self, kind: str) -> float | None:
        return self.requested.get(kind)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """`crash_at_token:500` or several with commas between.

        Raises:
            SettingsError: an unknown kind, or an argument that is missing or too much.
        """
        requested: dict[str, float] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            kind, separator, argument = item.partition(":")
            if kind not in FAULT_KINDS:
                raise SettingsError(f"{PREFIX}FAULT has no kind '{kind}'. Known: {', '.join(sorted(FAULT_KINDS))}.")
            if separator and kind not in _TAKES_ARGUMENT:
                raise SettingsError(f"{PREFIX}FAULT: {kind} takes no argument, not '{argument}'.")
            if not separator and kind in _NEEDS_ARGUMENT:
                raise SettingsError(f"{PREFIX}FAULT: {kind} needs an argument: {FAULT_KINDS[kind]}.")
            try:
                requested[kind] = parse_amount(argument) if separator else 0.0
            except ValueError:
                raise SettingsError(
                    f"{PREFIX}FAULT: '{argument}' is no amount for {kind}; write a number such as 512 or 8G."
                ) from None
        return cls(requested)


@dataclass(frozen=True)
class Settings:
    """The simulated engine's environment, read once."""

    release: str = "0.5.11"
    hardware: str = "8x RTX PRO 6000 Blackwell"
    ledger: Path | None = None
    start_seconds: float = 3.0
    """From the launch to ready; a real start takes minutes, and this says nothing about how many."""
    speed: float = 1.0
    """Every step takes 1/speed of the modelled time. For tests; a report never compares across it."""
    faults: Faults = Faults({})
    seed: int = 0

    def note_fault(self, kind: str) -> None:
        """Writes into the ledger that this fault happens now; `wrong_answers`, of every answer, is not told."""
        if self.ledger is not None:
            Ledger(self.ledger).note_fault(kind)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Reads SHARDSWEEP_SIMULATED_{RELEASE,HARDWARE,GPU,START_SECONDS,SPEED,FAULT,SEED}.

        Raises:
            SettingsError: a value that cannot be used.
        """

        def value(name: str, default: str) -> str:
            return environment.get(PREFIX + name, "").strip() or default

        ledger = value("GPU", "")
        seed = value("SEED", "0")
        if not seed.isdecimal():
            raise SettingsError(f"{PREFIX}SEED is a whole number, not '{seed}'.")
        return cls(
            release=value("RELEASE", cls.release),
            hardware=value("HARDWARE", cls.hardware),
            ledger=Path(ledger) if ledger else None,
            start_seconds=_positive(value("START_SECONDS", str(cls.start_seconds)), "START_SECONDS", zero=True),
            speed=_positive(value("SPEED", str(cls.speed)), "SPEED"),
            faults=Faults.parse(value("FAULT", "")),
            seed=int(seed),
        )


def _positive(text: str, name: str, zero: bool = False) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number < 1e9) or (number == 0 and not zero):
        raise SettingsError(f"{PREFIX}{name} is a positive number, not '{text}'.")
    return number
