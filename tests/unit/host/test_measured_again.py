"""What happened on a real engine: it was killed in a point, the sweep was started again."""

from __future__ import annotations

import time
from pathlib import Path

from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.host import jobs, lease, records, switch
from benchmark.host.holding import end
from benchmark.host.services import JOB_UNIT, ServiceState
from benchmark.host.settings import Settings

CAPTURES = Path(__file__).parents[2] / "captures"
FINGERPRINT = "f" * 64


class OneUnit:
    """A manager whose units are in the state that a test gives them."""

    def __init__(self, log: Path, **state) -> None:
        self._log, self._state, self.started = log, state, []

    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, **({"activity": "inactive"} | self._state))

    def start(self, unit: str) -> None:
        self.started.append(unit)

    def log(self, unit: str) -> Path:
        return self._log


def settings_in(folder: Path) -> Settings:
    return Settings(state=folder, unit_directory=folder / "units", lease_seconds=30)


def test_an_engine_killed_in_a_point_is_named_by_its_log(tmp_path, monkeypatch):
    log = CAPTURES / "failures" / "killed.log"
    monkeypatch.setattr(switch, "manager_for", lambda _: OneUnit(log, activity="failed", exit_signal=9))
    failure = switch.death(settings_in(tmp_path), "run64")
    assert (failure["kind"], failure["stage"], failure["may_pass"]) == ("killed", "ready", True)
    assert failure["sentence"] == "Scheduler 0 (pid 2671) was killed by signal 9 and left no traceback."


def test_an_engine_that_runs_has_not_died(tmp_path, monkeypatch):
    monkeypatch.setattr(switch, "manager_for", lambda _: OneUnit(tmp_path / "none", activity="active", pid=1))
    assert switch.death(settings_in(tmp_path), "run64") is None


def _measure(folder: Path, monkeypatch, point: rec.Point) -> tuple[dict, OneUnit]:
    settings = settings_in(folder)
    path = records.folder(settings, "ep4", FINGERPRINT) / "record.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(rec.dump(a_record(points=[point], outcome="measured")))
    manager = OneUnit(folder / "none", activity="inactive")
    monkeypatch.setattr(jobs, "manager_for", lambda _: manager)
    spec = {"id": "second", "configuration": "ep4", "fingerprint": FINGERPRINT, "workload": "quick"}
    spec |= {"concurrency": 64, "repeat": 1}
    return jobs.measure(settings, spec, seconds=0.0), manager


def test_an_invalid_point_is_measured_again(tmp_path, monkeypatch):
    died = rec.Flag(id="aborted", severity="invalid", message="Given up after 64 failed requests")
    _, manager = _measure(tmp_path, monkeypatch, a_point(64, 131.0, flags=[died]))
    assert manager.started == [JOB_UNIT]


def test_a_valid_point_is_not_measured_again(tmp_path, monkeypatch):
    answer, manager = _measure(tmp_path, monkeypatch, a_point(64, 7000.0))
    assert (answer["phase"], answer["changed"], manager.started) == ("done", False, [])


def test_a_refused_sweep_does_not_end_the_one_that_holds_the_host(tmp_path):
    settings = settings_in(tmp_path)
    lease.take(settings, {"token": "first", "owner": "a", "after": "stopped", "previous": [], "began_at": time.time()})
    assert end(settings, "second", "stopped")["phase"] == "restored"
    assert lease.current(settings)["token"] == "first"
