"""Samples GPUs through NVML and the host's CPU, in a process of its own, one JSON line a sample on standard output.

    python -m benchmark.load.observe.sampler 0.25

The first line says what is sampled: {"gpus": [...], "driver": ...}, or {"absent": why} when there is no NVML (then
only the host's CPU is sampled). It ends when its standard input closes, so that it never outlives its parent.
`SHARDSWEEP_NVML` names another module with pynvml's functions, such as a simulated one.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson

PCIE_EVERY = 8
"""NVML measures PCIe traffic over 20 ms for each call, so only every so many samples, and one GPU at a time."""


def _optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """The value, or None where this GPU or driver has none (NVML says so by an exception of its own)."""
    try:
        return call(*arguments)
    except Exception:
        return None


class Gpus:
    """Handles of all GPUs and what is read of them."""

    def __init__(self, nvml: ModuleType) -> None:
        self.nvml = nvml
        nvml.nvmlInit()
        self.handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._reasons = getattr(
            nvml, "nvmlDeviceGetCurrentClocksEventReasons", None
        ) or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)  # fmt: skip
        self._turn = 0

    def describe(self) -> dict[str, Any]:
        nvml = self.nvml
        return {
            "driver": _text(_optional(nvml.nvmlSystemGetDriverVersion)),
            "simulated": bool(getattr(nvml, "SIMULATED", False)),
            "gpus": [
                {
                    "name": _text(_optional(nvml.nvmlDeviceGetName, handle)),
                    "power_limit_watts": _scaled(_optional(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
                }
                for handle in self.handles
            ],
        }

    def sample(self) -> list[dict[str, Any]]:
        return [self._one(handle) for handle in self.handles]

    def _one(self, handle: Any) -> dict[str, Any]:
        nvml = self.nvml
        rates = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = _optional(nvml.nvmlDeviceGetMemoryInfo, handle)
        return {
            "watts": _scaled(_optional(nvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
            "joules": _scaled(_optional(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
            "utilization": getattr(rates, "gpu", None),
            "memory_utilization": getattr(rates, "memory", None),
            "memory_bytes": getattr(memory, "used", None),
            "sm_mhz": _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "reasons": _optional(self._reasons, handle) if self._reasons else None,
            "celsius": _optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        }

    def pcie(self) -> dict[str, Any]:
        """Bytes a second to and from the next GPU in turn."""
        nvml, number = self.nvml, self._turn % len(self.handles)
        self._turn += 1
        found: dict[str, Any] = {"gpu": number}
        for name, kind in (("to_gpu", "NVML_PCIE_UTIL_RX_BYTES"), ("from_gpu", "NVML_PCIE_UTIL_TX_BYTES")):
            kilobytes = _optional(nvml.nvmlDeviceGetPcieThroughput, self.handles[number], getattr(nvml, kind, 0))
            found[name] = _scaled(kilobytes, 1024)
        return found


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else value * factor


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def cpu_ticks() -> tuple[int, int]:
    """(busy, all) jiffies of the host since boot."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0, 0
    return sum(fields) - fields[3] - fields[4], sum(fields)


def main(seconds: float) -> int:
    """Sample until standard input closes."""
    os.nice(5)
    gpus: Gpus | None = None
    try:
        gpus = Gpus(importlib.import_module(os.environ.get("SHARDSWEEP_NVML", "pynvml")))
        first = gpus.describe()
        if not gpus.handles:
            gpus, first = None, {"absent": "NVML finds no GPU"}
    except Exception as error:
        first = {"absent": f"NVML cannot be used: {error}"}
    out = sys.stdout.buffer
    out.write(orjson.dumps(first) + b"\n")
    out.flush()
    count = 0
    due = time.monotonic()
    while True:
        busy, ticks = cpu_ticks()
        line: dict[str, Any] = {"at_ns": time.monotonic_ns(), "busy": busy, "ticks": ticks}
        if gpus is not None:
            line["gpus"] = gpus.sample()
            if not count % PCIE_EVERY:
                line["pcie"] = gpus.pcie()
        out.write(orjson.dumps(line) + b"\n")
        out.flush()
        count += 1
        due = max(due + seconds, time.monotonic())
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
