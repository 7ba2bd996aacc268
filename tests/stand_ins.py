"""What stands for a host's parts where a test is about another one."""

from __future__ import annotations

from pathlib import Path

from benchmark.host.services import ServiceState


class LoggedUnit:
    """A service manager with one engine, whose log is this file; its main process lives if nothing else is said."""

    def __init__(self, log: Path, **state) -> None:
        self.path, self.stopped = log, []
        self.now = ServiceState(unit="sglang-ep4", **(state or {"activity": "active", "pid": 1}))

    def units(self):
        return ["sglang-ep4"]

    def state(self, unit):
        return self.now

    def log(self, unit):
        return self.path

    def processes(self, unit):
        return []

    def stop(self, unit):
        self.stopped.append(unit)
