"""The job that measures one point, in a process and a unit of its own: `shardsweep-host run-job`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from ..load import measure as load
from ..load.target import Target, TargetError
from ..load.warmup import warm_up
from ..load.workload import Workload, WorkloadError
from . import engine_http, jobs, records
from .managers import manager_for
from .services import engine_unit
from .settings import HostError, Settings, read_json, write_json
from .switch import running

_WARMED = "warmed.json"
_PROGRESS_SECONDS = 0.5


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
    target = Target(base_url=engine_http.base_url(settings), model=spec.get("model"))
    await _warm_up(settings, spec, target, workload)
    concurrency, repeat = int(spec["concurrency"]), int(spec.get("repeat", 1))
    result = await load.measure_point(
        target,
        workload,
        concurrency,
        repeat=repeat,
        engine_log=manager_for(settings).log(engine_unit(spec["configuration"])),
        telemetry=settings.engine == "sglang",
        on_progress=_Reporter(settings).take,
    )
    raw = raw_name(workload.name, concurrency, repeat)
    result.write(Path(records.folder(settings, spec["configuration"], spec["fingerprint"])) / raw)
    point = records.with_raw(result.point, raw)
    records.add_point(settings, spec["configuration"], spec["fingerprint"], point)


def raw_name(workload: str, concurrency: int, repeat: int) -> str:
    again = f"-r{repeat}" if repeat > 1 else ""
    return f"requests-{workload}-c{concurrency:03d}{again}.jsonl.zst"


async def _warm_up(settings: Settings, spec: dict[str, Any], target: Target, workload: Workload) -> None:
    """Once an engine start and workload: later points find every shape compiled."""
    start = running(settings).get(engine_unit(spec["configuration"]), {}).get("started_at")
    mark = {"started_at": start, "workload": workload.to_mapping()}
    if read_json(settings.state / _WARMED) == mark:
        return
    jobs.report_progress(settings, {"phase": "warm-up", "concurrency": int(spec["concurrency"])})
    await warm_up(target, workload, spec.get("ladder") or (1, int(spec["concurrency"])))
    write_json(settings.state / _WARMED, mark)


class _Reporter:
    """Writes a point's progress for whoever looks, a few times a second at most."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next = 0.0

    def take(self, progress: load.Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PROGRESS_SECONDS
        jobs.report_progress(self._settings, dataclasses.asdict(progress))
