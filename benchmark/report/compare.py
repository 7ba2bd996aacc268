"""Two campaigns beside each other: what changed between them, and what got better or worse beyond noise.

The unit of repetition is an engine start, and the statistics are those of a campaign (campaign/statistics.py): the
noise between starts is pooled over both sides, 4 % are assumed of throughput where nothing was started twice (none of
TTFT), and the many differences share one error of 5 %. What cannot be compared is refused, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..campaign.record import Record, RecordError, load
from ..campaign.statistics import ERROR, Effect, Noise, effect, holm_levels, pooled_noise, verdict
from . import reported, text
from .reported import Reported
from .summary import Row, Rung, mapping, rows

_WORKLOAD = (
    "kind",
    "prompt_tokens",
    "output_tokens",
    "length_range",
    "shared_prefix_tokens",
    "file",
    "rate",
    "ignore_eos",
    "temperature",
)


@dataclass(frozen=True)
class Difference:
    """One number of one configuration, before and after.

    `ratio` is after / before; low and high are its interval at the level at which it was judged together with the
    others, None where the noise is not known.
    """

    configuration: str
    metric: str
    concurrency: int
    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None
    starts: tuple[int, int]
    verdict: str
    """`better`, `worse`, `tie` or `undecided`."""


@dataclass(frozen=True)
class Comparison:
    """What two campaigns have to say about each other. `refused` are (what, why); of `*`, everything."""

    names: tuple[str, str]
    changed: tuple[tuple[str, str, str], ...] = ()
    """(what, before, after)."""
    differences: tuple[Difference, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    beside: tuple[tuple[Mapping[str, Any], Row | None], ...] = field(default=())
    """With a reported campaign: its figures and the user's rows, without verdicts."""

    @property
    def comparable(self) -> bool:
        return bool(self.differences or self.beside)


class SideError(ValueError):
    """One of the two sides cannot be read; the text says which and why."""


def read_side(source: str | Path) -> list[Record] | Reported:
    """The records below a campaign's folder, of any schema version, or a shipped reported campaign by its name.

    Raises:
        SideError: there is neither, or a record cannot be read.
    """
    folder = Path(source)
    if not folder.is_dir():
        if str(source) in reported.names():
            return reported.load(str(source))
        known = ", ".join(reported.names())
        raise SideError(f"'{source}' is no campaign folder; shipped reported campaigns are {known}.")
    try:
        found = [load(path.read_bytes(), str(path)) for path in sorted(folder.glob("*/*/*/record.json"))]
    except RecordError as error:
        raise SideError(str(error)) from error
    if not found:
        raise SideError(f"'{source}' holds no record (HOST/CONFIGURATION/FINGERPRINT/record.json).")
    return found


def compare(
    before: list[Record] | Reported, after: list[Record] | Reported, names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare two campaigns; `before` is what `after` is held against."""
    if isinstance(before, Reported) or isinstance(after, Reported):
        return _beside(before, after, names)
    refusal = _refuse(before, after)
    changed = _changed(before, after)
    if refusal:
        return Comparison(names, changed, refused=(("*", refusal),))
    pairs, refused = _pairs(rows(before, {}), rows(after, {}))
    measured = [m for name, pair in pairs for m in _measurements(name, *pair, refused)]
    changed += tuple(
        (f"{name}: outcome", old.outcome, new.outcome) for name, (old, new) in pairs if old.outcome != new.outcome
    )
    differences = _judge(measured)
    return Comparison(names, changed, tuple(differences), tuple(refused), tuple(_notes(measured, changed)))


def _beside(before: list[Record] | Reported, after: list[Record] | Reported, names: tuple[str, str]) -> Comparison:
    if isinstance(before, Reported) and isinstance(after, Reported):
        return Comparison(names, refused=(("*", "Both are reported, so neither has a record to compare."),))
    told, records = (before, after) if isinstance(before, Reported) else (after, before)
    assert isinstance(told, Reported) and isinstance(records, list)
    notes = [f"{told.title}: {reported.MARK}. No verdict is given.", told.about]
    if any(r.simulated for r in records):
        notes.append("The other side is simulated.")
    return Comparison(names, notes=tuple(notes), beside=tuple(reported.pairs(told, rows(records, {}))))


# What may be compared


def _refuse(before: list[Record], after: list[Record]) -> str | None:
    """Why nothing of the two may be compared; None if something may."""
    if not before or not after:
        return "One side has no records."
    if {r.simulated for r in before} != {r.simulated for r in after}:
        return "One side was simulated and the other measured: their difference is that of a model and a machine."
    models = [{r.model.name for r in side} for side in (before, after)]
    if not models[0] & models[1]:
        return f"Different models: {text.joined(sorted(models[0]))} and {text.joined(sorted(models[1]))}."
    loads = [[_workload(r) for r in side if r.points] for side in (before, after)]
    if loads[0] and loads[1] and not any(load in loads[1] for load in loads[0]):
        keys = [k for k in _WORKLOAD if loads[0][0].get(k) != loads[1][0].get(k)]
        told = ", ".join(text.change(k, loads[0][0].get(k), loads[1][0].get(k)) for k in keys)
        return f"Different workloads ({told}): speeds under one say nothing about the other."
    return None


def _workload(record: Record) -> dict[str, Any]:
    return {key: record.workload.get(key) for key in _WORKLOAD}


def _pairs(before: list[Row], after: list[Row]) -> tuple[list[tuple[str, tuple[Row, Row]]], list[tuple[str, str]]]:
    """Rows of the same configuration: on the same host, or on the only host of each side."""
    pairs, refused = [], []
    names = list(dict.fromkeys(row.configuration for row in [*before, *after]))
    for name in names:
        old = [row for row in before if row.configuration == name]
        new = [row for row in after if row.configuration == name]
        if not old or not new:
            refused.append((name, f"Only in {'the first' if old else 'the second'} campaign."))
            continue
        hosts = [host for host in dict.fromkeys(r.host for r in old) if host in {r.host for r in new}]
        if hosts:
            for host in hosts:
                label = name if len(hosts) == 1 else f"{name} @ {host}"
                pairs.append((label, (_last(old, host), _last(new, host))))
        elif len({r.host for r in old}) == len({r.host for r in new}) == 1:
            pairs.append((name, (_last(old), _last(new))))
        else:
            refused.append((name, "It ran on several hosts, and on none of them in both campaigns."))
    return pairs, refused


def _last(found: list[Row], host: str | None = None) -> Row:
    mine = [row for row in found if host in (None, row.host)]
    return max(mine, key=lambda row: (row.peak is not None, row.newest.created_at))


# Measurements and their noise


@dataclass(frozen=True)
class _Measured:
    configuration: str
    metric: str
    concurrency: int
    more_is_better: bool
    logs: tuple[list[float], list[float]]
    """Logarithm of the value of each start, before and after."""


_THROUGHPUT = "output tokens/s"
_Read = Callable[[Rung], Any]
_METRICS: tuple[tuple[str, bool, _Read], ...] = (
    (_THROUGHPUT, True, lambda rung: rung.throughput),
    ("TTFT p50, seconds", False, lambda rung: rung.seconds("ttft", "p50")),
)


def _measurements(name: str, old: Row, new: Row, refused: list[tuple[str, str]]) -> list[_Measured]:
    """One user, and the rung where both together are fastest; never two different rungs."""
    for row, side in ((old, "first"), (new, "second")):
        if row.peak is None:
            why = row.reason or "no valid point"
            refused.append((name, f"No number in the {side} campaign ({row.outcome}): {text.clean(why)}"))
            return []
    if _workload(old.shown) != _workload(new.shown):
        refused.append((name, "Measured under different workloads."))
        return []
    shared = [(r, other) for r in old.rungs if (other := new.rung(r.concurrency)) and r.throughput and other.throughput]
    if not shared:
        refused.append((name, "No concurrency is valid in both campaigns."))
        return []
    # By the sum of both sides, so that neither side's lucky point chooses the rung.
    top = max(shared, key=lambda pair: math.log(pair[0].throughput.value) + math.log(pair[1].throughput.value))
    rungs = {pair[0].concurrency for pair in shared if pair[0].concurrency == 1} | {top[0].concurrency}
    found = []
    for concurrency in sorted(rungs):
        for metric, more, read in _METRICS:
            logs = (old.start_logs(concurrency, read), new.start_logs(concurrency, read))
            if logs[0] and logs[1]:
                found.append(_Measured(name, metric, concurrency, more, logs))
    return found


def _noises(measured: list[_Measured]) -> dict[str, Noise]:
    """Noise between starts of each metric, pooled over both sides; without a repeat that of throughput is assumed."""
    found = {
        metric: pooled_noise(logs for m in measured if m.metric == metric for logs in m.logs)
        for metric, _, _ in _METRICS
    }
    return {metric: noise for metric, noise in found.items() if metric == _THROUGHPUT or not noise.assumed}


def _judge(measured: list[_Measured]) -> list[Difference]:
    """Every difference whose noise is known, all of them together (Holm); the others without a verdict."""
    noises = _noises(measured)
    effects = [effect(m.logs[1], m.logs[0], noises.get(m.metric) or Noise(math.inf, 0)) for m in measured]
    known = [place for place, m in enumerate(measured) if m.metric in noises]
    levels = holm_levels([effects[place].tail for place in known], [ERROR] * len(known))
    judged = dict(zip(known, levels, strict=True))
    return [_difference(m, effects[place], judged.get(place)) for place, m in enumerate(measured)]


def _difference(m: _Measured, found: Effect, level: float | None) -> Difference:
    """The interval is at the level at which it was judged: it leaves out 1 exactly when the difference counts."""
    low, high = found.interval(level) if level else (None, None)
    told = "undecided" if low is None or high is None else verdict(low, high, more_is_better=m.more_is_better)
    before, after = (math.exp(math.fsum(logs) / len(logs)) for logs in m.logs)
    starts = (len(m.logs[0]), len(m.logs[1]))
    return Difference(m.configuration, m.metric, m.concurrency, before, after, found.ratio, low, high, starts, told)


def _notes(measured: list[_Measured], changed: tuple[tuple[str, str, str], ...]) -> list[str]:
    notes, noises = [], _noises(measured)
    for metric, _, _ in _METRICS:
        noise = noises.get(metric)
        if not any(m.metric == metric for m in measured):
            continue
        if noise is None:
            notes.append(f"{metric}: nothing was started twice, so its noise is not known and no verdict is given.")
        elif noise.assumed:
            notes.append(
                f"{metric}: nothing was started twice, so a noise of {noise.deviation:.0%} between starts is assumed. "
                "Start each twice to know."
            )
        else:
            notes.append(f"{metric}: starts of one configuration differ by {noise.deviation:.1%} (standard deviation).")
    if len(changed) > 1:
        notes.append(
            f"{text.plural(len(changed), 'thing')} changed at once: no difference can be put down to one of them."
        )
    return notes


# What changed


def _changed(before: list[Record], after: list[Record]) -> tuple[tuple[str, str, str], ...]:
    """Everything about the surroundings, and the settings of configurations of the same name, that is not the same."""
    old, new = _surroundings(before), _surroundings(after)
    told = [
        (key, old.get(key) or "not told", new.get(key) or "not told")
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    last = {r.configuration.name: r.configuration for r in before}
    for configuration in {r.configuration.name: r.configuration for r in after}.values():
        base = last.get(configuration.name)
        if base is None:
            continue
        mine, theirs = configuration.engine | configuration.environment, base.engine | base.environment
        told += [
            (f"{configuration.name}: {key}", text.value(theirs.get(key)), text.value(mine.get(key)))
            for key in sorted(mine.keys() | theirs.keys())
            if mine.get(key) != theirs.get(key)
        ]
    return tuple(told)


def _surroundings(records: list[Record]) -> dict[str, str]:
    told: dict[str, set[str]] = {}

    def add(key: str, value: Any) -> None:
        if value:
            told.setdefault(key, set()).add(text.clean(value))

    for r in records:
        names = [str(mapping(gpu).get("name") or "GPU") for gpu in r.host.gpus]
        add("host", r.host.name)
        add("GPUs", f"{len(names)}x {names[0]}" if names else None)
        add("driver", r.host.driver)
        add("engine", f"{r.engine.name} {r.engine.version}")
        add("model", r.model.name)
        add("model revision", r.model.revision)
        add("shardsweep", r.tools_version)
        for package, version in r.engine.packages.items():
            add(f"package {package}", version)
        for key in ("seed", "requests", "window_seconds"):
            add(f"workload {key}", r.workload.get(key))
    return {key: text.joined(sorted(values)) for key, values in told.items()}
