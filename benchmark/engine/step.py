"""Time of one forward pass, and what a ladder of concurrencies makes of it.

A roofline for each kind of work (roofline.py), the collectives (communication.py), and the engine's own overhead.
A prediction is the sum of parts whose errors are taken as independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .budget import graph_sizes, graphs_disabled, prefill_graphs_on, server_defaults
from .communication import Collective, collectives, seconds
from .hardware import Host
from .layout import Layout
from .memory import MemoryPlan
from .models import ModelShape
from .ranges import Range, independent_sum
from .roofline import (
    ACTIVATION_QUANTIZATION,
    ATTENTION_DP_OVERHEAD,
    DENSE_LAYER_OVERHEAD,
    EAGER_ATTENTION,
    EAGER_COLLECTIVES,
    EAGER_EXPERTS,
    EAGER_MLP,
    MOE_BATCH_OVERHEAD,
    MOE_LAYER_OVERHEAD,
    PIECEWISE_LAYER_OVERHEAD,
    PIPELINE_STAGE_OVERHEAD,
    PIPELINE_STAGE_PREFILL,
    PIPELINE_STALL,
    PREFILL_OVERHEAD,
    RANKS_OVERHEAD,
    REQUEST_OVERHEAD,
    STEP_OVERHEAD,
    UNACCOUNTED_ABOVE,
    UNACCOUNTED_BELOW,
    StageWork,
    attention_seconds,
    eplb_seconds,
    experts_seconds,
    matrices_seconds,
    quantizes_activations,
    stage_work,
    three,
)
from .weights import ceil_div

if TYPE_CHECKING:
    from .calibration import Calibration

REMEMBERED_STEPS = 20_000
# Share of a request's answer that stands in the cache, or is kept free for it, on average. Requests of a steady state
# are half done; for the rest the scheduler keeps a tenth free (SGLANG_INIT_NEW_TOKEN_RATIO 0.7, which falls to a
# seventh of it in 600 steps without a retraction).
HELD_SHARE = 0.55
# Prompts of MLA models above this run without piecewise graphs (--piecewise-cuda-graph-max-tokens).
MLA_PIECEWISE_TOKENS = 2048
PARTS = ("work", "launch", "communication")
"""What a pass is made of: the GPU's own work, launching kernels from Python, collectives."""


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
            stage_work(self.shape, self.layout, number, self.engine, self.host, self.release)
            for number in range(self.layout.pp)
        )

    @cached_property
    def graph_batch(self) -> int:
        """Largest batch of one rank that runs from a captured graph; 0 without graphs."""
        if graphs_disabled(self.engine):
            return 0
        defaults = server_defaults(self.engine, self.layout, self.host, self.release)
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

    def prefill_graphs(self, tokens: int) -> bool:
        """Whether a prefill of this many tokens on one rank runs from (piecewise) CUDA graphs."""
        engine, shape, layout = self.engine, self.shape, self.layout
        chunk = server_defaults(engine, layout, self.host, self.release).chunked_prefill_size
        largest = int(engine.get("piecewise_cuda_graph_max_tokens") or 0)
        largest = largest or (MLA_PIECEWISE_TOKENS if shape.attention == "mla" else max(chunk, 0))
        return tokens <= largest and prefill_graphs_on(engine, shape, layout, self.release)

    def decode_parts(self, batch: int, context_tokens: int) -> dict[str, list[Range]]:
        """The parts of a decode step before calibration, by PARTS."""
        layout = self.layout
        replica = ceil_div(max(1, batch), max(1, layout.dp))
        micro = ceil_div(replica, layout.pp)
        own = ceil_div(micro, layout.attention_dp)
        pairs = self._pairs(own, context_tokens + 1)
        graphs = own <= self.graph_batch
        work = [part for stage in self.stages for part in self._work(stage, micro, own, own, pairs, decode=True)]
        work += self._layers(MOE_LAYER_OVERHEAD, DENSE_LAYER_OVERHEAD) if graphs else []
        if graphs and quantizes_activations(self.shape):
            work.append(ACTIVATION_QUANTIZATION.scaled(self.shape.layers))
        if graphs and micro > 1:
            work.append(MOE_BATCH_OVERHEAD.scaled(self.shape.moe_layers))
        work += [STEP_OVERHEAD, REQUEST_OVERHEAD.scaled(own)]
        if layout.tp * layout.pp > 1:
            work.append(RANKS_OVERHEAD)
        if layout.attention_dp > 1:
            work.append(ATTENTION_DP_OVERHEAD)
        if layout.pp > 1:
            work.append(PIPELINE_STAGE_OVERHEAD.scaled(layout.pp))
        return {
            "work": work,
            "launch": [] if graphs else self._launches(),
            "communication": [seconds(call, self.host) for call in self.collectives(micro)],
        }

    def prefill_seconds(self, new_tokens: int, context_tokens: float = 0, prompts: float = 1) -> Range:
        """One prefill chunk of `new_tokens` tokens: `prompts` equal prompts, each behind `context_tokens` that are
        cached already.
        """
        return self._sum(self.prefill_parts(new_tokens, context_tokens, prompts), "prefill")

    def occupied(self, prefill: Range, under_way: int) -> Range:
        """How long a prefill keeps others waiting: pipeline stages work on different requests at the same time."""
        shared = prefill.scaled(1 / min(self.layout.pp, max(1, under_way)))
        return stalled(shared, layout=self.layout, batch=under_way)

    def prefill_parts(self, new_tokens: int, context_tokens: float = 0, prompts: float = 1) -> dict[str, list[Range]]:
        """The parts of a prefill chunk before calibration, by PARTS."""
        layout = self.layout
        tokens = max(1, ceil_div(int(new_tokens), max(1, layout.dp)))
        # Under attention DP a prompt stays on one rank; several spread over the ranks.
        ranks = min(layout.attention_dp, max(1, int(prompts)))
        own = ceil_div(tokens, ranks)
        pairs = self._pairs(own, context_tokens + tokens / max(1.0, prompts) / 2 + 1)
        sampled = max(1, round(prompts / ranks))
        work = [part for stage in self.stages for part in self._work(stage, tokens, own, sampled, pairs, decode=False)]
        work.append(PREFILL_OVERHEAD)
        if layout.attention_dp > 1:
            work.append(ATTENTION_DP_OVERHEAD)
        if layout.pp > 1:
            work.append(PIPELINE_STAGE_PREFILL.scaled(layout.pp))
        if self.prefill_graphs(own):
            work += self._layers(MOE_LAYER_OVERHEAD, DENSE_LAYER_OVERHEAD)
            launch = [PIECEWISE_LAYER_OVERHEAD.scaled(self.shape.layers)]
        else:
            launch = self._launches()
        calls = collectives(self.shape, layout, self.engine, tokens, sampled=max(1, round(prompts)))
        return {"work": work, "launch": launch, "communication": [seconds(call, self.host) for call in calls]}

    def _pairs(self, queries: int, context: float) -> tuple[float, float]:
        """(query tokens x cached tokens, and those of them that attention looks at)."""
        attended = min(context, self.shape.index_topk) if self.shape.index_topk else context
        return queries * context, queries * attended

    def _layers(self, moe: Range, dense: Range) -> list[Range]:
        """What every layer of a pass costs, all stages together."""
        return [moe.scaled(self.shape.moe_layers), dense.scaled(self.shape.layers - self.shape.moe_layers)]

    def _launches(self) -> list[Range]:
        """Launching every kernel of a pass from Python; one CPU, so the errors of the parts go together."""
        experts, layers = self.shape.moe_layers, self.shape.layers
        mlp = EAGER_EXPERTS.scaled(experts).plus(EAGER_MLP.scaled(layers - experts))
        launches = EAGER_ATTENTION[self.shape.attention].scaled(layers).plus(mlp)
        return [launches.plus(EAGER_COLLECTIVES.scaled(layers)) if self.layout.tp > 1 else launches]

    def _work(
        self, stage: StageWork, tokens: int, own: int, sampled: int, pairs: tuple[float, float], *, decode: bool
    ) -> list[Range]:
        """Parts of one pass through a stage: `tokens` of the TP group, `own` of this attention rank."""
        shape, layout, gpu = self.shape, self.layout, self.host.gpu
        balanced = bool(self.engine.get("enable_eplb"))
        parts = [
            matrices_seconds(shape, gpu, stage, own, sampled),
            attention_seconds(shape, layout, gpu, stage, *pairs, decode=decode),
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
        return calibration.corrected({group: sum(p.expected for p in ranges) for group, ranges in parts.items()}, kind)


def stalled(range_: Range, layout: Layout, batch: int) -> Range:
    """A time of a pipeline that holds several micro-batches, with its stalls."""
    if layout.pp == 1 or batch <= 1:
        return range_
    return Range(*(a * b for a, b in zip(three(range_), three(PIPELINE_STALL), strict=True)))


def predict_ladder(
    step_model: StepModel, memory_plan: MemoryPlan, workload: Mapping[str, Any], ladder: Iterable[int]
) -> list[dict[str, Any]]:
    """A closed loop of `concurrency` users at each rung -> what they see.

    `workload` has prompt_tokens and output_tokens; with a length_range r they are the longest, and lengths are uniform
    from r of them on, so the mean of (1 + r) / 2 of them is what times are for. Each rung gives concurrency, reached
    (requests that run at once), ttft and tpot (seconds) and output_tokens_per_second; None for all three where not one
    request fits. With B running, each request lives for L = output x step + B x prefill, because every prefill stops
    all decoding; throughput is B x output / L.
    """
    prompt, output = max(1, int(workload["prompt_tokens"])), max(1, int(workload["output_tokens"]))
    if memory_plan.concurrency(prompt + output) < 1:
        none = {"reached": 0, "ttft": None, "tpot": None, "output_tokens_per_second": None}
        return [{"concurrency": int(concurrency)} | none for concurrency in ladder]
    mean = (1 + float(workload.get("length_range") or 1.0)) / 2
    prompt, output = max(1, round(mean * prompt)), max(1, round(mean * output))
    return [_rung(step_model, memory_plan, prompt, output, int(concurrency)) for concurrency in ladder]


def _rung(model: StepModel, memory: MemoryPlan, prompt: int, output: int, concurrency: int) -> dict[str, Any]:
    """One rung, where at least one request fits."""
    reached = min(concurrency, memory.concurrency(prompt + int(HELD_SHARE * output)))
    rung: dict[str, Any] = {"concurrency": concurrency, "reached": reached}
    step = model.decode_seconds(reached, prompt + output // 2)
    alone = _prompt_seconds(model, memory, prompt)
    together, company = _shared_prefill(model, memory, prompt, output, reached, alone)
    together = model.occupied(together, reached)
    life = [output * s + reached * p for s, p in zip(three(step), three(together), strict=True)]
    # A request waits for what runs, a step or a prefill, and for its own prefill, which takes all that wait with it.
    # Where a chunk holds one prompt they queue (constant service: M/D/1). Users in step wait for everybody's.
    busy = reached * together.expected / life[1] if reached > 1 else 0.0
    shared = company * together.expected
    running = shared / 2
    if largest_company(prompt, reached, memory.chunked_prefill_size, model.layout.attention_dp) == 1:
        running = min(running / (1 - busy), reached * together.expected / 2)
    wait = max(alone.expected, shared) + (1 - busy) * step.expected / 2 + busy * running
    first = Range(alone.low, max(alone.low, wait), alone.high + step.high + reached * together.high)
    queued = max(0, concurrency - reached) / reached
    ttft = Range(*(own + queued * whole for own, whole in zip(three(first), life, strict=True)))
    rest = [max(whole - own, whole / 2) / output for whole, own in zip(life, three(first), strict=True)]
    tpot = Range(min(rest[0], step.low), max(rest[1], step.expected), max(rest[2], step.high))
    rate = Range(*(reached * output / whole for whole in reversed(life)))
    return rung | {"ttft": ttft, "tpot": tpot, "output_tokens_per_second": rate}


def _prompt_seconds(model: StepModel, memory: MemoryPlan, prompt: int, ranks: int = 1) -> Range:
    """Prefill of one prompt, chunk by chunk, on each of `ranks` attention-DP ranks."""
    chunk = memory.chunked_prefill_size if memory.chunked_prefill_size > 0 else prompt
    total = Range(0.0, 0.0, 0.0)
    for done in range(0, prompt, chunk):
        total = total.plus(model.prefill_seconds(ranks * min(chunk, prompt - done), done, ranks))
    return total


def _shared_prefill(
    model: StepModel, memory: MemoryPlan, prompt: int, output: int, reached: int, alone: Range
) -> tuple[Range, float]:
    """(prefill time that one request adds, how many prompts share its prefill).

    At best every chunk is full, at worst each prompt is prefilled by itself.
    """
    chunk, ranks = memory.chunked_prefill_size, model.layout.attention_dp
    company = company_of(prompt, output, reached, chunk, ranks)
    if 0 < chunk < 2 * prompt:
        # Prompts of several passes, or that leave no room for another: they meet on other ranks only.
        shared = _prompt_seconds(model, memory, prompt, round(company)).scaled(1 / company)
        return Range(min(shared.low, alone.low), min(shared.expected, alone.expected), alone.high), company
    most = largest_company(prompt, reached, chunk, ranks)
    full = model.prefill_seconds(most * prompt, 0, most).scaled(1 / most)
    shared = model.prefill_seconds(round(company * prompt), 0, company).scaled(1 / company)
    return Range(min(full.low, shared.low), min(shared.expected, alone.expected), max(alone.high, shared.high)), company


def largest_company(prompt: int, reached: int, chunk: int, ranks: int = 1) -> int:
    """Prompts that share a pass of `chunk` tokens (0 or less: no limit) on each of `ranks`, with `reached` users."""
    return reached if chunk <= 0 else min(reached, ranks * max(1, chunk // prompt))


def company_of(prompt: int, output: int, reached: int, chunk: int, ranks: int = 1) -> float:
    """Prompts that share a prefill, itself included, with `reached` users in a closed loop.

    In a steady state reached/output requests end in every step, and those that follow them are prefilled together: a
    request finds 1 + reached/output of them, as many as the chunks hold. While a prompt that fills a chunk is
    prefilled, others come to the other ranks.
    """
    most = float(largest_company(prompt, reached, chunk, ranks))
    if 0 < chunk < 2 * prompt:
        return most
    return min(most, 1 + reached / output)
