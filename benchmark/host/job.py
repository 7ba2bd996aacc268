"""The job that measures one point, in a process and a unit of its own: `shardsweep-host run-job`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from ..campaign import record as rec
from ..engine.layout import gpu_places
from ..load import accuracy, cost, further
from ..load import measure as load
from ..load.observe.telemetry import Telemetry
from ..load.target import Target, TargetError, detect
from ..load.warmup import warm_up
from ..load.workload import Workload, WorkloadError
from . import engine_http, forms, jobs, records
from .managers import manager_for
from .services import engine_unit
from .serving import running
from .settings import HostError, Settings, read_json, write_json

_WARMED = "warmed.json"
_PROGRESS_SECONDS = 0.5
_SIMULATED_NVML = "benchmark.simulator.nvml"


def run(settings: Settings) -> None:
    """Measure the point that `jobs.measure` asked for, add it to its record, and report how it went."""
    spec = jobs.current(settings)
    if spec is None:
        raise HostError("No point was asked for.")
    try:
        load.run(_measure(settings, spec))
    except (TargetError, WorkloadError, HostError, OSError) as error:
        jobs.report(settings, spec["id"], "failed", str(error))
    except BaseException as error:
        # A mistake of ours: whoever waits is told, and the trace is in this unit's log.
        jobs.report(settings, spec["id"], "failed", f"{type(error).__name__}: {error}")
        raise
    else:
        jobs.report(settings, spec["id"], "done")


async def _measure(settings: Settings, spec: dict[str, Any]) -> None:
    workload = records.workload_of(spec["workload"])
    concurrency, repeat = int(spec["concurrency"]), int(spec.get("repeat", 1))
    target = await detect(Target(base_url=engine_http.base_url(settings), model=spec.get("model")))
    if spec.get("label") and (why := further.too_long(workload, target.info)):
        # Of what only stands beside the ladder; a ladder that does not fit is the probe's to refuse.
        left_out = further.gap(further.Further(workload, concurrency, repeat), why, records.now())
        records.add_point(settings, spec["configuration"], spec["fingerprint"], left_out)
        return
    record = records.opened(settings, spec["configuration"], spec["fingerprint"])
    warmed = await _warm_up(settings, spec, target, workload)
    costs = cost.from_warm_up(workload, warmed)
    first = (
        records.first_measured(settings, spec["configuration"], spec["fingerprint"], workload.name, concurrency)
        if repeat > 1
        else None
    )
    result = await load.measure_point(
        target,
        workload,
        concurrency,
        repeat=repeat,
        warmed_up=warmed["agreed"],
        first=first,
        engine_log=manager_for(settings).log(engine_unit(spec["configuration"])),
        telemetry=_telemetry(settings, chosen_gpus(record)),
        on_progress=_Reporter(settings, costs.get(concurrency)).take,
    )
    raw = load.raw_name(result.point)
    result.write(Path(records.folder(settings, spec["configuration"], spec["fingerprint"])) / raw)
    point = records.with_raw(result.point, raw)
    records.add_point(settings, spec["configuration"], spec["fingerprint"], point)


def chosen_gpus(record: rec.Record) -> list[int] | None:
    """NVML indices of the GPUs that the configuration takes on this host; None (all) where they are named by UUID."""
    environment = {**record.configuration.environment, **record.fingerprint_of.get("environment", {})}
    return gpu_places(record.configuration.engine, environment)


def _telemetry(settings: Settings, gpus: list[int] | None) -> Telemetry:
    """The host's NVML; where the engine is simulated, that of its simulated GPUs, and the record says so."""
    if settings.engine == "simulated":
        return Telemetry(gpus, environment={**settings.environment, "SHARDSWEEP_NVML": _SIMULATED_NVML})
    return Telemetry(gpus)


async def _warm_up(settings: Settings, spec: dict[str, Any], target: Target, workload: Workload) -> dict[str, Any]:
    """Once an engine start and workload: later points find every shape compiled.

    The first warm-up of a start is followed by the fixed prompts, before any point's clock runs.

    Returns:
        The workload's warm-up, as `WarmUp.to_mapping` has it.
    """
    start = running(settings).get(engine_unit(spec["configuration"]), {}).get("started_at")
    done = read_json(settings.state / _WARMED, {}, forms.Warmed)
    workloads = done.get("workloads", {}) if done.get("started_at") == start else {}
    name = further.Further(workload, 1).twin
    rungs = spec.get("ladder") or [1, int(spec["concurrency"])]
    asked = [workload.kind, workload.prompt_tokens, workload.output_tokens, sorted(set(rungs))]
    if workloads.get(name, {}).get("asked") != asked:
        jobs.report_progress(settings, {"phase": "warm-up", "concurrency": int(spec["concurrency"])})
        record = records.opened(settings, spec["configuration"], spec["fingerprint"])
        beside = [] if workloads else [Workload.from_mapping(point["workload"]) for point in record.after_ladder]
        found = (await warm_up(target, workload, rungs, beside=beside)).to_mapping()
        noted: dict[str, Any] = {} if workloads else {"warm_up": found}
        if not workloads and spec.get("accuracy", True):
            jobs.report_progress(settings, {"phase": "fixed prompts", "concurrency": int(spec["concurrency"])})
            noted["accuracy"] = await accuracy.check(target)
        records.note(settings, spec["configuration"], spec["fingerprint"], **noted)
        workloads = {**workloads, name: {**found, "asked": asked}}
        write_json(settings.state / _WARMED, {"started_at": start, "workloads": workloads})
    return workloads[name]


class _Reporter:
    """Writes a point's progress for whoever looks, a few times a second at most."""

    def __init__(self, settings: Settings, expected: cost.Cost | None) -> None:
        self._settings = settings
        self._expected = None if expected is None else dataclasses.asdict(expected) | {"text": expected.text}
        self._next = 0.0

    def take(self, progress: load.Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_SECONDS
        jobs.report_progress(self._settings, dataclasses.asdict(progress) | {"expected_seconds": self._expected})
