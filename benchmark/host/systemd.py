"""Services under systemd, by systemctl."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from .processes import Process, of_cgroup, of_unit
from .services import Activity, ServiceState
from .settings import HostError, Settings

_SECONDS = 8.0
_ACTIVITY: dict[str, Activity] = {
    "active": "active",
    "reloading": "active",
    "activating": "starting",
    "deactivating": "stopping",
    "failed": "failed",
}
_PROPERTIES = ("ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus", "ControlGroup")
_KILLED = 2
"""CLD_KILLED: ExecMainStatus is then a signal."""


class Systemd:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(self, unit: str) -> None:
        with contextlib.suppress(HostError):  # a unit that never failed has nothing to reset
            self._systemctl("reset-failed", f"{unit}.service")
        self._systemctl("start", "--no-block", f"{unit}.service")

    def stop(self, unit: str) -> None:
        with contextlib.suppress(HostError):  # a unit that is not loaded is stopped already
            self._systemctl("stop", "--no-block", f"{unit}.service")

    def state(self, unit: str) -> ServiceState:
        shown = self._show(unit)
        killed = shown.get("ExecMainCode") == str(_KILLED)
        status = int(shown.get("ExecMainStatus") or 0)
        pid = int(shown.get("MainPID") or 0)
        return ServiceState(
            unit=unit,
            activity=_ACTIVITY.get(shown.get("ActiveState", ""), "inactive"),
            pid=pid or None,
            exit_code=None if killed or pid else status,
            exit_signal=status if killed and not pid else None,
            started_at=self._started_at(unit),
            detail=f"{shown.get('SubState', '')} ({shown.get('Result', '')})",
        )

    def processes(self, unit: str) -> list[Process]:
        cgroup = self._show(unit).get("ControlGroup", "")
        inside = of_cgroup(cgroup) if cgroup else []
        return sorted({process.pid: process for process in [*inside, *of_unit(unit)]}.values())

    def units(self) -> list[str]:
        return sorted(file.stem for file in self._settings.unit_directory.glob("*.service"))

    def log(self, unit: str) -> Path:
        return self._settings.state / "log" / f"{unit}.log"

    def reload(self) -> None:
        self._systemctl("daemon-reload")

    def release(self) -> None:
        """systemd runs whether we need it or not."""

    def _show(self, unit: str) -> dict[str, str]:
        text = self._systemctl("show", f"{unit}.service", f"--property={','.join(_PROPERTIES)}")
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def _started_at(self, unit: str) -> float | None:
        text = self._systemctl("show", f"{unit}.service", "--property=ExecMainStartTimestampMonotonic")
        microseconds = text.strip().partition("=")[2]
        if not microseconds.isdigit() or microseconds == "0":
            return None
        return time.time() - time.monotonic() + int(microseconds) / 1e6

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
