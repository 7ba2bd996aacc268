"""The plan and its calibration on the other model, held against this folder's records.

python docs/evidence/h200-one-gpu/second/hold.py      in the project's folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmark.engine.calibration import Calibration, calibrate
from benchmark.engine.hardware import find_host
from benchmark.engine.layout import Layout
from benchmark.engine.models import ModelShape, load_model
from benchmark.engine.step import StepModel

HERE = Path(__file__).parent
HOST, RELEASE = find_host("1x H200"), "0.5.11"
OTHER = {"mini-moe": "k2-slice", "k2-slice": "mini-moe"}
CONTEXT = 512 + 64
"""Tokens that a request holds in the middle of its answer."""


def records(folder: Path, model: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"**/{model}-short/*/*/*/record.json"))]


def calibrated(folder: Path, shape: ModelShape, model: str) -> Calibration | None:
    """What the other model's records in a folder say about this host."""
    other = OTHER[model]
    return calibrate(records(folder, other), shape, HOST, RELEASE, shape_of=lambda seen: load_model(other))


def compared(seconds: float, step: float) -> str:
    return f"{1e3 * step:7.2f} ({100 * (step / seconds - 1):+3.0f} %)"


def main() -> None:
    say = sys.stdout.write
    for model in OTHER:
        shape = load_model(model)
        found = [calibrated(folder, shape, model) for folder in (HERE, HERE.parent / "campaigns")]
        say(f"{model}: decode step in ms by the log, the plan, calibrated on {OTHER[model]} (now, before)\n")
        for record in records(HERE, model):
            engine = record["configuration"]["engine"]
            for point in record["points"]:
                server, batch = point["server"], point["concurrency"]
                step = server.get("decode_alone_step_median_seconds")
                if step is None:
                    continue
                models = [StepModel(shape, Layout(), engine, HOST, RELEASE, use) for use in (None, *found)]
                said = [compared(step, each.decode_seconds(batch, CONTEXT).expected) for each in models]
                lines = server["decode_alone_lines"]
                say(f"  {record['host']['name']:14}{batch:4} {1e3 * step:7.2f} ({lines} lines){'; '.join(said)}\n")


if __name__ == "__main__":
    main()
