"""Stop an engine and prove it gone: no process of it left, its memory and its port free."""

from __future__ import annotations

import time
from typing import Any

from ..engine.secrets import masked
from . import gpus, processes
from .services import Manager
from .settings import HostError, Settings

_KILL_SECONDS = 10.0
_STABLE_LOOKS = 2


class StuckError(Exception):
    """What was to go does not go; the text names it."""

    def __init__(self, kind: str, sentence: str, advice: str, evidence: list[str], *, may_pass: bool = False) -> None:
        super().__init__(sentence)
        self.kind, self.sentence, self.advice, self.evidence = kind, sentence, advice, evidence
        self.may_pass = may_pass


def stop_step(
    settings: Settings,
    manager: Manager,
    units: list[str],
    progress: dict[str, Any],
    places: list[int] | None = None,
    proof: bool = True,
) -> str | None:
    """One step of stopping these units. `progress` is the caller's memory between steps.

    Args:
        places: indices of the GPUs that are to be free; None: all.
        proof: False lets GPUs that do not tell their memory pass; `progress["untold"]` says why they do not.

    Returns:
        None when all of it is gone and the memory and port are free; otherwise what is still waited for.

    Raises:
        StuckError: processes survive SIGKILL, or somebody else holds the memory or the port.
        HostError: nvidia-smi does not tell the memory, and proof is asked for.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    if waiting := _stop_units(settings, manager, units, progress, now):
        return waiting
    progress.setdefault("gone_at", now)
    overdue = now - progress["gone_at"] > settings.free_seconds
    if waiting := _port_held(settings, overdue):
        return waiting
    try:
        waiting = _memory_held(settings, overdue, places)
    except HostError as error:
        if proof:
            raise
        progress["untold"] = str(error)
        return None
    if waiting:
        progress["free_looks"] = 0
        return waiting
    progress["free_looks"] = progress.get("free_looks", 0) + 1
    return None if progress["free_looks"] >= _STABLE_LOOKS or not units else "GPU memory to stay free"


def _stop_units(
    settings: Settings, manager: Manager, units: list[str], progress: dict[str, Any], now: float
) -> str | None:
    left: list[processes.Process] = []
    running = []
    for unit in units:
        if manager.state(unit).running:
            running.append(unit)
            if unit not in progress.setdefault("asked", {}):
                progress["asked"][unit] = now
                manager.stop(unit)
        left += manager.processes(unit)
    if not running and not left:
        return None
    asked_at = min(progress.get("asked", {}).values(), default=progress.setdefault("seen_at", now))
    # An engine that drains is given its time; what it left behind after its own end is not.
    if now - asked_at > settings.stop_seconds or (left and not running):
        progress.setdefault("killed_at", now)
        processes.kill(left)
        if now - progress["killed_at"] > _KILL_SECONDS and left:
            raise StuckError(
                "process_survives",
                f"Blocked by {left[0]}, which is still there {_KILL_SECONDS:g} s after SIGKILL.",
                "It waits in the kernel, often for a GPU in trouble: look at `dmesg | grep Xid`; a reboot ends it.",
                [str(process) for process in left],
                may_pass=True,
            )
    return f"{', '.join(running) or 'processes of ' + ', '.join(units)} to end"


def _port_held(settings: Settings, overdue: bool) -> str | None:
    holders = processes.port_holders(settings.port)
    if holders == []:
        return None
    names = [str(holder) for holder in holders] if holders else ["a process of another user"]
    if overdue:
        raise StuckError(
            "blocked_by_others",
            f"Blocked by {names[0]}, which listens on port {settings.port}.",
            "Stop it (it is not ours, so it was left alone), name its unit in sglang_service_yields, or set "
            "sglang_service_port.",
            names,
            may_pass=True,
        )
    return f"port {settings.port}, held by {names[0]}"


def _memory_held(settings: Settings, overdue: bool, places: list[int] | None) -> str | None:
    judged = gpus.among(gpus.gpus(settings), places)
    held = [gpu for gpu in judged if gpu.used_bytes > settings.free_memory_bytes]
    if not held:
        return None
    uuids = {gpu.uuid for gpu in held}
    names = [
        str(processes.describe(holder.pid) or f"pid {holder.pid}: {masked(holder.command)}")
        for holder in gpus.holders(settings)
        if holder.uuid in uuids
    ]
    amounts = ", ".join(f"GPU {gpu.index} {gpu.used_bytes / (1 << 30):.1f} GiB" for gpu in held)
    if not overdue:
        return f"memory of {amounts}"
    if not names:
        raise StuckError(
            "memory_leaked",
            f"GPU memory is held ({amounts}), and no process shows it.",
            "It was leaked by a process that is gone: reset the GPU (nvidia-smi --gpu-reset -i N), or reboot the host.",
            [],
            may_pass=True,
        )
    raise StuckError(
        "blocked_by_others",
        f"Blocked by {'; '.join(sorted(set(names)))}: GPU memory is held ({amounts}).",
        "Stop that process (it is not ours, so it was left alone), or leave its GPUs out of the configuration "
        "(CUDA_VISIBLE_DEVICES in its environment, or base_gpu_id).",
        names,
        may_pass=True,
    )
