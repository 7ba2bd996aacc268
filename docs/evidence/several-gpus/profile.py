"""Five decode steps in the profiler while a load runs, and what their kernels took.

profile.py FOLDER CONCURRENCY...     the engine on port 30001; writes trace files and FOLDER/kernels.json
profile.py --again FOLDER            from trace files that are there
"""

from __future__ import annotations

import asyncio
import collections
import gzip
import json
import re
import statistics
import sys
import urllib.request
from pathlib import Path

from benchmark.load.measure import measure_point, run
from benchmark.load.target import Target, detect
from benchmark.load.workload import Workload

URL = "http://127.0.0.1:30001"
STEPS = 5
DECODE_KERNEL, PREFILL_KERNEL = "_fwd_grouped_kernel_stage1", "_fwd_kernel"
SHORT = Workload(
    name="short",
    prompt_tokens=512,
    output_tokens=128,
    window_seconds=5.0,
    minimum_window_seconds=4.0,
    minimum_requests=8,
    half_width=0.03,
    ramp_turnover=0.25,
)
# The first that matches names a kernel's part.
PARTS = (
    ("all-reduce", r"nccl|all_?reduce|cross_device_reduce|one_?shot|two_?shot|AllGather|ReduceScatter"),
    ("attention", r"attn|attention|_fwd_|rope|rotary|concat_mla|set_mla|kv_buffer"),
    ("experts", r"moe|marlin|expert|topk|silu|act_and_mul"),
    ("dense", r"gemm|gemv|nvjet|cutlass|cublas|splitK|matmul|bmm"),
    ("norm", r"norm"),
)


def part_of(name: str) -> str:
    return next((part for part, pattern in PARTS if re.search(pattern, name, re.IGNORECASE)), "other")


def steps_of(kernels: list[dict]) -> list[list[dict]]:
    """The kernels of each forward pass: a pass begins with the first norm after the output layer's all-gather."""
    kernels = sorted(kernels, key=lambda event: event["ts"])
    steps, current, gathered = [], [], False
    for event in kernels:
        if gathered and part_of(event["name"]) == "norm":
            steps.append(current)
            current, gathered = [], False
        gathered = gathered or "AllGather" in event["name"]
        current.append(event)
    return [*steps, current]


def kernels(trace: Path) -> dict:
    """What one rank's decode steps took on the GPU, by part and by kernel: medians over the steps, in microseconds."""
    with gzip.open(trace, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    steps = [
        step
        for step in steps_of([e for e in events if e.get("cat") == "kernel"])
        if any(DECODE_KERNEL in e["name"] for e in step) and not any(e["name"] == PREFILL_KERNEL for e in step)
    ]
    if not steps:
        return {"file": trace.name, "decode_steps": 0}
    parts = [collections.Counter() for _ in steps]
    names = [collections.Counter() for _ in steps]
    for step, of_parts, of_names in zip(steps, parts, names, strict=True):
        for event in step:
            of_parts[part_of(event["name"])] += event["dur"]
            of_names[event["name"][:110]] += event["dur"]
    spans = [max(e["ts"] + e["dur"] for e in step) - min(e["ts"] for e in step) for step in steps]
    every = {name for of_names in names for name in of_names}
    longest = sorted(((statistics.median(c[name] for c in names), name) for name in every), reverse=True)[:15]
    return {
        "file": trace.name,
        "decode_steps": len(steps),
        "kernels": statistics.median(len(step) for step in steps),
        "span_us": round(statistics.median(spans), 1),
        "busy_us": round(statistics.median(sum(c.values()) for c in parts), 1),
        "parts_us": {
            part: round(statistics.median(c[part] for c in parts), 1)
            for part in sorted({part for c in parts for part in c})
        },
        "all_reduce_us": [round(c["all-reduce"], 1) for c in parts],
        "longest": [[name, round(took, 1)] for took, name in longest],
    }


def start(folder: Path) -> None:
    body = {"output_dir": str(folder), "num_steps": STEPS, "activities": ["GPU"], "profile_by_stage": True}
    request = urllib.request.Request(
        URL + "/start_profile", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).read()


async def profiled(folder: Path, concurrency: int) -> None:
    target = await detect(Target(URL))
    load = asyncio.create_task(measure_point(target, SHORT, concurrency, repeat=9, telemetry=False))
    await asyncio.sleep(3.0)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        await asyncio.wait_for(asyncio.to_thread(start, folder), 60)
    finally:
        await load


def main(arguments: list[str]) -> None:
    if arguments[0] == "--again":
        base = Path(arguments[1])
    else:
        base = Path(arguments[0])
        for concurrency in map(int, arguments[1:]):
            run(profiled(base / f"c{concurrency:03d}", concurrency))
    found = {
        folder.name: [kernels(path) for path in sorted(folder.glob("*DECODE*.json.gz"))]
        for folder in sorted(base.glob("c*"))
    }
    (base / "kernels.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
