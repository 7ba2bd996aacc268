from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark.host import processes
from benchmark.host.settings import Settings
from benchmark.host.supervisord import Supervisord

ROOT = Path(__file__).parents[3]


def child(state: Path, *, unit: str, session: bool = False) -> subprocess.Popen:
    environment = os.environ | {processes.UNIT_MARK: unit, processes.STATE_MARK: str(state)}
    code = "import time; print('up', flush=True); time.sleep(60)"
    started = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, start_new_session=session, stdout=subprocess.PIPE
    )
    started.stdout.readline()
    return started


def test_a_unit_owns_what_left_its_process_group(tmp_path):
    mine, moved = child(tmp_path, unit="sglang-x"), child(tmp_path, unit="sglang-x", session=True)
    other, elsewhere = child(tmp_path, unit="sglang-xy"), child(tmp_path / "other", unit="sglang-x")
    try:
        assert {process.pid for process in processes.of_unit("sglang-x", tmp_path)} == {mine.pid, moved.pid}
        processes.kill(processes.of_unit("sglang-x", tmp_path))
        for process in (mine, moved):
            assert process.wait(10) == -9
        assert processes.of_unit("sglang-x", tmp_path) == []
        assert [process.pid for process in processes.of_unit("sglang-xy", tmp_path)] == [other.pid]
        assert elsewhere.poll() is None
    finally:
        for process in (mine, moved, other, elsewhere):
            process.kill()
            process.wait()


_TITLED = """
import os, sys, time
from benchmark.simulator.launch.processes import set_title
parent = os.getpid()
if os.fork() == 0:
    if "apart" in sys.argv:
        os.setsid()
    set_title("sglang::scheduler_TP0")
    print(os.getpid(), flush=True)
    time.sleep(60)
set_title("sglang::main")
time.sleep(60)
"""


@pytest.fixture
def supervisord(tmp_path):
    """A supervisord with a unit whose processes set titles as setproctitle does, which empties their environment."""
    settings = Settings(state=tmp_path, unit_directory=tmp_path / "units", manager="supervisor")
    manager = Supervisord(settings)
    (tmp_path / "units").mkdir()
    (tmp_path / "titled.py").write_text(_TITLED)

    def started(*words: str, keeps_environment: bool = False) -> int:
        marks = f'{processes.UNIT_MARK}="sglang-x",{processes.STATE_MARK}="{tmp_path}",PYTHONPATH="{ROOT}"'
        marks += ',SPT_NOENV="1"' if keeps_environment else ""
        command = shlex.join([sys.executable, str(tmp_path / "titled.py"), *words])
        (tmp_path / "units/sglang-x.conf").write_text(
            f"[program:sglang-x]\ncommand = {command}\nenvironment = {marks}\nautostart = false\nautorestart = false\n"
            f"startsecs = 0\nstdout_logfile = {tmp_path}/log/sglang-x.log\n"
        )
        manager.start("sglang-x")
        deadline = time.monotonic() + 20
        while not (said := manager.log("sglang-x").read_text() if manager.log("sglang-x").exists() else ""):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.3)
        return int(said)

    yield manager, started
    processes.kill(manager.processes("sglang-x"))
    manager.release()


@pytest.mark.parametrize("words", [(), ("apart",)])
def test_processes_without_an_environment_are_found_by_their_group_and_parent(supervisord, tmp_path, words):
    manager, started = supervisord
    child = started(*words)
    assert processes.of_unit("sglang-x", tmp_path) == []
    main = manager.state("sglang-x").pid
    assert {process.pid for process in manager.processes("sglang-x")} == {main, child}
    assert manager.processes("sglang-y") == []
    if not words:
        os.kill(main, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while manager.state("sglang-x").running and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [process.pid for process in manager.processes("sglang-x")] == [child]
    else:
        processes.kill(processes.alive([child]))


def test_a_number_that_another_unit_has_got_since_is_that_ones(tmp_path):
    home = tmp_path / "supervisor"
    home.mkdir()
    (home / "supervisord.pid").write_text("7\n")
    manager = Supervisord(Settings(state=tmp_path, unit_directory=tmp_path, manager="supervisor"))
    log = "INFO spawned: 'sglang-x' with pid 50\nINFO spawned: 'sglang-y' with pid 60\n"
    (home / "supervisord.log").write_text(log)
    assert (manager._group("sglang-x"), manager._group("sglang-y")) == ((50, 7), (60, 7))
    (home / "supervisord.log").write_text(log + "INFO spawned: 'shardsweep-job' with pid 50\n")
    assert (manager._group("sglang-x"), manager._group("shardsweep-job")) == ((None, None), (50, 7))
    (home / "supervisord.log").write_text(log + "INFO spawned: 'sglang-x' with pid 70\n")
    assert manager._group("sglang-x") == (70, 7)


def test_a_unit_says_that_the_environment_of_its_processes_stays(supervisord, tmp_path):
    _, started = supervisord
    child = started("apart", keeps_environment=True)
    assert child in {process.pid for process in processes.of_unit("sglang-x", tmp_path)}


def test_a_group_of_the_same_number_in_another_session_is_somebody_elses(tmp_path):
    other = child(tmp_path, unit="sglang-x", session=True)
    try:
        assert processes.family([], other.pid, os.getsid(0)) == []
        assert [process.pid for process in processes.family([], other.pid, other.pid)] == [other.pid]
    finally:
        other.kill()
        other.wait()


def test_a_zombie_holds_nothing(tmp_path):
    dead = child(tmp_path, unit="sglang-z")
    dead.kill()
    time.sleep(0.2)
    assert processes.describe(dead.pid) is None
    assert processes.of_unit("sglang-z", tmp_path) == []
    dead.wait()


def test_who_is_at_a_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert processes.port_holders(port) == []
        listener.listen()
        (holder,) = processes.port_holders(port)
        assert holder.pid == os.getpid()
        assert str(os.getpid()) in str(holder)
    assert processes.port_holders(port) == []


def test_who_is_at_an_ipv6_port():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        (holder,) = processes.port_holders(listener.getsockname()[1])
        assert holder.pid == os.getpid()


def test_a_control_group_that_goes_while_it_is_read_has_nobody(tmp_path, monkeypatch):
    """A unit that ends takes its folder away between two system calls."""
    unit = tmp_path / "system.slice/sglang-ep4.service"
    (unit / "below").mkdir(parents=True)
    (unit / "below/cgroup.procs").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(processes, "_CGROUPS", str(tmp_path))
    assert [found.pid for found in processes.of_cgroup("/system.slice/sglang-ep4.service")] == [os.getpid()]

    def gone(path):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(os, "scandir", gone)
    (unit / "cgroup.procs").unlink(missing_ok=True)
    assert processes.of_cgroup("/system.slice/sglang-ep4.service") == []
