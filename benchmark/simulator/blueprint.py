"""Everything that the engine model says about one command line on one host, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.engine import budget, hardware, memory, models
from benchmark.engine.layout import Layout
from benchmark.engine.step import StepModel

from .launch import refusals
from .launch.arguments import ServerArguments


class Refused(Exception):  # noqa: N818
    """The engine ends with this traceback (where, last line) before it has ranks."""


@dataclass(frozen=True)
class Rank:
    """One scheduler process of the engine and the GPU it runs on."""

    index: int
    pp: int
    tp: int
    ep: int
    data: int
    """Its data-parallel rank, replicas and attention DP counted together."""
    gpu: int
    """-1: there is no such GPU."""
    prefix: str
    """Of its log lines: ` TP0 EP0`."""
    name: str
    """Of its process: `sglang::scheduler_TP0_EP0`."""


@dataclass(frozen=True)
class Blueprint:
    """A configuration on a host. Sizes are bytes of one rank, times are seconds."""

    arguments: ServerArguments
    architecture: str
    quantization: str
    vocabulary: int
    context_length: int
    gpu_total_bytes: int
    """What CUDA calls the GPU's capacity."""
    free_before_load_bytes: int
    """After the communicators are up, on a GPU that nobody else uses."""
    ranks: tuple[Rank, ...]
    """Those of this node."""
    node: int
    world: int
    """Ranks of all nodes."""
    refusal: str | None
    """The last line of a traceback, where a rank refuses the configuration."""
    stage_tensors: tuple[tuple[tuple[str, int | None, int], ...], ...]
    """For each pipeline stage what one rank allocates while it loads, in order: (tensor, layer, bytes)."""
    stage_weights: tuple[int, ...]
    """For each pipeline stage what a rank still holds once loaded."""
    mem_fraction: float
    stage_kv_bytes_per_token: tuple[int, ...]
    """For each pipeline stage, of one rank."""
    token_capacity: int
    pools: int
    """Independent KV pools of `token_capacity` tokens each (attention DP and replicas)."""
    graph_bytes: int
    graph_batches: tuple[int, ...]
    request_table_bytes: int
    workspace_bytes: int
    """What else is allocated between the pool and the decode graphs."""
    max_running_requests: int
    chunked_prefill_size: int
    decode_seconds: Callable[[int, int], float]
    """(running requests, tokens of context of each) -> one step."""
    prefill_seconds: Callable[[int, int, int, int], float]
    """(new tokens, tokens already there of each prompt, prompts, requests under way) -> one chunk: as long as it keeps
    the others waiting, which with pipeline stages is less than it takes.
    """

    def resolved(self) -> dict[str, Any]:
        """Settings that the engine works out where the command line leaves them open."""
        return {
            "mem_fraction_static": self.mem_fraction,
            "chunked_prefill_size": self.chunked_prefill_size,
            "cuda_graph_max_bs": max(self.graph_batches, default=None),
            "cuda_graph_bs": list(self.graph_batches) or None,
        }

    @property
    def prefixes(self) -> tuple[tuple[str, ...], ...]:
        """For each data-parallel rank how its pipeline stages on this node, by their first rank, begin a log line."""
        found: list[dict[int, str]] = [{} for _ in range(self.pools)]
        for rank in self.ranks:
            found[rank.data].setdefault(rank.pp, rank.prefix)
        return tuple(tuple(stages.values()) for stages in found)

    @property
    def running_per_rank(self) -> int:
        """Requests that may run on one data-parallel rank."""
        return self.max_running_requests // self.pools

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the largest stage's rank."""
        return max(self.stage_kv_bytes_per_token)

    @property
    def weights_bytes(self) -> int:
        """Of the largest stage's rank."""
        return max(self.stage_weights)


def build(arguments: ServerArguments, hardware_name: str, environment: Mapping[str, str]) -> Blueprint:
    """Asks the engine model about a command line.

    Raises:
        models.UnknownModel, hardware.UnknownHardware: as their modules say.
        Refused: the engine ends with this before it has ranks.
    """
    shape = models.load_model(model_source(arguments["model_path"]))
    engine = arguments.engine()
    layout = Layout.from_engine(engine, arguments.release)
    node = int(arguments["node_rank"] or 0)
    host = hardware.find_host(hardware_name, nodes=max(1, layout.nnodes))
    try:
        shape = shape.overridden(engine)
    except ValueError as error:
        raise Refused("arguments", f"ValueError: {error}") from error
    refusal = refusals.find(arguments, shape, host, environment)
    if refusal and refusal.in_arguments:
        raise Refused("arguments", refusal.text)
    if layout.ep > layout.tp:
        raise Refused("spawn", "ZeroDivisionError: integer division or modulo by zero")
    world = layout.gpus
    ranks = tuple(_ranks(layout, engine, visible_gpus(environment, host.count), node))
    try:
        plan = memory.plan_memory(shape, layout, engine, host, arguments.release)
        step = StepModel(shape, layout, engine, host, arguments.release)
    except ValueError as error:
        if refusal is None and layout.tp % layout.ep == 0:
            raise Refused("arguments", f"ValueError: {error}") from error
        # The ranks end before they hold anything, so the sizes of a layout that can be built will do.
        layout = Layout()
        plan = memory.plan_memory(shape, layout, engine, host, arguments.release)
        step = StepModel(shape, layout, engine, host, arguments.release)
    stages = tuple(
        tuple((item.tensor, item.layer, item.bytes) for item in memory.allocations(shape, layout, stage, engine, host))
        for stage in range(layout.pp)
    )
    return Blueprint(
        arguments=arguments,
        architecture=shape.architecture,
        quantization=shape.quantization,
        vocabulary=shape.vocab,
        context_length=plan.context_length,
        gpu_total_bytes=host.gpu.usable_bytes,
        free_before_load_bytes=plan.pre_load_free_bytes,
        ranks=ranks,
        node=node,
        world=world,
        refusal=refusal.text if refusal else None,
        stage_tensors=stages,
        stage_weights=plan.stages,
        mem_fraction=plan.mem_fraction_static,
        stage_kv_bytes_per_token=tuple(
            budget.kv_bytes_per_token(shape, layout, stage, engine, host, arguments.release)
            for stage in range(layout.pp)
        ),
        token_capacity=plan.token_capacity,
        pools=plan.pools,
        graph_bytes=plan.graph_bytes,
        graph_batches=graph_batches(plan.graph_max_batch),
        request_table_bytes=plan.request_table_bytes,
        workspace_bytes=memory.WORKSPACE_BYTES + plan.state_bytes,
        max_running_requests=plan.max_running_requests,
        chunked_prefill_size=plan.chunked_prefill_size,
        decode_seconds=lambda batch, context: step.decode_seconds(batch, context).expected,
        prefill_seconds=lambda new, context, prompts, under_way: (
            step.occupied(step.prefill_seconds(new, context, prompts), under_way).expected
        ),
    )


def model_source(path: str) -> str:
    """A folder's config.json where there is one, otherwise the text as it is (a shipped name)."""
    config = Path(path) / "config.json"
    return str(config) if config.is_file() else path


def graph_batches(largest: int) -> tuple[int, ...]:
    """Batch sizes whose decode step is captured: 1, 2, 4, 8, 12, 16, then every 8 and from 256 every 16."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, max(273, largest + 1), 16)]
    return tuple(size for size in sizes if size <= largest)


def visible_gpus(environment: Mapping[str, str], count: int) -> list[int]:
    """The host's GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; it ends at the first that does not exist."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(count))
    visible = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) >= count:
            break
        visible.append(int(part))
    return visible


def _ranks(layout: Layout, engine: Mapping[str, Any], visible: list[int], node: int) -> list[Rank]:
    """The ranks that a node starts; `index` counts those of the node."""
    stages, own = layout.node_ranks(node)
    first, step = int(engine.get("base_gpu_id") or 0), int(engine.get("gpu_id_step") or 1)
    width = max(1, layout.tp // layout.ep)
    ranks = []
    for replica in range(layout.dp):
        for pp in stages:
            for tp in own:
                ep = tp // width
                attention = tp // max(1, layout.tp // layout.attention_dp)
                prefix = "".join(
                    f" {label}{number}"
                    for label, number, count in (
                        ("DP", replica, layout.dp),
                        ("DP", attention, layout.attention_dp),
                        ("PP", pp, layout.pp),
                        ("TP", tp, layout.tp),
                        ("EP", ep, layout.ep),
                    )
                    if count > 1
                )
                index = len(ranks)
                name = "sglang::scheduler" + prefix.replace(" ", "_")
                device = first + index * step
                gpu = visible[device] if 0 <= device < len(visible) else -1
                data = replica * layout.attention_dp + attention
                ranks.append(Rank(index, pp, tp, ep, data, gpu, prefix, name))
    return ranks
