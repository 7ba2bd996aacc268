"""How long a start is waited for, and what one that stands still is called."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from benchmark.host import clock, gpus, patience
from benchmark.host.processes import Process
from benchmark.host.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return Settings(state=tmp_path, unit_directory=tmp_path, start_seconds=3600, quiet_seconds=600)


def ago(seconds: float) -> dict:
    now = clock.mark()
    return now | {"seconds": now["seconds"] - seconds}


def busy(index: int, percent: float, watts: float | None, used_gib: int = 90) -> gpus.Busy:
    return gpus.Busy(
        index=index,
        used_bytes=used_gib << 30,
        utilization_percent=percent,
        power_watts=watts,
        power_limit_watts=600.0,
    )


class TestClock:
    def test_seconds_since_a_mark_do_not_depend_on_the_date(self, monkeypatch):
        mark = ago(5)
        monkeypatch.setattr("time.time", lambda: 0.0)
        assert clock.since(mark) == pytest.approx(5, abs=1)

    @pytest.mark.parametrize("marked", [None, 7, {}, {"boot": "another", "seconds": 1.0}, {"seconds": "soon"}])
    def test_of_another_boot_or_of_nothing_it_was_for_ever_ago(self, marked):
        assert clock.since(marked) == math.inf


class TestVerdict:
    def test_a_start_that_moved_a_moment_ago_is_waited_for(self, settings):
        start = {"began": ago(3000), "signs": {"moved": ago(100)}}
        assert patience.verdict(settings, "ep4", start, "weights", 0) is None

    def test_one_that_stands_still_is_called_that(self, settings):
        start = {"began": ago(900), "signs": {"moved": ago(601)}}
        said = patience.verdict(settings, "ep4", start, "kernels", 0)
        assert (said.kind, said.may_pass) == ("start_stalled", True)
        assert "601 s at 'kernels'" in said.sentence

    def test_busy_gpus_at_low_power_are_a_hang_long_before(self, settings):
        signs = {"moved": ago(130), "busy_since": ago(120), "busy": [0, 1, 2, 3]}
        said = patience.verdict(settings, "ep4", {"began": ago(200), "signs": signs}, "distributed", 0)
        assert said.kind == "communication_hang"
        assert "GPU 0, 1, 2, 3" in said.sentence
        assert "NCCL_P2P_DISABLE=1" in said.advice

    def test_600_gb_from_a_slow_disk_get_the_time_that_they_need(self, settings):
        # 60 GB in 600 s are 100 MB/s: 600 GB take 6,000 s; three times that and 900 s for the rest are 18,900 s.
        # Eight ranks of which each reads all of it: the sum would promise eight times the rate.
        signs = {"moved": ago(1), "read_bytes": 8 * 60_000_000_000, "most_read_bytes": 60_000_000_000}
        start = {"began": ago(600), "signs": signs}
        limit, why = patience.time_limit(settings, start, 600_000_000_000)
        assert limit == pytest.approx(18_900, rel=0.01)
        assert why.startswith("600 GB at 100 MB/s a rank")

    @pytest.mark.parametrize("stage", ["kernels", "weights"])
    def test_past_its_limit_it_is_waited_for_while_it_works(self, settings, stage):
        """A compiler runs this second, or a rank reads from a slow disk."""
        signs = {"moved": ago(0), "worked": ago(0), "read_bytes": 10_000_000_000, "most_read_bytes": 10_000_000_000}
        assert patience.verdict(settings, "ep4", {"began": ago(36_000), "signs": signs}, stage, 1_000_000_000) is None
        signs["worked"] = ago(119)
        assert patience.verdict(settings, "ep4", {"began": ago(36_000), "signs": signs}, stage, 1_000_000_000) is None

    def test_past_its_limit_a_log_that_grows_is_no_work(self, settings):
        """A server that is never ready writes a line each time it is asked; a fifth of quiet_seconds are 120 s."""
        signs = {"moved": ago(1), "worked": ago(121), "read_bytes": 10_000_000_000}
        said = patience.verdict(settings, "ep4", {"began": ago(3601), "signs": signs}, "warmup", 1_000_000_000)
        assert (said.kind, said.may_pass) == ("start_too_slow", False)
        assert "for 121 s it has read nothing" in said.sentence
        assert "sglang_service_start_seconds" in said.sentence
        assert patience.verdict(settings, "ep4", {"began": ago(3500), "signs": signs}, "warmup", 1_000_000_000) is None


class TestSigns:
    def note(self, settings, start: dict, log: Path, *processes: Process) -> float:
        patience.note(settings, start, log, list(processes))
        return clock.since(start["signs"]["moved"])

    def test_a_log_that_grows_moves(self, settings, tmp_path):
        log = tmp_path / "log"
        log.write_text("a")
        start = {"signs": {"moved": ago(50), "log_bytes": 1, "asked": clock.mark()}}
        assert self.note(settings, start, log) > 49
        log.write_text("ab")
        assert self.note(settings, start, log) < 2

    def test_a_compiler_moves_and_a_spinning_rank_does_not(self, settings, tmp_path):
        start = {"signs": {"moved": ago(50), "log_bytes": 0, "asked": clock.mark()}}
        assert self.note(settings, start, tmp_path / "none", Process(0, "u", "sglang::scheduler_TP0")) > 49
        assert self.note(settings, start, tmp_path / "none", Process(0, "u", "/usr/local/cuda/bin/cicc --arch")) < 2

    def test_past_the_limit_gpu_memory_that_changes_is_work_beside_a_log_that_grows(
        self, settings, tmp_path, monkeypatch
    ):
        log, used = tmp_path / "log", [10]
        monkeypatch.setattr(gpus, "activity", lambda _: [busy(0, 100, 500, used_gib=used[0])])
        signs = {"moved": ago(9), "worked": ago(50), "log_bytes": 0}
        start = {"began": ago(3601), "signs": signs}
        log.write_text("a")
        self.note(settings, start, log)
        assert clock.since(signs["worked"]) > 49
        log.write_text("ab")
        used[0], signs["asked"] = 11, ago(60)
        self.note(settings, start, log)
        assert clock.since(signs["worked"]) < 2

    def test_reading_moves(self, settings, tmp_path):
        data = tmp_path / "data"
        data.write_bytes(bytes(20 << 20))
        start = {"signs": {"moved": ago(50), "log_bytes": 0, "asked": clock.mark()}}
        me = Process(os.getpid(), "u", "python")
        self.note(settings, start, tmp_path / "none", me)
        start["signs"] |= {"moved": ago(50), "worked": ago(50)}
        data.read_bytes()
        assert self.note(settings, start, tmp_path / "none", me) < 2
        assert clock.since(start["signs"]["worked"]) < 2

    def test_gpus_that_are_full_and_wait_are_noticed_and_forgotten_when_the_log_goes_on(
        self, settings, tmp_path, monkeypatch
    ):
        seen = [busy(0, 100, 130), busy(1, 100, 140), busy(2, 0, 30, used_gib=0)]
        monkeypatch.setattr(gpus, "activity", lambda _: seen)
        start = {"signs": {"moved": ago(50), "log_bytes": 0}}
        self.note(settings, start, tmp_path / "log")
        assert start["signs"]["busy"] == [0, 1]
        assert "all GPUs busy at low power" in patience.told("ep4", start, "distributed", None)
        (tmp_path / "log").write_text("on it goes")
        self.note(settings, start, tmp_path / "log")
        assert "busy_since" not in start["signs"]

    @pytest.mark.parametrize(
        ("percent", "watts", "polls"), [(100, 130, True), (100, 500, False), (40, 130, False), (100, None, False)]
    )
    def test_full_utilization_at_low_power(self, percent, watts, polls):
        assert busy(0, percent, watts).polls is polls

    def test_the_live_line_has_percent_and_rate(self):
        start = {"began": ago(100), "signs": {"moved": clock.mark(), "read_bytes": 61_200_000_000}}
        assert patience.told("ep4", start, "weights", 42) == "ep4: weights 42 %, 612 MB/s"


def test_only_the_gpus_of_the_start_tell_of_a_hang(settings, monkeypatch, tmp_path):
    """Its own two poll for each other; a third is somebody else's, whose memory changes and who computes."""
    others = [busy(2, 80, 500, used_gib=10)]
    monkeypatch.setattr(gpus, "activity", lambda _: [busy(0, 100, 110), busy(1, 100, 110), *others])
    (tmp_path / "log").write_text("")
    start = {"gpus": [0, 1], "signs": {"moved": ago(100), "log_bytes": 0}}
    patience.note(settings, start, tmp_path / "log", [])
    assert start["signs"]["busy"] == [0, 1]
    start["signs"]["asked"], others[:] = ago(60), [busy(2, 80, 500, used_gib=60)]
    patience.note(settings, start, tmp_path / "log", [])
    assert clock.since(start["signs"]["moved"]) > 90
    everywhere = {"signs": {"moved": ago(100), "log_bytes": 0}}
    patience.note(settings, everywhere, tmp_path / "log", [])
    assert "busy_since" not in everywhere["signs"]
