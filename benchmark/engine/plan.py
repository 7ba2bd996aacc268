"""The plan of one configuration: may it start, will it fit, what should it reach; all as plain JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from .calibration import Calibration
from .flags import FlagError, plain_numbers
from .hardware import GIB, Host
from .layout import Layout
from .memory import MemoryPlan, plan_memory
from .models import ModelShape
from .ranges import Range
from .rules import check
from .rules.room import OF_STAGE
from .step import StepModel, predict_ladder
from .verdict import Verdict

# Notes that tell a reader of the table that the configuration does not do what it seems to.
TELLING_NOTES = ("dead-flag", "unused-gpus")

# A prediction this close to the edge could go either way. Public cases: weights within 3 %, free memory within 0.5 GiB.
DOUBTFUL_BYTES = 2 * GIB
CALIBRATED_DOUBTFUL_BYTES = GIB // 2


def plan_configuration(
    configuration: Mapping[str, Any],
    shape: ModelShape | None,
    host: Host | None,
    release: str,
    workload: Mapping[str, Any] | None = None,
    ladder: Iterable[int] = (),
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Predict one resolved configuration.

    Without a shape or a host only the rules speak. `verdict` is `runs`, `doubtful` or `rejected`; `sentence` says
    why in the user's words, and `told_by` which rules speak in it. Quantities that are estimates are {"low",
    "expected", "high"}.
    """
    found = _plan(configuration, shape, host, release, workload, ladder, calibration)
    said = [rule["rule"] for rule in found["rules"] if rule["sentence"] in found["sentence"]]
    failure = (found["memory"] or {}).get("failure")
    if failure and failure["sentence"] in found["sentence"]:
        said.append(OF_STAGE[failure["stage"]])
    return found | {"told_by": list(dict.fromkeys(said))}


def _plan(
    configuration: Mapping[str, Any],
    shape: ModelShape | None,
    host: Host | None,
    release: str,
    workload: Mapping[str, Any] | None,
    ladder: Iterable[int],
    calibration: Calibration | None,
) -> dict[str, Any]:
    engine = _as_read(configuration.get("engine") or {}, release)
    configuration = {**configuration, "engine": engine}
    if (spread := over_nodes(host, engine)) is not host:
        # What one host showed of its links says nothing of a network.
        host, calibration = spread, None
    try:
        shape = shape.overridden(engine) if shape else None
    except ValueError as error:
        frame = _frame(configuration, host, [], calibration)
        sentence = f"json_model_override_args gives no model that can be planned: {error}"
        return frame | {"verdict": "doubtful", "sentence": sentence, "risk": "unknown"}
    verdicts = check(configuration, shape, host, release)
    result = _frame(configuration, host, verdicts, calibration)
    rejections = [verdict for verdict in verdicts if verdict.severity == "reject"]
    try:
        layout = Layout.from_engine(engine, release)
    except ValueError as error:
        return result | {"verdict": "rejected", "sentence": str(error), "risk": "does not start"}
    result["gpus_used"] = layout.gpus
    if shape is None or host is None or not layout.whole:
        return result | _without_sizes(rejections, verdicts, shape, host)
    host = host.under(configuration.get("environment") or {})
    try:
        return result | _with_sizes(
            configuration, shape, host, layout, release, verdicts, workload, ladder, calibration
        )
    except (ArithmeticError, TypeError, ValueError) as error:
        # A malformed setting; the rules name it where they know it.
        sentence = rejections[0].sentence if rejections else f"A setting cannot be understood: {error}"
        return result | {"verdict": "rejected", "sentence": sentence, "risk": "does not start"}


def _as_read(engine: Mapping[str, Any], release: str) -> Mapping[str, Any]:
    try:
        return plain_numbers(engine, release)
    except FlagError:
        return engine  # a rule says what is wrong with the release


def over_nodes(host: Host | None, engine: Mapping[str, Any]) -> Host | None:
    """The host as so many equal ones as the configuration asks for (`nnodes`)."""
    try:
        nodes = Layout.from_engine(engine).nnodes
    except ValueError:
        return host  # a rule says what is wrong with the width
    return replace(host, nodes=nodes) if host and nodes > host.nodes else host


def _frame(
    configuration: Mapping[str, Any], host: Host | None, verdicts: list[Verdict], calibration: Calibration | None
) -> dict[str, Any]:
    return {
        "name": configuration.get("name", ""),
        "verdict": "runs",
        "sentence": "",
        "told_by": [],
        "gpus_used": None,
        "gpus_there": host.count * host.nodes if host else None,
        "weights_bytes": None,
        "kv_tokens": None,
        "concurrency_reached": None,
        "speed": None,
        "risk": "",
        "rules": [asdict(verdict) for verdict in verdicts],
        "memory": None,
        "calibrated_on": calibration.source if calibration else None,
    }


def _without_sizes(
    rejections: list[Verdict], verdicts: list[Verdict], shape: ModelShape | None, host: Host | None
) -> dict[str, Any]:
    if rejections:
        first = rejections[0]
        return {
            "verdict": "rejected",
            "sentence": f"{first.sentence} {first.advice}".strip(),
            "risk": "does not start",
        }
    missing = [word for word, value in (("the model", shape), ("the hardware", host)) if value is None]
    doubts = [verdict.sentence for verdict in verdicts if verdict.severity == "doubt"]
    if missing:
        doubts.insert(0, f"Memory and speed are not predicted: {' and '.join(missing)} is not known.")
    return {"verdict": "doubtful", "sentence": " ".join(doubts[:2]) or "The widths do not nest.", "risk": "unknown"}


def _with_sizes(
    configuration: Mapping[str, Any],
    shape: ModelShape,
    host: Host,
    layout: Layout,
    release: str,
    verdicts: list[Verdict],
    workload: Mapping[str, Any] | None,
    ladder: Iterable[int],
    calibration: Calibration | None,
) -> dict[str, Any]:
    engine = configuration.get("engine") or {}
    memory = plan_memory(shape, layout, engine, host, release, calibration)
    found: dict[str, Any] = {
        "weights_bytes": memory.weights_bytes,
        "kv_tokens": memory.total_token_capacity,
        "memory": _memory_dict(memory),
    }
    known = calibration is not None and calibration.knows_memory(layout.gpus)
    verdict, sentence = judge(memory, layout, host, verdicts, calibrated=known)
    timed = verdict != "rejected" and {"prompt_tokens", "output_tokens"} <= (workload or {}).keys()
    rungs: list[dict[str, Any]] = []
    if timed and workload:
        model = StepModel(shape, layout, engine, host, release, calibration)
        rungs = predict_ladder(model, memory, workload, ladder)
    reached = max((rung["reached"] for rung in rungs), default=0)
    risk = risk_of(memory, layout, host, verdict, reached or memory.max_running_requests)
    if engine.get("speculative_algorithm") and verdict != "rejected":
        risk = "speculation is not in the predicted speed" + ("" if risk == "low" else f"; {risk}")
    found |= {"verdict": verdict, "sentence": sentence, "risk": risk}
    if not timed:
        return found
    found |= {"concurrency_reached": reached, "speed": _speed(rungs)}
    if rungs and not reached and memory.failure is None:
        found["verdict"] = "doubtful"
        found["sentence"] = (
            f"Starts, but its KV cache of {memory.token_capacity:,} tokens holds not one request of this workload."
        )
    return found


def judge(
    memory: MemoryPlan, layout: Layout, host: Host, verdicts: list[Verdict], *, calibrated: bool = False
) -> tuple[str, str]:
    """(verdict, sentence): rules first, then memory; a margin below 2 GiB (0.5 calibrated) is doubtful."""
    for verdict in verdicts:
        if verdict.severity == "reject":
            return "rejected", f"{verdict.sentence} {verdict.advice}".strip()
    margin = CALIBRATED_DOUBTFUL_BYTES if calibrated else DOUBTFUL_BYTES
    failure = memory.failure
    if failure is not None:
        if memory.guessed:
            return "doubtful", f"It may start: {' '.join(memory.guessed)} So counted: {failure.sentence}"
        if memory.margin_bytes < -margin:
            return "rejected", failure.sentence
        short = -memory.margin_bytes / GIB
        return "doubtful", f"Probably will not start ({short:.1f} GiB short). {failure.sentence}"
    doubts = [
        *memory.uncounted,
        *memory.guessed,
        *(verdict.sentence for verdict in verdicts if verdict.severity == "doubt"),
    ]
    used = f"Uses {layout.gpus} of {host.count * host.nodes} GPUs"
    held = f"{memory.weights_bytes / GIB:.1f} GiB of weights and {memory.kv_pool_bytes / GIB:.1f} GiB of KV cache each"
    if memory.margin_bytes < margin:
        doubts.insert(
            0, f"It should start with {memory.margin_bytes / GIB:.1f} GiB to spare, which is within the error."
        )
    elif memory.slack_bytes < memory.prefill_bytes:
        doubts.insert(
            0,
            f"It should start, but a prefill of {memory.chunked_prefill_size} tokens may run out of memory: it needs "
            f"about {memory.prefill_bytes / GIB:.1f} GiB, and {memory.slack_bytes / GIB:.1f} stay free.",
        )
    notes = [verdict.sentence for verdict in verdicts if verdict.severity == "note" and verdict.rule in TELLING_NOTES]
    sentence = " ".join([f"{used}, {held}.", *doubts[:1], *notes])
    return ("doubtful" if doubts else "runs"), sentence


def risk_of(memory: MemoryPlan, layout: Layout, host: Host, verdict: str, running: int) -> str:
    """What would most likely prove the plan wrong, or waste the host, with so many requests at once."""
    if verdict == "rejected":
        return "does not start"
    idle = host.count * host.nodes - layout.gpus
    risks = [f"{idle} GPUs idle"] if idle > 0 else []
    if memory.failure is not None:
        risks.append(f"fails at {memory.failure.stage}")
    elif memory.kv_pool_bytes:
        swing = memory.weights_bytes / memory.kv_pool_bytes
        if swing >= 5:
            risks.append(f"1 % more weights take {swing:.0f} % of the KV cache")
    if not memory.failure and memory.slack_bytes < memory.prefill_reserve_bytes:
        risks.append("long prefills may run out of memory")
    if memory.graph_max_batch == 0:
        risks.append("no decode graphs: slow steps")
    elif memory.graph_max_batch < running // memory.pools:
        risks.append(f"no decode graph above {memory.graph_max_batch} requests")
    return "; ".join(risks) or "low"


def _memory_dict(memory: MemoryPlan) -> dict[str, Any]:
    found = asdict(replace(memory, parts=dict(memory.parts)))
    for key in ("stages", "guessed", "uncounted"):
        found[key] = list(found[key])
    return found


def _speed(rungs: list[dict[str, Any]]) -> dict[str, Any]:
    running = [rung for rung in rungs if rung["reached"]]
    if not running:
        return {"single_user": None, "peak": None, "peak_concurrency": None, "ladder": [_flat(rung) for rung in rungs]}
    best = max(running, key=lambda rung: rung["output_tokens_per_second"].expected)
    first = min(running, key=lambda rung: rung["concurrency"])
    return {
        "single_user": as_dict(first["tpot"].inverse()),
        "peak": as_dict(best["output_tokens_per_second"]),
        "peak_concurrency": best["concurrency"],
        "ladder": [_flat(rung) for rung in rungs],
    }


def _flat(rung: Mapping[str, Any]) -> dict[str, Any]:
    return {key: as_dict(value) if isinstance(value, Range) else value for key, value in rung.items()}


def as_dict(range_: Range) -> dict[str, float]:
    """A range as JSON."""
    return {"low": range_.low, "expected": range_.expected, "high": range_.high}
