"""Services of a host behind one interface: systemd where there is one, supervisor where the inventory asks for it.

A manager has the same functions either way, none of which waits: start, stop, state, processes, units, reload.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from .processes import Process

ENGINE_PREFIX = "sglang-"
JOB_UNIT = "shardsweep-job"
GUARD_UNIT = "shardsweep-guard"

Activity = Literal["inactive", "starting", "active", "stopping", "failed"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The service manager itself could not start a unit's program: it never ran, and its log is empty."""

    sentence: str
    advice: str


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    unit: str
    activity: Activity
    pid: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    started_at: float | None = None
    """Seconds since the epoch, of the last start."""
    detail: str = ""
    result: str = ""
    """systemd's word for how it ended: `success`, `exit-code`, `signal`, `oom-kill`, `start-limit-hit` ..."""
    refusal: Refusal | None = None
    restarts: int = 0
    """How often the manager has started it again by itself since it was asked to."""

    @property
    def running(self) -> bool:
        return self.activity in ("starting", "active", "stopping")


class Manager(Protocol):
    def start(self, unit: str) -> None:
        """Ask for a start; returns at once."""

    def stop(self, unit: str) -> None:
        """Ask for a stop (SIGTERM); returns at once. A unit that is not there is stopped already."""

    def state(self, unit: str) -> ServiceState: ...

    def processes(self, unit: str) -> list[Process]:
        """Every process that belongs to the unit, those that left its process group included."""

    def units(self) -> list[str]:
        """Names of the units that this manager has files of, ours and others'."""

    def log(self, unit: str) -> Path: ...

    def reload(self) -> None:
        """Unit files have changed: read them again where that does not happen by itself."""

    def release(self) -> None:
        """Nothing is wanted any more: let go of what the manager itself keeps running for us."""


def engine_unit(configuration: str) -> str:
    return f"{ENGINE_PREFIX}{configuration}"


def configuration_of(unit: str) -> str | None:
    return unit.removeprefix(ENGINE_PREFIX) if unit.startswith(ENGINE_PREFIX) else None
