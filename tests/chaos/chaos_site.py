"""A host of the chaos suite's own: one state folder, one port, three cheap configurations of the simulated engine.

The services are real processes under supervisor. What sweeps it is in chaos_controller.py.
"""

from __future__ import annotations

import hashlib
import random
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_strikes
import msgspec
from chaos_faults import LADDER, WORKLOAD

from benchmark.campaign.record import Point
from benchmark.campaign.store import Campaign
from benchmark.host import processes
from benchmark.host.services import GUARD_UNIT, JOB_UNIT, engine_unit
from benchmark.host.settings import Settings

ROOT = Path(__file__).parents[2]
CLOCK = Path(__file__).parent / "clock"
LIBFAKETIME = next(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"), None)
"""Debian's package libfaketime, where this machine has it."""
HOST, CAMPAIGN = "here", "chaos"
MODEL = ROOT / "tests/captures/models/mini-moe"
GPUS = 2
CATALOGUE: dict[str, dict[str, Any]] = {
    "tp2": {"tp_size": 2},
    "ep2": {"tp_size": 2, "ep_size": 2},
    "small_chunk": {"tp_size": 2, "chunked_prefill_size": 2048},
}

PointKey = tuple[str, str, int, int]
"""Configuration, key of the record, concurrency, repeat."""


@dataclass
class Site:
    """The folder and port of one run. `settings` may be changed between two rounds."""

    folder: Path
    port: int
    limits: dict[str, float] = field(default_factory=dict)
    victim: str = ""
    fake_time: bool = False
    """Whether libfaketime sets the services' clock, and not the hook in Python."""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def clock(self) -> Path:
        return self.folder / "clock"

    @property
    def facts(self) -> Path:
        return self.state.parent / "facts.d"

    @property
    def allowed(self) -> dict[str, float]:
        """The host's limits in this round, seconds."""
        limits = {"quiet_seconds": 20.0, "stop_seconds": 3.0, "start_seconds": 40.0}
        return limits | {"free_seconds": 2.0, "lease_seconds": 6.0} | self.limits

    @property
    def settings(self) -> Settings:
        return Settings(
            state=self.state,
            unit_directory=self.state / "units",
            manager="supervisor",
            port=self.port,
            nvidia_smi=[sys.executable, "-m", "benchmark.simulator.nvidia_smi"],
            engine="simulated",
            environment=self.simulated(""),
            **self.allowed,
        )

    @property
    def campaign(self) -> Campaign:
        return Campaign(self.folder / "campaigns", CAMPAIGN)

    @staticmethod
    def names(seed: int) -> list[str]:
        return random.Random(f"{seed} names").sample(sorted(CATALOGUE), 2)

    def simulated(self, fault: str) -> dict[str, str]:
        return {
            "SHARDSWEEP_SIMULATED_GPU": str(self.state / "simulated-gpu"),
            "SHARDSWEEP_SIMULATED_HARDWARE": f"{GPUS}x RTX PRO 6000 Blackwell",
            "SHARDSWEEP_SIMULATED_START_SECONDS": "0.3",
            # Slow enough that a busy machine measures it undistorted.
            "SHARDSWEEP_SIMULATED_SPEED": "0.2",
            "SHARDSWEEP_SIMULATED_FAULT": fault,
        }

    def arguments(self, name: str) -> list[str]:
        own = {"model_path": str(MODEL), "served_model_name": "mini-moe", "host": "127.0.0.1", "port": self.port}
        return [
            word
            for key, value in (own | CATALOGUE[name]).items()
            for word in (f"--{key.replace('_', '-')}", str(value))
        ]

    def render(self, faults: dict[str, str] | None = None) -> None:
        """Settings and units as the roles write them; `faults`: what an engine does wrong in this round."""
        for folder in ("units", "run", "log"):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        settings = self.settings
        content = msgspec.json.encode(settings, enc_hook=str)
        (self.state / "settings.json").write_bytes(content)
        for name in CATALOGUE:
            environment = self.simulated((faults or {}).get(name, ""))
            command = [sys.executable, "-m", "benchmark.simulator", *self.arguments(name)]
            self.write_unit(engine_unit(name), command, environment, settings.stop_seconds)
        for unit, verb in ((JOB_UNIT, "run-job"), (GUARD_UNIT, "guard")):
            command = [sys.executable, "-m", "benchmark.host", "--settings", str(self.state / "settings.json"), verb]
            self.write_unit(unit, command, {}, 5)

    def write_unit(self, unit: str, command: list[str], environment: dict[str, str], stop_seconds: float) -> None:
        script = self.state / "run" / f"{unit}.sh"
        told = environment | {
            processes.STATE_MARK: str(self.state),
            processes.UNIT_MARK: unit,
            "SPT_NOENV": "1",
            "SHARDSWEEP_CHAOS_CLOCK": str(self.clock),
            "PYTHONPATH": f"{CLOCK}:{ROOT}",
        }
        if self.fake_time:
            told |= {
                "LD_PRELOAD": str(LIBFAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "NO_FAKE_STAT": "1",
            }
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in told.items())
        script.write_text(f"{exports}exec {shlex.join(command)}\n")
        (self.state / "units" / f"{unit}.conf").write_text(
            f"[program:{unit}]\ncommand = /bin/sh {script}\nautostart = false\nautorestart = false\nstartsecs = 0\n"
            f"stopwaitsecs = {stop_seconds:.0f}\nkillasgroup = true\nredirect_stderr = true\n"
            f"stdout_logfile = {self.state}/log/{unit}.log\n"
        )

    def ladder(self, name: str) -> list[int]:
        """Of what a round breaks, the whole ladder; of the other configuration, what it takes to see it unharmed."""
        return LADDER if self.victim in ("", name) else LADDER[:1]

    def context(self, name: str, number: int) -> dict[str, Any]:
        """What the controller tells a host of a configuration. The round is in it: each measures anew."""
        return {
            "configuration": {
                "name": name,
                "description": f"round {number}",
                "engine": CATALOGUE[name],
                "environment": {"CHAOS_ROUND": str(number)},
            },
            "arguments": self.arguments(name),
            "engine": {"name": "simulated", "version": "0.5.11"},
            "model": {"name": "mini-moe", "path": str(MODEL)},
            "workload": WORKLOAD,
            "ladder": self.ladder(name),
            "host": HOST,
        }

    def finished(self) -> dict[PointKey, tuple[Point, str]]:
        """Every valid point that the controller has, with the digest of its requests."""
        return points_of(self.campaign)

    def missing(self, seed: int) -> list[str]:
        return [name for name in self.names(seed) if self._points(name, seed) < len(self.ladder(name))]

    def _points(self, name: str, number: int) -> int:
        """How many points the controller has of a configuration in a round, with their requests."""
        return sum(
            (self.campaign.folder_of(record) / point.raw).exists()
            for record in self.campaign.all_records()
            if (record.configuration.name, record.configuration.description) == (name, f"round {number}")
            for point in record.points
            if point.raw
        )

    def strike(self, verb: str, *words: Any) -> Any:
        return chaos_strikes.VERBS[verb](self.settings, *words)

    def running(self) -> list[str]:
        return self.strike("running")

    def held(self) -> bool:
        return self.strike("held")

    def spoil_kept(self, how: str, seed: int) -> str | None:
        return chaos_strikes.spoil_newest(self.folder / "campaigns", "**/record.json", how, seed)

    def set_clock(self, offset_seconds: float) -> None:
        self.clock.write_text(f"{offset_seconds:+g}")


def points_of(campaign: Campaign) -> dict[PointKey, tuple[Point, str]]:
    """Every valid point of a campaign on this machine, with the digest of its requests."""
    found = {}
    for record in campaign.all_records(skip_broken=True):
        folder = campaign.folder_of(record)
        for point in record.points:
            if point.valid and point.raw and (folder / point.raw).exists():
                key = (record.configuration.name, record.folder_name, point.concurrency, point.repeat)
                found[key] = point, hashlib.sha256((folder / point.raw).read_bytes()).hexdigest()
    return found
