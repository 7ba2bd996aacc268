"""Memory of one GPU: weights, what is left for the KV pool, and whether a configuration starts.

Formulas: SGLang 0.5.11 and 0.5.23 (arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py,
mem_cache/pool_configurator.py). Bytes are bytes of one GPU, of the pipeline stage that has least room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .budget import (
    MIDDLE,
    ServerDefaults,
    build_options,
    default_fraction,
    drafts_counted,
    graph_bytes,
    graph_sizes,
    guessed,
    kv_cell,
    linear_states,
    multimodal,
    pre_load_free_bytes,
    prefill_bytes,
    running_requests,
    segment_bytes,
    separate_draft,
    server_defaults,
)
from .flags import release_at_least
from .hardware import GIB, MIB, Host
from .layout import Layout
from .models import ModelShape
from .weights import Allocation, BuildOptions, tensors

if TYPE_CHECKING:
    from .calibration import Calibration

# Besides pool, table and graphs: samplers, attention workspace, warm-up buffers. The captures show 0.05 to 0.09 GiB
# between KV pool and `Memory pool end` and 0.1 before the capture begins (tests/captures/start-stop/mini.log).
WORKSPACE_BYTES = int(0.2 * GIB)
# FlashInfer keeps a workspace of its own (SGLANG_FLASHINFER_WORKSPACE_SIZE, 384 MiB, twice for MLA).
FLASHINFER_WORKSPACE_BYTES = int(0.75 * GIB)
# A vision model keeps room for its embedding cache (SGLANG_VLM_CACHE_SIZE_MB=100; 1 GiB more with CUDA IPC).
VISION_RESERVE_BYTES = 100 * MIB

# Free memory below this for each token of a chunk is worth a warning. The engine's own default keeps 1.5 MiB a token
# (memory_hook.py:281). With 0.7 MiB eight RTX PRO 6000 serve Kimi K2.6 (fraction 0.94, chunks of 8,092; rtx6kpro); with
# 0.56 or less four died of a prefill (Qwen3.5-397B-A17B-NVFP4, fraction 0.8, chunks of 32,768; InferenceX), with 0.67
# eight H200 (GLM-5.2-FP8, attention DP 8, fraction 0.85, chunks of 16,384; gpustack).
PREFILL_RESERVE = int(0.68 * MIB)
_DRAFT_UNCOUNTED = "The draft model is not counted: its weights and its cache take memory beside the model's."


@dataclass(frozen=True)
class Fractions:
    """Values of --mem-fraction-static."""

    least: float
    """The smallest that starts."""
    roomy: float
    """The largest that leaves room for prefills."""
    most: float
    """The largest that starts."""


@dataclass(frozen=True)
class MemoryFailure:
    """Where a start ends for want of memory. `sentence` says it to the user."""

    stage: str
    """`weights`, `kv` or `graphs`."""
    layer: int | None
    tensor: str | None
    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    sentence: str


@dataclass(frozen=True)
class MemoryPlan:
    """What one GPU of the fullest pipeline stage holds."""

    parts: dict[str, int]
    weights_bytes: int
    stages: tuple[int, ...]
    """Weights of a GPU of each pipeline stage."""
    pre_load_free_bytes: int
    kv_pool_bytes: int
    kv_bytes_per_token: int
    token_capacity: int
    """Tokens of one KV pool, as the engine prints it (one pool for each attention-DP rank)."""
    pools: int
    """Independent KV pools: attention DP x DP."""
    state_bytes: int
    """Recurrent states of a hybrid model."""
    request_table_bytes: int
    graph_bytes: int
    prefill_bytes: int
    """Peak of activations during the largest prefill chunk; outside every budget of the engine."""
    prefill_reserve_bytes: int
    """What should stay free so that no prefill is in danger."""
    slack_bytes: int
    """What stays free when the engine serves, before activations."""
    max_running_requests: int
    chunked_prefill_size: int
    graph_max_batch: int
    """Of one data-parallel rank; 0 without decode graphs."""
    context_length: int
    mem_fraction_static: float
    fraction_is_default: bool
    min_fraction: float
    roomy_fraction: float
    """The largest fraction that leaves `prefill_reserve_bytes` free; below `min_fraction` if none does."""
    max_fraction: float
    margin_bytes: int
    """Room to the nearest failure of the start; negative if it fails."""
    failure: MemoryFailure | None
    guessed: tuple[str, ...] = ()
    """Why the weights may not be what is counted."""
    uncounted: tuple[str, ...] = ()
    """What takes memory and is not counted."""

    @property
    def total_token_capacity(self) -> int:
        return self.token_capacity * self.pools

    def concurrency(self, tokens_per_request: int) -> int:
        """Requests that can run at once if each holds this many tokens, on average over time.

        Pools are filled evenly, but not in step: what is left over in one of them now and then holds one more.
        """
        each = max(1, tokens_per_request)
        by_tokens = self.total_token_capacity // each if self.token_capacity >= each else 0
        return max(0, min(self.max_running_requests, by_tokens))


def allocations(
    shape: ModelShape,
    layout: Layout,
    stage: int = 0,
    engine: Mapping[str, Any] | None = None,
    host: Host | None = None,
) -> Iterator[Allocation]:
    """Tensors of one rank of a stage in the order in which the engine builds them, then what loading adds.

    Raises:
        ValueError: the widths do not nest, or no such stage.
    """
    yield from tensors(shape, layout, stage, build_options(engine or {}, host, shape))


def plan_memory(
    shape: ModelShape,
    layout: Layout,
    engine: Mapping[str, Any],
    host: Host,
    release: str,
    calibration: Calibration | None = None,
) -> MemoryPlan:
    """Predict the memory of a start.

    `calibration` replaces what is estimated by what this host showed: free memory before the load, weights
    beyond the tensors, graph memory.

    Raises:
        ValueError: the widths do not nest, or a setting is not a number.
    """
    options = build_options(engine, host, shape)
    extra = calibration.weights_extra_bytes if calibration else 0
    held = tuple(stage_bytes(shape, layout, stage, options) + extra for stage in range(layout.pp))
    measured = calibration.pre_load_free_bytes.get(layout.gpus) if calibration else None
    free = measured or int(pre_load_free_bytes(host, layout).expected)
    cells = [kv_cell(shape, layout, stage, engine, host, release) for stage in range(layout.pp)]
    fraction, is_default = _fraction(engine, shape, layout, host, release)
    reserve = _reserve(shape, engine, release)
    # A draft that loads after the pool is sized takes from what lies outside the budget.
    late = () if drafts_counted(release) else _draft_bytes(shape, layout, options)
    drafts = late or (0,) * layout.pp
    sized = tuple(weights - draft for weights, draft in zip(held, drafts, strict=True))
    tokens, worst, state = _capacity(
        shape, layout, engine, sized, [cell.sized for cell in cells], free, fraction, reserve
    )
    beside = _beside(shape, layout, engine, host, release, tokens, calibration.graph_scale if calibration else 1.0)
    weights, cell = held[worst], cells[worst].held
    # What the pool takes beyond its budget comes out of what lies outside it.
    over = tokens * (cell - cells[worst].sized) + drafts[worst]
    outside = int(free * (1 - fraction)) + reserve - over
    room = int(free - sized[worst] - free * (1 - fraction) - reserve - state)
    least = sized[worst] + reserve + state
    most = least + (free - weights - state - beside.total) * cells[worst].sized / cell
    pools = layout.attention_dp * layout.dp
    prefill = prefill_bytes(shape, layout, beside.defaults.chunked_prefill_size, beside.context)
    spare = max(prefill, PREFILL_RESERVE * max(0, beside.defaults.whole_chunk))
    fractions = Fractions((least + cells[worst].sized) / free, (most - spare) / free, most / free)
    failure = (
        _weights_failure(shape, layout, options, host, free)
        or _kv_failure(layout, host, weights, free, fraction, room, cell, fractions)
        or _graph_failure(layout, host, fraction, free, outside, beside, fractions)
    )
    return MemoryPlan(
        parts=_parts(shape, layout, worst, options, extra),
        weights_bytes=weights,
        stages=held,
        pre_load_free_bytes=free,
        kv_pool_bytes=tokens * cell,
        kv_bytes_per_token=cell,
        token_capacity=tokens,
        pools=pools,
        state_bytes=state,
        request_table_bytes=beside.table,
        graph_bytes=beside.graphs,
        prefill_bytes=prefill,
        prefill_reserve_bytes=spare,
        slack_bytes=max(0, free - weights - tokens * cell - state - beside.total),
        max_running_requests=beside.running,
        chunked_prefill_size=beside.defaults.chunked_prefill_size,
        graph_max_batch=max(graph_sizes(engine, beside.defaults, beside.running // pools), default=0),
        context_length=beside.context,
        mem_fraction_static=fraction,
        fraction_is_default=is_default,
        min_fraction=fractions.least,
        roomy_fraction=fractions.roomy,
        max_fraction=fractions.most,
        margin_bytes=min(free - max(held), room, outside - beside.total),
        failure=failure,
        guessed=guessed(engine, shape),
        uncounted=(_DRAFT_UNCOUNTED,) if separate_draft(engine, shape) else (),
    )


@dataclass(frozen=True)
class _Beside:
    """What stands beside weights and cache, and the numbers that size it."""

    defaults: ServerDefaults
    context: int
    running: int
    table: int
    graphs: int
    workspace: int

    @property
    def total(self) -> int:
        return self.table + self.graphs + self.workspace


def _beside(
    shape: ModelShape,
    layout: Layout,
    engine: Mapping[str, Any],
    host: Host,
    release: str,
    tokens: int,
    graph_scale: float,
) -> _Beside:
    defaults = server_defaults(engine, layout, host, release)
    context = int(engine.get("context_length") or shape.max_positions)
    running = _max_running(engine, layout, tokens, context)
    # int32 [requests + 1, context + 4] (mem_cache/memory_pool.py:376).
    table = (running // max(1, layout.attention_dp * layout.dp) + 1) * (context + 4) * 4
    graphs = int(graph_bytes(shape, layout, engine, defaults, running, release) * graph_scale)
    return _Beside(defaults, context, running, table, graphs, _workspace(engine))


def stage_bytes(shape: ModelShape, layout: Layout, stage: int, options: BuildOptions) -> int:
    """Weights of one rank of a stage once loaded, as the allocator holds them."""
    return segment_bytes(a.bytes for a in tensors(shape, layout, stage, options) if not a.temporary)


def _draft_bytes(shape: ModelShape, layout: Layout, options: BuildOptions) -> tuple[int, ...]:
    """What the model's own draft adds to the weights of each stage; nothing without one."""
    if not options.draft_layers:
        return ()
    without = replace(options, draft_layers=0)
    return tuple(
        stage_bytes(shape, layout, stage, options) - stage_bytes(shape, layout, stage, without)
        for stage in range(layout.pp)
    )


def _parts(shape: ModelShape, layout: Layout, stage: int, options: BuildOptions, extra: int) -> dict[str, int]:
    parts: dict[str, int] = {}
    for allocation in tensors(shape, layout, stage, options):
        if not allocation.temporary:
            parts[allocation.part] = parts.get(allocation.part, 0) + allocation.bytes
    allocator = stage_bytes(shape, layout, stage, options) - sum(parts.values()) + extra
    return parts | {"allocator": allocator}


def _fraction(
    engine: Mapping[str, Any], shape: ModelShape, layout: Layout, host: Host, release: str
) -> tuple[float, bool]:
    given = engine.get("mem_fraction_static")
    if given is not None:
        return float(given), False
    return default_fraction(engine, shape, layout, host, release), True


def _reserve(shape: ModelShape, engine: Mapping[str, Any], release: str) -> int:
    """What the pool leaves a vision tower (0.5.23 kv_cache_configurator.py, mm_runtime_reservation_gb); 0.5.11 leaves
    nothing (model_executor/model_runner_kv_cache_mixin.py:64)."""
    if not multimodal(engine, shape) or not release_at_least(release, MIDDLE):
        return 0
    transport = str(engine.get("mm_feature_transport") or "")
    return VISION_RESERVE_BYTES + (GIB if transport in ("cuda_ipc", "cuda_vmm") else 0)


def _workspace(engine: Mapping[str, Any]) -> int:
    backends = (engine.get("attention_backend"), engine.get("decode_attention_backend"))
    return WORKSPACE_BYTES + (FLASHINFER_WORKSPACE_BYTES if "flashinfer" in backends else 0)


def _capacity(
    shape: ModelShape,
    layout: Layout,
    engine: Mapping[str, Any],
    weights: tuple[int, ...],
    cells: list[int],
    free: int,
    fraction: float,
    reserve: int,
) -> tuple[int, int, int]:
    """(tokens, the stage that allows least, its recurrent states): kv_cache_configurator.py:2990-3060."""
    page = max(1, int(engine.get("page_size") or 1))
    best: tuple[int, int, int] | None = None
    for stage, (weight, cell) in enumerate(zip(weights, cells, strict=True)):
        rest = free - weight - free * (1 - fraction) - reserve
        state = linear_states(shape, layout, engine, rest)
        tokens = max(0, int(rest - state)) // cell if cell else 0
        if best is None or tokens < best[0]:
            best = (tokens, stage, state)
    tokens, stage, state = best or (0, 0, 0)
    limit = engine.get("max_total_tokens")
    tokens = min(tokens, int(limit)) if limit else tokens
    return tokens // page * page, stage, state


def _max_running(engine: Mapping[str, Any], layout: Layout, tokens: int, context: int) -> int:
    """Requests that may run at once, over all attention-DP ranks (kv_cache_configurator.py:3119-3180)."""
    pools = max(1, layout.attention_dp * layout.dp)
    given = running_requests(engine)
    if given is not None:
        wanted = max(1, given // max(1, layout.attention_dp))
    else:
        wanted = min(max(int(tokens / max(1, context) * 512), 2048), 4096)
    # Without a pool the engine never gets here; what was wanted then sizes the table and the graphs.
    return max(1, min(wanted, tokens // 2) if tokens else wanted) * pools


def uses(layout: Layout, host: Host) -> str:
    """`it uses 4 of 8 GPUs`."""
    return f"it uses {layout.gpus} of {host.count * host.nodes} GPUs"


def _weights_failure(
    shape: ModelShape, layout: Layout, options: BuildOptions, host: Host, free: int
) -> MemoryFailure | None:
    for stage in range(layout.pp):
        built = tensors(shape, layout, stage, options)
        held = 0
        for allocation in built:
            if held + allocation.bytes > free:
                needed = stage_bytes(shape, layout, stage, options)
                return _load_failure(layout, host, allocation, free, held, needed)
            held += allocation.bytes
    return None


def _load_failure(
    layout: Layout, host: Host, allocation: Allocation, free: int, held: int, needed: int
) -> MemoryFailure:
    where = f"layer {allocation.layer}" if allocation.layer is not None else allocation.tensor
    sentence = (
        f"Will not fit: {uses(layout, host)}, each would hold {needed / GIB:.1f} GiB of weights, and "
        f"{free / GIB:.1f} GiB are free. Loading ends at {where} with a request of {allocation.bytes / MIB:.2f} MiB."
    )
    if layout.gpus < host.count * host.nodes:
        sentence += " Only tp x pp counts GPUs: expert parallelism divides the tensor-parallel group and adds none."
    return MemoryFailure("weights", allocation.layer, allocation.tensor, allocation.bytes, free - held, held, sentence)


def _kv_failure(
    layout: Layout,
    host: Host,
    weights: int,
    free: int,
    fraction: float,
    room: int,
    cell: int,
    fractions: Fractions,
) -> MemoryFailure | None:
    if room >= cell:
        return None
    sentence = (
        f"No room for the KV cache: {uses(layout, host)}; weights take {weights / GIB:.1f} GiB of a GPU, and "
        f"--mem-fraction-static {fraction:g} allows weights and cache together {free * fraction / GIB:.1f} GiB. "
        + _advice(fractions)
    )
    return MemoryFailure("kv", None, None, cell, max(0, room), weights, sentence)


def _graph_failure(
    layout: Layout,
    host: Host,
    fraction: float,
    free: int,
    outside: int,
    beside: _Beside,
    fractions: Fractions,
) -> MemoryFailure | None:
    if beside.total <= outside:
        return None
    sentence = (
        f"No room beside weights and cache: {uses(layout, host)}; --mem-fraction-static {fraction:g} leaves "
        f"{outside / GIB:.2f} GiB of a GPU, and the request table ({beside.table / GIB:.2f} GiB), decode graphs "
        f"({beside.graphs / GIB:.2f}) and workspaces ({beside.workspace / GIB:.2f}) need more. " + _advice(fractions)
    )
    return MemoryFailure("graphs", None, None, beside.total, max(0, outside), free - outside, sentence)


def _advice(fractions: Fractions) -> str:
    """What to set instead: between the smallest fraction that starts and the largest that also has room to work."""
    least, roomy, most = fractions.least, fractions.roomy, fractions.most
    if least >= most:
        return "No fraction leaves room for both; use more GPUs, fewer running requests or a shorter context."
    if least >= roomy:
        return f"Between {least:.3f} and {most:.3f} it starts, without room for a long prefill."
    return f"Set it between {least:.3f} and {roomy:.3f}; up to {most:.3f} it starts, without room for a long prefill."
