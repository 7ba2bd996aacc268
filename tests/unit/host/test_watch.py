"""An engine that is measured and makes no token any more."""

from __future__ import annotations

import pytest

from benchmark.host import clock, engine_http, gpus, patience, watch
from benchmark.host.services import ServiceState
from benchmark.host.settings import Settings, read_json, write_json

JOB = {"id": "j", "configuration": "ep4"}


class Units:
    def __init__(self, folder, **state) -> None:
        self.folder, self.now = folder, {"activity": "active"} | state

    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, **self.now)

    def log(self, unit: str):
        return self.folder / "log"

    def processes(self, unit: str) -> list:
        return []


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "activity", lambda _: [])
    monkeypatch.setattr(engine_http, "generates", lambda _: "ReadTimeout: no answer")
    monkeypatch.setattr(engine_http, "health", lambda _: "healthy")
    return Settings(state=tmp_path, unit_directory=tmp_path, quiet_seconds=600)


def still(settings, seconds: float) -> None:
    """Let what was seen last be so long ago."""
    state = read_json(settings.state / "job-watch.json")
    for marked in (state["moved"], state.get("signs", {}).get("moved", {})):
        if marked:
            marked["seconds"] -= seconds
    write_json(settings.state / "job-watch.json", state)


def look(settings, phase: str, rate: float | None = None, completed: int = 5) -> str | None:
    progress = {"phase": phase, "completed": completed, "failed": 0, "output_tokens_per_second": rate}
    return watch.silent(settings, Units(settings.state), JOB, progress)


def test_a_dead_scheduler_under_a_healthy_server_is_named_after_a_minute(settings):
    assert look(settings, "window") is None
    still(settings, 61)
    said = look(settings, "window")
    assert "makes no token any more" in said
    assert "/health says healthy" in said
    failure = watch.failure(settings, "ep4")
    assert (failure["kind"], failure["may_pass"], failure["sentence"]) == ("scheduler_dead", True, said)
    assert watch.failure(settings, "ep8") is None


@pytest.mark.parametrize(("rate", "completed"), [(120.0, 5), (None, 6)])
def test_while_tokens_or_answers_come_nothing_is_asked(settings, monkeypatch, rate, completed):
    look(settings, "window")
    still(settings, 1000)
    monkeypatch.setattr(engine_http, "generates", lambda _: pytest.fail("asked"))
    monkeypatch.setattr(patience, "note", lambda *_: pytest.fail("looked"))
    assert look(settings, "window", rate, completed) is None


def test_a_warm_up_that_compiles_has_its_time(settings):
    look(settings, "warm-up")
    still(settings, 500)
    assert look(settings, "warm-up") is None
    still(settings, 601)
    assert "makes no token" in look(settings, "warm-up")


def test_a_long_prefill_computes(settings, monkeypatch):
    gpu = gpus.Busy(index=0, used_bytes=90 << 30, utilization_percent=100, power_watts=560.0, power_limit_watts=600.0)
    monkeypatch.setattr(gpus, "activity", lambda _: [gpu])
    look(settings, "ramp")
    still(settings, 300)
    assert look(settings, "ramp") is None


def test_an_engine_that_still_answers_is_waited_for(settings, monkeypatch):
    monkeypatch.setattr(engine_http, "generates", lambda _: None)
    look(settings, "window")
    still(settings, 300)
    assert look(settings, "window") is None


def test_an_engine_that_its_manager_started_again_is_another_one(tmp_path):
    assert watch.ended(Units(tmp_path), "ep4") is None
    assert "started again" in watch.ended(Units(tmp_path, restarts=1), "ep4")
    assert "The engine ended (exit 1)" in watch.ended(Units(tmp_path, activity="failed", detail="exit 1"), "ep4")


def test_so_is_one_that_was_restarted_by_hand(tmp_path):
    """Of `systemctl restart` no manager tells but by the main process."""
    assert watch.ended(Units(tmp_path, pid=100), "ep4", 100) is None
    assert watch.ended(Units(tmp_path, pid=100), "ep4", None) is None
    assert "was pid 100, and is pid 200" in watch.ended(Units(tmp_path, pid=200), "ep4", 100)


def test_the_mark_of_the_watch_is_of_this_boot(settings):
    look(settings, "window")
    assert clock.since(read_json(settings.state / "job-watch.json")["moved"]) < 5


def test_what_somebody_computes_on_another_gpu_keeps_no_dead_scheduler_alive(settings, monkeypatch):
    busy = gpus.Busy(index=3, used_bytes=9 << 30, utilization_percent=99, power_watts=590, power_limit_watts=600)
    monkeypatch.setattr(gpus, "activity", lambda _: [busy])
    write_json(settings.state / "running.json", {"sglang-ep4": {"gpus": [0, 1]}})
    assert look(settings, "window") is None
    still(settings, 61)
    assert "makes no token any more" in look(settings, "window")
    write_json(settings.state / "running.json", {"sglang-ep4": {"gpus": [2, 3]}})
    assert look(settings, "window") is None
