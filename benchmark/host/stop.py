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

    def __init__(
        self,
        kind: str,
        sentence: str,
        advice: str,
        evidence: list[str],
        *,
        may_pass: bool = False,
        held: dict[int, bool] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.kind, self.sentence, self.advice, self.evidence = kind, sentence, advice, evidence
        self.may_pass = may_pass
        self.held = held
        """{GPU whose memory is held, by index: whether nvidia-smi lists who holds it}; None where it is not memory."""


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
    if overdue:
        raise _stuck_memory(settings, held)
    return f"memory of {_amounts(held)}"


def _stuck_memory(settings: Settings, held: list[gpus.Gpu]) -> StuckError:
    """Who is to be asked for the memory of these GPUs."""
    listed = gpus.holders(settings)
    by_gpu = {gpu.index: [holder for holder in listed if holder.uuid == gpu.uuid] for gpu in held}
    # nvidia-smi lists nobody in most containers, and elsewhere none that draws. Of simulated GPUs it lists all.
    silent = [gpu for gpu in held if not by_gpu[gpu.index]] if settings.engine != "simulated" else []
    openers = processes.gpu_openers() if silent else processes.Openers()
    # Whoever computes on one GPU has others open too, and it is known where it holds memory.
    known = {holder.pid for holder in listed}
    strangers = {process: minors for process, minors in openers.minors.items() if process.pid not in known}
    opened = {gpu.index: found for gpu in silent if (found := _with_open(gpu, strangers))}
    told = {_name(holder) for found in by_gpu.values() for holder in found}
    told |= {str(process) for found in opened.values() for process in found}
    if not told:
        return _held_by_nobody(held, openers.unseen)
    named = [gpu for gpu in held if by_gpu[gpu.index] or gpu.index in opened]
    sentence = f"Blocked by {'; '.join(sorted(told))}: GPU memory is held ({_amounts(named)})."
    advice = (
        "Stop that process (it is not ours, so it was left alone), or leave its GPUs out of the configuration "
        "(CUDA_VISIBLE_DEVICES in its environment, or base_gpu_id)."
    )
    if opened:
        places = ",".join(map(str, opened))
        sentence += f" On GPU {places} nvidia-smi lists no process: named is who has the device file open."
        advice += (
            " A monitor, such as dcgm-exporter, holds no memory: where only such are named, it was leaked. Stop them "
            f"then, and reset the GPU (nvidia-smi --gpu-reset -i {places})."
        )
    listed_on = {place: bool(found) for place, found in by_gpu.items()}
    return StuckError("blocked_by_others", sentence, advice, sorted(told), may_pass=True, held=listed_on)


def _name(holder: gpus.Holder) -> str:
    return str(processes.describe(holder.pid) or f"pid {holder.pid}: {masked(holder.command)}")


def _with_open(gpu: gpus.Gpu, strangers: dict[processes.Process, set[int]]) -> list[processes.Process]:
    """Those that have its device file open; one of which nobody tells whose it is may be any GPU's."""
    buses, own = gpus.buses_by_minor(), gpus.bus_id(gpu.bus_id)
    return [process for process, minors in strangers.items() if any(buses.get(minor, own) == own for minor in minors)]


def _held_by_nobody(held: list[gpus.Gpu], unseen: str) -> StuckError:
    places = ",".join(str(gpu.index) for gpu in held)
    reset = f"reset the GPU (nvidia-smi --gpu-reset -i {places}), or reboot the host."
    unlisted = dict.fromkeys((gpu.index for gpu in held), False)
    if unseen:
        return StuckError(
            "blocked_by_others",
            f"GPU memory is held ({_amounts(held)}), and by whom cannot be seen: nvidia-smi lists no process, and "
            f"{unseen}.",
            "Look as root, outside of any container: fuser -v /dev/nvidia*. Where nobody is there, it was leaked: "
            f"{reset}",
            [],
            may_pass=True,
            held=unlisted,
        )
    return StuckError(
        "memory_leaked",
        f"GPU memory is held ({_amounts(held)}), and no process shows it or has the GPU open.",
        f"It was leaked by a process that is gone: {reset}",
        [],
        may_pass=True,
        held=unlisted,
    )


def _amounts(held: list[gpus.Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} {gpu.used_bytes / (1 << 30):.1f} GiB" for gpu in held)
