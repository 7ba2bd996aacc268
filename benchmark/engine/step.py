"""Time of one forward pass, and what a ladder of concurrencies makes of it.

A roofline for each kind of work (roofline.py), the collectives (communication.py), and the engine's own overhead.
A prediction is the sum of parts whose errors are taken as independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .budget import graph_sizes, graphs_disabled, server_defaults
from .communication import Collective, collectives, seconds
from .hardware import Host
from .layout import Layout
from .memory import MemoryPlan
from .models import ModelShape
from .ranges import Range, independent_sum
from .roofline import (
    DENSE_LAYER_OVERHEAD,
    EAGER_LAYER_OVERHEAD,
    MOE_LAYER_OVERHEAD,
    PIPELINE_STAGE_OVERHEAD,
    PIPELINE_STALL,
    PREFILL_OVERHEAD,
    REQUEST_OVERHEAD,
    STEP_OVERHEAD,
    UNACCOUNTED_ABOVE,
    UNACCOUNTED_BELOW,
    StageWork,
    attention_seconds,
    eplb_seconds,
    experts_seconds,
    matrices_seconds,
    stage_work,
    three,
)
from .weights import ceil_div

if TYPE_CHECKING:
    from .calibration import Calibration

REMEMBERED_STEPS = 20_000
# The scheduler admits a request if its prompt and this share of its longest answer fit (SGLANG_INIT_NEW_TOKEN_RATIO).
NEW_TOKEN_RATIO = 0.7


class StepModel:
    """Step times of one configuration on one host. Calibrated if `calibration` is given.

    Raises:
        ValueError: the widths do not nest.
    """

    def __init__(
        self,
        shape: ModelShape,
        layout: Layout,
        engine: Mapping[str, Any],
        host: Host,
        release: str,
        calibration: Calibration | None = None,
    ) -> None:
        if not layout.whole:
            raise ValueError(f"tp {layout.tp}, ep {layout.ep}, attention DP {layout.attention_dp} do not nest.")
        self.shape, self.layout, self.engine, self.host = shape, layout, dict(engine), host
        self.release, self.calibration = release, calibration
        self._steps: dict[tuple[int, int], Range] = {}

    @cached_property
    def stages(self) -> tuple[StageWork, ...]:
        return tuple(
            stage_work(self.shape, self.layout, number, self.engine, self.host) for number in range(self.layout.pp)
        )

    @cached_property
    def graph_batch(self) -> int:
        """Largest batch of one rank that runs from a captured graph; 0 without graphs."""
        if graphs_disabled(self.engine):
            return 0
        defaults = server_defaults(self.engine, self.layout, self.host)
        return max(graph_sizes(self.engine, defaults, max(1, defaults.graph_max_batch)), default=0)

    def collectives(self, tokens: int) -> tuple[Collective, ...]:
        """Collectives of a decode pass of `tokens` tokens, all stages together."""
        return collectives(self.shape, self.layout, self.engine, tokens)

    def decode_seconds(self, batch: int, context_tokens: int) -> Range:
        """One decode step of `batch` requests (all replicas together), each with `context_tokens` in its cache.

        With pipeline stages the batch is cut into as many micro-batches; a step is the time in which each of them
        has advanced by one token.
        """
        key = (int(batch), int(context_tokens))
        if key not in self._steps:
            if len(self._steps) >= REMEMBERED_STEPS:
                self._steps.clear()
            step = self._sum(self.decode_parts(*key), "decode")
            self._steps[key] = stalled(step, layout=self.layout, batch=key[0])
        return self._steps[key]

    def decode_parts(self, batch: int, context_tokens: int) -> dict[str, list[Range]]:
        """The parts of a decode step before calibration: `communication` and `work`."""
        layout = self.layout
        replica = ceil_div(max(1, batch), max(1, layout.dp))
        micro = ceil_div(replica, layout.pp)
        own = ceil_div(micro, layout.attention_dp)
        pairs = own * (context_tokens + 1)
        eager = own > self.graph_batch
        work = [
            part for stage in self.stages for part in self._work(stage, micro, own, pairs, decode=True, eager=eager)
        ]
        work += [STEP_OVERHEAD, REQUEST_OVERHEAD.scaled(micro)]
        if layout.pp > 1:
            work.append(PIPELINE_STAGE_OVERHEAD.scaled(layout.pp))
        return {"work": work, "communication": [seconds(call, self.host) for call in self.collectives(micro)]}

    def prefill_seconds(self, new_tokens: int, context_tokens: int = 0) -> Range:
        """One prefill chunk of `new_tokens` tokens behind `context_tokens` that are cached already."""
        return self._sum(self.prefill_parts(new_tokens, context_tokens), "prefill")

    def prefill_parts(self, new_tokens: int, context_tokens: int = 0) -> dict[str, list[Range]]:
        """The parts of a prefill chunk before calibration: `communication` and `work`."""
        layout = self.layout
        tokens = max(1, ceil_div(int(new_tokens), max(1, layout.dp)))
        own = ceil_div(tokens, layout.attention_dp)
        pairs = own * (context_tokens + tokens / 2 + 1)
        work = [
            part for stage in self.stages for part in self._work(stage, tokens, own, pairs, decode=False, eager=False)
        ]
        work.append(PREFILL_OVERHEAD)
        calls = collectives(self.shape, layout, self.engine, tokens, sampled=1)
        return {"work": work, "communication": [seconds(call, self.host) for call in calls]}

    def _work(self, stage: StageWork, tokens: int, own: int, pairs: float, *, decode: bool, eager: bool) -> list[Range]:
        """Parts of one pass through a stage: `tokens` of the TP group, `own` of this attention rank."""
        shape, layout, gpu = self.shape, self.layout, self.host.gpu
        balanced = bool(self.engine.get("enable_eplb"))
        parts = [
            matrices_seconds(shape, gpu, stage, own),
            attention_seconds(shape, layout, gpu, stage, pairs, decode=decode),
            (EAGER_LAYER_OVERHEAD if eager else MOE_LAYER_OVERHEAD).scaled(stage.moe_layers),
            (EAGER_LAYER_OVERHEAD if eager else DENSE_LAYER_OVERHEAD).scaled(stage.layers - stage.moe_layers),
        ]
        if stage.moe_layers:
            parts.append(experts_seconds(shape, layout, gpu, stage, tokens, balanced=balanced))
            if balanced:
                parts.append(eplb_seconds(shape, layout, self.host, stage))
        return parts

    def _sum(self, parts: Mapping[str, list[Range]], kind: str) -> Range:
        calibration = self.calibration
        if calibration is None or not calibration.points:
            total = independent_sum([part for group in parts.values() for part in group])
            rest = Range(-UNACCOUNTED_BELOW * total.expected, 0.0, UNACCOUNTED_ABOVE * total.expected)
            return independent_sum([total, rest])
        work = sum(part.expected for part in parts["work"])
        communication = sum(part.expected for part in parts["communication"])
        scale = calibration.decode_scale if kind == "decode" else calibration.prefill_scale
        expected = work * scale + communication * calibration.communication_scale
        return Range(expected / calibration.spread, expected, expected * calibration.spread)


def stalled(range_: Range, layout: Layout, batch: int) -> Range:
    """A time of a pipeline that holds several micro-batches, with its stalls."""
    if layout.pp == 1 or batch <= 1:
        return range_
    return Range(*(a * b for a, b in zip(three(range_), three(PIPELINE_STALL), strict=True)))


def predict_ladder(
    step_model: StepModel, memory_plan: MemoryPlan, workload: Mapping[str, Any], ladder: Iterable[int]
) -> list[dict[str, Any]]:
    """A closed loop of `concurrency` users at each rung -> what they see.

    `workload` has prompt_tokens and output_tokens. Each rung gives concurrency, reached (requests that run at once),
    ttft and tpot (seconds) and output_tokens_per_second; None for all three where not one request fits. With B
    running, each request lives for L = output x step + B x prefill, because every prefill stops all decoding;
    throughput is B x output / L.
    """
    prompt, output = max(1, int(workload["prompt_tokens"])), max(1, int(workload["output_tokens"]))
    return [_rung(step_model, memory_plan, prompt, output, int(concurrency)) for concurrency in ladder]


def _rung(model: StepModel, memory: MemoryPlan, prompt: int, output: int, concurrency: int) -> dict[str, Any]:
    reached = min(concurrency, memory.concurrency(prompt + int(NEW_TOKEN_RATIO * output)))
    rung: dict[str, Any] = {"concurrency": concurrency, "reached": reached}
    if reached < 1 or memory.concurrency(prompt + output) < 1:
        return rung | {"reached": 0, "ttft": None, "tpot": None, "output_tokens_per_second": None}
    step = model.decode_seconds(reached, prompt + output // 2)
    alone = _prompt_seconds(model, memory, prompt)
    together = _batched_prefill(model, memory, prompt, reached, alone)
    # Stages work on different prompts at the same time.
    overlap = min(model.layout.pp, reached)
    together = stalled(together.scaled(1 / overlap), layout=model.layout, batch=reached)
    life = [output * s + reached * p for s, p in zip(three(step), three(together), strict=True)]
    # Staggered users wait for their own prefill and a step; users in step with each other for everybody's.
    waiting = [reached * p for p in three(together)]
    first = Range(alone.low, alone.expected + step.expected + waiting[1] / 4, alone.high + step.high + waiting[2])
    queued = max(0, concurrency - reached) / reached
    ttft = Range(*(own + queued * whole for own, whole in zip(three(first), life, strict=True)))
    rest = [max(whole - own, whole / 2) / output for whole, own in zip(life, three(first), strict=True)]
    tpot = Range(min(rest[0], step.low), max(rest[1], step.expected), max(rest[2], step.high))
    rate = Range(*(reached * output / whole for whole in reversed(life)))
    return rung | {"ttft": ttft, "tpot": tpot, "output_tokens_per_second": rate}


def _prompt_seconds(model: StepModel, memory: MemoryPlan, prompt: int) -> Range:
    """Prefill of one prompt, chunk by chunk."""
    chunk = memory.chunked_prefill_size if memory.chunked_prefill_size > 0 else prompt
    total = Range(0.0, 0.0, 0.0)
    for done in range(0, prompt, chunk):
        total = total.plus(model.prefill_seconds(min(chunk, prompt - done), done))
    return total


def _batched_prefill(model: StepModel, memory: MemoryPlan, prompt: int, reached: int, alone: Range) -> Range:
    """Prefill time of one request when several prompts share a chunk."""
    chunk = memory.chunked_prefill_size if memory.chunked_prefill_size > 0 else prompt
    together = max(1, min(reached, chunk // prompt))
    if together == 1:
        return alone
    # In a steady state about half of the prefills find company.
    shared = model.prefill_seconds(together * prompt).scaled(1 / together)
    return Range(min(shared.low, alone.low), (alone.expected + shared.expected) / 2, max(alone.high, shared.high))
