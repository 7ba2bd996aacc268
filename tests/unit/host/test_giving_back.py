"""A guard that cannot bring back what served, for a reason that may pass: somebody holds the GPUs meanwhile."""

from __future__ import annotations

import time

import pytest

from benchmark.host import holding, lease, rollback
from benchmark.host.__main__ import main
from benchmark.host.services import ServiceState
from benchmark.host.settings import HostError, Settings

BLOCKED = {"kind": "blocked_by_others", "sentence": "Blocked by pid 7: python train.py.", "may_pass": True}


class OverError(Exception):
    """The guard has looked for long enough."""


class Manager:
    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, activity="inactive")

    def start(self, unit: str) -> None:
        """The guard is there."""

    def units(self) -> list[str]:
        return []

    def release(self) -> None:
        """Nothing serves."""


class Host:
    """A host whose sweep has been silent for long, its guard, and a clock that only the guard's pauses move."""

    def __init__(self, settings: Settings, monkeypatch) -> None:
        self.settings, self.now = settings, 1_000_000.0
        self.tries: list[tuple[float, str]] = []
        self.failure: dict | None = BLOCKED
        self._until = 0.0
        monkeypatch.setattr(time, "clock_gettime", lambda _: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)
        monkeypatch.setattr(holding, "manager_for", lambda _: Manager())
        monkeypatch.setattr(rollback, "restore", self._restore)
        lease.take(settings, {"token": "t", "owner": "ann", "after": "previous", "previous": ["sglang-ep4"]})
        self.now += settings.lease_seconds + 1
        self.began = self.now

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self._until:
            raise OverError

    def _restore(self, _settings, units, token, **_):
        assert units == ["sglang-ep4"]
        self.tries.append((self.now - self.began, token))
        phase = "failed" if self.failure else "restored"
        return {"phase": phase, "serving": [] if self.failure else units, "failure": self.failure}

    def guard(self, seconds: float) -> bool:
        """Let it look for so long; whether it has ended."""
        self._until = self.now + seconds
        try:
            holding.guard(self.settings)
        except OverError:
            return False
        return True

    @property
    def at(self) -> list[float]:
        return [seconds for seconds, _ in self.tries]


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(Settings(state=tmp_path, unit_directory=tmp_path / "units", lease_seconds=180), monkeypatch)


def test_it_is_tried_again_ever_more_rarely_until_it_can_be(host):
    assert not host.guard(3700)
    # After 60, 120, 240, 480, then 900 s each; the guard looks every two seconds.
    assert host.at == pytest.approx([0, 60, 180, 420, 900, 1800, 2700, 3600], abs=2)
    assert len({token for _, token in host.tries}) == len(host.tries)
    host.failure = None
    assert host.guard(900)
    assert len(host.tries) == 9
    assert lease.current(host.settings) is None
    # What a sweep that slept takes again is a lease like another.
    holding.claim(host.settings, "t")
    assert not set(lease.current(host.settings)) & {"ending", "tries", "tried", "why"}


def test_a_failure_that_stays_ends_it_at_once(host):
    host.failure = BLOCKED | {"may_pass": False}
    assert host.guard(100)
    assert len(host.tries) == 1
    assert lease.current(host.settings) is None


def test_who_comes_meanwhile_is_told_why(host):
    host.guard(10)
    with pytest.raises(HostError, match=r"could not be given back yet.*Blocked by pid 7: python train.py"):
        holding.claim(host.settings, "")
    with pytest.raises(HostError, match="being given back"):
        holding.claim(host.settings, "t")


def test_the_next_sweep_takes_the_host_once_it_is_silent_and_what_served_is_not_forgotten(host):
    host.guard(170)
    with pytest.raises(HostError, match="Another sweep holds this host: ann"):
        holding.begin(host.settings, "next", "bob", "previous", [])
    # Further tries do not make it look alive.
    host.guard(60)
    assert host.at == pytest.approx([0, 60, 180], abs=6)
    assert holding.begin(host.settings, "next", "bob", "previous", [])["previous"] == ["sglang-ep4"]
    assert not host.guard(60)
    assert len(host.tries) == 3
    assert lease.current(host.settings)["token"] == "next"


def test_a_stop_that_interrupts_ends_it(host, monkeypatch):
    host.guard(10)
    monkeypatch.setattr("benchmark.host.__main__.read_settings", lambda _: host.settings)
    monkeypatch.setattr("benchmark.host.__main__.manager_for", lambda _: Manager())
    monkeypatch.setattr("benchmark.host.switch.switch", lambda *_, **__: {"phase": "stopped"})
    assert main(["--settings", "x", "stop", "--interrupt"]) == 0
    assert host.guard(100)
    assert len(host.tries) == 1
    assert lease.current(host.settings) is None
