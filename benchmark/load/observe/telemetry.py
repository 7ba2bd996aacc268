"""Power, clocks, utilization and temperature of the GPUs over the window, and the host's CPU.

Sampled by a process of its own (sampler.py), so that NVML's slow calls never touch the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import orjson

INTERVAL_SECONDS = 0.25
LONGEST_GAP_SECONDS = 1.5
"""With a longer gap between samples the energy is not known; the other figures are means of what there is."""

REASONS = {
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
}
"""Bits of nvmlClocksEventReasons (nvml.h) that mean clocks below what was asked for."""

Sample = dict[str, Any]


class Telemetry:
    """Samples from `start` to `finish`."""

    def __init__(
        self,
        gpus: Sequence[int] | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`gpus`: NVML indices that count; None: all. `environment`: the sampler's, besides this process's own."""
        self.gpus = gpus
        self.interval_seconds = interval_seconds
        self.environment = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._file: IO[bytes] | None = None

    async def start(self) -> None:
        # Open until `stop` has read it.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.sampler",
            str(self.interval_seconds),
            stdin=asyncio.subprocess.PIPE,
            stdout=self._file,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parents[3],
            env={**os.environ, **self.environment},
        )

    async def stop(self) -> bytes:
        """End the sampler; what it wrote."""
        if self._process is None:
            return b""
        process, self._process = self._process, None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            async with asyncio.timeout(3):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        with self._file as file:
            file.seek(0)
            return file.read()

    async def finish(self, start_ns: int | None, end_ns: int | None) -> dict[str, Any]:
        """End the sampler and sum up the window (monotonic nanoseconds)."""
        head, samples = parse(await self.stop())
        if start_ns is None or end_ns is None:
            return {}
        return summary(head, samples, start_ns, end_ns, self.gpus)


def parse(text: bytes) -> tuple[dict[str, Any], list[Sample]]:
    """(first line, samples); a last line that was cut off is left out."""
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(orjson.JSONDecodeError):
            lines.append(orjson.loads(line))
    if not lines:
        return {"absent": "the sampler did not start"}, []
    return lines[0], [line for line in lines[1:] if isinstance(line, dict) and "at_ns" in line]


def summary(
    head: dict[str, Any],
    samples: list[Sample],
    start_ns: int,
    end_ns: int,
    gpus: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Figures over (start, end]: power and energy are sums over the GPUs, clocks and utilization means over them."""
    inside = [sample for sample in samples if start_ns <= sample["at_ns"] <= end_ns]
    found: dict[str, Any] = {"samples": len(inside)}
    found.update(_host_cpu(inside))
    if "absent" in head:
        return {**found, "absent": head["absent"]}
    names = head.get("gpus") or []
    chosen = [i for i in range(len(names)) if gpus is None or i in gpus]
    found["driver"] = head.get("driver")
    if head.get("simulated"):
        found["simulated"] = True
    if not inside or not chosen:
        return found
    rows = [[sample["gpus"][i] for i in chosen] for sample in inside]
    flat = [gpu for row in rows for gpu in row]
    power = [sum(gpu["watts"] for gpu in row) for row in rows if all(gpu["watts"] is not None for gpu in row)]
    limits = [names[i].get("power_limit_watts") for i in chosen]
    found["gpus"] = [{"index": i, **_one_gpu([sample["gpus"][i] for sample in inside])} for i in chosen]
    if power:
        found["power_watts_mean"] = sum(power) / len(power)
        found["power_watts_max"] = max(power)
        if all(limits):
            found["power_share_of_limit"] = found["power_watts_mean"] / sum(limits)
    means = {"utilization_mean": "utilization", "sm_clock_mhz_mean": "sm_mhz", "memory_clock_mhz_mean": "memory_mhz"}
    for name, key in means.items():
        found[name] = _mean([gpu.get(key) for gpu in flat])
    found["temperature_celsius_max"] = max((gpu["celsius"] for gpu in flat if gpu["celsius"] is not None), default=None)
    found["memory_used_bytes_max"] = max((gpu["memory_bytes"] or 0 for gpu in flat), default=None)
    found["throttled_share"] = _throttled(flat)
    found.update(_pcie(inside, chosen))
    found.update(_energy(inside, chosen, start_ns, end_ns))
    return found


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _one_gpu(samples: list[Sample]) -> dict[str, Any]:
    return {
        "power_watts_mean": _mean([sample["watts"] for sample in samples]),
        "utilization_mean": _mean([sample["utilization"] for sample in samples]),
        "sm_clock_mhz_mean": _mean([sample["sm_mhz"] for sample in samples]),
        "memory_clock_mhz_mean": _mean([sample.get("memory_mhz") for sample in samples]),
        "temperature_celsius_max": max((s["celsius"] for s in samples if s["celsius"] is not None), default=None),
    }


def _throttled(flat: list[Sample]) -> dict[str, float]:
    """Share of the samples in which clocks were held down, by reason."""
    told = [gpu["reasons"] for gpu in flat if gpu["reasons"] is not None]
    found = {name: sum(bool(bits & bit) for bits in told) / len(told) for name, bit in REASONS.items()} if told else {}
    return {name: share for name, share in found.items() if share}


def _pcie(samples: list[Sample], chosen: list[int]) -> dict[str, Any]:
    told = [sample["pcie"] for sample in samples if sample.get("pcie", {}).get("gpu") in chosen]
    return {
        f"pcie_{name}_bytes_per_second_mean": _mean([item[name] for item in told])
        for name in ("to_gpu", "from_gpu")
        if any(item[name] is not None for item in told)
    }


def _host_cpu(samples: list[Sample]) -> dict[str, Any]:
    if len(samples) < 2:
        return {}
    ticks = samples[-1]["ticks"] - samples[0]["ticks"]
    return {"host_cpu_share": (samples[-1]["busy"] - samples[0]["busy"]) / ticks} if ticks > 0 else {}


def _energy(samples: list[Sample], chosen: list[int], start_ns: int, end_ns: int) -> dict[str, Any]:
    """Joules over the window, or why they are not known.

    From the GPUs' own energy counters where they have them, else by the trapezoidal rule over power; either way over
    the time from the first to the last sample, scaled to the window.
    """
    edges = [start_ns, *(sample["at_ns"] for sample in samples), end_ns]
    gap = max(b - a for a, b in pairwise(edges)) / 1e9
    found: dict[str, Any] = {"longest_gap_seconds": gap}
    if gap > LONGEST_GAP_SECONDS or len(samples) < 3:
        found["energy_unknown"] = f"no sample for {gap:.1f} s of the window"
        return found
    span = (samples[-1]["at_ns"] - samples[0]["at_ns"]) / 1e9
    joules = 0.0
    for i in chosen:
        used = _joules(samples, i)
        if used is None:
            found["energy_unknown"] = f"GPU {i} tells neither energy nor power"
            return found
        joules += used
    joules *= (end_ns - start_ns) / 1e9 / span
    found["energy_joules"] = joules
    return found


def _joules(samples: list[Sample], gpu: int) -> float | None:
    first, last = samples[0]["gpus"][gpu]["joules"], samples[-1]["gpus"][gpu]["joules"]
    if first is not None and last is not None and last > first:
        return last - first
    points = [(sample["at_ns"] / 1e9, sample["gpus"][gpu]["watts"]) for sample in samples]
    if any(watts is None for _, watts in points):
        return None
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
