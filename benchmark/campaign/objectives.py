"""What a configuration may be judged by, and its starts: records of the same inputs, one an engine start. Pure."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .record import CampaignError, Left, Point, Record

_NOT_AN_INPUT = {"start", "start_number", "repeat", "replicate", "attempt"}
CHOOSING_STARTS = 2
"""The first so many starts of a configuration may have chosen it; the next are fresh."""
LONG_PROMPT_TOKENS = 4096
"""From here on prefill, not the engine's overhead, makes TTFT."""


def compared_starts(looks: int) -> int:
    """Of each configuration the first so many starts are compared: what a campaign of so many looks makes, a third of
    the baseline and of what is quoted among them. Further ones would be looks for which no error is left.
    """
    return max(looks, CHOOSING_STARTS) + 1


class ObjectiveError(CampaignError):
    """There is no such objective; the text names the nearest."""


@dataclass(frozen=True)
class Objective:
    """One number to judge by. `of_point` reads it from a point, None where the point does not tell it."""

    name: str
    title: str
    unit: str
    of_point: Callable[[Point], float | None]
    more_is_better: bool = True
    concurrency: int | None = None
    """The rung it is read at; None: the best rung (for TTFT, the lowest)."""
    long_prompts: bool = False
    """Means something only with prompts of LONG_PROMPT_TOKENS and more."""

    def better(self, log: float) -> float:
        """A log ratio with its sign turned so that more is better."""
        return log if self.more_is_better else -log

    def shown(self, value: float) -> str:
        return f"{value:,.2f} {self.unit}" if value < 10 else f"{value:,.1f} {self.unit}"


def joules_per_token(point: Point) -> float | None:
    """Energy of all GPUs for one output token; None where power was not read."""
    told = _positive(point.telemetry.get("energy_joules_per_token"))
    joules = _positive(point.telemetry.get("energy_joules"))
    if told is not None or joules is None or point.output_tokens <= 0:
        return told
    return joules / point.output_tokens


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Beyond these it is no measurement of any machine, whatever the file says.
    return float(value) if 1e-12 < value < 1e12 else None


def _ttft(point: Point) -> float | None:
    return point.ttft_seconds.p50 if point.ttft_seconds else None


def _tokens_per_joule(point: Point) -> float | None:
    joules = joules_per_token(point)
    return 1 / joules if joules else None


def _throughput(point: Point) -> float | None:
    return point.output_tokens_per_second


PEAK = Objective("peak", "output tokens a second at the best concurrency", "output tokens a second", _throughput)
SINGLE_STREAM = Objective(
    "single_stream", "output tokens a second of one stream", "output tokens a second", _throughput, concurrency=1
)
TTFT = Objective(
    "ttft", "time to first token of a long prompt, alone", "s", _ttft, more_is_better=False, long_prompts=True
)
PREFILL = Objective(
    "prefill",
    "prompt tokens a second at the best concurrency",
    "prompt tokens a second",
    lambda point: point.prompt_tokens_per_second,
    long_prompts=True,
)
GOODPUT = Objective(
    "goodput",
    "requests a second inside the stated limits, open loop",
    "requests a second",
    lambda point: point.goodput_requests_per_second,
)
ENERGY = Objective("tokens_per_joule", "output tokens a joule of all GPUs", "tokens a joule", _tokens_per_joule)
KNOWN = (PEAK, SINGLE_STREAM, TTFT, PREFILL, GOODPUT, ENERGY)


def objective(name: str) -> Objective:
    """The objective of this name; `throughput@64` is throughput at concurrency 64.

    Raises:
        ObjectiveError: there is none.
    """
    name = name.strip().lower().replace("-", "_")
    if at := re.fullmatch(r"throughput@([1-9]\d{0,5})", name):
        title = f"output tokens a second at concurrency {at[1]}"
        return Objective(name, title, "output tokens a second", _throughput, concurrency=int(at[1]))
    for known in KNOWN:
        if known.name == name:
            return known
    names = [*(known.name for known in KNOWN), "throughput@CONCURRENCY"]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    raise ObjectiveError(f"There is no objective '{name}'{hint} There are {', '.join(names)}.")


def inputs(record: Record) -> str:
    """What makes two records starts of one another: the same fingerprinted inputs, the start's number apart."""
    if not record.fingerprint_of:
        return record.fingerprint
    of = {key: value for key, value in record.fingerprint_of.items() if key not in _NOT_AN_INPUT}
    return json.dumps(of, sort_keys=True, default=str)


@dataclass(frozen=True)
class Starts:
    """One configuration on one host: a record an engine start, oldest first."""

    records: tuple[Record, ...]

    @cached_property
    def _read(self) -> dict[Objective, list[float]]:
        """What `values` found before: records do not change."""
        return {}

    @property
    def newest(self) -> Record:
        return self.records[-1]

    @property
    def name(self) -> str:
        return self.newest.configuration.name

    @property
    def host(self) -> str:
        return self.newest.host.name

    @property
    def key(self) -> tuple[str, str]:
        return self.host, self.name

    @cached_property
    def measured(self) -> tuple[Record, ...]:
        """The starts that have a valid point."""
        return tuple(r for r in self.records if _has_points(r))

    def telling(self, by: Objective) -> tuple[Record, ...]:
        """The starts that tell the objective, or that there is nothing to tell: those that failed, or have no point.

        The others were made for another objective, and measured other points.
        """
        rung = self.rung(by)
        return tuple(
            r for r in self.records if not _has_points(r) or (rung is not None and self._at(r, by, rung) is not None)
        )

    @property
    def shown(self) -> Record:
        """The record that speaks for all: the first measured one, since it has the whole ladder; else the newest."""
        return self.measured[0] if self.measured else self.newest

    @property
    def cut_short(self) -> Left | None:
        """The rungs that were left because they could not have won; one of them may be this configuration's best."""
        left = self.shown.left
        return left if left and left.may_be_best else None

    def best_unknown(self, by: Objective) -> bool:
        """Whether the objective is read at the best rung of a ladder that was left early: what is read is the least
        that it is. What has a rung of its own, the lowest, or points beside the ladder, was measured all the same.
        """
        if self.cut_short is None or by.concurrency is not None or not by.more_is_better or by.name == GOODPUT.name:
            return False
        return self.has_long_prompts if by.long_prompts else True

    @property
    def failures(self) -> tuple[Record, ...]:
        return tuple(r for r in self.records if r.outcome == "failed")

    def values(self, by: Objective) -> list[float]:
        """The objective at each measured start that tells it, in order; all at one and the same rung."""
        if by not in self._read:
            rung = self.rung(by)
            found = [self._at(record, by, rung) for record in self.measured] if rung is not None else []
            self._read[by] = [value for value in found if value is not None]
        return self._read[by]

    def logs(self, by: Objective, first: int | None = None) -> list[float]:
        """The logarithms of `values`: of all of them, or of the first so many."""
        return [math.log(value) for value in self.values(by)[:first]]

    def rung(self, by: Objective) -> int | None:
        """The concurrency at which the objective is read: its own, or the best by the mean over all starts.

        Only a rung that all starts measured can be the best of several starts. One that is asked for by name is read
        from the starts that have it: a second start measures only the rungs about the peak.
        """
        tables = [{c: v for c in self._rungs(r, by) if (v := self._at(r, by, c)) is not None} for r in self.measured]
        tables = [table for table in tables if table]
        if not tables:
            return None
        if by.concurrency is not None:
            return by.concurrency if any(by.concurrency in table for table in tables) else None
        if not by.more_is_better:
            return min(min(table) for table in tables)
        shared = set(tables[0]).intersection(*tables[1:]) or set(tables[0])
        return max(sorted(shared), key=lambda c: math.fsum(math.log(table[c]) for table in tables if c in table))

    def mean(self, by: Objective, first: int | None = None) -> float | None:
        """The geometric mean over all starts, or over the first so many: what configurations are ranked by."""
        values = self.values(by)[:first]
        return _geometric_mean(values) if values else None

    def value(self, by: Objective) -> float | None:
        """What may be quoted: the geometric mean over fresh starts, or what there is.

        A start that chose a configuration flatters it: the best of eight equal ones reads 2.8 % high (2 % noise). The
        first start makes a finalist and the second a winner, so the third is the first that may be quoted.
        """
        fresh = self._fresh(by)
        return _geometric_mean(fresh) if fresh else None

    def quoted_starts(self, by: Objective) -> int:
        """How many starts `value` rests on."""
        return len(self._fresh(by))

    def _fresh(self, by: Objective) -> list[float]:
        values = self.values(by)
        return values[CHOOSING_STARTS:] or values[-1:]

    @property
    def has_long_prompts(self) -> bool:
        """Whether the ladder itself is of long prompts, so that what is read from those is read from it."""
        return _prompt_tokens(self.shown.workload) >= LONG_PROMPT_TOKENS

    def point(self, by: Objective) -> Point | None:
        """The point of the start that speaks for all at which the objective is read."""
        rung = self.rung(by)
        return next((p for p in _points(self.shown, by) if p.concurrency == rung), None)

    @staticmethod
    def _rungs(record: Record, by: Objective) -> set[int]:
        return {p.concurrency for p in _points(record, by)}

    @staticmethod
    def _at(record: Record, by: Objective, concurrency: int) -> float | None:
        """Repeats inside a start are one value: the mean of their logarithms."""
        points = [p for p in _points(record, by) if p.concurrency == concurrency]
        values = [value for p in points if (value := _positive(by.of_point(p))) is not None]
        return _geometric_mean(values) if values else None


def _has_points(record: Record) -> bool:
    return record.outcome == "measured" and any(point.valid for point in record.points)


def _geometric_mean(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else math.exp(math.fsum(map(math.log, values)) / len(values))


def _points(record: Record, by: Objective) -> list[Point]:
    """The valid points that tell an objective.

    Goodput comes from open loops, everything else from closed ones. Prefill and its TTFT come from the workloads with
    long prompts, of which there may be one beside the record's own; what is left from the record's own.
    """
    works = {
        work.get("name"): work for work in (record.workload, *(f.get("workload", {}) for f in record.after_ladder))
    }
    if by.name == GOODPUT.name:
        return [p for p in record.points if p.valid and p.rate is not None]
    points = record.ladder_points
    if by.long_prompts:
        points = [
            p for p in record.points if _prompt_tokens(works.get(p.workload, record.workload)) >= LONG_PROMPT_TOKENS
        ]
    return [p for p in points if p.valid and p.rate is None]


def _prompt_tokens(workload: Mapping[str, Any]) -> int:
    told = workload.get("prompt_tokens")
    return told if isinstance(told, int) else 0


def ranking_starts(groups: Sequence[Starts], by: Objective) -> int:
    """How many starts of each may choose the winner: as many as at least two rivals have.

    The winner's own further start would flatter whoever stays ahead because of it; it is for quoting. The baselines
    have theirs for another reason, and do not count.
    """
    baselines = {found.newest.configuration.against for found in groups}
    counts = sorted((len(found.values(by)) for found in groups if found.name not in baselines), reverse=True)
    return max(1, counts[1]) if len(counts) > 1 else CHOOSING_STARTS


def group(records: Iterable[Record]) -> list[Starts]:
    """Records as starts, in the order in which configurations first appear; of each only the newest inputs.

    Records of another driver, release or workload are another experiment: they are not mixed in.
    """
    sets: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        key = (record.host.name, record.configuration.name)
        sets.setdefault(key, {}).setdefault(inputs(record), []).append(record)
    newest = (
        max(by_inputs.values(), key=lambda found: max(r.updated_at for r in found)) for by_inputs in sets.values()
    )
    return [Starts(tuple(sorted(found, key=lambda r: (r.start_number, r.created_at)))) for found in newest]
