"""The files with which a unit last was ready, of which there is no other copy."""

from __future__ import annotations

import resource
import signal
from contextlib import contextmanager

import pytest

from benchmark.host import kept
from benchmark.host.settings import Settings

UNIT = "sglang-ep4"
WORKS = "[Service]\nExecStart=/opt/engine\n" + "# x\n" * 1000


class Manager:
    def reload(self) -> None:
        """The service manager reads what is there."""


@pytest.fixture
def settings(tmp_path):
    settings = Settings(state=tmp_path / "state", unit_directory=tmp_path / "units")
    (settings.state / "run").mkdir(parents=True)
    settings.unit_directory.mkdir()
    return settings


@pytest.fixture
def unit(settings):
    """The unit's file and its launch script, with which it is ready."""
    file, script = settings.unit_file(UNIT), settings.state / "run" / f"{UNIT}.sh"
    file.write_text(WORKS)
    script.write_text("#!/bin/sh\nexec engine\n")
    script.chmod(0o755)
    kept.keep(settings, UNIT)
    return file


@contextmanager
def full_disk(room: int = 1000):
    """No file gets longer than so many bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_spoils_neither_what_is_kept_nor_the_unit(settings, unit):
    with full_disk():
        kept.keep(settings, UNIT)
    unit.write_text("of a sweep\n")
    with full_disk():
        kept.put_back(settings, Manager(), UNIT)
    assert unit.read_text() == "of a sweep\n"
    kept.put_back(settings, Manager(), UNIT)
    assert unit.read_text() == WORKS
    assert (settings.state / "run" / f"{UNIT}.sh").stat().st_mode & 0o777 == 0o755


def test_nor_what_was_set_aside(settings, unit):
    kept.set_aside(settings, [UNIT], "sweep")
    unit.write_text("of a sweep\n" * 500)
    kept.keep(settings, UNIT)
    with full_disk():
        kept.take_back(settings, [UNIT], "sweep")
    with full_disk():
        kept.set_aside(settings, [UNIT], "sweep")
    kept.take_back(settings, [UNIT], "sweep")
    kept.put_back(settings, Manager(), UNIT)
    assert unit.read_text() == WORKS
    # Nothing half made is left, and nothing more than the unit's two files.
    folders = [settings.state / "ready", settings.state / "aside/sweep"]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [[UNIT], [UNIT]]
    assert len(list((folders[0] / UNIT).iterdir())) == 2
