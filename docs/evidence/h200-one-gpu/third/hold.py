"""The repeats of one start held against each other, and what the client saw against the engine's log.

python docs/evidence/h200-one-gpu/third/hold.py      in the project's folder

A request's own prefill is before its first token, so its TPOT holds those of the C - 1 others only. The log's mean has
them all; less one part in C of what prefills add, it is what TPOT should be. Where no two decode lines followed each
other (64 and 256) nothing is taken off, which is at most 0.7 % there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmark.load.metrics import About, figures
from benchmark.load.rows import read_all

HERE = Path(__file__).parent
LADDER = (1, 8, 64, 256)


def point(concurrency: int, repeat: int) -> dict:
    return json.loads((HERE / f"point-c{concurrency:03d}-r{repeat}.json").read_text())


def gap(concurrency: int, repeat: int) -> float | None:
    """Seconds: the median gap between events in which nobody's first token came."""
    about, rows = read_all(HERE / f"requests-c{concurrency:03d}-r{repeat}.jsonl.zst")
    return figures(rows, About.from_mapping(about)).decode_gap


def apart(a: float, b: float) -> str:
    return f"{100 * (a / b - 1):+.1f} %"


def main() -> None:
    say = sys.stdout.write
    say("   C  repeat   tok/s  half-width  TPOT ms (by the log)    gap ms (log, no prefill)   tokens\n")
    for concurrency in LADDER:
        both = [point(concurrency, repeat) for repeat in (1, 2)]
        for repeat, seen in enumerate(both, 1):
            server, tpot, alone = seen["server"], seen["tpot_seconds"]["mean"], gap(concurrency, repeat)
            mean, step = server["decode_step_mean_seconds"], server.get("decode_alone_step_median_seconds")
            expected = mean - (mean - step) / concurrency if step else mean
            gaps = f"{1e3 * alone:6.3f} ({apart(alone, step)})" if step else ""
            equal = "equal" if server["generation_tokens"] == seen["output_tokens"] else "DIFFER"
            say(
                f"{concurrency:4}  {repeat}  {seen['output_tokens_per_second']:9.1f}"
                f"   {100 * seen['output_tokens_per_second_half_width']:4.1f} %"
                f"      {1e3 * tpot:6.2f} ({apart(tpot, expected):>7})        {gaps:18}         {equal}\n"
            )
        rates = [seen["output_tokens_per_second"] for seen in both]
        say(f"      the second against the first: {apart(rates[1], rates[0])}\n")


if __name__ == "__main__":
    main()
