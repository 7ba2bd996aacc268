"""The last failure of an engine on this host: kept where it is told, and looked for in one that served and is gone.

`switch.json` does not keep it: the restore after a failed start is a switch of its own.
"""

from __future__ import annotations

import time
from typing import Any

from . import clock, forms, log_file
from .services import Manager, engine_unit
from .serving import running
from .settings import Settings, read_json, write_json
from .switch import SWITCH, death

_ASKED_TO_STOP = "SIGTERM received"
"""In the log of an engine that somebody stopped past these tools: systemctl, supervisorctl, a shutdown."""


def last(settings: Settings, manager: Manager) -> dict[str, Any] | None:
    """{"configuration", "at": seconds since the epoch, "kind", "stage", "sentence", "advice", ...}; None without one.

    Nothing is written.
    """
    return _fallen(settings, manager) or read_json(settings.state / forms.LAST_FAILURE, {}, forms.Failure) or None


def note(settings: Settings, configuration: str, failure: dict[str, Any]) -> None:
    _write(settings, {**failure, "configuration": configuration, "at": time.time()})


def note_fallen(settings: Settings, manager: Manager) -> None:
    """Before a switch begins, after which nobody can tell that an engine fell: keep that it did."""
    if fallen := _fallen(settings, manager):
        _write(settings, fallen)


def _write(settings: Settings, failure: dict[str, Any]) -> None:
    write_json(settings.state / forms.LAST_FAILURE, failure)


def _fallen(settings: Settings, manager: Manager) -> dict[str, Any] | None:
    switched = read_json(settings.state / SWITCH, {}, forms.Switch)
    name = switched.get("configuration")
    # Each stop that these tools ask for is a switch too; a boot of the host ends everything.
    if not name or switched.get("phase") != "ready" or switched.get("boot") != clock.boot():
        return None
    unit = engine_unit(name)
    if unit not in manager.units() or manager.state(unit).running:
        return None
    log = manager.log(unit)
    begun = running(settings).get(unit, {}).get("log_offset", 0)
    if _ASKED_TO_STOP in log_file.since(log, begun):
        return None
    failure = death(settings, name)
    at = log.stat().st_mtime if log.exists() else time.time()
    return failure and {**failure, "configuration": name, "at": at}
