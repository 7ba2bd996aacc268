"""Services under systemd, by systemctl."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from .processes import UNIT_MARK, Process, of_cgroup, of_unit
from .services import ENGINE_PREFIX, Activity, ServiceState
from .settings import HostError, Settings

_SECONDS = 8.0
_ACTIVITY: dict[str, Activity] = {
    "active": "active",
    "reloading": "active",
    "activating": "starting",
    "deactivating": "stopping",
    "failed": "failed",
}
_PROPERTIES = (
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ControlGroup",
    "NRestarts",
)
_BY_SIGNAL = ("2", "3")
"""CLD_KILLED and CLD_DUMPED: ExecMainStatus is then a signal."""

_STEPS = {
    200: "CHDIR: its working directory",
    203: "EXEC: its program is not there or may not be executed by its user",
    205: "LIMITS: its limits",
    209: "STDOUT: its log file",
    214: "SETSCHEDULER: its priority",
    216: "GROUP: a group is not there",
    217: "USER: its user is not there",
    226: "NAMESPACE: its view of the file system",
}
"""Exit statuses of systemd itself, before the program runs (systemd.exec(5), "Process exit codes")."""


class Systemd:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, unit: str) -> None:
        # A start counts towards the unit's limit of starts until it is forgotten.
        with contextlib.suppress(HostError):  # a unit that is not loaded has nothing to reset
            self._systemctl("reset-failed", f"{unit}.service")
        self._systemctl("start", "--no-block", f"{unit}.service")

    def stop(self, unit: str) -> None:
        with contextlib.suppress(HostError):  # a unit that is not loaded is stopped already
            self._systemctl("stop", "--no-block", f"{unit}.service")

    def state(self, unit: str) -> ServiceState:
        shown = self._show(unit)
        by_signal = shown.get("ExecMainCode") in _BY_SIGNAL
        status = int(shown.get("ExecMainStatus") or 0)
        pid = int(shown.get("MainPID") or 0)
        return ServiceState(
            unit=unit,
            activity=_ACTIVITY.get(shown.get("ActiveState", ""), "inactive"),
            pid=pid or None,
            exit_code=None if by_signal or pid else status,
            exit_signal=status if by_signal and not pid else None,
            started_at=_since(shown.get("ExecMainStartTimestampMonotonic", "")),
            detail=_detail(shown, status),
            restarts=int(shown.get("NRestarts") or 0),
        )

    def processes(self, unit: str) -> list[Process]:
        cgroup = self._show(unit).get("ControlGroup", "")
        inside = of_cgroup(cgroup) if cgroup else []
        return list({process.pid: process for process in [*inside, *of_unit(unit, self._settings.state)]}.values())

    def units(self) -> list[str]:
        """Ours carry the mark; a unit whose name only begins like ours is another's."""
        files = self._settings.unit_directory.glob(f"{ENGINE_PREFIX}*.service")
        return sorted(file.stem for file in files if f"{UNIT_MARK}=" in file.read_text(errors="replace"))

    def log(self, unit: str) -> Path:
        return self._settings.state / "log" / f"{unit}.log"

    def reload(self) -> None:
        self._systemctl("daemon-reload")

    def release(self) -> None:
        """systemd runs whether we need it or not."""

    def _show(self, unit: str) -> dict[str, str]:
        text = self._systemctl("show", f"{unit}.service", f"--property={','.join(_PROPERTIES)}")
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def _systemctl(self, *arguments: str) -> str:
        try:
            answer = subprocess.run(
                ["systemctl", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except FileNotFoundError:
            raise HostError(
                "This host has no systemctl. Set sglang_service_manager to supervisor in its inventory."
            ) from None
        except subprocess.TimeoutExpired:
            raise HostError(f"systemctl {' '.join(arguments)} did not answer within {_SECONDS:g} s.") from None
        if answer.returncode != 0:
            raise HostError(f"systemctl {' '.join(arguments)}: {answer.stderr.strip() or 'failed'}")
        return answer.stdout


def _since(monotonic_microseconds: str) -> float | None:
    """Seconds since the epoch; None for a unit that never ran."""
    if not monotonic_microseconds.isdigit() or monotonic_microseconds == "0":
        return None
    return time.time() - time.monotonic() + int(monotonic_microseconds) / 1e6


def _detail(shown: dict[str, str], status: int) -> str:
    """What systemd itself knows of a unit's state, in words."""
    said = f"{shown.get('SubState', '')} ({shown.get('Result', '')})"
    if shown.get("Result") == "exit-code" and status in _STEPS:
        said += f"; systemd could not start it at the step {_STEPS[status]}"
    if shown.get("NRestarts", "0") not in ("0", ""):
        said += f"; restarted {shown['NRestarts']} times"
    return said
