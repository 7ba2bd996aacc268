"""What ended an engine from outside: its log ends in the middle, and its exit status says nothing."""

from __future__ import annotations

import time

import pytest

from benchmark.engine import lifecycle
from benchmark.host import bounded, clock, gpus, lease, switch
from benchmark.host.services import ServiceState
from benchmark.host.settings import Settings

HELD = {"token": "t", "owner": "me", "after": "previous", "previous": [], "began_at": 1.0}
XID = "2026-11-29T12:00:00+0000 gpu1 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=77, GPU has fallen off the bus."
PROGRAMS = "2026-11-29T12:00:00+0000 gpu1 kernel: NVRM: Xid (PCI:0000:41:00): 31, pid=77, MMU Fault"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded, "run", lambda *_, **__: bounded.Answer("ok", ""))
    return Settings(state=tmp_path, unit_directory=tmp_path, lease_seconds=180)


def ended(settings, *, start=None, log="", **service) -> lifecycle.Failure:
    start = {"started_at": time.time() - 60, "began": clock.mark()} | (start or {})
    state = ServiceState(unit="sglang-ep4", activity="failed", **({"exit_code": 0} | service))
    return switch._ended(settings, start, state, lifecycle.read_log(log))


def test_without_a_word_from_anywhere_it_is_unknown(settings):
    assert ended(settings).kind == "unknown"


def test_a_boot(settings):
    failure = ended(settings, start={"began": {"boot": "the one before", "seconds": 5.0}})
    assert (failure.kind, failure.may_pass) == ("host_rebooted", True)


def test_the_guard_gave_the_host_back(settings):
    began = clock.mark()
    lease.take(settings, HELD)
    lease.note_end(settings, lease.current(settings))
    failure = ended(settings, start={"began": began | {"seconds": began["seconds"] - 5}}, exit_signal=15)
    assert (failure.kind, failure.may_pass) == ("given_back", True)
    assert "sglang_service_lease_seconds (180 s)" in failure.sentence
    # One that began after that was ended by something else.
    later = clock.mark()
    assert ended(settings, start={"began": later | {"seconds": later["seconds"] + 5}}).kind == "unknown"


def test_the_kernels_memory_killer(settings):
    failure = ended(settings, result="oom-kill", exit_code=None, exit_signal=9)
    assert (failure.kind, failure.may_pass) == ("host_memory", True)
    assert "oom-kill" in failure.sentence


def test_a_unit_that_was_started_too_often(settings):
    failure = ended(settings, result="start-limit-hit", exit_code=1)
    assert failure.kind == "crash"
    assert "start-limit-hit" in failure.sentence
    told = ended(settings, result="start-limit-hit", log="launch_server.py: error: unrecognized arguments: --x\n")
    assert told.kind == "unknown_flag"


@pytest.mark.parametrize(
    ("line", "places", "kind"),
    [
        (XID, None, "gpu_fault"),
        (XID, [2, 3], "gpu_fault"),
        (XID, [0, 1], "killed"),
        (PROGRAMS, None, "killed"),
        ("NVRM: loading", None, "killed"),
    ],
)
def test_a_gpu_that_fell_off_the_bus_since_the_start(settings, monkeypatch, line, places, kind):
    asked = []

    def run(command, **_):
        asked.append(command)
        return bounded.Answer("ok", line + "\n")

    monkeypatch.setattr(bounded, "run", run)
    device = gpus.Gpu(
        index=2, name="G", uuid="U", bus_id="00000000:41:00.0", memory_bytes=1, used_bytes=0, driver="580"
    )
    monkeypatch.setattr(gpus, "gpus", lambda _: [device])
    failure = ended(settings, start={"gpus": places, "started_at": 1000.5}, exit_code=None, exit_signal=9)
    assert failure.kind == kind
    assert "@1000" in asked[0]
    if kind == "gpu_fault":
        assert failure.sentence == "A GPU failed: Xid 79 (fallen off the bus) at 0000:41:00."
        assert failure.evidence == (line,)
        assert failure.may_pass
