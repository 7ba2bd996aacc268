"""The ledger of the simulated GPUs: who counts, who does not, and what wild files do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.simulator.ledger import Ledger, start_ticks

GIB = 1 << 30


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "gpus")


def dead_process() -> int:
    """The pid of a process that has ended and is waited for."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    return process.pid


def test_bytes_add_up_by_gpu_and_the_last_word_of_a_process_counts(ledger: Ledger) -> None:
    ledger.hold(0, 5 * GIB, name="one")
    ledger.hold(0, 7 * GIB, name="one")
    ledger.hold(1, GIB, name="one")
    assert ledger.used_bytes(0) == 7 * GIB
    assert ledger.used_bytes(1) == GIB
    assert ledger.used_bytes(2) == 0
    assert [(holder.gpu, holder.pid) for holder in ledger.holders()] == [(0, os.getpid()), (1, os.getpid())]
    ledger.release(0)
    assert ledger.used_bytes(0) == 0


def test_a_dead_process_and_a_zombie_hold_nothing(ledger: Ledger) -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    ledger.hold(0, GIB, name="child", pid=process.pid)
    assert ledger.used_bytes(0) == GIB
    process.kill()
    ends = time.monotonic() + 5
    while start_ticks(process.pid) is not None and time.monotonic() < ends:
        time.sleep(0.01)
    assert ledger.used_bytes(0) == 0, "a zombie's memory is free"
    process.communicate()
    assert ledger.used_bytes(0) == 0
    ledger.clean()
    assert list(ledger.directory.iterdir()) == []


def test_a_younger_process_with_the_same_pid_does_not_inherit(ledger: Ledger) -> None:
    ledger.hold(0, GIB, name="old")
    path = ledger.directory / f"0-{os.getpid()}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"start_ticks": content["start_ticks"] - 1}))
    assert ledger.used_bytes(0) == 0


def test_a_leak_begins_to_count_when_its_process_is_dead(ledger: Ledger) -> None:
    ledger.hold(0, 2 * GIB, name="alive", leaked=True)
    assert ledger.used_bytes(0) == 0
    ledger.hold(0, 3 * GIB, name="dead", pid=dead_process(), leaked=True)
    assert ledger.used_bytes(0) == 3 * GIB
    ledger.clean()
    assert ledger.used_bytes(0) == 3 * GIB
    ledger.reset(0)
    assert ledger.used_bytes(0) == 0


def test_activity_ends_with_its_time_or_its_process(ledger: Ledger) -> None:
    ledger.work([0, 1], 0.8, 0.5, 60)
    assert ledger.activities() == {0: (0.8, 0.5), 1: (0.8, 0.5)}
    ledger.work([0], 0.8, 0.5, -1)
    assert ledger.activities() == {}
    ledger.work([0], 2.0, -1.0, None)
    assert ledger.activities() == {0: (1.0, 0.0)}


def test_no_folder_is_an_empty_ledger(tmp_path: Path) -> None:
    absent = Ledger(tmp_path / "absent")
    assert absent.holders() == []
    assert absent.activities() == {}
    absent.clean()
    assert not (tmp_path / "absent").exists()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
            lambda inner: st.dictionaries(
                st.sampled_from(["gpu", "pid", "start_ticks", "bytes", "name", "gpus", "utilization", "power", "x"]),
                inner,
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_broken_files_count_for_nothing(ledger: Ledger, content: bytes) -> None:
    ledger.hold(3, GIB, name="good")
    for name in ("0-1.json", "activity-1.json", "0-1-leaked.json"):
        (ledger.directory / name).write_bytes(content)
    assert ledger.used_bytes(3) == GIB
    assert ledger.activities() == {} or all(0 <= share <= 1 for pair in ledger.activities().values() for share in pair)
    ledger.clean()
