"""A start whose log names a failure while its main process lives."""

from __future__ import annotations

import pytest

from benchmark.host import clock, engine_http, gpus, switch
from benchmark.host.services import ServiceState
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


class Unit:
    """The main process lives, whatever its log says."""

    def __init__(self, log):
        self.path, self.stopped = log, []

    def state(self, unit):
        return ServiceState(unit=unit, activity="active", pid=1)

    def log(self, unit):
        return self.path

    def processes(self, unit):
        return []

    def stop(self, unit):
        self.stopped.append(unit)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_http, "health", lambda _: "refused")
    monkeypatch.setattr(gpus, "activity", lambda _: [])
    return Settings(state=tmp_path, unit_directory=tmp_path, start_seconds=3600, quiet_seconds=600)


def watched(settings, text, *, quiet, began=300, idle=None):
    """What a look says of a start whose log holds `text`, and has not grown for so many seconds."""
    manager = Unit(settings.state / "log")
    manager.path.write_text(text)
    now = clock.mark()
    ago = {seconds: now | {"seconds": now["seconds"] - seconds} for seconds in (quiet, began, idle or quiet)}
    signs = {"moved": ago[quiet], "worked": ago[idle or quiet], "log_bytes": len(text), "asked": now}
    start = {"began": ago[began], "log_offset": 0, "signs": signs}
    state = {"configuration": "ep4", "start": start, "phase": "starting"}
    switch._watch(settings, manager, state)
    assert manager.stopped == (["sglang-ep4"] if state["phase"] == "failed" else [])
    return state.get("failure")


def test_it_ends_with_that_failure_when_nothing_moves_any_more(settings):
    """A fifth of quiet_seconds are 120 s."""
    failure = watched(settings, GRAPHS + OUT_OF_MEMORY, quiet=121)
    assert (failure["kind"], failure["stage"], failure["may_pass"]) == ("out_of_memory_graphs", "graphs", False)
    assert "Tried to allocate 2.00 GiB" in failure["evidence"][0]


def test_one_that_may_recover_from_it_is_waited_for(settings):
    assert watched(settings, GRAPHS + OUT_OF_MEMORY, quiet=119) is None
    assert watched(settings, GRAPHS + OUT_OF_MEMORY + "[2026-11-29 11:00:50 TP0] Capturing again\n", quiet=1) is None


def test_a_traceback_that_somebody_caught_ends_nothing(settings):
    """No process says that it ended, and the start has gone on since: it only stands still, and may pass."""
    caught = 'Traceback (most recent call last):\n  File "x.py", line 1, in y\nModuleNotFoundError: No module named z\n'
    head, graphs = GRAPHS.splitlines(keepends=True)
    assert watched(settings, head + caught + graphs, quiet=121) is None
    assert watched(settings, head + caught + graphs, quiet=601)["kind"] == "start_stalled"
    # Nothing came after it.
    assert watched(settings, head + caught, quiet=601)["kind"] == "package_missing"


def test_at_its_limit_the_log_has_the_word(settings):
    """Past its time without work, while its log still grows."""
    failure = watched(settings, GRAPHS + OUT_OF_MEMORY, quiet=1, began=3601, idle=121)
    assert failure["kind"] == "out_of_memory_graphs"
    assert watched(settings, GRAPHS, quiet=1, began=3601, idle=121)["kind"] == "start_too_slow"


def test_where_the_log_names_nothing_it_stands_still_after_all_of_its_time(settings):
    assert watched(settings, GRAPHS, quiet=121) is None
    assert watched(settings, GRAPHS, quiet=601)["kind"] == "start_stalled"
