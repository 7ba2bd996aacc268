from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.host import gpus
from benchmark.host.settings import HostError, Settings


def settings(tmp_path: Path, script: str) -> Settings:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return Settings(state=tmp_path, unit_directory=tmp_path, nvidia_smi=[str(command)])


LINE = "0, NVIDIA H200, GPU-0, 00000000:00:06.0, 143771, 72548, 580.159.04, 700.00"


def test_a_line_of_a_real_card():
    (gpu,) = gpus.parse_gpus(LINE)
    assert gpu.memory_bytes == 143771 * 2**20
    assert gpu.used_bytes == 72548 * 2**20
    assert (gpu.index, gpu.name, gpu.driver, gpu.power_limit_watts) == (0, "NVIDIA H200", "580.159.04", 700.0)


def test_a_power_limit_that_is_not_told_is_unknown():
    (gpu,) = gpus.parse_gpus(LINE.replace("700.00", "[N/A]"))
    assert gpu.power_limit_watts is None


@pytest.mark.parametrize("cell", ["[GPU requires reset]", "[Unknown Error]", ""])
def test_a_card_whose_memory_cannot_be_read_is_an_error(cell):
    with pytest.raises(HostError, match="cannot be read"):
        gpus.parse_gpus(LINE.replace("72548", cell))


@given(st.text(max_size=300))
def test_wild_answers_give_cards_or_an_error(text):
    try:
        found = gpus.parse_gpus(text)
    except HostError:
        return
    assert [gpu.index for gpu in found] == sorted(gpu.index for gpu in found)
    assert len(found) <= len(text.splitlines())


@given(st.text(max_size=300))
def test_wild_answers_of_what_cards_do_are_left_out(text):
    assert len(gpus.parse_activity(text)) <= len(text.splitlines())


def test_what_cards_do_is_read_where_they_say_it():
    text = "0, 90112, 100, 131.27, 600.00\n1, 512, [N/A], [Unknown Error], 600.00\n2, [GPU requires reset], 0, 1, 2\n"
    first, second = gpus.parse_activity(text)
    assert (first.index, first.used_bytes, first.polls) == (0, 88 << 30, True)
    assert (second.utilization_percent, second.power_watts, second.polls) == (None, None, False)


def test_a_host_without_nvidia_smi_has_no_gpu(tmp_path):
    bare = Settings(state=tmp_path, unit_directory=tmp_path, nvidia_smi=[str(tmp_path / "absent")])
    assert gpus.gpus(bare) == []
    assert gpus.holders(bare) == []


def test_a_host_whose_driver_does_not_match_says_so(tmp_path):
    script = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    with pytest.raises(HostError, match=r"exit 18.*Driver/library version mismatch"):
        gpus.gpus(settings(tmp_path, script))


def test_an_nvidia_smi_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "QUERY_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(HostError, match="Xid"):
        gpus.gpus(settings(tmp_path, "exec sleep 30"))
    assert time.monotonic() - began < 10


def test_what_no_signal_reaches_is_left_and_not_waited_for(tmp_path, monkeypatch):
    # As an nvidia-smi that waits in the kernel: it keeps the pipe open, and SIGKILL does not end it.
    monkeypatch.setattr(gpus, "QUERY_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(HostError, match="did not answer"):
        gpus.gpus(settings(tmp_path, "setsid sleep 20 &\nexec sleep 30"))
    assert time.monotonic() - began < 10


def test_holders_of_memory(tmp_path):
    script = "echo '2671, sglang::scheduler_TP0, 72516, GPU-0'; echo '99, [Not Found], [N/A], GPU-1'"
    first, second = gpus.holders(settings(tmp_path, script))
    assert (first.pid, first.bytes, first.uuid) == (2671, 72516 * 2**20, "GPU-0")
    assert (second.pid, second.bytes) == (99, None)


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (3, [3]),
        # It ends at the first that does not exist (CUDA C++ Programming Guide).
        ("1,9,2", [1]),
        ("x", []),
        ("GPU-c, 0", [2, 0]),
        # More than one begins so.
        ("GPU-", []),
    ],
)
def test_what_cuda_visible_devices_leaves(named, left):
    assert gpus.visible(named, 4, ["GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"]) == left
