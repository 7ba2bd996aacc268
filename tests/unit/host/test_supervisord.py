from __future__ import annotations

import pytest

from benchmark.host.services import GUARD_UNIT
from benchmark.host.settings import Settings
from benchmark.host.supervisord import Supervisord


@pytest.fixture
def manager(tmp_path):
    settings = Settings(state=tmp_path, unit_directory=tmp_path / "units", manager="supervisor")
    settings.unit_directory.mkdir()
    # A guard that does not go when it is told: supervisord takes a second to end.
    for unit, command in ((GUARD_UNIT, "trap '' TERM; sleep 60 & wait; sleep 60"), ("sglang-a", "exec sleep 60")):
        settings.unit_file(unit).write_text(
            f'[program:{unit}]\ncommand = /bin/sh -c "{command}"\nautostart = false\nautorestart = false\n'
            "startsecs = 0\nstopwaitsecs = 1\nstopasgroup = true\nkillasgroup = true\n"
        )
    manager = Supervisord(settings)
    yield manager
    manager.stop("sglang-a")
    manager.release()


def pid(manager: Supervisord) -> int:
    return int((manager._home / "supervisord.pid").read_text())


def test_what_is_asked_while_supervisord_ends_is_answered_by_the_next(manager):
    manager.start(GUARD_UNIT)
    before = pid(manager)
    manager.release()
    manager.start("sglang-a")
    assert manager.state("sglang-a").running
    assert pid(manager) != before
    assert not manager.state(GUARD_UNIT).running


def test_an_end_between_two_calls_is_an_end(manager, monkeypatch):
    """Another verb tells it to end after it has answered this one that it runs."""
    manager.start(GUARD_UNIT)
    answers = Supervisord._answers

    def told_to_end_meanwhile(server, transport):
        runs = answers(server, transport)
        monkeypatch.setattr(Supervisord, "_answers", staticmethod(answers))
        if runs:
            server.supervisor.shutdown()
        return runs

    monkeypatch.setattr(Supervisord, "_answers", staticmethod(told_to_end_meanwhile))
    assert manager.state("sglang-a").activity == "inactive"
    with manager._connected() as server:
        assert server is None
