"""The last failure: what a start or a measurement told outlives the restore, and an engine that fell is missed."""

from __future__ import annotations

import pytest

from benchmark.host import clock, failures, gpus, processes, switch
from benchmark.host.services import ServiceState
from benchmark.host.settings import Settings, write_json

LOG = "[2026-11-29 11:36:36] The server is fired up and ready to roll!\n"


class Units:
    """One engine, ep4: in what state a test says, with a log."""

    def __init__(self, folder, activity="inactive", **state):
        self.folder, self.now = folder, ServiceState(unit="sglang-ep4", activity=activity, **state)

    def units(self):
        return ["sglang-ep4", "sglang-ep8"]

    def state(self, unit):
        return self.now if unit == "sglang-ep4" else ServiceState(unit=unit, activity="inactive")

    def log(self, unit):
        return self.folder / f"{unit}.log"

    def processes(self, unit):
        return []

    def start(self, unit):
        pass


@pytest.fixture
def settings(tmp_path):
    return Settings(state=tmp_path, unit_directory=tmp_path / "units", manager="supervisor", free_seconds=0)


@pytest.fixture
def served(settings, tmp_path, monkeypatch):
    """ep4 was switched to and was ready; `served(log, ...)` says what became of it and asks for the last failure."""
    start = {"configuration": "ep4", "log_offset": 0, "ready_seconds": 9.0}
    ready = {"token": "t", "configuration": "ep4", "phase": "ready", "boot": clock.boot(), "start": start}
    write_json(tmp_path / "switch.json", ready)
    write_json(tmp_path / "running.json", {"sglang-ep4": start})

    def became(log: str, activity="inactive", **state):
        (tmp_path / "sglang-ep4.log").write_text(log)
        manager = Units(tmp_path, activity, **state)
        monkeypatch.setattr(switch, "manager_for", lambda _: manager)
        return failures.last(settings, manager)

    return became


def test_nothing_failed_yet(settings, tmp_path):
    assert failures.last(settings, Units(tmp_path)) is None


def test_what_was_told_outlives_the_switch_that_restores(settings, tmp_path, monkeypatch):
    manager = Units(tmp_path)
    monkeypatch.setattr(switch, "manager_for", lambda _: manager)
    monkeypatch.setattr(switch, "stop_step", lambda *_: None)
    monkeypatch.setattr(processes, "port_holders", lambda _: [])
    monkeypatch.setattr(gpus, "gpus", lambda _: [])
    manager.now = ServiceState(unit="sglang-ep4", activity="failed", exit_code=1)
    for _ in range(5):
        answer = switch.switch(settings, "ep4", "f" * 64, "deploy", yields=[], seconds=0)
    assert answer["phase"] == "failed"
    # The restore begins: its switch has no failure.
    assert switch.switch(settings, "ep8", "e" * 64, "back", yields=[], seconds=0)["failure"] is None
    told = failures.last(settings, manager)
    assert (told["configuration"], told["sentence"]) == ("ep4", answer["failure"]["sentence"])
    assert told["at"] > 1.7e9


def test_an_engine_that_served_and_fell_is_told_of(served):
    told = served(LOG, exit_signal=9)
    assert told["configuration"] == "ep4"
    assert told["sentence"] == "The engine was killed (SIGKILL) and left no word of why."
    assert told["at"] > 1.7e9


def test_and_still_when_something_else_has_been_started(served, settings, tmp_path):
    fell = served(LOG, exit_signal=9)
    switch.switch(settings, "ep8", "e" * 64, "next", yields=[], seconds=0)
    assert failures.last(settings, Units(tmp_path)) == fell


def test_an_engine_that_runs_has_not_fallen(served):
    assert served(LOG, "active", pid=7) is None


def test_one_that_somebody_stopped_by_hand_has_not_fallen(served):
    # tests/captures/start-stop: SGLang ends a stop by killing itself, as it ends a crash.
    said = "[2026-11-29 11:36:36] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    assert served(said, exit_signal=9) is None


def test_what_ran_before_the_host_was_booted_has_not_fallen(served, monkeypatch):
    monkeypatch.setattr(clock, "boot", lambda: "another")
    assert served(LOG, exit_signal=9) is None


def test_one_that_was_stopped_by_our_verbs_has_not_fallen(served, tmp_path):
    write_json(tmp_path / "switch.json", {"token": "s", "configuration": None, "phase": "stopped"})
    assert served(LOG, exit_signal=9) is None


def test_a_spoiled_file_is_none(settings, tmp_path):
    (tmp_path / "last_failure.json").write_text('{"sentence": 7}')
    assert failures.last(settings, Units(tmp_path)) is None
