"""Small things that Linux offers about processes: titles, death with the parent, whole trees."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with(parent: int) -> None:
    """This process is killed when `parent` ends; at once if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def set_title(title: str) -> None:
    """Shows `title` in the process list (comm, cut to 15 characters, and command line). Best effort.

    The command line and the environment are where the kernel says (fields 48 to 51 of /proc/self/stat). As setproctitle
    does it, which SGLang uses: what /proc/self/environ shows is gone afterwards, unless SPT_NOENV is set.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end, environment, environment_end = (int(field) for field in fields[45:49])
    except (OSError, ValueError, IndexError):
        return
    size = end - start
    if start and size > 1:
        text = title.encode()[: size - 1]
        ctypes.memmove(start, text + b"\0" * (size - len(text)), size)
    if environment and not os.environ.get("SPT_NOENV"):
        # What the process itself reads, and its children get, moves elsewhere first.
        for name, value in os.environ.items():
            os.putenv(name, value)
        ctypes.memset(environment, 0, environment_end - environment)


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def descendants(pid: int) -> Iterator[int]:
    """Children and theirs, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def kill_tree(sparing: frozenset[int] = frozenset()) -> None:
    """SIGKILL to every descendant not spared, then to this process: the engine's own way to end."""
    for pid in list(descendants(os.getpid())):
        if pid not in sparing:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    os.kill(os.getpid(), signal.SIGKILL)
