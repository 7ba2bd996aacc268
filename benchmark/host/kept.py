"""A unit's files as they were when it last was ready, so that what served before can be brought back as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

from .services import Manager
from .settings import Settings


def _files(settings: Settings, unit: str) -> list[Path]:
    return [settings.unit_file(unit), settings.state / "run" / f"{unit}.sh"]


def keep(settings: Settings, unit: str) -> None:
    """Remember the unit's files: it is ready with them."""
    kept = settings.state / "ready" / unit
    kept.mkdir(parents=True, exist_ok=True)
    for file in _files(settings, unit):
        if file.exists():
            shutil.copy2(file, kept / file.name)


def set_aside(settings: Settings, units: list[str], why: str) -> None:
    """Remember a second time what these units last were ready with: what comes in between is ready with other files."""
    for unit in units:
        _copy(settings.state / "ready" / unit, settings.state / "aside" / why / unit)


def take_back(settings: Settings, units: list[str], why: str) -> None:
    """Make what was set aside what the units last were ready with, for `put_back` to give it to them."""
    for unit in units:
        _copy(settings.state / "aside" / why / unit, settings.state / "ready" / unit)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


def put_back(settings: Settings, manager: Manager, unit: str) -> None:
    """Give the unit the files with which it last was ready."""
    for file in _files(settings, unit):
        kept = settings.state / "ready" / unit / file.name
        if kept.exists() and (not file.exists() or kept.read_bytes() != file.read_bytes()):
            shutil.copy2(kept, file)
    manager.reload()
