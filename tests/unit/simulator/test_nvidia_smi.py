"""The stand-ins for nvidia-smi and NVML, held against what the real ones print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.engine.hardware import find_gpu, from_nvidia_smi
from benchmark.simulator import devices, nvidia_smi, nvml
from benchmark.simulator.ledger import Ledger
from benchmark.simulator.settings import Settings

ROOT = Path(__file__).parents[3]
CAPTURES = ROOT / "tests" / "captures"
GIB = 1 << 30


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return Settings(hardware="8x RTX PRO 6000 Blackwell", ledger=tmp_path / "gpus")


@pytest.fixture
def h200(tmp_path: Path) -> Settings:
    return Settings(hardware="1x H200", ledger=tmp_path / "gpus")


def ask(settings: Settings, *arguments: str) -> str:
    code, text = nvidia_smi.main(arguments, settings)
    assert code == 0, text
    return text


class TestQueries:
    def test_the_captured_query_gives_the_captured_header_and_line(self, h200: Settings) -> None:
        captured = (CAPTURES / "host/nvidia-smi/query.csv").read_text().splitlines()
        fields = ",".join(re.sub(r" \[.*?\]", "", cell) for cell in captured[0].split(", "))
        header, line = ask(h200, f"--query-gpu={fields}", "--format=csv").splitlines()
        assert header == captured[0]
        ours, real = line.split(", "), captured[1].split(", ")
        # Everything but identity, link state, and what changes with time is the same.
        same = {name: (a, b) for name, a, b in zip(captured[0].split(", "), ours, real, strict=True)}
        for name in ("index", "name", "memory.total [MiB]", "memory.used [MiB]", "pcie.link.gen.max",
                     "pcie.link.width.max", "power.limit [W]", "persistence_mode", "mig.mode.current",
                     "ecc.mode.current", "compute_cap", "driver_version", "utilization.gpu [%]",
                     "clocks.current.sm [MHz]"):  # fmt: skip
            assert same[name][0] == same[name][1], name
        for name in ("power.draw [W]", "temperature.gpu"):
            assert re.sub(r"\d+", "0", same[name][0]) == re.sub(r"\d+", "0", same[name][1])

    def test_memory_follows_the_ledger(self, here: Settings) -> None:
        ledger = Ledger(here.ledger)
        ledger.hold(2, 73 * GIB, name="sglang::scheduler_TP2")
        query = ("--query-gpu=index,memory.used,memory.free", "--format=csv,noheader,nounits")
        lines = ask(here, *query).splitlines()
        assert len(lines) == 8
        # 97887 MiB less 636 reserved and 74752 held.
        assert lines[2] == "2, 74752, 22499"
        assert lines[3] == "3, 0, 97251"
        apps = ask(here, "--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv").splitlines()
        assert apps[0] == "pid, process_name, used_memory [MiB], gpu_uuid"
        assert apps[1].startswith(f"{os.getpid()}, sglang::scheduler_TP2, 74752 MiB, GPU-")
        assert len(apps) == 2

    def test_leaked_memory_is_used_by_nobody(self, here: Settings) -> None:
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
        process.wait()
        Ledger(here.ledger).hold(0, 8 * GIB, name="gone", pid=process.pid, leaked=True)
        assert ask(here, "--query-gpu=memory.used", "--format=csv,noheader").startswith("8192 MiB")
        assert ask(here, "--query-compute-apps=pid", "--format=csv,noheader") == ""

    def test_an_empty_list_of_processes_is_the_captured_one(self, h200: Settings) -> None:
        captured = (CAPTURES / "host/nvidia-smi/apps.csv").read_text()
        query = "--query-compute-apps=pid,process_name,used_gpu_memory,gpu_uuid"
        assert ask(h200, query, "--format=csv") == captured

    def test_one_gpu_of_many(self, here: Settings) -> None:
        assert ask(here, "-i", "5", "--query-gpu=index", "--format=csv,noheader") == "5\n"
        assert nvidia_smi.main(["-i", "8"], here) == (6, "No devices were found\n")

    def test_busy_gpus_draw_power(self, here: Settings) -> None:
        Ledger(here.ledger).hold(0, GIB, name="x")
        Ledger(here.ledger).work([0], 0.97, 0.6, 60)
        query = ("--query-gpu=utilization.gpu,power.draw,clocks.sm", "--format=csv,noheader,nounits")
        busy, idle = ask(here, *query).splitlines()[:2]
        assert busy == "97, 360.00, 2430"
        assert idle.startswith("0, 33.00, ")

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["--query-gpu=index,colour", "--format=csv"], 2, 'Field "colour" is not a valid field to query.'),
            (["--query-gpu=index"], 1, "--format="),
            (["--melt"], 1, "Invalid combination of input arguments"),
            (["topo"], 1, "Invalid combination of input arguments"),
            (["dance"], 1, "Invalid combination of input arguments"),
        ],
    )
    def test_what_it_does_not_know(self, here: Settings, arguments: list[str], code: int, words: str) -> None:
        status, text = nvidia_smi.main(arguments, here)
        assert status == code
        assert words in text


class TestPictures:
    def test_topology_and_p2p_of_one_gpu_are_the_captured_ones(self, h200: Settings) -> None:
        topology = (CAPTURES / "host/nvidia-smi/topo.txt").read_text()
        assert ask(h200, "topo", "-m").replace("0-63", "0-15").rstrip() == topology.rstrip()
        p2p = (CAPTURES / "host/nvidia-smi/p2p.txt").read_text()
        assert ask(h200, "topo", "-p2p", "r").rstrip() == p2p.rstrip()

    def test_topology_of_two_with_nvlink(self, tmp_path: Path) -> None:
        captured = (CAPTURES / "two-gpus/topo.txt").read_text().splitlines()
        ours = ask(Settings(hardware="2x H200"), "topo", "-m").splitlines()
        assert ours[0] == captured[0]
        assert ours[1].split("\t")[:3] == captured[1].split("\t")[:3]

    def test_a_pcie_host_has_two_halves(self, here: Settings) -> None:
        rows = [line.split("\t") for line in ask(here, "topo", "-m").splitlines()[1:9]]
        assert rows[0][1:9] == [" X ", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
        assert rows[7][1:9] == ["SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "NODE", " X "]

    def test_the_overview_has_the_captured_frame(self, h200: Settings) -> None:
        captured = (CAPTURES / "host/nvidia-smi/smi.txt").read_text().splitlines()
        ours = ask(h200).splitlines()
        assert len(ours) == len(captured)
        for mine, real in zip(ours[1:], captured[1:], strict=True):
            assert len(mine) == len(real)
            if not any(char.isdigit() for char in real):
                assert mine.replace("N/A |", "Disabled |".rjust(5))[:40] == real[:40]

    def test_the_long_form_has_lines_of_the_captured_one(self, h200: Settings) -> None:
        captured = (CAPTURES / "host/nvidia-smi/smi_q.txt").read_text().splitlines()
        names = {line.partition(":")[0].rstrip() for line in captured}
        for line in ask(h200, "-q").splitlines():
            name = line.partition(":")[0].rstrip()
            assert name in names or name.startswith("GPU 0000"), line
        assert "        Total                                          : 143771 MiB" in ask(h200, "-q").splitlines()

    def test_listing(self, here: Settings) -> None:
        lines = ask(here, "-L").splitlines()
        assert re.fullmatch(
            r"GPU 7: NVIDIA RTX PRO 6000 Blackwell Server Edition \(UUID: GPU-[0-9a-f-]{36}\)", lines[7]
        )
        assert len(set(lines)) == 8


def test_the_hardware_table_knows_every_name_that_is_shown() -> None:
    for name in ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Workstation", "RTX PRO 6000 Blackwell Max-Q",
                 "H200", "H100 80GB", "H100 PCIe", "L40S", "A100 80GB", "RTX 4090"):  # fmt: skip
        assert find_gpu(devices.full_name(name)).name == name


def test_the_hardware_table_reads_the_query(here: Settings) -> None:
    text = ask(here, "--query-gpu=index,name,memory.total,pcie.link.gen.max", "--format=csv")
    host = from_nvidia_smi(text)
    assert (host.count, host.gpu.name, host.gpu.memory_mib) == (8, "RTX PRO 6000 Blackwell", 97887)


class TestNvml:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch, here: Settings) -> None:
        monkeypatch.setenv("SHARDSWEEP_SIMULATED_HARDWARE", here.hardware)
        monkeypatch.setenv("SHARDSWEEP_SIMULATED_GPU", str(here.ledger))

    def test_needs_nvml_init(self) -> None:
        nvml.nvmlShutdown()
        with pytest.raises(nvml.NVMLError) as error:
            nvml.nvmlDeviceGetCount()
        assert error.value.value == nvml.NVML_ERROR_UNINITIALIZED

    def test_reads_the_same_ledger(self, here: Settings) -> None:
        Ledger(here.ledger).hold(1, 73 * GIB, name="sglang::scheduler_TP1")
        Ledger(here.ledger).work([1], 0.5, 0.5, 60)
        nvml.nvmlInit()
        assert nvml.nvmlDeviceGetCount() == 8
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        assert nvml.nvmlDeviceGetName(handle) == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        assert memory.total == 97887 << 20
        assert memory.used == 73 * GIB + (636 << 20)
        assert memory.used + memory.free == memory.total
        assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 50
        assert nvml.nvmlDeviceGetPowerUsage(handle) == 300_000
        assert nvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 600_000
        assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 2430
        assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0
        assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(nvml.nvmlDeviceGetHandleByIndex(0)) == 1
        assert 30 < nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU) < 90
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert [(process.pid, process.usedGpuMemory) for process in processes] == [(os.getpid(), 73 * GIB)]
        before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= before

    def test_no_such_gpu(self) -> None:
        nvml.nvmlInit()
        with pytest.raises(nvml.NVMLError) as error:
            nvml.nvmlDeviceGetHandleByIndex(8)
        assert error.value.value == nvml.NVML_ERROR_INVALID_ARGUMENT

    def test_names_are_pynvmls(self) -> None:
        pynvml = pytest.importorskip("pynvml")
        for name in (name for name in vars(nvml) if name.startswith(("nvml", "NVML_"))):
            assert hasattr(pynvml, name), name
        for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVML_PCIE_UTIL_TX_BYTES",
                     "NVML_PCIE_UTIL_RX_BYTES", "NVML_ERROR_UNINITIALIZED"):  # fmt: skip
            assert getattr(nvml, name) == getattr(pynvml, name), name


def test_the_stand_in_runs_from_any_folder(tmp_path: Path) -> None:
    path = nvidia_smi.install_stand_in(tmp_path / "a bin", package=ROOT)
    answer = subprocess.run(
        [path, "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"],
        cwd="/",
        env={"SHARDSWEEP_SIMULATED_HARDWARE": "2x H200"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert answer.stdout == "0, 143771\n1, 143771\n"
    assert len(path.read_text().splitlines()) == 2
