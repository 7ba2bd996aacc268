"""Collectives of a forward pass, and what each costs on a host.

Source of the counts: SGLang 0.5.23 (layers/moe/utils.py:838-897, layers/dp_attention.py, distributed/parallel_state.py,
managers/scheduler_pp_mixin.py). EP without an all-to-all backend has the traffic of TP, byte for byte: every rank sees
every token, and one all-reduce over the TP group ends the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

from .budget import server_defaults
from .hardware import Host
from .layout import A2A_BACKENDS, Layout
from .models import ModelShape
from .ranges import Range, independent_sum

ACTIVATION_BYTES = 2  # bf16

# Seconds of a small all-reduce and bytes a second ("bus bandwidth") of a large one, over eight GPUs.
# PCIe: 26 to 48 us at 32 KB (rtx6kpro), 45 us at 4 KB (sglang#32479), 205 us at 12 KB (pcie_ipc_ar.py's table); bus
# bandwidth 22 GB/s where P2P is poor, 37.6 to 41 GB/s with switches or a good ring (rtx6kpro optimization/).
PCIE_LATENCY = Range(26e-6, 45e-6, 205e-6)
PCIE_BANDWIDTH = Range(15e9, 30e9, 41e9)
# Two PCIe GPUs: the engine's own kernel, up to 8 MiB (custom_all_reduce_utils.py:489). Assumed near a P2P round trip.
PCIE_PAIR_LATENCY = Range(8e-6, 14e-6, 45e-6)
# NVLink: custom all-reduce, a few microseconds (sgl-kernel's and vLLM's own tables); bus bandwidth as NCCL tests tell
# for NVSwitch hosts (370 to 480 GB/s on 450 GB/s links), less at middle sizes.
NVLINK_LATENCY = Range(5e-6, 9e-6, 20e-6)
NVLINK_SHARE = Range(0.35, 0.6, 0.9)
# Between nodes nothing is known of the adapters: anything from one 10 Gb/s port for all GPUs (1.25 GB/s, nine tenths of
# it payload) over one of 100 Gb/s to a 400 Gb/s one for each GPU (NCCL tests: 45 GB/s of 50); three times the latency.
NETWORK_BANDWIDTH = Range(1.1e9, 11e9, 45e9)
NETWORK_LATENCY_FACTOR = 3
# Of the latency, what does not grow with the ring.
LATENCY_FLOOR = 0.3
MEASURED_SPREAD = 1.15
# A hop between pipeline stages: NCCL send and receive, and the metadata over gloo (parallel_state.py:1783-1835).
PIPELINE_HOP = Range(60e-6, 150e-6, 500e-6)


@dataclass(frozen=True)
class Collective:
    """`count` calls in one forward pass, each of `bytes` on each of `group` ranks."""

    name: str
    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all or send."""
    count: int
    bytes: int
    group: int
    nodes: int = 1
    """Nodes that the group lies on; above 1 the network is in the way."""


def collectives(
    shape: ModelShape, layout: Layout, engine: Mapping[str, Any], tokens: int, sampled: int | None = None
) -> tuple[Collective, ...]:
    """What one forward pass of `tokens` tokens sends, all stages together.

    `sampled` is how many tokens get logits (one a sequence; all of them in decode, the default).
    """
    sampled = tokens if sampled is None else sampled
    size = tokens * shape.hidden * ACTIVATION_BYTES
    calls: list[Collective] = []

    def call(name: str, kind: str, count: int, size: int, group: int) -> None:
        calls.append(Collective(name, kind, count, size, group, layout.nodes_of_group(group)))

    if layout.tp > 1 and layout.attention_tp > 1 and layout.attention_dp == 1:
        call("embedding", "all_reduce", 1, size, layout.tp)
    own = -(-size // layout.attention_dp)
    if layout.attention_tp > 1:
        call("attention output", "all_reduce", shape.layers, own, layout.attention_tp)
    if layout.dcp > 1:
        # Every rank needs all queries of its group, and the partial outputs are merged.
        latent = own * shape.heads * (shape.kv_lora_rank or shape.v_head_dim) // shape.hidden // layout.attention_tp
        call("context-parallel queries", "all_gather", shape.layers, latent, layout.dcp)
        call("context-parallel outputs", "reduce_scatter", shape.layers, latent * layout.dcp, layout.dcp)
    if layout.tp > 1:
        calls += _mlp_calls(shape, layout, engine, size)
        logits = sampled * -(-shape.vocab // layout.tp) * ACTIVATION_BYTES
        call("logits", "all_gather", 1, logits, layout.tp)
    if layout.pp > 1:
        # Hidden state and residual; each rank of a stage sends its slice.
        slice_ = -(-2 * size // layout.attention_tp)
        between = min(layout.pp, layout.nnodes) - 1
        if within := layout.pp - 1 - between:
            calls.append(Collective("pipeline hop", "send", within, slice_, 2))
        if between:
            calls.append(Collective("pipeline hop between nodes", "send", between, slice_, 2, 2))
    return tuple(calls)


def _mlp_calls(shape: ModelShape, layout: Layout, engine: Mapping[str, Any], size: int) -> list[Collective]:
    dense = shape.layers - shape.moe_layers
    backend = str(engine.get("moe_a2a_backend") or "none")
    calls: list[Collective] = []
    nodes = layout.nodes_of_group(layout.tp)

    def call(name: str, kind: str, count: int, size: int) -> None:
        calls.append(Collective(name, kind, count, size, layout.tp, nodes))

    if backend in A2A_BACKENDS:
        share = -(-size * shape.experts_per_token // layout.tp)
        call("expert dispatch and combine", "all_to_all", 2 * shape.moe_layers, share)
    elif layout.attention_dp > 1:
        call("gather before experts", "all_gather", shape.moe_layers, size // layout.tp)
        scatters = layout.tp == layout.attention_dp == layout.ep
        kind = "reduce_scatter" if scatters else "all_reduce"
        call("expert output", kind, shape.moe_layers, size)
    elif shape.moe_layers:
        call("expert output", "all_reduce", shape.moe_layers, size)
    if dense and engine.get("moe_dense_tp_size") != 1:
        call("mlp output", "all_reduce", dense, size)
    return calls


@dataclass(frozen=True)
class Messages:
    """All-reduces that tell what some configurations' forward passes take: each of `tokens` x `hidden` x 2 bytes."""

    tokens: tuple[int, ...]
    hidden: int
    all_reduces: int
    """In one forward pass."""
    groups: tuple[int, ...]
    """How many GPUs take part."""


def messages(
    engines: Iterable[Mapping[str, Any]], shape: ModelShape, host: Host, release: str, ladder: Iterable[int]
) -> Messages:
    """What to measure on a host, so that the plan of these engines needs no guess: each rung as a decode step, and
    each prefill chunk, over each group of the host's own GPUs that all-reduces.
    """
    tokens, groups, calls = {rung for rung in ladder if rung > 0}, set(), 0
    for engine in engines:
        try:
            layout = Layout.from_engine(engine, release)
        except ValueError:
            continue  # a rule says what is wrong with it
        chunk = server_defaults(engine, layout, host, release).chunked_prefill_size
        tokens |= {chunk} if layout.whole and chunk > 0 else set()
        reduced = [call for call in collectives(shape, layout, engine, 1) if call.kind == "all_reduce"]
        groups |= {call.group for call in reduced if 1 < call.group <= host.count}
        calls = max(calls, sum(call.count for call in reduced))
    return Messages(tuple(sorted(tokens)), shape.hidden, calls, tuple(sorted(groups)))


def seconds(collective: Collective, host: Host) -> Range:
    """Time of all calls of one kind in a forward pass."""
    if collective.kind == "send":
        link = _bandwidth(host, collective.nodes > 1)
        moved = Range(*(collective.bytes / rate for rate in (link.high, link.expected, link.low)))
        return independent_sum([PIPELINE_HOP, moved]).scaled(collective.count)
    # An all-reduce moves 2(n-1)/n of its bytes over each link; gathers move (n-1) parts, scatters (n-1)/n.
    group = collective.group
    if collective.kind == "all_reduce":
        return allreduce_seconds(host, group, collective.bytes, collective.nodes).scaled(collective.count)
    whole = collective.bytes * group if collective.kind == "all_gather" else collective.bytes
    return allreduce_seconds(host, group, whole, collective.nodes).scaled(collective.count / 2)


def allreduce_seconds(host: Host, group: int, size: int, nodes: int = 1) -> Range:
    """One all-reduce of `size` bytes in a group that lies on so many nodes (more where one has not as many GPUs).

    The host's own table counts where it has this group on one node, else the assumptions above.
    """
    over_network = nodes > 1 or group > host.count
    measured = None if over_network else _interpolate(host, group, size)
    if measured is not None:
        return Range(measured / MEASURED_SPREAD, measured, measured * MEASURED_SPREAD)
    bandwidth = _bandwidth(host, over_network)
    pcie = PCIE_PAIR_LATENCY if group == 2 else PCIE_LATENCY
    latency = NVLINK_LATENCY if host.nvlink else pcie
    if group > 2:
        latency = latency.scaled(LATENCY_FLOOR + (1 - LATENCY_FLOOR) * (group - 1) / 7)
    if over_network:
        latency = latency.scaled(NETWORK_LATENCY_FACTOR)
    moved = 2 * (group - 1) / group * size
    transfer = Range(moved / bandwidth.high, moved / bandwidth.expected, moved / bandwidth.low)
    return independent_sum([latency, transfer])


def _bandwidth(host: Host, over_network: bool) -> Range:
    if over_network:
        return NETWORK_BANDWIDTH
    if host.nvlink:
        return NVLINK_SHARE.scaled(host.gpu.nvlink)
    # Each PCIe generation halves the one above it.
    return PCIE_BANDWIDTH.scaled(2.0 ** (host.pcie_generation - 5))


def _interpolate(host: Host, group: int, size: int) -> float | None:
    """Measured time at `size`, straight in logarithms between two sizes, by bandwidth beyond the largest."""
    points = sorted((row.bytes, row.seconds) for row in host.allreduce if row.group == group and row.bytes > 0)
    if not points or group < 2:
        return None
    if size <= points[0][0]:
        return points[0][1]
    if size >= points[-1][0]:
        return points[-1][1] * size / points[-1][0]
    for (low, fast), (high, slow) in pairwise(points):
        if low <= size <= high:
            share = (log(size) - log(low)) / (log(high) - log(low)) if high > low else 0.0
            return exp(log(fast) + share * (log(slow) - log(fast)))
    return None
