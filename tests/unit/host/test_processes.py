from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmark.host import processes


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
