"""Services under systemd, by systemctl."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from .processes import UNIT_MARK, Process, of_cgroup, of_unit
from .services import ENGINE_PREFIX, Activity, Refusal, ServiceState
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
_EXITED, _BY_SIGNAL = "1", ("2", "3")
"""CLD_EXITED; CLD_KILLED and CLD_DUMPED: ExecMainStatus is then a signal."""

_STEPS = {
    200: ("CHDIR", "its working directory is not there or not open to its user"),
    202: ("FDS", "its file descriptors could not be set up"),
    203: ("EXEC", "its program is not there or may not be executed by its user"),
    204: ("MEMORY", "systemd had no memory for it"),
    205: ("LIMITS", "a limit could not be set"),
    206: ("OOM_ADJUST", "its OOM score could not be set"),
    208: ("STDIN", "its standard input could not be opened"),
    209: ("STDOUT", "its log file could not be opened"),
    210: ("CHROOT", "its root directory could not be changed"),
    214: ("SETSCHEDULER", "its scheduling could not be set"),
    215: ("CPUAFFINITY", "its processors could not be set"),
    216: ("GROUP", "a group of it is not there"),
    217: ("USER", "its user is not there"),
    218: ("CAPABILITIES", "its capabilities could not be set"),
    219: ("CGROUP", "its control group could not be made"),
    222: ("STDERR", "its log file could not be opened"),
    224: ("PAM", "its PAM session could not be opened"),
    225: ("NETWORK", "its network namespace could not be made"),
    226: ("NAMESPACE", "its view of the file system could not be made"),
    228: ("SECCOMP", "its system call filter could not be set"),
    229: ("SELINUX_CONTEXT", "its SELinux context could not be set"),
    231: ("APPARMOR_PROFILE", "its AppArmor profile could not be set"),
    233: ("RUNTIME_DIRECTORY", "its runtime directory could not be made"),
    238: ("STATE_DIRECTORY", "its state directory could not be made"),
    239: ("CACHE_DIRECTORY", "its cache directory could not be made"),
    240: ("LOGS_DIRECTORY", "its log directory could not be made"),
    242: ("NUMA_POLICY", "its NUMA policy could not be set"),
    243: ("CREDENTIALS", "its credentials could not be loaded"),
}
"""Exit statuses of systemd itself, before the program runs (systemd.exec(5), "Process exit codes"); others of its range
have no word here and are told by their number."""
_FIRST_STEP, _LAST_STEP = 200, 245

_MENDS = {
    "EXEC": "Run playbooks/install.yml, and look at the first word of ExecStart= (systemctl cat {unit}).",
    "USER": "Deploy again: the role makes the user that sglang_service_user names.",
    "GROUP": "Deploy again, or take the group out of sglang_service_groups.",
    "STDOUT": "Look at {log}: its folder must be there and its disk have room.",
    "NAMESPACE": "A drop-in of it asks for what this host, often a container, cannot give (systemctl cat {unit}).",
}


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
            detail=_detail(shown),
            result=shown.get("Result", ""),
            refusal=self._refusal(unit, shown, status),
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

    def _refusal(self, unit: str, shown: dict[str, str], status: int) -> Refusal | None:
        """Why systemd itself could not start the program; None where that ran."""
        exited = shown.get("ExecMainCode") == _EXITED and shown.get("MainPID", "0") == "0"
        if not exited or not _FIRST_STEP <= status <= _LAST_STEP:
            return None
        step, what = _STEPS.get(status, ("", "see systemd.exec(5), process exit codes"))
        told = f"status {status}/{step}" if step else f"status {status}"
        mend = _MENDS.get(step, "systemd's own words: journalctl -u {unit} -n 20.")
        return Refusal(
            sentence=f"systemd could not start {unit}.service: {what} ({told}).",
            advice=mend.format(unit=f"{unit}.service", log=self.log(unit)),
        )

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


def _detail(shown: dict[str, str]) -> str:
    """What systemd itself knows of a unit's state, in words."""
    said = f"{shown.get('SubState', '')} ({shown.get('Result', '')})"
    if shown.get("NRestarts", "0") not in ("0", ""):
        said += f"; restarted {shown['NRestarts']} times"
    return said
