"""What real starts and their points teach about one model on one host.

A start corrects the memory model (free memory before the load, weights beyond the tensors, graphs); points correct
the time model: one factor for the work of a decode step, one for the collectives, one for prefill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import median
from typing import Any

from .hardware import Host
from .layout import Layout
from .memory import plan_memory
from .models import ModelShape
from .ranges import Range
from .step import StepModel, stalled

# One configuration's error on another is not its scatter: a calibrated range is at least this wide each way.
LEAST_SPREAD = 1.15
ONE_POINT_SPREAD = 1.4
# How much a factor's logarithm is held towards 0 (no correction), in points.
PRIOR_POINTS = 0.02
_GRID = [exp(0.1 * step) for step in range(-25, 26)]


@dataclass(frozen=True)
class Calibration:
    """Corrections for one model on one host."""

    source: str
    """What it rests on, in words for the user."""
    weights_extra_bytes: int = 0
    pre_load_free_bytes: int = 0
    """0: not measured."""
    graph_scale: float = 1.0
    decode_scale: float = 1.0
    communication_scale: float = 1.0
    prefill_scale: float = 1.0
    spread: float = 2.0
    """high / expected = expected / low of a calibrated time."""
    points: int = 0


def calibrate(
    records: Iterable[Mapping[str, Any]], shape: ModelShape, host: Host, release: str, name: str = ""
) -> Calibration | None:
    """Records (as JSON objects) of this model on this host -> corrections; None if none of them teaches anything.

    Records of another outcome than `measured` still teach memory if they have a start.
    """
    kept = [record for record in records if _layout(record, release) is not None]
    memory = _memory(kept, shape, host, release)
    points = [point for record in kept for point in _points(record, shape, host, release)]
    if not memory and not points:
        return None
    decode, communication, spread = _fit([p for p in points if p.kind == "decode"])
    prefill = [p.measured / p.predicted for p in points if p.kind == "prefill"]
    starts = sum(1 for record in kept if record.get("start"))
    return Calibration(
        source=f"{name or 'this host'}: {_count(starts, 'start')}, {_count(len(points), 'measurement')}",
        decode_scale=decode,
        communication_scale=communication,
        prefill_scale=median(prefill) if prefill else decode,
        spread=spread,
        points=len(points),
        **memory,
    )


@dataclass(frozen=True)
class _Point:
    kind: str
    measured: float
    work: float
    communication: float

    @property
    def predicted(self) -> float:
        return self.work + self.communication


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


def _memory(records: list[Mapping[str, Any]], shape: ModelShape, host: Host, release: str) -> dict[str, Any]:
    extras, frees, graphs = [], [], []
    for record in records:
        start, layout = record.get("start") or {}, _layout(record, release)
        if not start or layout is None:
            continue
        plan = plan_memory(shape, layout, _engine(record), host, release)
        if start.get("weights_bytes"):
            extras.append(start["weights_bytes"] - max(plan.stages))
        if start.get("available_before_load_bytes"):
            frees.append(start["available_before_load_bytes"])
        if start.get("graph_bytes") and plan.graph_bytes:
            graphs.append(start["graph_bytes"] / plan.graph_bytes)
    found: dict[str, Any] = {}
    if extras:
        found["weights_extra_bytes"] = int(median(extras))
    if frees:
        found["pre_load_free_bytes"] = int(min(frees))
    if graphs:
        found["graph_scale"] = median(graphs)
    return found


def _points(record: Mapping[str, Any], shape: ModelShape, host: Host, release: str) -> list[_Point]:
    """Median TPOT of each valid point, and median TTFT at concurrency 1."""
    layout, workload = _layout(record, release), record.get("workload") or {}
    prompt, output = workload.get("prompt_tokens"), workload.get("output_tokens")
    if layout is None or not prompt or not output:
        return []
    model = StepModel(shape, layout, _engine(record), host, release)
    memory = plan_memory(shape, layout, _engine(record), host, release)
    points = []
    for point in record.get("points") or ():
        if any(flag.get("severity") == "invalid" for flag in point.get("flags") or ()):
            continue
        concurrency = int(point.get("concurrency") or 0)
        tpot, ttft = (point.get("tpot_seconds") or {}).get("p50"), (point.get("ttft_seconds") or {}).get("p50")
        if concurrency < 1:
            continue
        reached = min(concurrency, max(1, memory.max_running_requests))
        if tpot:
            # The factors are those of the parts; a pipeline's stalls come on top of them.
            stall = stalled(Range(1.0, 1.0, 1.0), layout, reached).expected
            points.append(_point("decode", tpot / stall, model.decode_parts(reached, prompt + output // 2)))
        if ttft and concurrency == 1:
            points.append(_point("prefill", ttft, model.prefill_parts(prompt)))
    return points


def _point(kind: str, measured: float, parts: Mapping[str, Any]) -> _Point:
    work, communication = (sum(part.expected for part in parts[group]) for group in ("work", "communication"))
    return _Point(kind, measured, work, communication)


def _fit(points: list[_Point]) -> tuple[float, float, float]:
    """(factor of work, factor of communication, spread): least squares of log ratios, held towards 1."""
    if not points:
        return 1.0, 1.0, 2.0
    talks = any(point.communication > 0.02 * point.predicted for point in points)

    def cost(work: float, communication: float) -> float:
        residuals = sum(_residual(point, work, communication) ** 2 for point in points)
        return residuals + PRIOR_POINTS * (log(work) ** 2 + log(communication) ** 2)

    work, communication = min(
        ((a, b) for a in _GRID for b in (_GRID if talks else [1.0])), key=lambda pair: cost(*pair)
    )
    if len(points) == 1:
        return work, communication, ONE_POINT_SPREAD
    deviation = sqrt(sum(_residual(p, work, communication) ** 2 for p in points) / len(points))
    return work, communication, max(LEAST_SPREAD, exp(2 * deviation))


def _residual(point: _Point, work: float, communication: float) -> float:
    return log(point.measured / (work * point.work + communication * point.communication))
