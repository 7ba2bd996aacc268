"""Why an engine is gone, as its host knows and its log cannot: a boot, the guard, the memory killer, a GPU."""

from __future__ import annotations

from typing import Any

from ..engine.lifecycle import Failure, Lifecycle
from ..engine.secrets import masked
from . import bounded, clock, gpus, lease
from .services import ServiceState
from .settings import HostError, Settings

_LINES = 6
_TOLD = frozenset({"gpu_fault", "host_memory", "unknown_flag", "bad_flag_value", "refused", "driver_mismatch"})
"""Failures of a log that need no word of the kernel's."""


def cause(settings: Settings, start: dict[str, Any], service: ServiceState, seen: Lifecycle) -> Failure | None:
    """What outside the engine has ended it since `start` (of running.json); None: nothing that the host knows of."""
    began = start.get("began")
    if isinstance(began, dict) and began.get("boot") not in (None, clock.boot()):
        return Failure(
            "host_rebooted",
            seen.stage,
            "The host was booted while the engine ran.",
            advice="Look why, if nobody meant it (journalctl -b -1 -e); the next sweep goes on from the last point.",
            may_pass=True,
        )
    if clock.since(lease.ended_at(settings)) < clock.since(began) < float("inf"):
        return Failure(
            "given_back",
            seen.stage,
            "The host's guard stopped the engine and gave the host back: its sweep was not heard of for longer than "
            f"sglang_service_lease_seconds ({settings.lease_seconds:.0f} s).",
            advice="Look at the controller and its network, then sweep again: it goes on from the last point.",
            may_pass=True,
        )
    if service.result == "oom-kill":
        return Failure(
            "host_memory",
            seen.stage,
            "The host ran out of memory, and the kernel killed the engine or a process of it (systemd: oom-kill).",
            tuple(seen.last_lines),
            "Free host memory, or load with fewer threads; look at the unit's MemoryMax (journalctl -k | grep -i oom).",
            may_pass=True,
        )
    return None if seen.failure is not None and seen.failure.kind in _TOLD else _fault(settings, start, seen)


def _fault(settings: Settings, start: dict[str, Any], seen: Lifecycle) -> Failure | None:
    """A GPU that has failed since the start, among those that the engine takes."""
    from .preflight import kernel_log  # few engines die, and a switch is asked for often

    found = [
        fault for fault in kernel_log.faults(_kernel_lines(start)) if _taken(settings, fault.bus, start.get("gpus"))
    ]
    if not found:
        return None
    lines = dict.fromkeys(masked(fault.line) for fault in found)
    return Failure(
        "gpu_fault",
        seen.stage,
        f"A GPU failed: {found[0].told}.",
        tuple(lines)[:_LINES],
        "Reset it (nvidia-smi --gpu-reset -i GPU), or reboot the host; then playbooks/preflight.yml.",
        may_pass=True,
    )


def _kernel_lines(start: dict[str, Any]) -> list[str]:
    started = start.get("started_at")
    if not isinstance(started, (int, float)):
        return []
    since = f"@{int(started)}"
    journal = ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "--since", since, "--grep=NVRM"]
    told = bounded.run(journal).text or bounded.run(["dmesg", "--since", since]).text
    return [line for line in told.splitlines() if "NVRM" in line]


def _taken(settings: Settings, bus: str, places: list[int] | None) -> bool:
    """Whether the GPU at a bus is one of these; so is one that cannot be told, as one that fell off the bus."""
    if places is None or not bus:
        return True
    try:
        index = next((gpu.index for gpu in gpus.gpus(settings) if bus.lower() in gpu.bus_id.lower()), None)
    except HostError:
        return True
    return index is None or index in places
