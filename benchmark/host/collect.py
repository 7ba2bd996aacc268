"""One archive for a bug report: what is deployed here, how it went, what the host says; secrets removed.

    python -m benchmark.host.collect --settings FILE ARCHIVE.tar.gz

A secret is the value of a flag or variable whose name says so, wherever that value stands, and what looks like a
token by itself. Prompts and answers (the raw requests) stay out.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import io
import json
import os
import re
import socket
import sys
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

from ..engine.lifecycle.failure import shown
from ..engine.secrets import REMOVED, is_secret
from . import bounded
from .managers import manager_for
from .services import configuration_of
from .serving import running
from .settings import HostError, Settings, read_settings

HEAD_BYTES, TAIL_BYTES = 256 << 10, 2 << 20
NCCL_LINES = 4000
NCCL_FILES = 16
"""Of those that one NCCL_DEBUG_FILE names: each rank of each start writes its own."""
JOURNAL_LINES = 2000
RECORDS = 100
_LINE_BYTES = 64 << 10
_SHORTEST_SECRET = 6
"""A shorter value would be replaced all over the place where it means something else."""
_COMMAND_SECONDS = 20.0

_ASSIGNED = re.compile(
    r"""(?m)^\s*(?:export\s+)?(?:Environment=)?["']?([A-Za-z_]\w*)=(?:"([^"]*)"|'([^']*)'|([^\n"']*))"""
)
_FLAG = re.compile(r"""(--[a-z][a-z0-9-]*)[ =]("(?:[^"\\]|\\.)*"|'[^']*'|[^\s\\]+)""")

_ABOUT_THE_HOST = {
    "system": ("uname", "-a"),
    "systemd": ("systemctl", "--version"),
    "processes": ("ps", "-eo", "pid,ppid,user,stat,lstart,rss,comm"),
    "memory": ("free", "-m"),
    "disks": ("df", "-h"),
    "kernel-log": ("dmesg", "--ctime", "--level", "err,warn"),
}


def secrets_of(texts: Iterable[str]) -> set[str]:
    """The values that units, launch scripts and settings give to names that hold secrets."""
    found = set()
    for text in texts:
        for name, *values in _ASSIGNED.findall(text):
            if is_secret(name):
                found.update(values)
        for name, value in _FLAG.findall(text):
            if is_secret(name):
                found.add(value.strip("\"'"))
    return {secret for secret in found if len(secret) >= _SHORTEST_SECRET}


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these values, also where they are escaped, and without what looks like a token."""
    for secret in sorted(secrets, key=len, reverse=True):
        for spelling in {secret, secret.replace("%%", "%").replace("$$", "$"), json.dumps(secret)[1:-1]}:
            text = text.replace(spelling, REMOVED)
    return "\n".join(shown(line) for line in text.split("\n"))


def head_and_tail(path: Path) -> str:
    """A log's beginning and end: between them lie requests."""
    with _bytes_of(path) as stream:
        head = stream.read(HEAD_BYTES)
        tail, size = b"", len(head)
        # A packed log cannot be read from its end.
        while piece := stream.read(1 << 20):
            tail, size = (tail + piece)[-TAIL_BYTES:], size + len(piece)
    left_out = size - len(head) - len(tail)
    gap = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
    return (head + gap + tail).decode(errors="replace")


def nccl_lines(path: Path) -> str:
    """What NCCL said, from all of the log."""
    with _bytes_of(path) as stream:
        # In pieces: what has no line ends is no reason to read gigabytes at once.
        lines = iter(lambda: stream.readline(_LINE_BYTES), b"")
        found = list(islice((line for line in lines if b"NCCL" in line), NCCL_LINES))
    return b"".join(found).decode(errors="replace")


def nccl_files(told: str, host: str) -> list[Path]:
    """The files that NCCL made of NCCL_DEBUG_FILE, a whole path, on this host; the newest first.

    %h is the host's name up to its first dot, %p a process, %% a %; the rest stays (NCCL 2.30.7 src/debug.cc).
    """
    expanded = {"%h": glob.escape(host.partition(".")[0]), "%p": "[0-9]*", "%%": "%"}
    pattern = "".join(expanded.get(piece, glob.escape(piece)) for piece in re.split("(%.)", told))
    found = Path("/").glob(pattern.lstrip("/"))
    # Below a folder that may not be read there is none: os.path says so, where Path.is_file() raises.
    return sorted(filter(os.path.isfile, found), key=os.path.getmtime, reverse=True)


def nccl_files_told(units: Mapping[Path, str]) -> dict[str, list[str]]:
    """{NCCL_DEBUG_FILE as NCCL reads it: the units that have it} of unit files and launch scripts."""
    found: dict[str, list[str]] = {}
    for path, text in units.items():
        for name, *values in _ASSIGNED.findall(text):
            told = "".join(values) if path.suffix == ".sh" else "".join(values).replace("%%", "%")
            # What goes to /dev/stdout is in the log.
            if name == "NCCL_DEBUG_FILE" and told.strip("/") and not told.startswith("/dev/"):
                found.setdefault(told, []).append(f"{path.parent.name}/{path.name}")
    return found


def rotated(log: Path, since: float | None = None) -> Path | None:
    """Of what logrotate or supervisor took from a log, the file with the engine's start: NCCL says most of it there.

    Args:
        since: when the engine was started; without it the newest counts.
    """
    found = {path: path.stat().st_mtime for path in log.parent.glob(f"{log.name}[.-]*") if path.is_file()}
    written = [path for path, at in found.items() if since is not None and at >= since]
    return min(written, key=found.__getitem__) if written else max(found, key=found.__getitem__, default=None)


def _bytes_of(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def collect(settings: Settings, archive: Path) -> dict[str, object]:
    """Write the archive.

    Returns:
        {"archive": path, "files": number, "bytes": size, "secrets": how many values were removed}.

    Raises:
        HostError: the archive cannot be written there.
    """
    files = dict(_files(settings))
    secrets = secrets_of(text for name, text in files.items() if name.startswith(("units/", "settings")))
    try:
        with tarfile.open(archive, "w:gz") as out:
            for name, text in files.items():
                content = without_secrets(text, secrets).encode()
                entry = tarfile.TarInfo(f"{archive.name.removesuffix('.tar.gz')}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o644
                out.addfile(entry, io.BytesIO(content))
    except OSError as error:
        raise HostError(f"{archive} cannot be written: {error.strerror}. Name a folder that is there.") from error
    return {"archive": str(archive), "files": len(files), "bytes": archive.stat().st_size, "secrets": len(secrets)}


def _files(settings: Settings) -> Iterator[tuple[str, str]]:
    """(name in the archive, text), in the order in which a reader wants them."""
    from .__main__ import observe  # it imports this host's verbs, of which this is to become one

    try:
        seen = observe(settings, argparse.Namespace(yields=[]))
    except HostError as error:
        seen = {"error": str(error)}
    yield "observe.json", json.dumps(seen, indent=1, default=str)
    for state in sorted(settings.state.glob("*.json")):
        yield state.name, _text(state)
    units = {unit: _text(unit) for unit in _unit_files(settings)}
    for unit, text in units.items():
        yield f"units/{unit.parent.name}/{unit.name}", text
    yield from _logs(settings)
    yield from _nccl_files(units)
    for record in sorted(settings.state.glob("records/*/*/record.json"), key=lambda path: -path.stat().st_mtime)[
        :RECORDS
    ]:
        yield f"records/{'-'.join(record.parts[-3:-1])}.json", _text(record)
    yield "nvidia-smi.txt", _said([*settings.nvidia_smi], settings)
    yield "nvidia-smi-q.txt", _said([*settings.nvidia_smi, "-q"], settings)
    yield "nvidia-smi-topo.txt", _said([*settings.nvidia_smi, "topo", "-m"], settings)
    for name, command in _ABOUT_THE_HOST.items():
        yield f"host/{name}.txt", _said(command)
    yield "host/os-release.txt", _text(Path("/etc/os-release"))
    yield "host/tools.txt", _said([sys.executable, "-m", "pip", "freeze"])


def _unit_files(settings: Settings) -> list[Path]:
    folder = settings.unit_directory
    ours = [settings.unit_file(unit) for unit in manager_for(settings).units() if configuration_of(unit)]
    others = [*folder.glob("shardsweep-*"), *folder.glob("sglang-*.service.d/*.conf"), *settings.state.glob("run/*.sh")]
    return sorted(path for path in {*ours, *others} if path.is_file())


def _logs(settings: Settings) -> Iterator[tuple[str, str]]:
    starts = running(settings)
    for log in sorted(settings.state.glob("log/*.log")):
        before = rotated(log, starts.get(log.stem, {}).get("started_at"))
        for file, name in ((log, log.name), (before, f"{log.stem}-before.log")):
            if file is None:
                continue
            try:
                text, said = head_and_tail(file), nccl_lines(file)
            except (OSError, EOFError, zlib.error) as error:
                text, said = f"{file}: {error}\n", ""
            yield f"log/{name}", text
            if said:
                yield f"log/{name.removesuffix('.log')}-nccl.txt", said
    if settings.manager == "systemd":
        for unit in [*manager_for(settings).units(), "shardsweep-job", "shardsweep-guard"]:
            yield f"journal/{unit}.txt", _journal(unit)
            yield f"journal/{unit}-state.txt", _said(["systemctl", "show", f"{unit}.service"])


def _nccl_files(units: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    """NCCL's lines that a configuration sends elsewhere, and a list of where that is."""
    told = []
    for name, users in sorted(nccl_files_told(units).items()):
        # Of what is no whole path nobody knows the folder: it is the engine's, not ours.
        found = nccl_files(name, socket.gethostname()) if name.startswith("/") else []
        for file in found[:NCCL_FILES]:
            yield f"nccl/{'-'.join(file.parts[1:])}", _nccl_lines_or_why_not(file)
        there = f"{len(found)} there, the newest {min(len(found), NCCL_FILES)} here"
        told.append(f"{name} ({', '.join(users)}): {there if found else 'none could be seen; look there by hand'}\n")
    if told:
        yield "nccl/files.txt", "".join(told)


def _nccl_lines_or_why_not(file: Path) -> str:
    try:
        return nccl_lines(file)
    except (OSError, EOFError, zlib.error) as error:
        return f"{file}: {error}\n"


def _journal(unit: str) -> str:
    """Its beginning and its end: a unit that restarts for weeks says at its beginning why it began to."""
    command = ["journalctl", "--no-pager", "--output=short-iso", f"--unit={unit}.service"]
    tail = _said([*command, f"--lines={JOURNAL_LINES}"]).splitlines(keepends=True)
    if len(tail) < JOURNAL_LINES:
        return "".join(tail)
    # journalctl has --lines=+N only since systemd 254.
    head = _said(["sh", "-c", f'"$@" | head -n {JOURNAL_LINES}', "sh", *command]).splitlines(keepends=True)
    if tail[0] in head:
        return "".join([*head[: head.index(tail[0])], *tail])
    return "".join([*head, "... lines left out ...\n", *tail])


def _said(command: Sequence[str], settings: Settings | None = None) -> str:
    answer = bounded.run(command, environment=settings.environment if settings else None, seconds=_COMMAND_SECONDS)
    if answer.state in ("absent", "hung"):
        return f"{' '.join(command)}: {answer.error}\n"
    return answer.text + answer.error


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return f"{path}: {error}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmark.host.collect", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("archive", type=Path)
    options = parser.parse_args(arguments)
    os.umask(0o077)
    try:
        answer, status = collect(read_settings(options.settings), options.archive), 0
    except HostError as error:
        answer, status = {"error": str(error)}, 2
    sys.stdout.write(json.dumps(answer, sort_keys=True) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
