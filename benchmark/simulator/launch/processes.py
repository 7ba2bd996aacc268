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

    The command line is where the kernel says the argument area is (fields 48 and 49 of /proc/self/stat).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
    except (OSError, ValueError, IndexError):
        return
    size = end - start
    if start and size > 1:
        text = title.encode()[: size - 1]
        ctypes.memmove(start, text + b"\0" * (size - len(text)), size)


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
