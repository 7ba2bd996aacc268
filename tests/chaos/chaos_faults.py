"""What goes wrong, and when: each fault is drawn from a seed, and acts when the sweep reaches its moment."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_site import CATALOGUE, GPUS, LADDER, ROOT, Site

from benchmark.host.services import JOB_UNIT, engine_unit

ENGINE_FAULTS = {
    "slow load": "slow_load:2",
    "hang while loading": "hang_load",
    "hang in a collective": "hang_init",
    "crash while loading": "crash_load",
    "crash at a token": "crash_at_token:{tokens}",
    "leaked GPU memory": "leak:8G",
    "orphaned child": "orphan:2G",
    "lying health": "lying_health:{seconds}",
    "hang while stopping": "hang_stop",
}
KILLS = ("kill -9 engine", "kill -9 scheduler", "kill -9 load generator", "kill -9 controller")
DISKS = ("disk full on the host", "disk full on the controller")
OTHERS = ("memory held by others", "clock jump", "corrupt state", "corrupt record", "corrupt record, controller")
KINDS = (*KILLS, *ENGINE_FAULTS, *DISKS, *OTHERS)

STATE_FILES = (
    "lease.json", "lease-copy.json", "switch.json", "running.json", "job.json", "job-result.json", "job-progress.json",
    "warmed.json", "restore.json", "host.json",
)  # fmt: skip
RUBBISH = ("empty", "half", "null", "list", "other", "noise")


@dataclass
class Fault:
    """One fault of one round. `moment` is a line that the controller tells, `delay_seconds` counts from it."""

    kind: str
    victim: str
    moment: str
    delay_seconds: float
    detail: str = ""
    act: Callable[[Site, int], str | None] = lambda site, controller: ""
    """(site, pid of the controller) -> what was done, for the log; None: what it is about is not there (yet)."""
    engine: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    full_disk_at: str = ""
    finished: dict[Any, Any] = field(default_factory=dict)
    """Points that the controller had when it acted."""
    struck: bool = False
    holder: list[subprocess.Popen] = field(default_factory=list)


def draw(seed: int, kind: str, names: list[str]) -> Fault:
    """The fault of a round: the same for the same seed."""
    chance = random.Random(f"{seed} {kind}")
    victim = chance.choice(names)
    moment = chance.choice(
        ["taken", f"begun {victim}", f"ready {victim}"]
        + [f"{when} {victim} {rung}" for rung in LADDER for when in ("point", "kept")]
    )
    fault = Fault(kind, victim, moment, round(chance.uniform(0, 0.8), 3))
    if kind in ENGINE_FAULTS:
        fault.detail = ENGINE_FAULTS[kind].format(tokens=chance.randint(1, 2000), seconds=chance.choice([0, 1, 3]))
        fault.engine = {victim: fault.detail}
        fault.limits = (
            {"start_seconds": 12.0, "quiet_seconds": 8.0} if kind.startswith("hang") or kind == "lying health" else {}
        )
    elif kind in KILLS:
        _kill(fault, chance)
    elif kind == "memory held by others":
        gpu, size = chance.randrange(GPUS), chance.choice([4, 40, 80])
        fault.detail = f"GPU {gpu}: {size} GiB"
        fault.act = lambda site, controller: _hold(fault, site, gpu, size)
    elif kind == "clock jump":
        offset = chance.choice([-86400, -3600, -60, 60, 3600, 86400])
        fault.detail = f"{offset:+d} s"
        fault.act = lambda site, controller: site.set_clock(offset) or fault.detail
    elif kind == "disk full on the host":
        fault.moment = f"point {victim} {chance.choice(LADDER)}"
        fault.act = lambda site, controller: _fill_disk(site)
    elif kind == "disk full on the controller":
        fault.full_disk_at = "controller"
    elif kind == "corrupt state":
        name, how = chance.choice(STATE_FILES), chance.choice(RUBBISH)
        fault.detail = f"{name} {how}"
        fault.act = lambda site, controller: _spoil([site.state / name], how, chance)
    else:
        how = chance.choice(RUBBISH)
        where = "campaigns" if "controller" in kind else "state/records"
        fault.detail = how
        fault.act = lambda site, controller: _spoil_record(site, where, how, chance)
    return fault


def _kill(fault: Fault, chance: random.Random) -> None:
    number = chance.randrange(GPUS)

    def act(site: Site, controller: int) -> str | None:
        if fault.kind.endswith("controller"):
            pid: int | None = controller
        elif fault.kind.endswith("load generator"):
            pid = site.manager.state(JOB_UNIT).pid
        else:
            pid = site.manager.state(engine_unit(fault.victim)).pid
            if pid and fault.kind.endswith("scheduler"):
                pid = _scheduler(pid, number)
        if not pid:
            return None
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"killed {pid}"

    fault.act = act


def _scheduler(engine: int, number: int) -> int | None:
    try:
        children = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    except OSError:
        return None
    return int(children[min(number, len(children) - 1)]) if children else None


def _hold(fault: Fault, site: Site, gpu: int, gib: int) -> str:
    command = [sys.executable, "-m", "benchmark.simulator.hold", str(gpu), f"{gib}G", "6"]
    fault.holder.append(subprocess.Popen(command, env=site.own_environment(), cwd=ROOT))
    return f"held by {fault.holder[-1].pid}"


def _fill_disk(site: Site) -> str | None:
    pid = site.manager.state(JOB_UNIT).pid
    if not pid:
        return None
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    except ProcessLookupError:
        return None
    return f"no byte more for {pid}"


def _spoil_record(site: Site, where: str, how: str, chance: random.Random) -> str | None:
    found = sorted((site.folder / where).glob("**/record.json"), key=lambda path: path.stat().st_mtime)
    return _spoil(found[-1:], how, chance)


def _spoil(paths: list[Path], how: str, chance: random.Random) -> str | None:
    for path in paths:
        if not path.exists():
            return None
        content = path.read_bytes()
        path.write_bytes(
            {
                "empty": b"",
                "half": content[: len(content) // 2],
                "null": b"null",
                "list": b"[]",
                "other": b'{"token": 7, "points": "none"}',
                "noise": chance.randbytes(200),
            }[how]
        )
        return f"{path.name}: {how}"
    return None


def catalogue_names(seed: int) -> list[str]:
    """The two configurations of a round."""
    return random.Random(f"{seed} names").sample(sorted(CATALOGUE), 2)
