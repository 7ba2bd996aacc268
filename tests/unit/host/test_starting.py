"""A start whose log names a failure while its main process lives."""

from __future__ import annotations

import pytest
from stand_ins import LoggedUnit

from benchmark.host import clock, engine_http, gpus, switch
from benchmark.host.settings import Settings

GRAPHS = """\
[2026-11-29 11:00:00] server_args=ServerArgs(model_path='/m', tp_size=4, mem_fraction_static=0.85)
[2026-11-29 11:00:23 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=5 GB
"""
OUT_OF_MEMORY = """\
[2026-11-29 11:00:40 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/srt/model_executor/cuda_graph_runner.py", line 12, in capture
    self.x()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 94.97 GiB of \
which 1.10 GiB is free.
"""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """What a second look says of a start whose log holds `text`, so many seconds after the first one.

    Meanwhile the log got `then`, and GPU 0 so many GiB.
    """
    settings = Settings(state=tmp_path, unit_directory=tmp_path, start_seconds=3600, quiet_seconds=600)
    monkeypatch.setattr(engine_http, "health", lambda _: "refused")

    def looked_at(text, *, quiet, began=300, then="", gpu=0):
        devices = []
        monkeypatch.setattr(gpus, "activity", lambda _: devices)
        manager = LoggedUnit(tmp_path / "log")
        manager.path.write_text(text)
        now = clock.mark()
        start = {"began": now | {"seconds": now["seconds"] - began}, "log_offset": 0, "signs": {"gpu_bytes": 0}}
        state = {"configuration": "ep4", "start": start, "phase": "starting"}
        switch._watch(settings, manager, state)
        assert state["phase"] == "starting"
        for mark in {"moved", "worked", "told"} & set(start["signs"]):
            start["signs"][mark]["seconds"] -= quiet
        manager.path.write_text(text + then)
        devices.append(
            gpus.Busy(index=0, used_bytes=gpu << 30, utilization_percent=0, power_watts=100, power_limit_watts=600)
        )
        switch._watch(settings, manager, state)
        assert manager.stopped == (["sglang-ep4"] if state["phase"] == "failed" else [])
        return state.get("failure")

    return looked_at


def test_it_ends_with_that_failure_when_nothing_moves_any_more(watched):
    """A fifth of quiet_seconds are 120 s."""
    failure = watched(GRAPHS + OUT_OF_MEMORY, quiet=121)
    assert (failure["kind"], failure["stage"], failure["may_pass"]) == ("out_of_memory_graphs", "graphs", False)
    assert "Tried to allocate 2.00 GiB" in failure["evidence"][0]


def test_one_that_may_recover_from_it_is_waited_for(watched):
    assert watched(GRAPHS + OUT_OF_MEMORY, quiet=119) is None
    assert watched(GRAPHS + OUT_OF_MEMORY, quiet=121, then="[2026-11-29 11:00:50] Capturing again\n") is None
    assert watched(GRAPHS + OUT_OF_MEMORY, quiet=121, gpu=9) is None


def test_what_a_server_writes_for_whoever_asks_it_is_no_recovery(watched):
    asked = '[2026-11-29 11:00:50] INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    assert watched(GRAPHS + OUT_OF_MEMORY, quiet=121, then=asked)["kind"] == "out_of_memory_graphs"


def test_a_traceback_that_somebody_caught_ends_nothing(watched):
    """No process says that it ended, and the start has gone on since: it only stands still, and may pass."""
    caught = 'Traceback (most recent call last):\n  File "x.py", line 1, in y\nModuleNotFoundError: No module named z\n'
    head, graphs = GRAPHS.splitlines(keepends=True)
    assert watched(head + caught + graphs, quiet=121) is None
    assert watched(head + caught + graphs, quiet=601)["kind"] == "start_stalled"
    # Nothing came after it.
    assert watched(head + caught, quiet=601)["kind"] == "package_missing"


def test_at_its_limit_the_log_has_the_word(watched):
    """Past its time without work, while its log still grows."""
    more = "[2026-11-29 11:00:50 TP1] still here\n"
    failure = watched(GRAPHS + OUT_OF_MEMORY, quiet=121, began=3601, then=more)
    assert failure["kind"] == "out_of_memory_graphs"
    assert watched(GRAPHS, quiet=121, began=3601, then=more)["kind"] == "start_too_slow"


def test_where_the_log_names_nothing_it_stands_still_after_all_of_its_time(watched):
    assert watched(GRAPHS, quiet=121) is None
    assert watched(GRAPHS, quiet=601)["kind"] == "start_stalled"
