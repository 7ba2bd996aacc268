"""Every split of a host: each valid tp x ep x pp x attention DP, planned, ranked, and ready for the catalogue."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .calibration import Calibration
from .flags import FlagError, resolve_release
from .hardware import GIB, Host
from .layout import A2A_BACKENDS, Layout
from .memory import plan_memory
from .models import ModelShape
from .plan import plan_configuration
from .rules.settings import needs_remote_code

# Kept free for activations and what the estimate of graphs misses, when a fraction is chosen.
SPARE_BYTES = 2 * GIB
HIGHEST_FRACTION = 0.94
LOWEST_FRACTION = 0.5
# Settings of the base that say how the model is split; a search sets them itself.
_SPLIT_KEYS = (
    "tp_size",
    "tensor_parallel_size",
    "pp_size",
    "pipeline_parallel_size",
    "ep_size",
    "expert_parallel_size",
    "dp_size",
    "data_parallel_size",
    "attn_dp_size",
    "attention_data_parallel_size",
    "enable_dp_attention",
)
PREFIX = "split_"
"""Begins the names of entries, so that none takes the place of one that a catalogue has: others extend its `tp8`."""
VARIED = 3
"""So many of the best splits are also planned with other transports."""
TRANSPORTS = (
    ("phb", "NCCL_P2P_LEVEL", "PHB", "Peer-to-peer inside a socket alone keeps copies off the link between sockets"),
    ("sys", "NCCL_P2P_LEVEL", "SYS", "Peer-to-peer between all GPUs spares copies through host memory"),
    ("shm", "NCCL_P2P_DISABLE", "1", "Copies through host memory pass by a peer-to-peer that is slow"),
    ("ring", "NCCL_ALGO", "Ring", "A ring moves the most bytes at once"),
    ("tree", "NCCL_ALGO", "Tree", "A tree takes the fewest steps"),
)
"""(suffix, variable, value, why it may be worth a start): what moved whole hosts by more than any split did. (On one,
switching peer-to-peer off took Kimi K2.6 from 140.7 to 716.8 tokens a second.) The plan cannot tell which helps."""
_TELLS = 0.02
_ORDER = {"runs": 0, "doubtful": 1, "rejected": 2}


def splits(shape: ModelShape, host: Host) -> Iterator[Layout]:
    """Every layout that uses all GPUs of the host and whose widths divide what they split.

    Heads divide by the attention ranks, experts by ep, and an expert's width by the ranks that share it, in whole
    quantization groups or blocks.
    """
    count = host.count * host.nodes
    for tp in _divisors(count):
        pp = count // tp
        if pp > shape.layers:
            continue
        for ep in _divisors(tp) if shape.experts else (1,):
            for attention_dp in _divisors(tp):
                layout = Layout(tp=tp, pp=pp, ep=ep, attention_dp=attention_dp, nnodes=host.nodes)
                if _divides(shape, layout):
                    yield layout


def search(
    shape: ModelShape,
    host: Host,
    release: str,
    workload: Mapping[str, Any],
    ladder: Iterable[int],
    base: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """Plan every split and rank them: those that run first, by expected peak throughput.

    `base` is a resolved configuration whose other settings and environment all candidates share; what the model cannot
    start without (a memory share, trust_remote_code) is added. The best few are there with other transports too
    (TRANSPORTS). Each result has `name`, `configuration` (resolved), `entry` (for the catalogue, extending nothing,
    held against the best split or, of another transport, against the same split) and `plan`.
    """
    rungs = tuple(ladder)
    shared = {key: value for key, value in ((base or {}).get("engine") or {}).items() if key not in _SPLIT_KEYS}
    forced = str(shared.get("moe_a2a_backend") or "none") in A2A_BACKENDS
    found = []
    for layout in splits(shape, host):
        if forced and layout.ep != layout.tp:
            continue
        engine = _engine(shared, layout, release)
        if needs_remote_code(shape):
            engine.setdefault("trust_remote_code", True)
        if "mem_fraction_static" not in engine:
            engine["mem_fraction_static"] = choose_fraction(shape, layout, engine, host, release)
        configuration = {
            "name": PREFIX + layout.name(),
            "description": describe(shape, layout),
            "against": None,
            "hypothesis": None,
            "engine": engine,
            "environment": dict((base or {}).get("environment") or {}),
        }
        found.append(_planned(configuration, shape, host, release, workload, rungs, calibration))
    found.sort(key=_rank)
    startable = [result for result in found if result["plan"]["verdict"] != "rejected"]
    if startable:
        for result in found:
            if result is not startable[0]:
                _hold(result, startable[0]["name"], _expectation(result["plan"], startable[0]["plan"]))
    for result in startable[:VARIED] if host.count * host.nodes > 1 else ():
        for suffix, variable, value, why in TRANSPORTS:
            configuration = result["configuration"]
            if str(configuration["environment"].get(variable)) == value:
                continue
            varied = {
                "name": f"{configuration['name']}_{suffix}",
                "description": f"{configuration['description']}; {variable} is {value}",
                "environment": configuration["environment"] | {variable: value},
            }
            other = _planned(configuration | varied, shape, host, release, workload, rungs, calibration)
            gain = "a single stream is faster" if suffix == "tree" else "the peak is higher"
            _hold(other, result["name"], f"{why}, so {gain}.")
            found.append(other)
    return sorted(found, key=_rank)


def _planned(configuration: dict[str, Any], *of: Any) -> dict[str, Any]:
    entry = {
        key: copy.copy(configuration[key]) for key in ("description", "engine", "environment") if configuration[key]
    }
    return {
        "name": configuration["name"],
        "configuration": configuration,
        "entry": entry,
        "plan": plan_configuration(configuration, *of),
    }


def _hold(result: dict[str, Any], against: str, hypothesis: str | None) -> None:
    """Make a result an experiment."""
    result["configuration"] = result["configuration"] | {"against": against, "hypothesis": hypothesis}
    said = {"against": against} | ({"hypothesis": hypothesis} if hypothesis else {})
    result["entry"] = {"description": result["entry"]["description"], **said, **result["entry"]}


def _expectation(plan: Mapping[str, Any], best: Mapping[str, Any]) -> str | None:
    """What the plan expects against the best split, as a hypothesis; None where it predicts no speed."""
    told = []
    for key, what, more, less in (
        ("peak", "the peak is", "higher", "lower"),
        ("single_user", "a single stream is", "faster", "slower"),
    ):
        mine, theirs = (((side.get("speed") or {}).get(key) or {}).get("expected") for side in (plan, best))
        if mine and theirs:
            change = mine / theirs - 1
            size = f"{what} {abs(change):.0%} {more if change > 0 else less}"
            told.append(size.replace("%", " %") if abs(change) > _TELLS else f"{what} unchanged")
    return f"By the plan {'; '.join(told)}." if told else None


def _rank(result: Mapping[str, Any]) -> tuple[int, float, str]:
    peak = (result["plan"].get("speed") or {}).get("peak") or {"expected": 0.0}
    return _ORDER[result["plan"]["verdict"]], -peak["expected"], result["name"]


def choose_fraction(shape: ModelShape, layout: Layout, engine: Mapping[str, Any], host: Host, release: str) -> float:
    """A --mem-fraction-static that leaves room for graphs and the largest prefill, in steps of 0.01."""
    memory = plan_memory(shape, layout, {**engine, "mem_fraction_static": 0.9}, host, release)
    free = memory.pre_load_free_bytes
    wanted = memory.max_fraction - (memory.prefill_bytes + SPARE_BYTES) / free
    # Better tight than not at all: halve what is spared before giving up.
    if wanted < memory.min_fraction:
        wanted = (memory.min_fraction + memory.max_fraction) / 2
    return min(HIGHEST_FRACTION, max(LOWEST_FRACTION, int(wanted * 100) / 100))


def _engine(shared: Mapping[str, Any], layout: Layout, release: str) -> dict[str, Any]:
    engine: dict[str, Any] = {"tp_size": layout.tp}
    if layout.pp > 1:
        engine["pp_size"] = layout.pp
    if layout.ep > 1:
        engine["ep_size"] = layout.ep
    if layout.attention_dp > 1:
        # --attn-dp-size came with 0.5.22; before it, attention DP was a switch beside --dp-size.
        if _at_least(release, (0, 5, 22)):
            engine["attn_dp_size"] = layout.attention_dp
        else:
            engine |= {"dp_size": layout.attention_dp, "enable_dp_attention": True}
    if layout.nnodes > 1:
        engine["nnodes"] = layout.nnodes
    return {**shared, **engine}


def _at_least(release: str, version: tuple[int, ...]) -> bool:
    try:
        known = resolve_release(release)
    except FlagError:
        known = release
    return tuple(int(part) for part in re.findall(r"\d+", known)[:3]) >= version


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _divides(shape: ModelShape, layout: Layout) -> bool:
    if shape.heads % layout.attention_tp:
        return False
    kv = shape.kv_heads if shape.attention == "gqa" else layout.attention_tp
    if max(kv, layout.attention_tp) % min(kv, layout.attention_tp):
        return False
    if not shape.experts:
        return shape.intermediate % layout.tp == 0
    if shape.experts % layout.ep or shape.moe_intermediate % layout.moe_tp:
        return False
    form, width = shape.formats.experts, shape.moe_intermediate // layout.moe_tp
    multiple = form.group or form.block[0]
    # MXFP4 kernels pad a shard; the others need whole groups.
    return form.name == "mxfp4" or not multiple or width % multiple == 0


def describe(shape: ModelShape, layout: Layout) -> str:
    """One sentence on a split, for the catalogue."""
    stages = f"{layout.pp} stages of {layout.tp}" if layout.pp > 1 else f"{layout.tp} GPUs"
    whole = "every expert split over all of a layer's GPUs"
    experts = f"experts in {layout.ep} groups" if layout.ep > 1 else whole
    parts = [f"Each layer over {stages}"] + ([experts] if shape.experts else [])
    parts += [f"attention in {layout.attention_dp} replicas"] if layout.attention_dp > 1 else []
    return "; ".join(parts)
