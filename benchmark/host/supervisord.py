"""Services under supervisor, as an ordinary user: for a rented container, a laptop, a test.

One supervisord for the state folder, started when first needed and ended when nothing runs. Its socket lies in that
folder too; both sides name it by their working directory, because the path of a Unix socket holds 107 bytes and a
checkout may lie deeper.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from supervisor.xmlrpc import SupervisorTransport

from .processes import Process, family, of_unit
from .services import GUARD_UNIT, Activity, ServiceState
from .settings import HostError, Settings, write_bytes

_P = ParamSpec("_P")
_T = TypeVar("_T")

SOCKET = "supervisor.sock"
_START_SECONDS = 8.0
_END_SECONDS = 30.0
"""Of a supervisord that has been told to end: what it still runs by then is the guard, which goes when it is told."""
_SPAWNED = re.compile(r"spawned: '([^']+)' with pid (\d+)")

_ACTIVITY: dict[str, Activity] = {
    "STARTING": "starting",
    "RUNNING": "active",
    "BACKOFF": "failed",
    "STOPPING": "stopping",
    "FATAL": "failed",
    "EXITED": "failed",
}

_ENDING = 6
_NO_SUCH_PROGRAM, _NOT_RUNNING, _ALREADY_STARTED, _ALREADY_ADDED, _STILL_RUNNING = 10, 70, 60, 90, 91

_CONFIGURATION = """\
; Managed by Shardsweep: one supervisord for the units of this folder.
[unix_http_server]
file = /proc/self/cwd/{socket}
chmod = 0700

[supervisord]
directory = %(here)s
pidfile = %(here)s/supervisord.pid
logfile = %(here)s/supervisord.log
logfile_maxbytes = 5MB
loglevel = info
; A parent's environment (tokens, proxies) does not reach the units: the verbs start supervisord with a clean one.

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[include]
files = {units}
"""


class EndingError(HostError):
    """supervisord was told to end by somebody else meanwhile."""


def _again_where_it_ended(verb: Callable[_P, _T]) -> Callable[_P, _T]:
    """Once more where supervisord was ending when it was asked: then there is none, or another."""

    @functools.wraps(verb)
    def asked(*arguments: _P.args, **settings: _P.kwargs) -> _T:
        try:
            return verb(*arguments, **settings)
        except EndingError:
            return verb(*arguments, **settings)

    return asked


class Supervisord:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home = settings.state / "supervisor"

    @_again_where_it_ended
    def start(self, unit: str) -> None:
        with self._connected(start=True) as server:
            self._refresh(server, unit)
            self._call(server.supervisor.startProcess, unit, False, pass_over=(_ALREADY_STARTED,))

    @_again_where_it_ended
    def stop(self, unit: str) -> None:
        with self._connected() as server:
            if server is not None:
                self._call(server.supervisor.stopProcess, unit, False, pass_over=(_NOT_RUNNING, _NO_SUCH_PROGRAM))

    @_again_where_it_ended
    def state(self, unit: str) -> ServiceState:
        with self._connected() as server:
            if server is None:
                return ServiceState(unit=unit, activity="inactive")
            info = self._call(server.supervisor.getProcessInfo, unit, pass_over=(_NO_SUCH_PROGRAM,))
        if info is None:
            return ServiceState(unit=unit, activity="inactive")
        running = bool(info["pid"])
        status = info["exitstatus"]
        killed_by = self._last_signal(unit) if not running and status < 0 else None
        return ServiceState(
            unit=unit,
            activity=_ACTIVITY.get(info["statename"], "inactive"),
            pid=info["pid"] or None,
            exit_code=None if running or status < 0 else status,
            exit_signal=killed_by,
            started_at=float(info["start"]) or None,
            detail=info["description"] or info["statename"].lower(),
        )

    def processes(self, unit: str) -> list[Process]:
        """By the marks in their environment, and by the group that supervisord started the unit as."""
        marked = [process.pid for process in of_unit(unit, self._settings.state)]
        return family(marked, *self._group(unit))

    def _group(self, unit: str) -> tuple[int | None, int | None]:
        """(process group, session) of the unit's last start; None where that is not known.

        A unit's first process leads its group; the session is supervisord's own, which has one as a daemon. A number
        that another unit has got since is that one's.
        """
        since = set()
        for line in reversed(self._log_lines()):
            if (match := _SPAWNED.search(line)) is None:
                continue
            name, pid = match.group(1), int(match.group(2))
            if name == unit and pid not in since:
                with contextlib.suppress(OSError, ValueError):
                    return pid, int((self._home / "supervisord.pid").read_text())
            if name == unit:
                break
            since.add(pid)
        return None, None

    def _log_lines(self) -> list[str]:
        try:
            return (self._home / "supervisord.log").read_text(errors="replace").splitlines()
        except OSError:
            return []

    def units(self) -> list[str]:
        return sorted(file.stem for file in self._settings.unit_directory.glob("*.conf"))

    def log(self, unit: str) -> Path:
        return self._settings.state / "log" / f"{unit}.log"

    def reload(self) -> None:
        """supervisord reads a unit's file again when it starts the unit."""

    @_again_where_it_ended
    def release(self) -> None:
        """End supervisord, unless a program other than the guard runs (the guard has no work without a sweep)."""
        with self._connected() as server:
            if server is None:
                return
            programs = self._call(server.supervisor.getAllProcessInfo) or []
            if not any(program["pid"] and program["name"] != GUARD_UNIT for program in programs):
                with contextlib.suppress(OSError, xmlrpc.client.Error):
                    server.supervisor.shutdown()

    def _last_signal(self, unit: str) -> int | None:
        """The signal that ended the unit. supervisor answers -1 for any; its log has the name."""
        for line in reversed(self._log_lines()[-500:]):
            match = re.search(rf"exited: {re.escape(unit)} \(terminated by (SIG\w+)", line)
            if match:
                return getattr(signal, match.group(1), None)
        return None

    def _refresh(self, server: Any, unit: str) -> None:
        """Let supervisord read this unit's file as it is now; other units stay as they are."""
        added, changed, removed = self._call(server.supervisor.reloadConfig)[0]
        if unit in changed or unit in removed:
            self._call(server.supervisor.removeProcessGroup, unit, pass_over=(_STILL_RUNNING, _NO_SUCH_PROGRAM))
        if unit in removed:
            raise HostError(f"{self._settings.unit_file(unit)} is not there; render the unit first.")
        if unit in added or unit in changed:
            self._call(server.supervisor.addProcessGroup, unit, pass_over=(_ALREADY_ADDED,))

    def _call(self, function: Any, *arguments: Any, pass_over: tuple[int, ...] = ()) -> Any:
        try:
            return function(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in pass_over:
                return None
            log = self._home / "supervisord.log"
            error = EndingError if fault.faultCode == _ENDING else HostError
            raise error(f"supervisord refused: {fault.faultString}. Its log: {log}.") from fault

    @contextlib.contextmanager
    def _connected(self, *, start: bool = False) -> Iterator[Any]:
        """A connection to supervisord, or None where it does not run and is not asked to be started."""
        self._home.mkdir(parents=True, exist_ok=True)
        before = Path.cwd()
        os.chdir(self._home)  # for the socket's short name; these verbs have one thread
        transport = SupervisorTransport(None, None, f"unix://{SOCKET}")
        server: Any = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
        try:
            if not self._answers(server, transport):
                server = self._started(server, transport) if start else None
            yield server
        finally:
            transport.close()
            os.chdir(before)

    @staticmethod
    def _answers(server: Any, transport: SupervisorTransport) -> bool:
        """Whether supervisord runs. One that is ending is waited for: none can be started beside it."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                return server.supervisor.getState()["statename"] == "RUNNING"
            except (OSError, xmlrpc.client.Error) as error:
                transport.close()  # it keeps a connection that failed, and would send on it again
                ending = isinstance(error, xmlrpc.client.Fault) and error.faultCode == _ENDING
                if not ending or time.monotonic() > deadline:
                    return False
            time.sleep(0.05)

    def _started(self, server: Any, transport: SupervisorTransport) -> Any:
        (self._settings.state / "log").mkdir(parents=True, exist_ok=True)
        self._settings.unit_directory.mkdir(parents=True, exist_ok=True)
        configuration = _CONFIGURATION.format(
            socket=SOCKET, units=str(self._settings.unit_directory / "*.conf").replace("%", "%%")
        )
        write_bytes(self._home / "supervisord.conf", configuration.encode())
        clean = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "PATH", "USER")}
        answer = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", "supervisord.conf"],
            cwd=self._home,
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        deadline = time.monotonic() + _START_SECONDS
        while answer.returncode == 0 and time.monotonic() < deadline:
            if self._answers(server, transport):
                return server
            time.sleep(0.05)
        said = answer.stderr.strip() or f"see {self._home}/supervisord.log"
        raise HostError(f"supervisord did not start in {self._home}: {said}")
