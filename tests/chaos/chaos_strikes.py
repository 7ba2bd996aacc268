"""What is done to a host, and what is asked of it, on that host itself and beside what a sweep does there.

    python chaos_strikes.py SETTINGS.json     reads lines of ["VERB", ARGUMENT...], answers each with a line of JSON

Called in this process by a site of the suite's own, and by the tools' Python on a host of an inventory. A strike
answers None where what it is about is not there (yet).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmark.host import lease, processes
from benchmark.host.managers import manager_for
from benchmark.host.services import JOB_UNIT, engine_unit
from benchmark.host.settings import Settings, read_settings
from benchmark.simulator.ledger import Ledger

SMALL_DISK_BYTES = 1 << 30
"""A file system that is smaller was made to be filled."""


def kill(settings: Settings, what: str, configuration: str, number: int) -> str | None:
    """SIGKILL to the main process of the engine or the load generator, or to a child of the engine, a scheduler."""
    unit = JOB_UNIT if what == "load generator" else engine_unit(configuration)
    pid = manager_for(settings).state(unit).pid
    if pid and what == "scheduler":
        pid = _child(pid, number)
    if not pid:
        return None
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"killed {pid}"


def _child(parent: int, number: int) -> int | None:
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return None
    return int(children[min(number, len(children) - 1)]) if children else None


def hold_memory(settings: Settings, gpu: int, gib: int, seconds: float) -> str:
    """A process that is nobody's takes memory of a simulated GPU for a while."""
    command = [sys.executable, "-m", "benchmark.simulator.hold", str(gpu), f"{gib}G", str(seconds)]
    environment = {**os.environ, **settings.environment}
    return f"held by {_apart(command, environment).pid}"


def fill_disk(settings: Settings) -> str | None:
    """No byte more: all of a small disk is taken, or the load generator may write none."""
    room = os.statvfs(settings.state)
    if room.f_blocks * room.f_frsize <= SMALL_DISK_BYTES:
        handle = os.open(_filler(settings), os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(handle, bytes(1 << 20)):
                pass
        os.close(handle)
        return f"filled the disk of {settings.state}"
    pid = manager_for(settings).state(JOB_UNIT).pid
    try:
        if pid:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    except ProcessLookupError:
        return None
    return f"no byte more for {pid}" if pid else None


def refused_writes(settings: Settings) -> int:
    """How many writes there was no room for: those that the load generator's log tells of, and the one of a disk that
    was filled, where a log could not tell."""
    refused = int(_filler(settings).exists())
    with contextlib.suppress(OSError):
        text = manager_for(settings).log(JOB_UNIT).read_text(errors="replace")
        refused += sum(text.count(os.strerror(number)) for number in (errno.EFBIG, errno.ENOSPC))
    return refused


def faults(settings: Settings) -> list[str]:
    """The faults that simulated engines were asked for and that happened, as the engines wrote them down."""
    return _ledger(settings).faults()


def repair(settings: Settings) -> str:
    """What a person mends before the next sweep: the disk has room, a GPU that leaked is reset."""
    _filler(settings).unlink(missing_ok=True)
    ledger = _ledger(settings)
    for holder in ledger.holders():
        ledger.reset(holder.gpu)
    return "repaired"


def spoil(settings: Settings, pattern: str, how: str, seed: int) -> str | None:
    """Make a file of the state folder, or of the facts beside it, the newest of a pattern, one that cannot be read."""
    folder = settings.state.parent if pattern.startswith("facts.d/") else settings.state
    return spoil_newest(folder, pattern, how, seed)


def spoil_newest(folder: Path, pattern: str, how: str, seed: int) -> str | None:
    try:
        path = max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        content = path.read_bytes()
    except (ValueError, FileNotFoundError):
        return None
    rubbish = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "null": b"null",
        "list": b"[]",
        "other": b'{"token": 7, "points": "none"}',
        "noise": random.Random(seed).randbytes(200),
    }
    path.write_bytes(rubbish[how])
    return f"{path.relative_to(folder)}: {how}"


def cut(settings: Settings, seconds: float) -> str:
    """End every SSH session of this host, and let nobody in for so long."""
    subprocess.run(["systemctl", "stop", "ssh.socket", "ssh.service"], check=False, capture_output=True)
    ended = []
    for pid in processes.pids():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name.startswith("sshd"):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
        except OSError:
            continue
    _apart(["sh", "-c", f"sleep {seconds}; systemctl start ssh.service"], dict(os.environ))
    return f"ended {len(ended)} processes of sshd"


def running(settings: Settings) -> list[str]:
    """What runs here that belongs to a sweep: engines, their children, load generator; who holds memory or the port."""
    manager = manager_for(settings)
    ours = [process for found in processes.marked(settings.state).values() for process in found]
    ours += [process for unit in manager.units() for process in manager.processes(unit)]
    left = [str(process) for process in {process.pid: process for process in ours}.values()]
    left += [f"GPU {h.gpu}: {h.bytes} bytes of {h.name} ({h.pid})" for h in _ledger(settings).holders()]
    left += [f"{unit} {state.activity}" for unit in manager.units() if (state := manager.state(unit)).running]
    return left + [f"port {settings.port}: {holder}" for holder in processes.port_holders(settings.port) or []]


def held(settings: Settings) -> bool:
    """Whether a sweep that is alive holds the host."""
    current = lease.current(settings)
    return current is not None and lease.alive(settings, current)


def finished(settings: Settings) -> dict[str, str]:
    """{"CONFIGURATION/KEY/CONCURRENCY/REPEAT": a digest of the point and its requests} of every valid point here."""
    found = {}
    for path in (settings.state / "records").glob("*/*/record.json"):
        try:
            points = json.loads(path.read_bytes())["points"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for point in points:
            raw = path.parent / str(point.get("raw"))
            valid = all(flag.get("severity") != "invalid" for flag in point.get("flags", []))
            if valid and raw.is_file():
                key = f"{path.parent.parent.name}/{path.parent.name}/{point['concurrency']}/{point['repeat']}"
                found[key] = hashlib.sha256(json.dumps(point, sort_keys=True).encode() + raw.read_bytes()).hexdigest()
    return found


def _ledger(settings: Settings) -> Ledger:
    return Ledger(settings.environment["SHARDSWEEP_SIMULATED_GPU"])


def _filler(settings: Settings) -> Path:
    # Beside the state folder, where there is room for more than ours.
    return settings.state.parent / "filler"


def _apart(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start what goes on after this process."""
    own = {key: value for key, value in environment.items() if key not in (processes.UNIT_MARK, processes.STATE_MARK)}
    null = subprocess.DEVNULL
    return subprocess.Popen(command, env=own, stdin=null, stdout=null, stderr=null, start_new_session=True)


_TOLD = (refused_writes, faults, running, held, finished)
VERBS: dict[str, Callable[..., Any]] = {
    verb.__name__: verb for verb in (kill, hold_memory, fill_disk, repair, spoil, cut, *_TOLD)
}


def main(settings: str) -> None:
    for line in sys.stdin:
        verb, *words = json.loads(line)
        sys.stdout.write(json.dumps(VERBS[verb](read_settings(Path(settings)), *words)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
