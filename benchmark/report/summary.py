"""From records and a decision to what a report shows: one row a configuration and host, one rung a concurrency.

Everything here is pure, takes untrusted records, and never raises on missing or odd values: what cannot be
read is None, and the pages show a dash.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from ..campaign.record import Distribution, Point, Record
from ..engine.configuration import difference

_NOT_AN_INPUT = {"start", "repeat", "replicate", "attempt"}
_REST = ("failed", "rejected", "skipped")


def number(value: Any) -> float | None:
    """`value` as a finite float, or None for anything else (text, booleans, NaN, infinities)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _clean(name: str) -> str:
    """A name on one line, without control characters."""
    return "".join(c for c in " ".join(name.split()) if c.isprintable())


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """`value` as a list if it is a list or a tuple, else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def bounds(value: Any) -> tuple[float, float] | None:
    """An interval from `[low, high]` or `{"low": .., "high": ..}`; None when either end is missing."""
    if isinstance(value, Mapping):
        ends = [number(value.get("low")), number(value.get("high"))]
    else:
        ends = [number(end) for end in sequence(value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


@dataclass(frozen=True)
class Estimate:
    """The mean of repeated measurements, with the lowest and highest of them."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[Any]) -> Estimate | None:
        known = [v for v in map(number, values) if v is not None]
        if not known:
            return None
        return cls(math.fsum(known) / len(known), min(known), max(known), len(known))


@dataclass(frozen=True)
class Rung:
    """One concurrency of one row: the valid points, and those that were taken out."""

    concurrency: int
    valid: tuple[Point, ...]
    invalid: tuple[Point, ...]

    @property
    def throughput(self) -> Estimate | None:
        """Output tokens a second, all users together."""
        return Estimate.of(p.output_tokens_per_second for p in self.valid)

    @property
    def per_user(self) -> Estimate | None:
        """Output tokens a second that one user sees while tokens flow."""
        return Estimate.of(p.output_tokens_per_second_per_user for p in self.valid)

    @property
    def goodput(self) -> Estimate | None:
        return Estimate.of(p.goodput_requests_per_second for p in self.valid)

    @property
    def joules_per_token(self) -> Estimate | None:
        return Estimate.of(joules_per_token(p) for p in self.valid)

    def seconds(self, name: str, quantile: str) -> Estimate | None:
        """A quantile (`p50`, `p99`, `max`, ...) of `ttft`, `itl`, `tpot` or `e2e`, in seconds."""
        samples: list[Distribution | None] = [getattr(p, f"{name}_seconds") for p in self.valid]
        return Estimate.of(getattr(s, quantile) for s in samples if s is not None and s.count > 0)

    @property
    def reasons(self) -> list[str]:
        """Why points were taken out, each reason once."""
        texts = [flag.message for p in self.invalid for flag in p.flags if flag.severity == "invalid"]
        return list(dict.fromkeys(texts))


def joules_per_token(point: Point) -> float | None:
    """Energy of all GPUs over the point for one output token, from telemetry; None where power was not read."""
    told = number(point.telemetry.get("energy_joules_per_token"))
    if told is not None:
        return told
    joules = number(point.telemetry.get("energy_joules"))
    if joules is None or joules <= 0 or point.output_tokens <= 0:
        return None
    return joules / point.output_tokens


@dataclass(frozen=True)
class Row:
    """One configuration on one host: its records (engine starts), oldest first, and what was decided."""

    key: str
    label: str
    workload: str | None
    records: tuple[Record, ...]
    ranking: Mapping[str, Any] = field(default_factory=dict)
    experiment: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[tuple[str, Any, Any], ...] = ()
    """(key, from, to) against the baseline."""
    card_bytes: float | None = None
    """Memory of the smallest GPU of the host, also where this record does not tell it."""

    @property
    def newest(self) -> Record:
        return self.records[-1]

    @property
    def configuration(self) -> str:
        return self.newest.configuration.name

    @property
    def host(self) -> str:
        return self.newest.host.name

    @property
    def baseline(self) -> str | None:
        return self.newest.configuration.against

    @cached_property
    def shown(self) -> Record:
        """The record that the row speaks of: the first measured one, which has the whole ladder; else the newest."""
        return next((r for r in self.records if r.outcome == "measured"), self.newest)

    @property
    def outcome(self) -> str:
        return self.shown.outcome

    @property
    def starts(self) -> int:
        """How many records hold points: the replicates."""
        return sum(1 for r in self.records if r.points)

    @cached_property
    def rungs(self) -> tuple[Rung, ...]:
        points = [p for r in self.records for p in r.points if p.workload == self.workload]
        return tuple(
            Rung(
                c,
                tuple(p for p in points if p.concurrency == c and p.valid),
                tuple(p for p in points if p.concurrency == c and not p.valid),
            )
            for c in sorted({p.concurrency for p in points})
        )

    def start_logs(self, concurrency: int, read: Callable[[Rung], Estimate | None]) -> list[float]:
        """Logarithm of what each start came to at a concurrency; repeats inside a start are one value."""
        logs = []
        for record in self.records:
            points = (p for p in record.points if p.concurrency == concurrency and p.workload == self.workload)
            found = read(Rung(concurrency, tuple(p for p in points if p.valid), ()))
            if found is not None and found.value > 0:
                logs.append(math.log(found.value))
        return logs

    @property
    def left(self) -> dict[int, str]:
        """Rungs that were not measured on purpose -> why."""
        left = self.shown.left
        measured = {rung.concurrency for rung in self.rungs}
        return {rung: left.reason for rung in left.rungs if rung not in measured} if left else {}

    def rung(self, concurrency: int | None) -> Rung | None:
        return next((r for r in self.rungs if r.concurrency == concurrency), None)

    @cached_property
    def peak(self) -> Rung | None:
        """The decision's peak where it names one that was measured, else the rung with the highest mean."""
        usable = [r for r in self.rungs if r.throughput is not None]
        decided = self.ranking.get("peak_concurrency")
        for rung in usable:
            if rung.concurrency == decided:
                return rung
        return max(usable, key=lambda r: r.throughput.value, default=None)  # type: ignore[union-attr]

    @property
    def peak_value(self) -> float | None:
        """Tokens a second: the decision's number first, so that page and decision never disagree."""
        told = number(self.ranking.get("peak"))
        if told is not None or self.peak is None or self.peak.throughput is None:
            return told
        return self.peak.throughput.value

    @property
    def peak_interval(self) -> tuple[float, float] | None:
        return bounds(self.ranking.get("interval"))

    @property
    def single_stream(self) -> float | None:
        """Tokens a second at concurrency 1."""
        told = number(self.ranking.get("single_stream"))
        first = self.rung(1)
        if told is not None or first is None or first.throughput is None:
            return told
        return first.throughput.value

    def at_peak(self, name: str, quantile: str) -> float | None:
        """Seconds, a quantile of a latency at the peak."""
        estimate = self.peak.seconds(name, quantile) if self.peak else None
        return estimate.value if estimate else None

    @property
    def goodput(self) -> float | None:
        """The best of its open loops, whose workload is another one than the ladder's."""
        told = [p.goodput_requests_per_second for r in self.records for p in r.points if p.valid]
        return max((value for value in told if value is not None), default=None)

    @property
    def joules_per_token(self) -> float | None:
        estimate = self.peak.joules_per_token if self.peak else None
        return estimate.value if estimate else None

    @property
    def weights_bytes(self) -> float | None:
        """A GPU; as measured, else as predicted."""
        measured = number(self.shown.start.weights_bytes) if self.shown.start else None
        return measured if measured is not None else number(self.shown.plan.get("weights_bytes"))

    @property
    def kv_tokens(self) -> float | None:
        measured = number(self.shown.kv_tokens)
        return measured if measured is not None else number(self.shown.plan.get("kv_tokens"))

    @property
    def headroom_bytes(self) -> float | None:
        """Bytes of the fullest GPU that nothing had claimed once the engine was ready."""
        start = self.shown.start
        if start is None or start.kv_bytes is None:
            return None
        used = start.kv_bytes + (start.graph_bytes or 0)
        if start.available_after_load_bytes is not None:
            return number(start.available_after_load_bytes - used)
        if self.card_bytes is None or start.weights_bytes is None:
            return None
        return self.card_bytes - start.weights_bytes - used

    @property
    def reason(self) -> str:
        """Why it did not run, or what the decision says about it."""
        failure = self.shown.failure
        if self.outcome != "measured" and failure is not None:
            return failure.sentence
        told = self.ranking.get("sentence")
        if isinstance(told, str) and told:
            return told
        return failure.sentence if failure else ""

    @property
    def advice(self) -> str:
        """What to try; empty where the reason says it already."""
        told = self.shown.failure.advice if self.shown.failure else ""
        return "" if told in self.reason else told


def card_bytes(record: Record) -> float | None:
    """Memory of the smallest GPU of the record's host, in bytes."""
    sizes = [number(mapping(gpu).get("memory_bytes")) for gpu in record.host.gpus]
    return min((s for s in sizes if s), default=None)


def main_workload(records: Iterable[Record]) -> str | None:
    """The workload of most ladders, else the one that most points belong to; None without points."""
    records = [r for r in records if r.points]
    counted = Counter(name for r in records if (name := r.workload.get("name")) in {p.workload for p in r.points})
    counted = counted or Counter(p.workload for r in records for p in r.points)
    return counted.most_common(1)[0][0] if counted else None


def workloads(records: Iterable[Record]) -> list[str]:
    """Every workload with points, the one with most points first."""
    return [name for name, _ in Counter(p.workload for r in records for p in r.points).most_common()]


def rows(records: list[Record], decision: Mapping[str, Any], workload: str | None = None) -> list[Row]:
    """One row a configuration, host and set of inputs: the decision's order, then by peak, then what did not run."""
    workload = main_workload(records) if workload is None else workload
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        group = (record.host.name, record.configuration.name, _inputs(record))
        groups.setdefault(group, []).append(record)
    names = _labels(list(groups))
    ranked = [mapping(entry) for entry in sequence(decision.get("ranking"))]
    tried = [mapping(entry) for entry in sequence(decision.get("experiments"))]
    bases = {(host, name): sorted(g, key=lambda r: r.created_at)[-1] for (host, name, _), g in groups.items()}
    found = []
    for index, (group, members) in enumerate(groups.items()):
        host, name, _ = group
        members = sorted(members, key=lambda r: (r.start_number, r.created_at, r.updated_at))
        ranking = _entry(ranked, name, host)
        experiment = _entry(tried, name, host)
        changes = _changes(members[-1], experiment, bases)
        card = min((c for r in records if r.host.name == host and (c := card_bytes(r))), default=None)
        found.append(Row(f"c{index + 1}", names[group], workload, tuple(members), ranking, experiment, changes, card))
    return sorted(found, key=_order(ranked))


def _inputs(record: Record) -> str:
    """What makes two records repeats of one another: the same fingerprinted inputs, the start's number apart."""
    if not record.fingerprint_of:
        return record.fingerprint
    inputs = {k: v for k, v in record.fingerprint_of.items() if k not in _NOT_AN_INPUT}
    return json.dumps(inputs, sort_keys=True, default=str)


def _labels(groups: list[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """The shortest name that tells each row from the others: configuration, then host, then a number."""
    several_hosts = len({host for host, _, _ in groups}) > 1
    seen: Counter[str] = Counter()
    labels = {}
    for group in groups:
        label = _clean(f"{group[1]} @ {group[0]}" if several_hosts else group[1])
        seen[label] += 1
        labels[group] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return labels


def _entry(entries: list[Mapping[str, Any]], name: str, host: str) -> Mapping[str, Any]:
    """The decision's entry for a configuration; one without a host speaks for all hosts."""
    for entry in entries:
        if entry.get("configuration") == name and entry.get("host") in (host, None):
            return entry
    return {}


def _changes(
    record: Record, experiment: Mapping[str, Any], bases: Mapping[tuple[str, str], Record]
) -> tuple[tuple[str, Any, Any], ...]:
    told = [tuple(change) for change in sequence(experiment.get("changes")) if len(sequence(change)) == 3]
    if told:
        return tuple((str(key), old, new) for key, old, new in told)
    base = bases.get((record.host.name, record.configuration.against or ""))
    if base is None:
        return ()
    return tuple(difference(msgspec.to_builtins(base.configuration), msgspec.to_builtins(record.configuration)))


def _order(ranked: list[Mapping[str, Any]]) -> Callable[[Row], tuple[int, int, float, str]]:
    places = {id(entry): place for place, entry in enumerate(ranked)}

    def key(row: Row) -> tuple[int, int, float, str]:
        group = _REST.index(row.outcome) + 1 if row.outcome in _REST else 0
        place = places.get(id(row.ranking), len(ranked))
        return group, place, -(row.peak_value or 0.0), row.label

    return key


def planned(plan: Mapping[str, Any], concurrency: int | None = None) -> tuple[float, float, float] | None:
    """Predicted output tokens a second as (low, expected, high): at this concurrency, else the highest of the ladder.

    Reads the ladder of a plan (`engine/plan.py`), a list of rungs with `concurrency` and a range.
    """
    speed = plan.get("speed")
    ladder = next((x for x in (plan.get("ladder"), mapping(speed).get("ladder"), speed) if sequence(x)), [])
    ranges = {}
    for rung in map(mapping, sequence(ladder)):
        found = three(rung.get("output_tokens_per_second"))
        if found is not None:
            ranges[number(rung.get("concurrency"))] = found
    if concurrency is not None:
        return ranges.get(float(concurrency))
    return max(ranges.values(), key=lambda r: r[1], default=None)


def three(value: Any) -> tuple[float, float, float] | None:
    """A predicted range from `{"low", "expected", "high"}` or a list of the three."""
    if isinstance(value, Mapping):
        value = [value.get("low"), value.get("expected"), value.get("high")]
    known = [number(v) for v in sequence(value)]
    if len(known) != 3 or None in known:
        return None
    return known[0], known[1], known[2]  # type: ignore[return-value]
