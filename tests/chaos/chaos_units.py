"""This host's own systemd: the units as the roles rendered them, each with a drop-in that says what a round wants.

The controller is the suite's own, so that a round takes seconds: what is broken is the host and its service manager,
with the roles' users, limits and sandboxes. The real playbooks have chaos_playbooks.py.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import msgspec
from chaos_controller import InProcess
from chaos_site import CLOCK, ROOT

from benchmark.host.settings import Settings, read_settings

_DROP_INS = Path("/etc/systemd/system")


class Units(InProcess):
    """A site on a host that the playbooks made ready; it runs there, as root."""

    # The hook's clock is one for all, which a library preloaded into a sandbox is not.
    kinds_by_name = ()

    def __init__(self, folder: Path, settings: Path) -> None:
        self._own = read_settings(settings)
        super().__init__(folder, self._own.port)

    @property
    def state(self) -> Path:
        return self._own.state

    @property
    def settings(self) -> Settings:
        return msgspec.structs.replace(self._own, environment=self.simulated(""), **self.allowed)

    def simulated(self, fault: str) -> dict[str, str]:
        ledger = "SHARDSWEEP_SIMULATED_GPU"
        return {**self._own.environment, **super().simulated(fault), ledger: self._own.environment[ledger]}

    def render(self, faults: dict[str, str] | None = None) -> None:
        super().render(faults)
        subprocess.run(["systemctl", "daemon-reload"], check=True)

    def write_unit(self, unit: str, command: list[str], environment: dict[str, str], stop_seconds: float) -> None:
        told = environment | {"SHARDSWEEP_CHAOS_CLOCK": str(self.clock), "PYTHONPATH": f"{CLOCK}:{ROOT}"}
        lines = [f'Environment="{key}={value}"' for key, value in told.items()]
        lines += ["ExecStart=", f"ExecStart={shlex.join(command)}", f"TimeoutStopSec={stop_seconds:.0f}"]
        folder = _DROP_INS / f"{unit}.service.d"
        folder.mkdir(exist_ok=True)
        (folder / "chaos.conf").write_text("\n".join(["[Service]", *lines, ""]))
