"""What real starts and their points teach about one host: its memory, and how fast it works, launches and talks.

A start corrects the memory model (free memory before the load, weights beyond the tensors, graphs); points correct the
time model, by one factor for each kind of time. The factors are the most probable ones, given the points and what is
believed without them (a normal distribution of each logarithm around 0), so a factor that no point speaks of stays at
1 and keeps its doubt.

A closed loop's time per token holds the prefills of the others. So a point at one user tells a decode step and a
prefill; one at more users tells their sum, the less surely the more of it is prefill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from .hardware import Host, UnknownHardware, allreduce_rows, find_gpu, nccl_variables
from .layout import Layout
from .memory import plan_memory
from .models import ModelShape, shipped_shape
from .ranges import Range
from .step import StepModel, company_of, stalled

# Standard deviations of the logarithm of each factor before anything is measured. Launches depend on the CPU and
# collectives on the links, more than the work depends on the GPU.
PRIOR = {"decode": 0.4, "prefill": 0.5, "launch": 0.5, "communication": 0.8}
# ... of the model, of one configuration against another, once its factors are right.
MODEL_DEVIATION = 0.1
# ... of how many prompts share one prefill in a closed loop.
COMPANY_DEVIATION = 0.7
# A calibrated range covers this many deviations each way.
DEVIATIONS = 2.0
# Steps of the search for the factors, and of the second derivative that tells their doubt.
_STEPS = (0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003)
_DIFFERENCE = 0.02


@dataclass(frozen=True)
class Factor:
    """A factor of one kind of time; `deviation` is that of its logarithm."""

    value: float = 1.0
    deviation: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """Corrections for one host; `weights_extra_bytes` for one model on it."""

    source: str
    """What it rests on, in words for the user."""
    weights_extra_bytes: int = 0
    weights_measured: bool = False
    pre_load_free_bytes: Mapping[int, int] = field(default_factory=dict)
    """By GPUs of the split (communicators take memory too); a number of GPUs that was not measured is not in it."""
    graph_scale: float = 1.0
    factors: Mapping[str, Factor] = field(default_factory=dict)
    """By kind of time: decode and prefill (the GPU's work), launch, communication."""
    points: int = 0

    def knows_memory(self, gpus: int) -> bool:
        """Whether this model's weights, and the free memory of a split over so many GPUs, were measured."""
        return self.weights_measured and gpus in self.pre_load_free_bytes

    def factor(self, group: str) -> Factor:
        return self.factors.get(group) or Factor(1.0, PRIOR[group])

    def corrected(self, parts: Mapping[str, float], kind: str) -> Range:
        """A pass of `kind` (decode or prefill) from its parts in seconds: work, launch and communication."""
        kinds = {kind if name == "work" else name: seconds for name, seconds in parts.items()}
        times = {group: seconds * self.factor(group).value for group, seconds in kinds.items()}
        total = sum(times.values())
        if total <= 0:
            return Range(0.0, 0.0, 0.0)
        doubts = [self.factor(group).deviation * seconds / total for group, seconds in times.items()]
        width = exp(DEVIATIONS * sqrt(MODEL_DEVIATION**2 + sum(doubt**2 for doubt in doubts)))
        return Range(total / width, total, total * width)


def calibrate(
    records: Iterable[Mapping[str, Any]],
    shape: ModelShape,
    host: Host,
    release: str,
    name: str = "",
    shape_of: Callable[[Mapping[str, Any]], ModelShape | None] | None = None,
) -> Calibration | None:
    """Records (as JSON objects) of this host -> corrections for `shape`; None if none of them teaches anything.

    `shape_of` tells a record's model (None: not known, the record is passed over); without it all records are of
    `shape`. Another model's record teaches the host's times, its free memory and its graphs, not this model's
    weights. Records of another outcome than `measured` still teach memory if they have a start.
    """
    kept = []
    for record in records:
        model, layout = shape_of(record) if shape_of else shape, _layout(record, release)
        try:
            model = model.overridden(_engine(record)) if model else None
        except ValueError:
            continue
        if model is not None and layout is not None:
            environment = (record.get("configuration") or {}).get("environment") or {}
            kept.append(_Seen(record, model, layout, host.under(environment), release))
    memory = _memory(kept, shape)
    points = [point for seen in kept for point in _points(seen)]
    if not memory and not points:
        return None
    starts = sum(1 for seen in kept if seen.record.get("start"))
    return Calibration(
        source=f"{name or 'this host'}: {_count(starts, 'start')}, {_count(len(points), 'measurement')}",
        factors=_fit(points),
        points=len(points),
        **memory,
    )


@dataclass(frozen=True)
class _Seen:
    """A record with what it is a record of."""

    record: Mapping[str, Any]
    shape: ModelShape
    layout: Layout
    host: Host
    release: str

    @property
    def engine(self) -> Mapping[str, Any]:
        return _engine(self.record)


@dataclass(frozen=True)
class _Point:
    """A measured time, what it should be made of (seconds by kind), and how far the sum may be off (in logarithms)."""

    measured: float
    parts: Mapping[str, float]
    deviation: float


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _engine(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return (record.get("configuration") or {}).get("engine") or {}


def _layout(record: Mapping[str, Any], release: str) -> Layout | None:
    try:
        layout = Layout.from_engine(_engine(record), release)
    except ValueError:
        return None
    return layout if layout.whole else None


def _memory(kept: list[_Seen], shape: ModelShape) -> dict[str, Any]:
    extras: list[int] = []
    graphs: list[float] = []
    frees: dict[int, list[int]] = {}
    for seen in kept:
        start = seen.record.get("start") or {}
        if not start:
            continue
        plan = plan_memory(seen.shape, seen.layout, seen.engine, seen.host, seen.release)
        if start.get("weights_bytes") and seen.shape == shape:
            extras.append(start["weights_bytes"] - max(plan.stages))
        if start.get("available_before_load_bytes"):
            frees.setdefault(seen.layout.gpus, []).append(int(start["available_before_load_bytes"]))
        if start.get("graph_bytes") and plan.graph_bytes:
            graphs.append(start["graph_bytes"] / plan.graph_bytes)
    found: dict[str, Any] = {}
    if extras:
        found |= {"weights_extra_bytes": int(median(extras)), "weights_measured": True}
    if frees:
        found["pre_load_free_bytes"] = {gpus: min(values) for gpus, values in frees.items()}
    if graphs:
        found["graph_scale"] = median(graphs)
    return found


def _points(seen: _Seen) -> list[_Point]:
    """A decode step and a prefill from each valid point at one user; from the others the mean time per token."""
    workload = seen.record.get("workload") or {}
    prompt, output = workload.get("prompt_tokens"), workload.get("output_tokens")
    if not prompt or not output:
        return []
    model = StepModel(seen.shape, seen.layout, seen.engine, seen.host, seen.release)
    memory = plan_memory(seen.shape, seen.layout, seen.engine, seen.host, seen.release)
    points = []
    for point in seen.record.get("points") or ():
        concurrency = int(point.get("concurrency") or 0)
        flags = point.get("flags") or ()
        if concurrency < 1 or any(flag.get("severity") == "invalid" for flag in flags):
            continue
        tpot, ttft = point.get("tpot_seconds") or {}, point.get("ttft_seconds") or {}
        reached = min(concurrency, max(1, memory.max_running_requests))
        step = _expected(model.decode_parts(reached, prompt + output // 2), "decode")
        if reached == 1:
            if tpot.get("p50"):
                points.append(_Point(tpot["p50"], step, MODEL_DEVIATION))
            if ttft.get("p50"):
                points.append(_Point(ttft["p50"], _expected(model.prefill_parts(prompt), "prefill"), MODEL_DEVIATION))
        elif mean := tpot.get("mean") or tpot.get("p50"):
            points.append(_crowded(model, memory.chunked_prefill_size, mean, step, prompt, output, reached))
    return points


def _crowded(
    model: StepModel, chunk: int, measured: float, step: Mapping[str, float], prompt: int, output: int, reached: int
) -> _Point:
    """Time per token of one of `reached` users: a step, and a share of the prefills of all others."""
    company = company_of(prompt, output, reached, chunk, model.layout.attention_dp)
    prefill = _expected(model.prefill_parts(round(company * prompt), 0, company), "prefill")
    # A pipeline's stalls come on top of the parts; its stages work on different prompts at the same time.
    stall = stalled(Range(1.0, 1.0, 1.0), model.layout, reached).expected
    share = (reached - 1) / output / company / min(model.layout.pp, reached)
    others = {group: seconds * share for group, seconds in prefill.items()}
    parts = {group: stall * (step.get(group, 0.0) + others.get(group, 0.0)) for group in PRIOR}
    unsure = COMPANY_DEVIATION * sum(others.values()) * stall / sum(parts.values())
    return _Point(measured, parts, sqrt(MODEL_DEVIATION**2 + unsure**2))


def _expected(parts: Mapping[str, list[Range]], kind: str) -> dict[str, float]:
    """Seconds by kind of time: work is that of a decode step or of a prefill."""
    return {kind if group == "work" else group: sum(r.expected for r in ranges) for group, ranges in parts.items()}


def _fit(points: list[_Point]) -> dict[str, Factor]:
    """The most probable factors: a pattern search in their logarithms, for the sum of squares is smooth and small."""

    def cost(logs: Mapping[str, float]) -> float:
        prior = sum((value / PRIOR[group]) ** 2 for group, value in logs.items())
        return prior + sum((_residual(point, logs) / point.deviation) ** 2 for point in points)

    logs = dict.fromkeys(PRIOR, 0.0)
    best = cost(logs)
    for step in _STEPS:
        moved = True
        while moved:
            moved = False
            for group in PRIOR:
                for change in (step, -step):
                    trial = logs | {group: logs[group] + change}
                    if (tried := cost(trial)) < best - 1e-12:
                        logs, best, moved = trial, tried, True
    factors = {}
    for group in PRIOR:
        around = sum(cost(logs | {group: logs[group] + change}) for change in (_DIFFERENCE, -_DIFFERENCE))
        curvature = (around - 2 * best) / _DIFFERENCE**2
        # The cost is twice the negative logarithm of a probability; a fit that is worse than assumed is less sure.
        scale = max(1.0, sqrt(best / max(1, len(points))))
        deviation = min(PRIOR[group], scale * sqrt(2 / curvature)) if curvature > 0 else PRIOR[group]
        factors[group] = Factor(exp(logs[group]), deviation)
    return factors


def _residual(point: _Point, logs: Mapping[str, float]) -> float:
    return log(point.measured / sum(exp(logs[group]) * seconds for group, seconds in point.parts.items()))


def from_campaigns(
    kept: Iterable[tuple[str, Mapping[str, Any]]],
    shape: ModelShape,
    host: Host,
    release: str,
    *,
    simulated: bool = False,
    host_name: str = "",
) -> Calibration | None:
    """Records of campaigns, each with its campaign's name -> corrections for `shape` on `host`; None without any.

    Only records of this release, of these GPUs, and of an engine of the same kind count: what a simulated engine
    measured says nothing of a real host, nor the other way round. Hosts are told apart by their names: `host_name`, or
    the one that was measured last. Records of other models count if their shape is known by name.
    """
    fitting = _of_host(kept, host, release, simulated=simulated, host_name=host_name)

    def shape_of(record: Mapping[str, Any]) -> ModelShape | None:
        model = record.get("model") or {}
        names = [str(model.get(key) or "").rstrip("/").rpartition("/")[2] for key in ("path", "name")]
        if any(name and name.lower() == shape.name.lower() for name in names):
            return shape
        return next((found for name in names if (found := shipped_shape(name))), None)

    return calibrate((record for _, record in fitting), shape, host, release, _where(fitting), shape_of)


def read_records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record.json below the folder (of campaigns, or one campaign's) with its campaign's name; damaged ones are
    passed over, `shardsweep report` names them.
    """
    for path in sorted(folder.resolve().rglob("record.json")):
        # CAMPAIGN/HOST/CONFIGURATION/FINGERPRINT/record.json
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and len(path.parents) > 4:
            yield path.parents[3].name, record


def measured_host(
    kept: Iterable[tuple[str, Mapping[str, Any]]],
    host: Host,
    release: str,
    *,
    simulated: bool = False,
    host_name: str = "",
) -> Host:
    """The host with the all-reduces of its last communication check, which its records hold; the records as above."""
    fitting = _of_host(kept, host, release, simulated=simulated, host_name=host_name)
    for _, record in reversed(fitting):
        details = record["host"].get("details") or {}
        known = details.get("communication") or {}
        if rows := allreduce_rows(known.get("allreduce")):
            return replace(host, allreduce=rows, environment=nccl_variables(known.get("environment") or {}))
    return host


def _of_host(
    kept: Iterable[tuple[str, Mapping[str, Any]]], host: Host, release: str, *, simulated: bool, host_name: str
) -> list[tuple[str, Mapping[str, Any]]]:
    """The records of one host, the oldest first."""
    fitting = [(campaign, record) for campaign, record in kept if _fits(record, host, release, simulated=simulated)]
    fitting.sort(key=lambda pair: str(pair[1].get("updated_at") or ""))
    chosen = host_name or (fitting[-1][1]["host"]["name"] if fitting else "")
    return [(campaign, record) for campaign, record in fitting if record["host"]["name"] == chosen]


def _where(fitting: list[tuple[str, Mapping[str, Any]]]) -> str:
    """`kimi-quick/gpu1 (tp8 and 3 more, 2026-11-29)`."""
    if not fitting:
        return ""
    campaigns = ", ".join(dict.fromkeys(campaign for campaign, _ in fitting))
    told = sorted((record for _, record in fitting), key=lambda record: record.get("outcome") != "measured")
    names = list(dict.fromkeys(str(record["configuration"]["name"]) for record in told))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    day = max(str(record.get("updated_at") or "") for _, record in fitting)[:10]
    return f"{campaigns}/{fitting[0][1]['host']['name']} ({names[0]}{more}, {day})"


def _fits(record: Mapping[str, Any], host: Host, release: str, *, simulated: bool) -> bool:
    """Whether a record is of this kind of engine, this release, and this many of these GPUs."""
    engine, seen = record.get("engine") or {}, record.get("host") or {}
    gpus = seen.get("gpus") or ()
    kind = "simulated" if simulated else "sglang"
    if engine.get("name") != kind or engine.get("version") != release or not seen.get("name"):
        return False
    several = int((record.get("configuration") or {}).get("engine", {}).get("nnodes") or 1) > 1
    if len(gpus) != host.count or host.nodes > 1 or several:
        return False
    try:
        return all(find_gpu(str(gpu.get("name"))).name == host.gpu.name for gpu in gpus)
    except UnknownHardware:
        return False
