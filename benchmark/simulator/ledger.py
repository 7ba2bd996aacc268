"""The memory of the simulated GPUs: who holds how many bytes, as files that any process can read.

One file for one holder on one GPU, `GPU-PID.json`, replaced whole by rename. A holder whose process has ended
(its pid gone, a zombie, or used by a younger process) no longer counts. Bytes marked leaked are the other way
round: they count once their process has ended (before, they are in its own entry).
What a server keeps its GPUs busy with stands in `activity-PID.json`, and in `faults.log` what went wrong on request.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_LARGEST_FILE_BYTES = 4096
_FAULTS = "faults.log"


@dataclass(frozen=True)
class Holder:
    """Bytes that one process holds on one GPU."""

    gpu: int
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: tells a process from a later one with the same pid."""
    bytes: int
    name: str
    leaked: bool = False


@dataclass(frozen=True)
class Activity:
    """What a server does to its GPUs: utilization and power, each 0 to 1, until a monotonic time."""

    pid: int
    start_ticks: int
    gpus: tuple[int, ...]
    utilization: float
    power: float
    until_seconds: float | None
    """None: as long as the process lives."""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended (a zombie has)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


class Ledger:
    """A directory of holders. Reading never changes it; a broken file counts for nothing."""

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)

    def hold(self, gpu: int, size: int, *, name: str, pid: int | None = None, leaked: bool = False) -> Holder:
        """Sets what a process (this one, unless `pid` says another) holds on a GPU to `size` bytes."""
        pid = os.getpid() if pid is None else pid
        holder = Holder(gpu, pid, start_ticks(pid) or 0, int(size), name, leaked)
        self._write(f"{gpu}-{pid}-leaked.json" if leaked else f"{gpu}-{pid}.json", asdict(holder))
        return holder

    def release(self, gpu: int, pid: int | None = None) -> None:
        """The process no longer holds anything on that GPU."""
        pid = os.getpid() if pid is None else pid
        (self.directory / f"{gpu}-{pid}.json").unlink(missing_ok=True)

    def work(self, gpus: Iterable[int], utilization: float, power: float, lasting_seconds: float | None) -> None:
        """Says how busy this process keeps its GPUs, for `lasting_seconds` or (None) as long as it lives."""
        pid = os.getpid()
        until = None if lasting_seconds is None else time.monotonic() + lasting_seconds
        activity = Activity(pid, start_ticks(pid) or 0, tuple(gpus), utilization, power, until)
        self._write(f"activity-{pid}.json", asdict(activity))

    def holders(self, gpu: int | None = None) -> list[Holder]:
        """Every holder that counts, by GPU and pid."""
        found = []
        for path in self._files("[0-9]*-*.json"):
            holder = _read_holder(path)
            if holder is None or (gpu is not None and holder.gpu != gpu):
                continue
            if holder.leaked != _alive(holder.pid, holder.start_ticks):
                found.append(holder)
        return sorted(found, key=lambda holder: (holder.gpu, holder.pid))

    def used_bytes(self, gpu: int) -> int:
        """Bytes held on a GPU by all its holders."""
        return sum(holder.bytes for holder in self.holders(gpu))

    def activities(self) -> dict[int, tuple[float, float]]:
        """(utilization, power), each 0 to 1, of every GPU that is busy; the busiest server counts."""
        best: dict[int, tuple[float, float]] = {}
        for path in self._files("activity-*.json"):
            activity = _read_activity(path)
            if activity is None or not _alive(activity.pid, activity.start_ticks):
                continue
            if activity.until_seconds is not None and time.monotonic() > activity.until_seconds:
                continue
            for gpu in activity.gpus:
                best[gpu] = max(best.get(gpu, (0.0, 0.0)), (activity.utilization, activity.power))
        return best

    def note_fault(self, kind: str) -> None:
        """Says that a fault on request happens now: one that was asked for may never be reached."""
        # The fault is to be the one that was asked for, also where this cannot be written.
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            with (self.directory / _FAULTS).open("a", encoding="utf-8") as file:
                file.write(f"{kind} {os.getpid()}\n")

    def faults(self) -> list[str]:
        """The kinds of the faults on request that happened, oldest first; one of every rank stands there for each."""
        try:
            lines = (self.directory / _FAULTS).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        return [line.partition(" ")[0] for line in lines]

    def reset(self, gpu: int) -> None:
        """Frees what is leaked on a GPU, as resetting a real one does."""
        for path in self._files(f"{gpu}-*-leaked.json"):
            path.unlink(missing_ok=True)

    def clean(self) -> None:
        """Removes what dead processes left, except what is marked leaked."""
        for path in self._files("[0-9]*-*.json"):
            holder = _read_holder(path)
            if holder is not None and not holder.leaked and not _alive(holder.pid, holder.start_ticks):
                path.unlink(missing_ok=True)
        for path in self._files("activity-*.json"):
            activity = _read_activity(path)
            if activity is not None and not _alive(activity.pid, activity.start_ticks):
                path.unlink(missing_ok=True)

    def _files(self, pattern: str) -> list[Path]:
        try:
            return sorted(self.directory.glob(pattern))
        except OSError:
            return []

    def _write(self, name: str, content: dict) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        # The writer's own pid keeps two writers of one file apart.
        temporary = self.directory / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.directory / name)


def _alive(pid: int, ticks: int) -> bool:
    now = start_ticks(pid)
    return now is not None and now == ticks


def _read(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_LARGEST_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_holder(path: Path) -> Holder | None:
    content = _read(path)
    try:
        holder = Holder(
            gpu=int(content["gpu"]),
            pid=int(content["pid"]),
            start_ticks=int(content["start_ticks"]),
            bytes=int(content["bytes"]),
            name=str(content["name"]),
            leaked=content.get("leaked") is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return holder if holder.bytes >= 0 and holder.pid > 0 else None


def _read_activity(path: Path) -> Activity | None:
    content = _read(path)
    try:
        until = content["until_seconds"]
        return Activity(
            pid=int(content["pid"]),
            start_ticks=int(content["start_ticks"]),
            gpus=tuple(int(gpu) for gpu in content["gpus"]),
            utilization=min(1.0, max(0.0, float(content["utilization"]))),
            power=min(1.0, max(0.0, float(content["power"]))),
            until_seconds=None if until is None else float(until),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
