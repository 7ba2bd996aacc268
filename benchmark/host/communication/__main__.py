"""`python -m benchmark.host.communication FOLDER`: runs what FOLDER/plan.json says, writes FOLDER/result.json."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..preflight.check import Check
from ..settings import read_json, write_json
from . import PLAN, RESULT, Planned
from .group import RANKS, Result, run
from .verdict import judge


def main(folder: Path, script: Path = RANKS) -> None:
    plan = read_json(folder / PLAN, {})
    told: list[dict[str, Any]] = []
    checks: list[Check] = []
    measured: list[dict[str, Any]] = []
    for number, planned in enumerate(msgspec.convert(plan["planned"], list[Planned])):
        results = _groups(planned, folder / str(number), script)
        checks += judge(planned.name, results)
        nccl = {n: v for n, v in planned.requests[0].environment.items() if n.startswith("NCCL_")}
        measured += _allreduce(results, nccl)
        told.append({"name": planned.name, "environment": nccl, "results": msgspec.to_builtins(results)})
    write_json(
        folder / RESULT,
        {
            "token": plan["token"],
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "runs": told,
            "checks": msgspec.to_builtins(checks),
            "allreduce": measured,
            # NCCL's variables of every engine on the host.
            "environment": plan.get("environment") or {},
        },
    )


def _groups(planned: Planned, folder: Path, script: Path) -> list[Result]:
    """The pair first; where it does not work, more ranks will not, and each hang costs its whole limit."""
    results: list[Result] = []
    for request in planned.requests:
        results.append(run(request, folder / f"{request.ranks}-ranks", script))
        if results[-1].outcome != "ok":
            break
    return results


def _allreduce(results: Sequence[Result], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What `benchmark.engine.hardware.AllReduce` takes: all-reduces of one size inside a CUDA graph."""
    return [
        {
            "group": result.ranks,
            "bytes": step["bytes"],
            "seconds": step["all_reduce_seconds"],
            "environment": dict(environment),
        }
        for result in results
        for step in result.steps
        if step["graph"]
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
