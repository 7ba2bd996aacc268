"""The engine's own counters (`/metrics`, Prometheus text) and its load, before, during and after a point.

`sglang:generation_tokens_total` moves only when a request ends. From idle to idle its difference is exactly the
number of tokens that were answered; inside a window it says nothing.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from ..target import Target, call, load_of

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")

WANTED = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "num_aborted_requests_total",
    "process_start_time_seconds",
)


def parse(text: str) -> dict[str, float]:
    """Sums over all labels of the counters that are used here, without the `sglang:` in front."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name = match[1].rpartition(":")[2]
        if name in WANTED:
            try:
                found[name] = found.get(name, 0.0) + float(match[3])
            except ValueError:
                continue
    return found


async def read(target: Target) -> dict[str, float]:
    """The counters now; empty if the server has none (it needs --enable-metrics)."""
    exchange = await call(target, "GET", "/metrics")
    if exchange.failure():
        return {}
    return parse(exchange.body.decode("utf-8", "replace"))


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """What was counted in between, and whether the engine was restarted (a counter fell, or is gone)."""
    found: dict[str, Any] = {}
    if not before:
        return found
    restarted = any(after.get(name, 0.0) < value for name, value in before.items() if name.endswith("_total"))
    started = "process_start_time_seconds"
    restarted = restarted or abs(after.get(started, 0.0) - before.get(started, 0.0)) > 1
    found["restarted"] = restarted
    if not restarted:
        for name in WANTED[:-1]:
            if name in before or name in after:
                found[name.removesuffix("_total")] = after.get(name, 0.0) - before.get(name, 0.0)
    return found


class LoadPoller:
    """Asks the engine once a second how many requests it runs; for the window only, and by one small request."""

    def __init__(self, target: Target, seconds: float = 1.0) -> None:
        self.target = target
        self.seconds = seconds
        self.samples: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.target.kind == "sglang":
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            load = await load_of(self.target)
            if load is None:
                return
            self.samples.append(load)
            await asyncio.sleep(self.seconds)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def summary(self) -> dict[str, Any]:
        if not self.samples:
            return {}

        def mean(key: str) -> float:
            return sum(sample[key] for sample in self.samples) / len(self.samples)

        return {
            "running_mean": mean("running"),
            "running_max": max(sample["running"] for sample in self.samples),
            "waiting_mean": mean("waiting"),
            "tokens_held_max": max(sample["tokens"] for sample in self.samples),
            "capacity_tokens": self.samples[-1]["capacity"],
            "max_running": self.samples[-1]["max_running"],
            "load_samples": len(self.samples),
        }
