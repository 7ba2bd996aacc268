"""A host that is a further node of somebody's engine: how long it is held, and what its rank is asked."""

from __future__ import annotations

import contextlib
import socket

import pytest

from benchmark.host import engine_http, holding, lease, rollback, switch
from benchmark.host.services import ServiceState
from benchmark.host.settings import HostError, Settings, read_json, write_json

UNIT = "sglang-tp16"


class OverError(Exception):
    """The guard has looked often enough."""


class Manager:
    def __init__(self, folder, *running: str) -> None:
        self.folder, self.running, self.asked = folder, set(running), []

    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, activity="active" if unit in self.running else "inactive")

    def start(self, unit: str) -> None:
        self.asked.append(unit)
        self.running.add(unit)

    def stop(self, unit: str) -> None:
        self.running.discard(unit)

    def reload(self) -> None:
        pass

    def units(self) -> list[str]:
        return [UNIT]

    def processes(self, unit: str) -> list:
        return []

    def log(self, unit: str):
        return self.folder / f"{unit}.log"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmark.host.processes.marked", lambda _: {})
    return Settings(state=tmp_path, unit_directory=tmp_path / "units", lease_seconds=30, free_seconds=0)


@pytest.fixture
def port():
    """Where the first node is met, while it is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def held(settings, server, *, silent: bool):
    """Held as a further node, by a sweep of which nothing was heard for a while."""
    taken = {"token": "t", "owner": "a sweep from gpu1", "after": "previous", "previous": [], "began_at": 1.0}
    lease.take(settings, taken | {"first": f"127.0.0.1:{server.getsockname()[1]}"})
    if silent:
        now = lease.current(settings)
        now["renewed"]["seconds"] -= 31
        write_json(settings.state / "lease.json", now)
        write_json(settings.state / "lease-copy.json", now)


def watch(settings, monkeypatch, manager, looks: int) -> list[str]:
    """Which leases the guard ends within so many looks."""
    ended: list[str] = []

    def end(_settings, token):
        ended.append(token)
        lease.drop(settings)
        return {"phase": "restored"}

    def sleep(_seconds):
        nonlocal looks
        looks -= 1
        if looks < 0:
            raise OverError

    monkeypatch.setattr(holding, "manager_for", lambda _: manager)
    monkeypatch.setattr(holding, "end", end)
    monkeypatch.setattr(holding.time, "sleep", sleep)
    with contextlib.suppress(OverError):
        holding.guard(settings)
    return ended


def test_a_rank_that_works_for_a_silent_sweep_is_left_alone(settings, monkeypatch, tmp_path, port):
    held(settings, port, silent=True)
    assert watch(settings, monkeypatch, Manager(tmp_path, UNIT), looks=3) == []


def test_a_rank_whose_first_node_is_gone_is_not(settings, monkeypatch, tmp_path, port):
    held(settings, port, silent=True)
    port.close()
    assert watch(settings, monkeypatch, Manager(tmp_path, UNIT), looks=3) == ["t"]


@pytest.mark.parametrize(("lost", "ended"), [(1, []), (3, []), (4, ["t"])])
def test_a_first_node_that_does_not_answer_for_a_moment_is_waited_for(
    settings, monkeypatch, tmp_path, port, lost, ended
):
    real, looks = socket.create_connection, iter(range(lost))

    def connect(address, timeout):
        if next(looks, None) is not None:
            raise TimeoutError("timed out")
        return real(address, timeout)

    held(settings, port, silent=True)
    monkeypatch.setattr(holding.socket, "create_connection", connect)
    # Its pauses are not looks of the guard.
    monkeypatch.setattr(holding, "_PATIENCE_SECONDS", (0.0, 0.0, 0.0))
    assert watch(settings, monkeypatch, Manager(tmp_path, UNIT), looks=9) == ended


def test_a_silent_sweep_without_a_rank_here_is_ended(settings, monkeypatch, tmp_path, port):
    held(settings, port, silent=True)
    assert watch(settings, monkeypatch, Manager(tmp_path), looks=3) == ["t"]


def test_a_guard_that_gets_no_answer_for_a_while_looks_again(settings, monkeypatch, tmp_path, port, capsys):
    """systemctl that does not answer, then a disk that is full: each once, and the host is still taken back."""
    held(settings, port, silent=True)
    manager, troubles = (
        Manager(tmp_path),
        [HostError("systemctl show did not answer within 8 s."), OSError(28, "No space")],
    )
    state = manager.state

    def hiccup(unit):
        if troubles:
            raise troubles.pop(0)
        return state(unit)

    monkeypatch.setattr(manager, "state", hiccup)
    assert watch(settings, monkeypatch, manager, looks=4) == ["t"]
    assert troubles == []
    assert "systemctl show did not answer within 8 s. Looking again." in capsys.readouterr().err


def test_a_guard_goes_on_giving_back_after_an_error_though_it_has_renewed_the_lease(
    settings, monkeypatch, port, tmp_path
):
    held(settings, port, silent=True)
    port.close()
    steps: list[str] = []

    def end(_settings, token):
        steps.append(token)
        if len(steps) == 2:
            raise HostError("nvidia-smi did not answer within 8 s.")
        if len(steps) == 3:
            lease.drop(settings)
        return {"phase": "restored" if len(steps) == 3 else "restoring"}

    monkeypatch.setattr(holding, "manager_for", lambda _: Manager(tmp_path))
    monkeypatch.setattr(holding, "end", end)
    monkeypatch.setattr(holding.time, "sleep", lambda _: None)
    holding.guard(settings)
    assert steps == ["t", "t", "t"]


def test_a_host_that_cannot_be_given_back_is_the_next_sweeps_after_a_while(settings, monkeypatch, port, tmp_path):
    """Each try fails: the guard goes on trying, and does not make the lease look alive."""
    held(settings, port, silent=True)
    port.close()
    looks = []

    def sleep(_seconds):
        looks.append(1)
        if len(looks) == 3:
            raise OverError

    def end(_settings, _token):
        raise HostError("sglang-ep4 and sglang-ep8 cannot both serve.")

    monkeypatch.setattr(holding, "manager_for", lambda _: Manager(tmp_path))
    monkeypatch.setattr(holding, "end", end)
    monkeypatch.setattr(holding.time, "sleep", sleep)
    with contextlib.suppress(OverError):
        holding.guard(settings)
    now = lease.current(settings)
    assert now["ending"]
    now["renewed"]["seconds"] -= 31
    write_json(settings.state / "lease.json", now)
    before = now["renewed"]["seconds"]
    looks.clear()
    with contextlib.suppress(OverError):
        holding.guard(settings)
    assert lease.current(settings)["renewed"]["seconds"] == before
    assert holding.begin(settings, "next", "you", "previous", [])["previous"] == []


def test_another_sweep_does_not_take_a_host_that_works_for_a_first_node(settings, monkeypatch, tmp_path, port):
    manager = Manager(tmp_path, UNIT)
    monkeypatch.setattr(holding, "manager_for", lambda _: manager)
    held(settings, port, silent=True)
    with pytest.raises(HostError, match="a sweep from gpu1"):
        holding.begin(settings, "another", "you", "previous", [])
    assert "a sweep from gpu1" in holding.sweep_refused(settings)
    # A sweep that has this first node may: it goes on after a controller that was killed.
    assert holding.sweep_refused(settings, f"127.0.0.1:{port.getsockname()[1]}") is None
    port.close()
    assert holding.sweep_refused(settings) is None
    assert holding.begin(settings, "another", "you", "previous", [])["previous"] == []


@pytest.mark.parametrize(("number", "phase"), [(0, "restoring"), (1, "restored")])
def test_a_host_that_goes_back_alone_does_not_wait_for_a_rank_of_another_ones_engine(
    settings, monkeypatch, tmp_path, number, phase
):
    start = {"configuration": "tp16", "fingerprint": "f", "ready_fingerprint": "f", "node": number, "log_offset": 0}
    write_json(settings.state / "running.json", {UNIT: start})
    manager = Manager(tmp_path)
    for module in (holding, rollback, switch):
        monkeypatch.setattr(module, "manager_for", lambda _: manager)
    monkeypatch.setattr(switch, "stop_step", lambda *_: None)
    monkeypatch.setattr(switch.engine_http, "health", lambda _: "silent")
    lease.take(settings, {"token": "t", "owner": "you", "after": "previous", "previous": [UNIT], "began_at": 1.0})
    assert holding.end(settings, "t")["phase"] == phase
    assert manager.running == {UNIT}
    assert (lease.current(settings) is None) == (phase == "restored")
    if number:
        # The next time it goes back to the same one.
        assert read_json(settings.state / "running.json")[UNIT]["ready_fingerprint"] == "f"


def test_a_lease_that_was_taken_again_is_not_dropped_for_the_old_one(settings, port):
    held(settings, port, silent=False)
    old = lease.current(settings)
    lease.take(settings, old | {"began_at": 2.0})
    assert lease.taken_since(settings, old)
    lease.drop(settings, old)
    assert lease.current(settings)["began_at"] == 2.0
    lease.drop(settings, lease.current(settings))
    assert lease.current(settings) is None


@pytest.mark.parametrize(("node", "phase"), [(0, "starting"), (1, "ready")])
def test_only_the_first_node_has_to_make_a_token(settings, monkeypatch, tmp_path, node, phase):
    manager = Manager(tmp_path)
    monkeypatch.setattr(switch, "manager_for", lambda _: manager)
    monkeypatch.setattr(switch, "stop_step", lambda *_: None)
    monkeypatch.setattr(switch.patience, "note", lambda *_, **__: None)
    monkeypatch.setattr(switch.patience, "told", lambda *_: "tp16 to start")
    monkeypatch.setattr(switch.patience, "verdict", lambda *_: None)
    monkeypatch.setattr(switch.kept, "keep", lambda *_: None)
    monkeypatch.setattr(engine_http, "health", lambda _: "healthy")
    monkeypatch.setattr(engine_http, "generates", lambda _: "HTTP 404: ")
    said = {}
    for _ in range(4):
        said = switch.switch(settings, "tp16", "f", "t", yields=[], seconds=0, node=node)
    assert (said["phase"], said["node"]) == (phase, node)
    assert manager.asked == [UNIT]


@pytest.fixture
def running(monkeypatch, tmp_path):
    """The manager of a host on which the rank runs, and stops at once when it is to."""
    manager = Manager(tmp_path, UNIT)
    monkeypatch.setattr(switch, "manager_for", lambda _: manager)
    monkeypatch.setattr(
        switch, "stop_step", lambda _settings, manager, units, *_: [manager.stop(unit) for unit in units] and None
    )
    monkeypatch.setattr(switch.patience, "note", lambda *_, **__: None)
    monkeypatch.setattr(switch.patience, "told", lambda *_: "tp16 to start")
    monkeypatch.setattr(switch.patience, "verdict", lambda *_: None)
    monkeypatch.setattr(engine_http, "health", lambda _: "starting")
    return manager


@pytest.mark.parametrize(("anew", "starts"), [(False, []), (True, [UNIT])])
def test_a_rank_is_started_again_with_its_first_node(settings, running, tmp_path, anew, starts):
    """It runs as wanted, but the first node's start that it met is over."""
    write_json(tmp_path / "running.json", {UNIT: {"fingerprint": "f", "node": 1}})
    for _ in range(3):
        switch.switch(settings, "tp16", "f", "t", yields=[], seconds=0, node=1, anew=anew)
    assert running.asked == starts


def test_room_is_made_before_anything_starts(settings, running):
    """What runs is stopped and remembered; the start waits until it is asked for."""

    def asked(*, start: bool) -> dict:
        return switch.switch(settings, "tp16", "new", "t", yields=[], seconds=0, node=1, start=start)

    for _ in range(2):
        said = asked(start=False)
        assert (said["phase"], said["stopped"], said["changed"]) == ("clear", [UNIT], True)
    assert (running.running, running.asked) == (set(), [])
    for _ in range(3):
        said = asked(start=True)
    assert (said["phase"], said["stopped"]) == ("starting", [UNIT])
    assert running.asked == [UNIT]


def test_no_room_is_made_for_what_runs_as_wanted(settings, monkeypatch, tmp_path):
    manager = Manager(tmp_path, UNIT)
    monkeypatch.setattr(switch, "manager_for", lambda _: manager)
    write_json(tmp_path / "running.json", {UNIT: {"fingerprint": "f", "node": 1}})
    said = switch.switch(settings, "tp16", "f", "t", yields=[], seconds=0, node=1, start=False)
    assert (said["phase"], said["changed"], said["stopped"]) == ("starting", False, [])
    assert manager.running == {UNIT}
