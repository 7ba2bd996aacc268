"""What runs on this host, and what is remembered of how it was started."""

from __future__ import annotations

from typing import Any

from . import forms, processes
from .services import Manager, configuration_of
from .settings import Settings, read_json, write_json

_RUNNING = "running.json"


def running(settings: Settings) -> dict[str, Any]:
    """{unit: {"fingerprint", "started_at", "configuration"}} of the last start of each of our engines."""
    known = read_json(settings.state / _RUNNING, {})
    return {unit: start for unit, start in known.items() if forms.has(start, forms.Start)}


def note_start(settings: Settings, unit: str, start: dict[str, Any]) -> None:
    write_json(settings.state / _RUNNING, running(settings) | {unit: start})


def serving_units(settings: Settings, manager: Manager, yields: list[str]) -> list[str]:
    """The engines that run now, or of which processes are left: ours, and those that make room."""
    ours = [unit for unit in manager.units() if configuration_of(unit)]
    left = processes.marked(settings.state)
    return [
        unit
        for unit in dict.fromkeys([*ours, *yields])
        if unit in left or manager.state(unit).running or manager.processes(unit)
    ]
