"""Commands with limits of time and size that hold: a driver in trouble leaves nvidia-smi where even SIGKILL does not
reach it, and what a program prints is not trusted to end.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

SECONDS = 8.0
MOST_BYTES = 16 << 20
"""Of each stream: a kernel log of weeks is shorter."""
_REAP_SECONDS = 0.5


class _TooMuchError(Exception):
    """A program says more than anybody asked for."""


class Answer(msgspec.Struct, frozen=True):
    """What a command said. `absent`: there is no such command here. `hung`: it did not end in time."""

    state: Literal["ok", "failed", "hung", "absent"]
    text: str = ""
    error: str = ""
    code: int | None = None

    @property
    def ok(self) -> bool:
        return self.state == "ok"


ABSENT = Answer("absent")


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None, seconds: float = SECONDS) -> Answer:
    """Run a command for at most `seconds` (and half a second to collect it). Never raises for what the command does."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except OSError as error:
        return Answer("absent", error=str(error))
    try:
        text, said = _collected(process, time.monotonic() + seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer("hung", error=f"no answer within {seconds:g} s")
    except _TooMuchError:
        _end(process)
        return Answer("failed", error=f"it said more than {MOST_BYTES >> 20} MiB, and was ended")
    finally:
        for stream in (process.stdout, process.stderr):
            stream.close()
    state: Literal["ok", "failed"] = "ok" if process.returncode == 0 else "failed"
    return Answer(state, text, said, process.returncode)


def _collected(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str]:
    """Both streams of a process that ends by the deadline (of time.monotonic).

    Raises:
        TimeoutExpired, _TooMuchError: it does not; it says more than MOST_BYTES.
    """
    said = {stream: bytearray() for stream in (process.stdout, process.stderr)}
    with selectors.DefaultSelector() as waiting:
        for stream in said:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in waiting.select(left):
                chunk = os.read(key.fd, 1 << 16)
                said[key.fileobj] += chunk
                if not chunk:
                    waiting.unregister(key.fileobj)
                if len(said[key.fileobj]) > MOST_BYTES:
                    raise _TooMuchError
    process.wait(max(0.0, deadline - time.monotonic()))
    out, error = (bytes(part).decode(errors="replace").replace("\r\n", "\n") for part in said.values())
    return out, error


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that waits in the kernel (state D) takes no signal: it is left, not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)
