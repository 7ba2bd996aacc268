"""Commands with a time limit that holds: a driver in trouble leaves nvidia-smi where even SIGKILL does not reach it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

SECONDS = 8.0
_REAP_SECONDS = 0.5


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
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except OSError as error:
        return Answer("absent", error=str(error))
    try:
        text, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits in the kernel (state D) takes no signal: it is left, not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_REAP_SECONDS)
        return Answer("hung", error=f"no answer within {seconds:g} s")
    state: Literal["ok", "failed"] = "ok" if process.returncode == 0 else "failed"
    return Answer(state, text, said, process.returncode)
