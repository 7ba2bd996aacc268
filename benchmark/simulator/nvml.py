"""A stand-in for pynvml (nvidia-ml-py) that tells of the simulated GPUs. Names, units and errors are pynvml's.

A program that imports `pynvml` by a configurable name can use this module instead; it reads the same ledger as the
stand-in for nvidia-smi.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from . import devices as simulated
from .devices import DRIVER, Device
from .nvidia_smi import reasons

SIMULATED = True
"""What pynvml has not: a record says where its power figures come from."""

NVML_SUCCESS = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_TEMPERATURE_GPU = 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
nvmlClocksEventReasonGpuIdle = 0x1  # noqa: N816  (pynvml's name)

_PEAK_PCIE_KILOBYTES = 20_000_000
"""A second, at full utilization: collectives over PCIe 5.0 x16 leave about this much on one GPU's link."""


_LOOK_SECONDS = 0.02


class NVMLError(Exception):
    """An NVML call that failed; `value` is NVML's code."""

    def __init__(self, value: int):
        super().__init__(value)
        self.value = value


@dataclass(frozen=True)
class Handle:
    """A GPU by its index."""

    index: int


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes."""

    total: int
    free: int
    used: int


@dataclass(frozen=True)
class Utilization:
    """Percent of the last sample in which a kernel ran, and memory was read or written."""

    gpu: int
    memory: int


@dataclass(frozen=True)
class ProcessInfo:
    pid: int
    usedGpuMemory: int  # noqa: N815  (pynvml's name)


@dataclass
class _State:
    initialized: bool = False
    energy: dict[int, tuple[float, float]] | None = None
    """For each GPU the time of the last look and the millijoules since nvmlInit."""
    looked: float = 0.0
    devices: list[Device] | None = None
    """As they were at `looked`; a sample asks ten things of each GPU, and they hardly change in between."""


_state = _State()


def _device(handle: Handle) -> Device:
    if not _state.initialized:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    now = time.monotonic()
    if _state.devices is None or now - _state.looked > _LOOK_SECONDS:
        _state.devices, _state.looked = simulated.devices(), now
    found = _state.devices
    if not 0 <= handle.index < len(found):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return found[handle.index]


def nvmlInit() -> None:  # noqa: N802
    """Must come first."""
    _state.initialized = True
    _state.energy = {}
    _state.devices = None


def nvmlShutdown() -> None:  # noqa: N802
    """Ends what nvmlInit began."""
    _state.initialized = False


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    return DRIVER


def nvmlDeviceGetCount() -> int:  # noqa: N802
    if not _state.initialized:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    return len(simulated.devices())


def nvmlDeviceGetHandleByIndex(index: int) -> Handle:  # noqa: N802
    _device(Handle(index))
    return Handle(index)


def nvmlDeviceGetIndex(handle: Handle) -> int:  # noqa: N802
    return handle.index


def nvmlDeviceGetName(handle: Handle) -> str:  # noqa: N802
    return _device(handle).name


def nvmlDeviceGetUUID(handle: Handle) -> str:  # noqa: N802
    return _device(handle).uuid


def nvmlDeviceGetMemoryInfo(handle: Handle) -> MemoryInfo:  # noqa: N802
    """Version 1 of the real call: what the driver reserves counts as used."""
    gpu = _device(handle)
    used = gpu.used_mib + gpu.reserved_mib
    return MemoryInfo(gpu.total_mib << 20, (gpu.total_mib - used) << 20, used << 20)


def nvmlDeviceGetPowerUsage(handle: Handle) -> int:  # noqa: N802
    """Milliwatts."""
    return round(_device(handle).watts * 1000)


def nvmlDeviceGetEnforcedPowerLimit(handle: Handle) -> int:  # noqa: N802
    """Milliwatts."""
    return round(_device(handle).limit_watts * 1000)


def nvmlDeviceGetPowerManagementLimit(handle: Handle) -> int:  # noqa: N802
    """Milliwatts."""
    return nvmlDeviceGetEnforcedPowerLimit(handle)


def nvmlDeviceGetTotalEnergyConsumption(handle: Handle) -> int:  # noqa: N802
    """Millijoules since nvmlInit in this process, the power between two looks being that of the second."""
    gpu = _device(handle)
    assert _state.energy is not None
    now = time.monotonic()
    before, joules = _state.energy.get(handle.index, (now, 0.0))
    joules += gpu.watts * (now - before) * 1000
    _state.energy[handle.index] = (now, joules)
    return round(joules)


def nvmlDeviceGetUtilizationRates(handle: Handle) -> Utilization:  # noqa: N802
    gpu = _device(handle)
    return Utilization(round(100 * gpu.utilization), round(60 * gpu.utilization))


def nvmlDeviceGetClockInfo(handle: Handle, kind: int) -> int:  # noqa: N802
    """MHz."""
    gpu = _device(handle)
    return gpu.memory_mhz if kind == NVML_CLOCK_MEM else gpu.sm_mhz


def nvmlDeviceGetMaxClockInfo(handle: Handle, kind: int) -> int:  # noqa: N802
    """MHz."""
    gpu = _device(handle)
    return gpu.memory_mhz if kind == NVML_CLOCK_MEM else gpu.max_sm_mhz


def nvmlDeviceGetTemperature(handle: Handle, sensor: int) -> int:  # noqa: N802
    """Degrees Celsius."""
    if sensor != NVML_TEMPERATURE_GPU:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return _device(handle).celsius


def nvmlDeviceGetCurrentClocksEventReasons(handle: Handle) -> int:  # noqa: N802
    """A mask; bit 0 is idle."""
    return reasons(_device(handle))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Handle) -> int:  # noqa: N802
    """The older name of the same."""
    return reasons(_device(handle))


def nvmlDeviceGetPcieThroughput(handle: Handle, counter: int) -> int:  # noqa: N802
    """KB a second; the same both ways, as a ring's."""
    if counter not in (NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES):
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return round(_device(handle).utilization * _PEAK_PCIE_KILOBYTES)


def nvmlDeviceGetComputeRunningProcesses(handle: Handle) -> list[ProcessInfo]:  # noqa: N802
    return [ProcessInfo(holder.pid, holder.bytes) for holder in _device(handle).holders]
