"""Ours and `sglang.bench_serving` on one running server, right after each other, and the server's own counters.

compare.py FOLDER            ours twice over the ladder, bench_serving once between
compare.py --quick FOLDER    a few requests at 8, 64 and 256, for the hook that counts experts
compare.py --alone N FOLDER  ours N times over the ladder, and nothing else
  [--port 30001] [--log FILE] [--workload FILE]     the engine, and a workload as JSON in place of 6 s windows
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import time
import urllib.request
from pathlib import Path

import msgspec

from benchmark.load.measure import measure_point, run
from benchmark.load.target import Target, detect
from benchmark.load.warmup import tokenization_of, warm_up
from benchmark.load.workload import Workload

LADDER = (1, 8, 64, 256)
LOG = Path("/var/lib/shardsweep/log/sglang-mini.log")
SHORT = Workload(
    name="short",
    prompt_tokens=512,
    output_tokens=128,
    window_seconds=6.0,
    minimum_window_seconds=2.5,
    minimum_requests=8,
    half_width=0.03,
    ramp_turnover=0.25,
)
ENGINE_PYTHON = "/opt/torch/.venv/bin/python3"
# One process for the four runs: importing SGLang takes as long as a run.
BENCH = """
import runpy, sys
url, output = sys.argv[1:]
for concurrency, prompts in ((1, 16), (8, 128), (64, 768), (256, 1024)):
    sys.argv = ["bench_serving", "--backend", "sglang", "--base-url", url, "--dataset-name",
        "random-ids", "--model", "/srv/models/mini-moe", "--random-input-len", "512", "--random-output-len", "128",
        "--random-range-ratio", "1.0", "--num-prompts", str(prompts), "--max-concurrency", str(concurrency), "--seed",
        str(concurrency), "--flush-cache", "--warmup-requests", "1", "--disable-tqdm", "--output-file", output]
    runpy.run_module("sglang.bench_serving", run_name="__main__")
"""


def counters(url: str) -> dict[str, float]:
    """The server's own token counters."""
    text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    wanted = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total")
    found = {}
    for line in text.splitlines():
        if line.startswith(wanted):
            name = line.split("{")[0]
            found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


@dataclasses.dataclass(frozen=True)
class Server:
    url: str
    log: Path
    folder: Path


async def ours(server: Server, repeat: int, ladder: tuple[int, ...], workload: Workload, warm: bool) -> None:
    target = await detect(Target(server.url))
    if warm:
        passes = await warm_up(target, workload, ladder)
        (server.folder / "warm-up.json").write_text(json.dumps(dataclasses.asdict(passes), default=str))
    tokenization = await tokenization_of(target, workload)
    for concurrency in ladder:
        got = await measure_point(
            target,
            workload,
            concurrency,
            repeat=repeat,
            tokenization=tokenization,
            engine_log=server.log,
            telemetry=True,
        )
        name = f"c{concurrency:03d}-r{repeat}"
        got.write(server.folder / f"requests-{name}.jsonl.zst")
        (server.folder / f"point-{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(got.point)))


def bench(server: Server) -> None:
    before, begun = counters(server.url), time.time()
    environment = dict(part.split("=", 1) for part in Path("/proc/self/environ").read_text().split("\0") if "=" in part)
    environment["PYTHONPATH"] = "/opt/sglang-site/site"
    said = subprocess.run(
        [ENGINE_PYTHON, "-c", BENCH, server.url, str(server.folder / "bench.jsonl")],
        capture_output=True,
        text=True,
        env=environment,
    )
    (server.folder / "bench.txt").write_text(said.stdout + "\n--stderr--\n" + said.stderr)
    after = counters(server.url)
    (server.folder / "bench-counters.json").write_text(
        json.dumps({"before": before, "after": after, "seconds": time.time() - begun}, indent=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", type=int, default=0)
    parser.add_argument("--port", type=int, default=30001)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--workload", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    server = Server(f"http://127.0.0.1:{asked.port}", asked.log, asked.folder)
    work = Workload.from_mapping(json.loads(asked.workload.read_text())) if asked.workload else SHORT
    if asked.quick:
        quick = dataclasses.replace(work, output_tokens=24, window_seconds=1.0, minimum_window_seconds=0.5)
        run(ours(server, 1, (8, 64, 256), quick, False))
        return
    run(ours(server, 1, LADDER, work, True))
    for repeat in range(2, asked.alone + 1):
        run(ours(server, repeat, LADDER, work, False))
    if asked.alone:
        return
    bench(server)
    run(ours(server, 2, LADDER, work, False))


if __name__ == "__main__":
    main()
