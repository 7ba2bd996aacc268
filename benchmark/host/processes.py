"""Processes as /proc tells them: whose they are, which hold a port, which belong to a unit."""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ..engine.secrets import masked

UNIT_MARK, STATE_MARK = "SHARDSWEEP_UNIT", "SHARDSWEEP_STATE"
"""Environment of each engine's processes: the unit, and the state folder that the unit belongs to (a machine may have
several, with units of one name). A child keeps both whatever session or process group it moves to (a compiler that
outlives its engine does), so they find what a process group does not. A process that sets its title by setproctitle
overwrites its environment, unless SPT_NOENV is set in it, as the units do."""

_CGROUPS = "/sys/fs/cgroup"
_LISTEN = "0A"
_LONGEST_COMMAND = 4096
_GPU_FILE = re.compile(r"/dev/nvidia(\d+)")
_HOLDS_NO_MEMORY = re.compile(r"\[?(\S*/)?nvidia-(persiste|smi)")
"""Driver's programs that have the GPUs open. Fifteen characters of its name are all that the kernel keeps of one."""
_LOOK_SECONDS = 8.0
_FIRST_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""


class Process(msgspec.Struct, frozen=True):
    pid: int
    user: str
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.user}): {self.command[:120]}"


def pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def describe(pid: int) -> Process | None:
    """The process, or None when it is gone or a zombie (a zombie holds nothing)."""
    proc = Path("/proc", str(pid))
    try:
        stat = (proc / "stat").read_text(errors="replace")
        if stat.rpartition(")")[2].split()[0] == "Z":
            return None
        command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        # Another's command line is shown and recorded where it is in the way.
        return Process(pid, _user(proc.stat().st_uid), masked(command[:_LONGEST_COMMAND]) or f"[{name}]")
    except (OSError, IndexError, ValueError):
        return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def alive(candidates: Iterable[int]) -> list[Process]:
    return [process for pid in sorted(candidates) if (process := describe(pid)) is not None]


def started_at(pid: int) -> float | None:
    """Clock ticks since boot at which the process began: with the pid, its identity."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
        return float(stat.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def marked(state: Path) -> dict[str, list[Process]]:
    """{unit: its living processes} of a state folder, found by the marks in their environment.

    Another user's environment cannot be read without root; such a process is not ours to begin with.
    """
    found: dict[str, list[int]] = {}
    belongs = f"{STATE_MARK}={state}".encode()
    names = f"{UNIT_MARK}=".encode()
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            environment = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if belongs in environment:
            for variable in environment:
                if variable.startswith(names):
                    found.setdefault(variable.removeprefix(names).decode(errors="replace"), []).append(pid)
    return {unit: left for unit, candidates in found.items() if (left := alive(candidates))}


def of_unit(unit: str, state: Path) -> list[Process]:
    """Every living process that carries the marks of this unit."""
    return marked(state).get(unit, [])


def family(seeds: Iterable[int], group: int | None, session: int | None) -> list[Process]:
    """These processes, those of a process group within a session, and all that descend from either.

    The session tells our group from one of somebody else's that got the same number since.
    """
    kin = {pid: found for pid in pids() if pid != os.getpid() and (found := _kin(pid)) is not None}
    members = {pid for pid in seeds if pid in kin}
    members |= {pid for pid, (_, its_group, its_session) in kin.items() if (its_group, its_session) == (group, session)}
    while more := {pid for pid, (parent, _, _) in kin.items() if parent in members} - members:
        members |= more
    return alive(members)


def _kin(pid: int) -> tuple[int, int, int] | None:
    """(parent, process group, session) of a process."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1]), int(fields[2]), int(fields[3])
    except (OSError, IndexError, ValueError):
        return None


def of_cgroup(cgroup: str) -> list[Process]:
    """Every process of a control group and those below it; none where the group is gone."""
    found: set[int] = set()
    # cgroup v2 stands at the root; v1 and hybrid hosts keep systemd's own tree below one of these names.
    for root in ("", "systemd", "unified"):
        # A walk passes over a folder that goes meanwhile, as a unit's does when it ends; pathlib's glob does not.
        for folder, _, _ in os.walk(Path(_CGROUPS, root, cgroup.lstrip("/"))):
            try:
                found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
            except (OSError, ValueError):
                continue
    return alive(found)


def kill(processes: Iterable[Process]) -> None:
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def port_holders(port: int) -> list[Process] | None:
    """Who listens on a TCP port of this host: [] when nobody does, None when somebody whom we may not see does."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    if not inodes:
        return []
    wanted = {f"socket:[{inode}]" for inode in inodes}
    holders = [pid for pid in pids() if _has_socket(pid, wanted)]
    return alive(holders) or None


def _has_socket(pid: int, wanted: set[str]) -> bool:
    try:
        for handle in Path("/proc", str(pid), "fd").iterdir():
            try:
                if str(handle.readlink()) in wanted:
                    return True
            except OSError:
                continue
    except OSError:
        return False
    return False


class Openers(msgspec.Struct, frozen=True):
    """Who has device files of GPUs (/dev/nvidia0) open, whether or not it holds memory there: a monitor holds none."""

    minors: dict[Process, set[int]] = {}
    """Minor numbers, by process; by its pid in order."""
    unseen: str = ""
    """Why there may be others that we cannot see; empty where we see all."""


def gpu_openers() -> Openers:
    """Living processes that have a GPU's device file open, as far as we may see, and without the driver's own."""
    found: dict[Process, set[int]] = {}
    unseen = _unseen()
    deadline = time.monotonic() + _LOOK_SECONDS
    for pid in sorted(pids()):
        if time.monotonic() > deadline:
            unseen = f"there are more processes than can be looked at within {_LOOK_SECONDS:g} s"
            break
        minors = _open_gpus(pid)
        if minors and (process := describe(pid)) and not _HOLDS_NO_MEMORY.match(process.command):
            found[process] = minors
    return Openers(found, unseen)


def _unseen() -> str:
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    if namespace != _FIRST_NAMESPACE:
        return "processes outside this container are not to be seen in it"
    return "" if os.geteuid() == 0 else "what other users' processes have open only root sees"


def _open_gpus(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for handle in Path("/proc", str(pid), "fd").iterdir():
            try:
                match = _GPU_FILE.fullmatch(str(handle.readlink()))
            except OSError:
                continue
            if match:
                found.add(int(match.group(1)))
    except OSError:
        pass  # it is gone, or another user's
    return found
