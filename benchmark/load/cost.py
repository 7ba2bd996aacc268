"""How long a point will take, before it is started. Pure; seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .loops import STRETCH
from .warmup import WARM_UP_TOKENS, BurstTimes
from .workload import Workload


@dataclass(frozen=True)
class Cost:
    """From the first request sent to the last answer complete, as short and as long as it can be."""

    least: float
    """The window ends as soon as it holds what it must hold."""
    most: float
    """It ends at its cap."""

    @property
    def text(self) -> str:
        """`12 to 45 s`, `0:45 to 3:27`."""
        if self.most < 60:
            least, most, unit = f"{self.least:.0f}", f"{self.most:.0f}", " s"
        else:
            least, most, unit = _clock(self.least), _clock(self.most), ""
        return f"{least} to {most}{unit}" if least != most else f"{most}{unit}"

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.least + other.least, self.most + other.most)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def point_cost(workload: Workload, concurrency: int, answer_seconds: float) -> Cost:
    """The cost of a point whose full-length answers take `answer_seconds` each at that concurrency.

    Ramp: in a closed loop the lengths of the first wave are spread evenly, so that the share `ramp_turnover` of it has
    ended after that share of an answer. Window: whole turnovers, one each `answer_seconds`, from what it must hold to
    its cap. Drain: one answer.
    """
    if workload.rate is not None:
        # The window of an open loop is a stretch of time, after a ramp of a quarter of it at most.
        ramp = min(0.25 * workload.window_seconds, max(2.0, 10 / workload.rate))
        whole = ramp + workload.window_seconds + answer_seconds
        return Cost(whole, whole)
    answer_seconds = max(answer_seconds, 1e-3)
    longest = STRETCH * workload.window_seconds
    most = max(1, int(longest / answer_seconds))
    least = max(workload.minimum_requests / concurrency, workload.minimum_window_seconds / answer_seconds, 1)
    around = (workload.ramp_turnover + 1) * answer_seconds
    least, most = (min(longest, turnovers * answer_seconds) for turnovers in (min(math.ceil(least), most), most))
    return Cost(around + least, around + most)


def ladder_cost(workload: Workload, bursts: Sequence[BurstTimes]) -> dict[int, Cost]:
    """The cost of each rung, from the last pass of the warm-up.

    A burst's decode gives the step at that concurrency. In a loop the prefills of the others fall between an answer's
    steps: as many as there are requests in flight, which together take what the burst's prefill took.
    """
    found = {}
    for burst in bursts:
        made = min(workload.output_tokens, WARM_UP_TOKENS)
        step = burst.decode_seconds / (made - 1) if made > 1 else 0.0
        answer = burst.prefill_seconds + step * workload.output_tokens
        found[burst.concurrency] = point_cost(workload, burst.concurrency, answer)
    return found


def from_warm_up(workload: Workload, warm_up: dict[str, Any]) -> dict[int, Cost]:
    """As `ladder_cost`, from a record's `warm_up`."""
    return ladder_cost(workload, [BurstTimes(**burst) for burst in warm_up.get("last_pass") or []])
