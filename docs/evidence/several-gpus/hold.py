"""The plan held against the records of this folder, with and without the host's own all-reduce table.

python docs/evidence/several-gpus/hold.py MODEL [FOLDER...]     in the project's folder

MODEL: a shipped shape's name or a folder with config.json. FOLDER: campaigns' folders, here first-machine and
second-machine where none is named; the all-reduces are those of the last folder's host.json. Of the records only those
of MODEL count; ranks are of the mean over a configuration's starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

import msgspec

from benchmark.campaign.record import Record, load
from benchmark.engine.hardware import AllReduce, find_host
from benchmark.engine.models import load_model
from benchmark.engine.plan import plan_configuration

HERE = Path(__file__).parent
HARDWARE, RELEASE = "2x H200", "0.5.11"


def tables(machine: Path) -> dict[str, tuple[AllReduce, ...]]:
    """What the communication check saw on a machine, by the configuration whose environment it was."""
    seen = json.loads((machine / "host.json").read_text())["communication"]
    return {
        run["name"]: tuple(
            AllReduce(group=2, bytes=step["bytes"], seconds=step["all_reduce_seconds"])
            for step in run["results"][0]["steps"]
        )
        for run in seen["runs"]
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(place) for place in range(len(values))]


def spearman(ours: list[float], theirs: list[float]) -> float:
    n = len(ours)
    apart = sum((a - b) ** 2 for a, b in zip(ranks(ours), ranks(theirs), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def main(model: str, *folders: str) -> None:
    shape = load_model(model)
    machines = [Path(folder) for folder in folders] or [HERE / "first-machine", HERE / "second-machine"]
    starts: list[Record] = []
    for path in sorted(path for machine in machines for path in machine.glob("**/record.json")):
        record = load(path.read_bytes(), str(path))
        if record.points and record.model.name == Path(model).name:
            starts.append(record)
    measured_tables = tables(machines[-1])
    for label in ("assumed all-reduces", "the host's own"):
        say(label)
        measured: dict[int, dict[str, list[float]]] = {}
        planned: dict[int, dict[str, float]] = {}
        inside = 0
        for record in starts:
            name = record.configuration.name
            own = measured_tables["tp2_shm" if name.endswith("shm") else "tp2_nccl"]
            host = find_host(HARDWARE, **({"allreduce": own} if label == "the host's own" else {}))
            asked = msgspec.to_builtins(record.configuration)
            plan = plan_configuration(asked, shape, host, RELEASE, record.workload, record.ladder)
            for point, rung in zip(record.points, plan["speed"]["ladder"], strict=False):
                said, rate = rung["output_tokens_per_second"], point.output_tokens_per_second or 0.0
                inside += said["low"] <= rate <= said["high"]
                measured.setdefault(point.concurrency, {}).setdefault(name, []).append(rate)
                planned.setdefault(point.concurrency, {})[name] = said["expected"]
                say(
                    f"  {name:9} C={point.concurrency:<3} measured {rate:6.0f} planned {said['expected']:6.0f} "
                    f"({said['low']:.0f} to {said['high']:.0f}); a token {1e3 * point.tpot_seconds.mean:5.2f} ms, "
                    f"planned {1e3 * rung['tpot']['expected']:5.2f}"
                )
        held = sum(len(rates) for rung in measured.values() for rates in rung.values())
        say(f"  inside the range: {inside} of {held}")
        for concurrency, rung in sorted(measured.items()):
            found = spearman([fmean(rates) for rates in rung.values()], [planned[concurrency][name] for name in rung])
            say(f"  rank correlation at {concurrency}: {found:.2f} ({len(rung)} configurations)")


if __name__ == "__main__":
    main(*sys.argv[1:])
