"""How long the plan takes: the whole catalogue (asked: under a second) and a search of eight GPUs (under five).

    python measurements/plan_speed.py [REPEATS]

Each is `python -m benchmark plan` from launch to exit, as a user waits for it, with the project's own campaigns for a
calibration. Prints the fastest, the median, and the CPU's part. Run it on a quiet machine; it prints the load.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# (what, words, seconds it may take)
ASKED = (("the whole catalogue", [], 1.0), ("--search for eight GPUs", ["--search"], 5.0))


def seconds(words: list[str]) -> tuple[float, float]:
    """(seconds from launch to exit, those of a CPU)."""
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    # Exit status 1: some configuration of the catalogue is rejected.
    command = [sys.executable, "-m", "benchmark", "plan", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return time.perf_counter() - started, busy


def main(repeats: int) -> None:
    sys.stdout.write(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    for what, words, limit in ASKED:
        times, busy = zip(*(seconds(words) for _ in range(repeats)), strict=True)
        kept = "kept" if min(times) < limit else "NOT kept"
        sys.stdout.write(
            f"{what}: {min(times):.2f} s at best, median {statistics.median(times):.2f} s "
            f"({statistics.median(busy):.2f} s of a CPU); under {limit:g} s: {kept}\n"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
