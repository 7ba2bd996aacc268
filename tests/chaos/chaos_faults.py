"""What goes wrong, and when: each fault is drawn from a seed, and strikes when the sweep reaches its moment."""

from __future__ import annotations

import errno
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos_round import Site

LADDER = [1, 2]
WORKLOAD = {
    "name": "short",
    "prompt_tokens": 32,
    "output_tokens": 8,
    "window_seconds": 0.6,
    "minimum_window_seconds": 0.3,
    "minimum_requests": 2,
    "half_width": 0.5,
    "ramp_turnover": 0.25,
}
LEAST_TOKENS = WORKLOAD["output_tokens"] * (2 + 2 * sum(LADDER) + WORKLOAD["minimum_requests"] * len(LADDER[:-1]))
"""What an engine makes before its last point, however slow its machine: its own first answer, which is as long, and the
load generator's probe; two passes of the warm-up over the ladder; of each point before the last the fewest requests."""
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
FAKETIME = "clock jump, libfaketime"
KINDS = (*KILLS, *ENGINE_FAULTS, *DISKS, *OTHERS)
REBOOT = "reboot"
PLAYBOOK_KINDS = (
    "kill -9 engine", "kill -9 controller", "connection lost for long", "disk full on the host", "kill -9 scheduler",
    "connection lost for a while", "memory held by others", "kill -9 load generator", "Ctrl-C",
    "disk full on the controller", "corrupt record", "corrupt state", "corrupt record, controller",
)  # fmt: skip
"""What the real playbooks are struck with: what happens between an engine and its host, the other suite has."""
HOST_KINDS = (*PLAYBOOK_KINDS[:3], REBOOT, *PLAYBOOK_KINDS[3:])
"""And a host with a systemd of its own."""

STATE_FILES = (
    "lease.json", "lease-copy.json", "switch.json", "running.json", "job.json", "job-result.json", "job-progress.json",
    "warmed.json", "restore.json", "host.json", "facts.d/*.fact",
)  # fmt: skip
RUBBISH = ("empty", "half", "null", "list", "other", "noise")
HELD_SECONDS = 6.0
CUT_SECONDS = {"connection lost for a while": 4.0, "connection lost for long": 25.0}
"""Within and beyond what a sweep of the suite waits for a connection."""
EXITED = "exit status {}"
"""How a sweep's end stands behind the lines that it told."""
NO_ROOM = (os.strerror(errno.EFBIG), os.strerror(errno.ENOSPC))
"""How a write is refused: to a process that may write no byte more, and on a disk that is full."""


@dataclass
class Fault:
    """One fault of one round."""

    kind: str
    victim: str
    """The configuration that it is about."""
    moment: str
    """A line that the controller tells; `delay_seconds` counts from it."""
    delay_seconds: float
    share: float = 0.0
    """For a controller that tells no moments: how far through a sweep's usual time, 0 to 1."""
    detail: str = ""
    strike: Callable[[Site, int], str | None] | None = None
    """(site, pid of the controller) -> what was done, for the log; None: what it is about is not there (yet)."""
    engine: dict[str, str] = field(default_factory=dict)
    """Configuration -> what the simulated engine does wrong from its start on."""
    limits: dict[str, float] = field(default_factory=dict)
    """The host's settings of this round."""
    full_disk_at: str = ""
    lasts_seconds: float = 0.0
    """So long after it struck it is over by itself."""
    struck_at: float | None = None
    seen: bool = False
    """Whether there was a sign that it happened; to be drawn, or asked of an engine, is none."""
    finished: dict[Any, Any] = field(default_factory=dict)
    """The finished points when it struck."""

    def signs(self, site: Site, told: Sequence[str]) -> int:
        """How many signs there are by now that it happened; `told`: every line of the sweep."""
        if self.engine:
            kind = self.detail.partition(":")[0]
            return site.strike("faults").count(kind)
        if self.kind == "disk full on the host":
            return site.strike("refused_writes")
        if self.kind == "disk full on the controller":
            refused = sum(any(text in line for text in NO_ROOM) for line in told)
            # Processes of Ansible's own that may write nothing die of it without a word of why.
            return refused + (self.struck_at is not None and EXITED.format(0) not in told)
        return int(self.struck_at is not None)

    def wait_until_over(self) -> None:
        if self.struck_at is not None:
            time.sleep(max(0.0, self.struck_at + self.lasts_seconds - time.monotonic()))


def draw(seed: int, kind: str, names: Sequence[str], gpus: int) -> Fault:
    """The fault of a round: the same for the same seed."""
    chance = random.Random(f"{seed} {kind}")
    victim = chance.choice(names)
    moment = chance.choice(
        ["taken", f"begun {victim}", f"ready {victim}"]
        + [f"{when} {victim} {rung}" for rung in LADDER for when in ("point", "kept")]
    )
    share = random.Random(f"{seed} {kind} share").random()
    fault = Fault(kind, victim, moment, round(chance.uniform(0, 0.8), 3), round(share, 3))
    if kind in ENGINE_FAULTS:
        # In two thousandths of what it makes, so that the next number of a seed stays what it was.
        tokens = math.ceil(LEAST_TOKENS * chance.randint(1, 2000) / 2000)
        fault.detail = ENGINE_FAULTS[kind].format(tokens=tokens, seconds=chance.choice([0, 1, 3]))
        fault.engine = {victim: fault.detail}
        if kind.startswith("hang") or kind == "lying health":
            fault.limits = {"start_seconds": 12.0, "quiet_seconds": 8.0}
    elif kind in ("kill -9 controller", "Ctrl-C"):
        # The whole tree, as when its machine dies, or the one process alone.
        whole = kind == "kill -9 controller" and chance.random() < 0.5
        fault.detail = "with all that it started" if whole else ""
        fault.strike = lambda site, controller: site.end_controller(controller, kind, whole)
    elif kind in KILLS:
        what, number = kind.removeprefix("kill -9 "), chance.randrange(gpus)
        fault.strike = lambda site, controller: site.strike("kill", what, victim, number)
    elif kind == "memory held by others":
        gpu, size = chance.randrange(gpus), chance.choice([4, 40, 80])
        fault.detail, fault.lasts_seconds = f"GPU {gpu}: {size} GiB", HELD_SECONDS
        fault.strike = lambda site, controller: site.strike("hold_memory", gpu, size, HELD_SECONDS)
    elif kind in ("clock jump", FAKETIME):
        offset = chance.choice([-86400, -3600, -60, 60, 3600, 86400])
        fault.detail = f"{offset:+d} s"
        fault.strike = lambda site, controller: site.set_clock(offset) or fault.detail
    elif kind in CUT_SECONDS:
        fault.lasts_seconds = CUT_SECONDS[kind]
        fault.strike = lambda site, controller: site.cut(fault.lasts_seconds)
    elif kind == REBOOT:
        fault.strike = lambda site, controller: site.reboot()
    elif kind == "disk full on the host":
        fault.moment = f"point {victim} {chance.choice(LADDER)}"
        fault.strike = lambda site, controller: site.strike("fill_disk")
    elif kind == "disk full on the controller":
        seconds = round(chance.uniform(1, 5), 1)
        fault.full_disk_at, fault.lasts_seconds = "controller", seconds
        fault.strike = lambda site, controller: site.fill_controllers_disk(controller, seconds)
    elif kind == "corrupt state":
        name, how = chance.choice(STATE_FILES), chance.choice(RUBBISH)
        fault.detail = f"{name} {how}"
        fault.strike = lambda site, controller: site.strike("spoil", name, how, seed)
    elif kind == "corrupt record":
        how = fault.detail = chance.choice(RUBBISH)
        fault.strike = lambda site, controller: site.strike("spoil", f"records/{victim}/**/record.json", how, seed)
    else:
        how = fault.detail = chance.choice(RUBBISH)
        fault.strike = lambda site, controller: site.spoil_kept(how, seed)
    return fault
