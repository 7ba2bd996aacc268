"""The host's settings file, written by the role `sglang_tools`, and the state folder that the verbs share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..durable import flush_names
from . import forms


class HostError(Exception):
    """Something on this host stops a verb; the text says what, where and what to do next."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    state: Path
    """Folder of everything the verbs write."""
    unit_directory: Path
    manager: Literal["systemd", "supervisor"] = "systemd"
    host: str = "127.0.0.1"
    port: int = 30001
    node_port: int | None = None
    """Where the other nodes meet this one; None where no configuration is spread from here."""
    user: str = ""
    """Who the engine runs as; empty: whoever runs these tools (supervisor)."""
    nvidia_smi: list[str] = msgspec.field(default_factory=lambda: ["nvidia-smi"])
    engine: Literal["sglang", "simulated"] = "sglang"
    stop_seconds: float = 120.0
    """How long a stopping engine may drain before its processes are killed."""
    free_seconds: float = 60.0
    """How long GPU memory and the port may take to be free once the processes are gone."""
    free_memory_bytes: int = 1 << 30
    """A GPU that holds less than this is free (a driver keeps some hundred MiB)."""
    start_seconds: float = 3600.0
    """How long a start may take that still moves; longer where the model's bytes need it (patience.py)."""
    quiet_seconds: float = 600.0
    """How long a start may show no sign of moving."""
    lease_seconds: float = 180.0
    """How long a sweep may be silent before the host takes itself back."""
    environment: dict[str, str] = {}
    """For the verbs' own processes (nvidia-smi), not for the engine."""

    def unit_file(self, unit: str) -> Path:
        suffix = ".service" if self.manager == "systemd" else ".conf"
        return self.unit_directory / f"{unit}{suffix}"


def read_settings(path: Path) -> Settings:
    """Read the settings file.

    Raises:
        HostError: it is absent or not what this version of the tools reads.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Settings, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        raise HostError(f"{path} is not there. Run the role sglang_tools on this host first.") from None
    except msgspec.MsgspecError as error:
        raise HostError(f"{path} is not a settings file of these tools: {error}. Run sglang_tools again.") from error


def write_json(path: Path, value: Any, *, lasting: bool = True) -> None:
    """Write a JSON file whole or not at all: a reader never sees half of it, a crash leaves the old one.

    One that is not `lasting` is not waited for to reach the disk: it tells of a moment, and may be gone after a crash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n", lasting=lasting)


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, lasting: bool = True) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            if lasting:
                os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if lasting:
        flush_names(path.parent)


def read_json(path: Path, default: Any = None, form: type = dict) -> Any:
    """A JSON object of a form from a file; the default where it is absent or is none (state can always be rebuilt)."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return default
    return content if isinstance(content, dict) and forms.has(content, form) else default


@contextlib.contextmanager
def locked(settings: Settings, name: str) -> Iterator[None]:
    """One process of this host at a time; the lock dies with its process, and is not inherited by what it starts."""
    settings.state.mkdir(parents=True, exist_ok=True)
    with (settings.state / f".{name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
