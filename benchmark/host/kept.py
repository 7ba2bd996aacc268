"""A unit's files as they were when it last was ready, so that what served before can be brought back as it was.

There is no other copy of them: a file is written whole and flushed, or the one before stays.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ..durable import flush_names
from .services import Manager
from .settings import Settings, locked, write_bytes

_LOCK = "kept"
"""A guard and a controller may both be ending a sweep."""


def _files(settings: Settings, unit: str) -> list[Path]:
    return [settings.unit_file(unit), settings.state / "run" / f"{unit}.sh"]


def keep(settings: Settings, unit: str) -> None:
    """Remember the unit's files: it is ready with them."""
    kept = settings.state / "ready" / unit
    kept.mkdir(parents=True, exist_ok=True)
    for file in _files(settings, unit):
        if file.exists():
            _write(file, kept / file.name)


def set_aside(settings: Settings, units: list[str], why: str) -> None:
    """Remember a second time what these units last were ready with: what comes in between is ready with other files."""
    with locked(settings, _LOCK):
        for unit in units:
            _copy(settings.state / "ready" / unit, settings.state / "aside" / why / unit)


def take_back(settings: Settings, units: list[str], why: str) -> None:
    """Make what was set aside what the units last were ready with, for `put_back` to give it to them."""
    with locked(settings, _LOCK):
        for unit in units:
            _copy(settings.state / "aside" / why / unit, settings.state / "ready" / unit)


def _copy(source: Path, target: Path) -> None:
    """The folder whole, or the one that was there; one that a killed verb left half made is begun anew."""
    if not source.is_dir():
        return
    new, old = (target.with_name(f".{target.name}.{which}") for which in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        for file in source.glob("[!.]*"):
            _write(file, new / file.name)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        raise
    # A folder that is not empty cannot be replaced in one step; whoever is killed in between copies again.
    if target.is_dir():
        target.rename(old)
    new.rename(target)
    flush_names(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(source: Path, target: Path) -> None:
    write_bytes(target, source.read_bytes(), source.stat().st_mode & 0o777)


def put_back(settings: Settings, manager: Manager, unit: str) -> None:
    """Give the unit the files with which it last was ready."""
    for file in _files(settings, unit):
        kept = settings.state / "ready" / unit / file.name
        if kept.exists() and (not file.exists() or kept.read_bytes() != file.read_bytes()):
            _write(kept, file)
    manager.reload()
