"""Do two repeats of a point agree? Measures each rung twice on one start of the simulated engine, and says by how much.

    python measurements/repeats.py                             workload quick, rungs 1, 16, 96
    python measurements/repeats.py --workload chat --rungs 256 --repeats 2 --arguments "--tp-size 8"
    python measurements/repeats.py --url http://127.0.0.1:30000 --workload chat      a server that runs

Exit status 1 if two repeats of a rung differ by more than 2 %. It wants a quiet machine: both ends run on it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmark.campaign.record import Point  # noqa: E402
from benchmark.load.measure import measure_point, run  # noqa: E402
from benchmark.load.target import Target, detect  # noqa: E402
from benchmark.load.warmup import tokenization_of, warm_up  # noqa: E402
from benchmark.load.workload import Workload, named  # noqa: E402

AGREE = 0.02
ENGINE = (
    "--tp-size 8 --ep-size 8 --mem-fraction-static 0.88 --context-length 32768 --attention-backend triton "
    "--trust-remote-code --max-running-requests 256"
)


@contextlib.contextmanager
def simulated(arguments: list[str], speed: float) -> Iterator[str]:
    """A simulated engine of Kimi K2.6 on eight RTX PRO 6000; its address."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        log = Path(folder) / "engine.log"
        served = ("--host", "127.0.0.1", "--port", str(port), "--enable-metrics")
        settings = {"GPU": f"{folder}/gpus", "START_SECONDS": "0.5", "SPEED": str(speed)}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmark.simulator", "--model-path", "kimi-k2.6", *arguments, *served],
                cwd=ROOT,
                env=os.environ | {f"SHARDSWEEP_SIMULATED_{key}": value for key, value in settings.items()},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while not answers(f"{url}/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"The simulated engine did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


async def measure(url: str, work: Workload, rungs: list[int], repeats: int) -> dict[int, list[Point]]:
    target = await detect(Target(url))
    tokenization = await tokenization_of(target, work)
    warm = await warm_up(target, work, rungs)
    passes = ", ".join(f"{seconds:.1f}" for seconds in warm.passes)
    say(f"warm-up: passes of {passes} s, {'agreed' if warm.agreed else 'never agreed'}")
    found: dict[int, list[Point]] = {rung: [] for rung in rungs}
    for repeat in range(1, repeats + 1):
        for rung in rungs:
            got = await measure_point(target, work, rung, repeat=repeat, tokenization=tokenization, telemetry=False)
            found[rung].append(got.point)
            say(line(got.point))
    return found


def line(point: Point) -> str:
    width = point.output_tokens_per_second_half_width
    return (
        f"  C={point.concurrency:<4} repeat {point.repeat}: {point.output_tokens_per_second or 0:9.1f} tok/s "
        f"+- {f'{100 * width:.2f} %' if width is not None else 'unknown'}, window {point.window_seconds:.1f} of "
        f"{point.duration_seconds:.1f} s, ended by {point.client['window_ended_by']}, "
        f"{point.requests_completed} requests{''.join(f', {f.id}' for f in point.flags)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="quick")
    parser.add_argument("--rungs", default="1,16,96")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="the window's cap, in place of the workload's")
    parser.add_argument("--arguments", default=ENGINE, help="the simulated engine's command line")
    parser.add_argument("--speed", type=float, default=1.0, help="of the simulated engine's clock")
    parser.add_argument("--url", help="a running server, in place of the simulated engine")
    options = parser.parse_args()
    work = named(options.workload)
    if options.seconds:
        least = min(work.minimum_window_seconds, options.seconds)
        work = dataclasses.replace(work, window_seconds=options.seconds, minimum_window_seconds=least)
    rungs = [int(rung) for rung in options.rungs.split(",")]
    running = (
        contextlib.nullcontext(options.url) if options.url else simulated(shlex.split(options.arguments), options.speed)
    )
    with running as url:
        found = run(measure(url, work, rungs, options.repeats))
    worst = 0.0
    for rung, points in found.items():
        rates = [point.output_tokens_per_second or 0.0 for point in points]
        spread = max(rates) / min(rates) - 1 if min(rates) else float("inf")
        worst = max(worst, spread)
        say(f"C={rung}: {options.repeats} repeats within {100 * spread:.2f} %")
    say(f"Repeats agree within {100 * worst:.2f} % (asked: {100 * AGREE:g} %).")
    return 0 if worst <= AGREE else 1


if __name__ == "__main__":
    sys.exit(main())
