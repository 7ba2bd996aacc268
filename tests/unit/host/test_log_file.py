"""Logs of more than 8 MiB: what a start, a fallen engine and a look at one keep of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import LoggedUnit

from benchmark.engine import lifecycle
from benchmark.host import clock, engine_http, failures, log_file, switch
from benchmark.host.services import ServiceState
from benchmark.host.settings import Settings, write_json

CAPTURES = Path(__file__).parents[2] / "captures"
MIB = 1 << 20
READY = "The server is fired up and ready to roll!\n"
DECODE = (
    "[2026-11-29 12:00:53] Decode batch, #running-req: 1, #token: 386, token usage: 0.00, cuda graph: True, "
    "gen throughput (token/s): 430.89, #queue-req: 0\n"
)
TREES = f"gpu1:7:9 [0] NCCL INFO Trees{' [0] 1/-1/-1->0->-1' * 64}\n"
"""NCCL's with 64 channels."""
REQUEST = """\
[2026-11-29 12:00:53] ERROR:    Exception in ASGI application

Traceback (most recent call last):
  File "/opt/sglang/venv/lib/python3.12/site-packages/uvicorn/protocols/http/httptools_impl.py", line 421, in run_asgi
    result = await app(self.scope, self.receive, self.send)
OSError: [Errno 28] No space left on device
"""


def mebibytes(line: str, count: int) -> str:
    return line * (count * MIB // len(line) + 1)


def capture(name: str, behind: str) -> tuple[str, str]:
    """A captured failure up to the line with these words, and the rest."""
    text = (CAPTURES / "failures" / f"{name}.log").read_text()
    place = text.index("\n", text.index(behind)) + 1
    return text[:place], text[place:]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_http, "health", lambda _: "refused")
    return Settings(state=tmp_path, unit_directory=tmp_path, quiet_seconds=600)


@pytest.fixture
def small(monkeypatch):
    """Bounds a thousandth of the real ones, where not they are what is looked at."""
    for name in ("LOG_BYTES", "_HEAD_BYTES", "_TAIL_BYTES", "_STEP_BYTES"):
        monkeypatch.setattr(log_file, name, getattr(log_file, name) >> 10)


@pytest.fixture
def fallen(settings, tmp_path, monkeypatch):
    """The last failure of an engine that was ready, had written this log since its start, and was killed."""

    def told(text: str, offset: int = 0):
        start = {"configuration": "ep4", "log_offset": offset, "ready_seconds": 9.0}
        ready = {"token": "t", "configuration": "ep4", "phase": "ready", "boot": clock.boot(), "start": start}
        write_json(tmp_path / "switch.json", ready)
        write_json(tmp_path / "running.json", {"sglang-ep4": start})
        (tmp_path / "log").write_text(text)
        manager = LoggedUnit(tmp_path / "log", activity="inactive", exit_signal=9)
        monkeypatch.setattr(switch, "manager_for", lambda _: manager)
        return failures.last(settings, manager)

    return told


def started(log: Path) -> dict:
    return {
        "configuration": "ep4",
        "start": {"began": clock.mark(), "log_offset": 0},
        "phase": "starting",
        "fingerprint": "f",
    }


def test_a_failure_behind_8_mib_of_a_start_is_named(settings, tmp_path):
    """As the same failure without them."""
    head, failed = capture("graph_oom", "Capture cuda graph begin")
    state, manager = started(tmp_path / "log"), LoggedUnit(tmp_path / "log")
    manager.path.write_text(head + mebibytes(TREES, 9))
    switch._watch(settings, manager, state)
    assert state["phase"] == "starting"
    with manager.path.open("a") as log:
        log.write(failed)
    manager.now = ServiceState(unit="sglang-ep4", activity="failed", exit_signal=9)
    switch._watch(settings, manager, state)
    failure = state["failure"]
    assert (failure["kind"], failure["stage"], failure["may_pass"]) == ("out_of_memory_graphs", "graphs", False)
    assert failure["advice"].startswith("Lower --mem-fraction-static from 0.995 to 0.97")


def test_a_port_that_is_taken_ends_a_start_behind_8_mib_too(settings, tmp_path):
    head, failed = capture("port_taken", "server_args=")
    state, manager = started(tmp_path / "log"), LoggedUnit(tmp_path / "log")
    manager.path.write_text(head + mebibytes(TREES, 9) + failed)
    switch._watch(settings, manager, state)
    assert (state["failure"]["kind"], manager.stopped) == ("port_taken", ["sglang-ep4"])


def test_an_engine_killed_after_a_long_run_was_ready(fallen):
    head, end = capture("killed", READY)
    failure = fallen(head + mebibytes(DECODE, 9) + end)
    assert (failure["kind"], failure["stage"]) == ("killed", "ready")
    assert "pid 2671" in failure["sentence"]


def test_the_advice_after_a_long_run_has_its_numbers(fallen):
    head, end = capture("load_oom", READY)
    failure = fallen(head + mebibytes(DECODE, 9) + end)
    assert (failure["kind"], failure["stage"]) == ("out_of_memory_running", "ready")
    assert failure["advice"].startswith(
        "Lower --mem-fraction-static from 0.97 to 0.93, or --chunked-prefill-size from 131072 to 8192"
    )


@pytest.mark.parametrize("between", ["", DECODE, "[2026-11-29 12:00:59] Cache flushed\n"])
def test_a_clients_traceback_long_before_the_death_is_not_the_cause(fallen, small, between):
    head, end = capture("killed", READY)
    for text in (
        head + REQUEST + DECODE * 100 + end,
        head + DECODE * 100 + REQUEST + between + end,
    ):
        assert len(text) > 8192
        failure = fallen(text)
        assert (failure["kind"], failure["stage"]) == ("killed", "ready")
        assert "pid 2671" in failure["sentence"]


def test_what_a_crash_writes_right_behind_a_clients_traceback_is_the_cause(fallen, small):
    head, _ = capture("killed", READY)
    crash = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File "/x/moe.py", line 7 in f\n'
    failure = fallen(head + DECODE * 100 + REQUEST + crash)
    assert (failure["kind"], failure["stage"]) == ("crash", "ready")
    assert "/x/moe.py" in failure["sentence"]


def test_it_was_ready_where_the_line_that_says_so_is_not_read(fallen, small):
    """NCCL wrote much before it, the engine much behind it."""
    head, rest = capture("killed", "server_args=")
    up_to_ready, end = rest[: rest.index(READY)] + READY, rest[rest.index(READY) + len(READY) :]
    failure = fallen(head + TREES * 5 + up_to_ready + DECODE * 50 + REQUEST + DECODE + end)
    assert (failure["kind"], failure["stage"]) == ("killed", "ready")


def test_it_was_ready_where_the_log_was_truncated_since(fallen):
    _, end = capture("killed", READY)
    failure = fallen(DECODE + REQUEST + DECODE + end, offset=MIB)
    assert (failure["kind"], failure["stage"]) == ("killed", "ready")


def test_what_a_look_saw_of_a_start_stays_known(settings, tmp_path, small):
    """Later it is in the middle of the log."""
    state, manager = started(tmp_path / "log"), LoggedUnit(tmp_path / "log")
    loaded = (
        "[2026-11-29 11:34:55 TP0] Load weight end. elapsed=45.0 s, type=X, avail mem=22.02 GB, mem usage=71.87 GB.\n"
    )
    channel = "gpu1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    text = "[2026-11-29 11:34:00] server_args=ServerArgs(tp_size=4)\n" + TREES * 4 + loaded + channel
    for grown in (text, text + TREES * 8):
        manager.path.write_text(grown)
        switch._watch(settings, manager, state)
    assert loaded not in log_file.since(manager.path)
    assert state["waiting_for"] == "ep4: kv"
    assert state["start"]["figures"]["weights_bytes"] == int(71.87 * (1 << 30))
    assert state["start"]["transports"] == {"P2P/CUMEM": 1}


def test_a_log_that_grows_by_lines_of_requests_alone_tells_of_no_recovery(settings, tmp_path, small):
    """Its tail begins where it began, so that no line of the engine's leaves it."""
    head, failed = capture("graph_oom", "server_args=")
    state, manager = started(tmp_path / "log"), LoggedUnit(tmp_path / "log")
    asked = '[2026-11-29 11:00:50] INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    manager.path.write_text(head + "NCCL INFO x\n" * 1000 + failed)
    for _ in range(2):
        switch._watch(settings, manager, state)
        assert state["phase"] == "starting"
        with manager.path.open("a") as log:
            log.write(asked)
        # A fifth of quiet_seconds are 120 s.
        for mark in ("worked", "told"):
            state["start"]["signs"][mark]["seconds"] -= 61
    switch._watch(settings, manager, state)
    assert state["failure"]["kind"] == "out_of_memory_graphs"


def test_whole_lines_of_head_and_tail_are_read_however_long_the_log_is(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as stream:
        stream.write(b"before\nfirst\nhalf")
        stream.seek(1 << 34)
        stream.write(b"half\nlast\n")
    assert log_file.since(log, len("before\n")) == f"first\n{lifecycle.LEFT_OUT}\nlast\n"


def test_of_a_long_log_each_line_that_is_read_is_one_of_it(tmp_path, small):
    log = tmp_path / "log"
    lines = [f"line {number:06}, as long as it is" for number in range(1000)]
    log.write_text("\n".join(lines) + "\n")
    read = log_file.since(log).splitlines()
    gap = read.index(lifecycle.LEFT_OUT)
    assert read[:gap] == lines[:gap]
    assert read[gap + 1 :] == lines[gap + 1 - len(read) :]
    # 30 bytes a line: 3 KiB of head and between 3 and 4 KiB of tail, without the half lines at their ends.
    assert gap == 102
    assert 102 <= len(read) - gap - 1 <= 136


def test_a_log_within_the_bounds_is_read_whole(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * (4 * MIB))
    assert log_file.since(log) == "x\n" * (4 * MIB)
    assert log_file.since(log, 8 * MIB - 4) == "x\nx\n"
    assert log_file.since(tmp_path / "absent") == ""
