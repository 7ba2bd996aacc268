"""How long a start is waited for: as long as it moves, and past the time that its bytes take only while it works.

A start moves while its log grows, its processes read, the GPUs' memory changes, or a compiler runs. CPU time is no
sign: a rank that waits for its peers for ever spins. All GPUs busy at low power and nothing moving is what a
collective that never ends looks like. A log that grows is no work: a server that is never ready writes a line each time
it is asked whether it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from . import clock, gpus
from .processes import Process
from .settings import Settings

HANG_SHARE = 0.2
"""Of `quiet_seconds`: so long a start that looks like a hang is given before it is called one, one whose log names a
failure before that is taken for its end, and one that has had its time and does not work any more."""
_OTHER_STAGES_SECONDS = 900.0
"""Graphs, kernels and warm-up, which do not follow from the model's size."""
_RATE_MARGIN = 3.0
_GPU_LOOK_SECONDS, _STILL_SECONDS = 5.0, 5.0
_SMALLEST_STEP_BYTES = 16 << 20
_COMPILERS = ("cicc", "nvcc", "ptxas", "ninja", "cudafe++", "cc1plus", "g++", "ld")


class Verdict(msgspec.Struct, frozen=True):
    """A start that is waited for no longer."""

    kind: str
    sentence: str
    advice: str
    may_pass: bool = True


def note(
    settings: Settings, start: dict[str, Any], log: Path, processes: list[Process], *, ended: bool = False
) -> None:
    """Put into `start["signs"]` what can be seen now, when it last moved, and when it last worked, which is without its
    log; of GPUs, `start["gpus"]` alone. `ended`: its log says that a process of it did, so that its work counts."""
    signs = start.setdefault("signs", {"moved": clock.mark()})
    signs.setdefault("worked", clock.mark())
    size, read = _size(log), _bytes_read(processes)
    works = compiling = any(Path(p.command.split(" ", 1)[0]).name in _COMPILERS for p in processes)
    if read and sum(read) - signs.get("read_bytes", 0) >= _SMALLEST_STEP_BYTES:
        works, signs["read_bytes"], signs["most_read_bytes"] = True, sum(read), max(read)
    moved = works or size != signs.get("log_bytes")
    signs |= {"log_bytes": size, "compiling": compiling}
    late = ended or settings.start_seconds < clock.since(start.get("began")) < float("inf")
    # Asking the driver costs a process; what moves by itself is not asked, unless it has to work by now.
    still = not works if late else not moved
    silence = _idle(signs) if late else _quiet(signs)
    if still and silence > _STILL_SECONDS and clock.since(signs.get("asked")) > _GPU_LOOK_SECONDS:
        works = _look_at_gpus(settings, signs, start.get("gpus"))
    if works:
        signs["worked"] = clock.mark()
    if moved or works:
        signs["moved"] = clock.mark()
        signs.pop("busy_since", None)


def _look_at_gpus(settings: Settings, signs: dict[str, Any], places: list[int] | None) -> bool:
    signs["asked"] = clock.mark()
    now = gpus.among(gpus.activity(settings), places)
    used = sum(gpu.used_bytes for gpu in now)
    moved = abs(used - signs.get("gpu_bytes", used)) >= _SMALLEST_STEP_BYTES
    # The GPUs of this engine are those that somebody holds memory of.
    held = [gpu for gpu in now if gpu.used_bytes > settings.free_memory_bytes]
    waiting = bool(held) and all(gpu.polls for gpu in held)
    signs["gpu_bytes"] = used
    if waiting:
        signs.setdefault("busy_since", clock.mark())
        signs["busy"] = [gpu.index for gpu in held]
    else:
        signs.pop("busy_since", None)
    return moved


def verdict(settings: Settings, name: str, start: dict[str, Any], stage: str, model_bytes: int) -> Verdict | None:
    """Whether the start is waited for no longer, and why."""
    signs = start.get("signs") or {}
    quiet = _quiet(signs)
    elapsed = clock.since(start.get("began"))
    if "busy_since" in signs and quiet > settings.quiet_seconds * HANG_SHARE:
        which = ", ".join(str(index) for index in signs.get("busy", []))
        return Verdict(
            "communication_hang",
            f"A collective between the GPUs does not end: {name} has shown no progress for {quiet:.0f} s at '{stage}', "
            f"while GPU {which} is fully busy at low power.",
            "Check P2P between all pairs (playbooks/preflight.yml: ACS, IOMMU); try NCCL_P2P_DISABLE=1 or "
            "NCCL_NVLS_ENABLE=0.",
        )
    if quiet > settings.quiet_seconds:
        return Verdict(
            "start_stalled",
            f"{name} stands still: for {quiet:.0f} s at '{stage}' its log has not grown, nothing was read and the "
            "GPUs' memory has not changed.",
            "Look at the log and at the processes (py-spy dump); raise sglang_service_quiet_seconds if this is usual.",
        )
    limit, why = time_limit(settings, start, model_bytes)
    if elapsed > limit and (idle := _idle(signs)) > settings.quiet_seconds * HANG_SHARE:
        return Verdict(
            "start_too_slow",
            f"{name} was not ready {elapsed:.0f} s after its start; it is at '{stage}', and for {idle:.0f} s it has "
            f"read nothing, compiled nothing and taken no GPU memory. The limit is {limit:.0f} s ({why}).",
            "Look at the end of the log; raise sglang_service_start_seconds if it needs longer without any of these.",
            may_pass=False,
        )
    return None


def settled(settings: Settings, start: dict[str, Any], lines: int) -> bool:
    """Whether a start whose log says that a process ended is taken at its word: one that recovers works again soon, or
    its log tells of it.

    Args:
        lines: of the log, without those of requests, which a server goes on to write for whoever asks it.
    """
    signs = start.setdefault("signs", {})
    if signs.get("lines") != lines:
        signs |= {"lines": lines, "told": clock.mark()}
    return min(_idle(signs), clock.since(signs["told"])) > settings.quiet_seconds * HANG_SHARE


def time_limit(settings: Settings, start: dict[str, Any], model_bytes: int) -> tuple[float, str]:
    """(seconds, why): the setting, or what the model's bytes take at the rate that its files are read with.

    Each rank may read all of them, so the rate is that of the one that reads most. Of ranks that share the files among
    them it is too low, which only gives more time to what still works.
    """
    rate = read_rate(start, "most_read_bytes")
    if model_bytes and rate:
        needed = _RATE_MARGIN * model_bytes / rate + _OTHER_STAGES_SECONDS
        if needed > settings.start_seconds:
            told = f"{model_bytes / 1e9:.0f} GB at {rate / 1e6:.0f} MB/s a rank"
            return needed, f"{told}, {_RATE_MARGIN:g} times, and the rest"
    return settings.start_seconds, "sglang_service_start_seconds"


def read_rate(start: dict[str, Any], of: str = "read_bytes") -> float | None:
    """Bytes a second that this start has read so far, by all its ranks; None before it is worth telling."""
    read, elapsed = (start.get("signs") or {}).get(of, 0), clock.since(start.get("began"))
    return read / elapsed if read >= _SMALLEST_STEP_BYTES and 1.0 < elapsed < float("inf") else None


def told(name: str, start: dict[str, Any], stage: str, percent: int | None) -> str:
    """Where a start is, for the live view."""
    signs, text = start.get("signs") or {}, f"{name}: {stage}"
    if stage == "weights":
        rate = read_rate(start)
        text += f" {percent} %" if percent is not None else ""
        text += f", {rate / 1e6:,.0f} MB/s" if rate else ""
    if signs.get("compiling"):
        text += ", a compiler runs"
    if "busy_since" in signs:
        text += ", all GPUs busy at low power"
    quiet = _quiet(signs)
    return text + (f", nothing moves for {quiet:.0f} s" if 30 < quiet < float("inf") else "")


def model_bytes(path: Any) -> int:
    """What the model's weight files hold; 0 where the path is no folder of this host."""
    try:
        return sum(file.stat().st_size for file in Path(str(path)).glob("*.safetensors"))
    except (OSError, ValueError):
        return 0


def _quiet(signs: dict[str, Any]) -> float:
    return clock.since(signs.get("moved"))


def _idle(signs: dict[str, Any]) -> float:
    """Seconds since it last worked; what was noted by tools of before knows only when it moved."""
    return clock.since(signs.get("worked", signs.get("moved")))


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _bytes_read(processes: list[Process]) -> list[int]:
    """What each process has read of files, page cache included; without those of which that may not be seen."""
    read = []
    for process in processes:
        try:
            lines = Path("/proc", str(process.pid), "io").read_text().splitlines()
            values = dict(line.split(": ", 1) for line in lines)
            # Mapped files are read by page faults, which only the second counts, and only from the disk.
            read.append(max(int(values["rchar"]), int(values["read_bytes"])))
        except (OSError, ValueError, KeyError):
            continue
    return read
