"""The engine's log over the window: decode steps, and lines that say something was compiled."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

_DECODE = re.compile(r"Decode batch.*?#running-req: (\d+).*?gen throughput \(token/s\): ([\d.]+)")
_RANK = re.compile(r"^\[[\d-]+ [\d:.]+ ?([^]]*)]")
_COMPILE = re.compile(
    "|".join(
        (
            # CUDA's own tools, and who calls them: PyTorch's extensions, FlashInfer, SGLang's JIT kernels (Marlin).
            r"\bnvcc\b|\bptxas\b|\bninja\b|[Bb]uilding extension module|Loading extension module",
            r"\bJIT\b|[Jj]ust-in-time|jit_kernel|flashinfer\.jit",
            # Triton, TorchInductor, Dynamo; FlashInfer's [AutoTuner]; TileLang.
            r"[Aa]utotun(?:e|ing)|AUTOTUNE|AutoTuner|torch\.compile|torch\._(?:inductor|dynamo)|[Rr]ecompil",
            r"[Cc]ompiling|[Cc]ompilation (?:started|took|complete)|[Bb]egins to compile",
            # DeepGEMM; graphs captured late.
            r"DeepGEMM (?:warmup|JIT)|compile_deep_gemm|Captur(?:e|ing) (?:piecewise |cuda |CUDA |batches|num tokens)",
        )
    )
)
MAX_BYTES = 32 << 20
LINES_NEEDED = 8
"""Fewer decode lines (one for 40 steps) are no mean: each also has the pauses of its stretch in it."""
FULL_SHARE = 0.97
"""A line with so much of the load running is one of the full batch."""


class LogWindow:
    """Marks two places in a growing file and reads what stands between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start: int | None = None
        self.end: int | None = None

    def _size(self) -> int | None:
        try:
            return self.path.stat().st_size
        except OSError:
            return None

    def open(self) -> None:
        self.start = self._size()

    def close(self) -> None:
        if self.end is None and self.start is not None:
            self.end = self._size()

    def text(self) -> str:
        if self.start is None or self.end is None or self.end <= self.start:
            return ""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                return file.read(min(self.end - self.start, MAX_BYTES)).decode("utf-8", "replace")
        except OSError:
            return ""

    def summary(self, running: float = 1, stages: int = 1) -> dict[str, Any]:
        return summary(self.text(), running, stages)


def summary(text: str, running: float = 1, stages: int = 1) -> dict[str, Any]:
    """Decode steps and compilations in a piece of an engine's log.

    A line's step is running requests / generation throughput: seconds a token of one request (with speculative
    decoding several tokens come in one step of the engine). The line covers about 40 steps, and the prefills between
    them. Lines with no prefill since the line before cover steps alone; those that also ran the full batch
    have a median of their own, which says what a step takes while nothing is in its way.

    Args:
        text: lines of the log; the first decode line's stretch began before them.
        running: requests that run when all do, on one data-parallel rank (each writes lines of its own).
        stages: of the pipeline. A line is then of one micro-batch, and a token takes a pass of each.
    """
    micro_batches = max(1, min(stages, int(running)))
    steps, alone, ran, compiled = [], [], [], []
    prefilled: dict[str, bool] = {}
    for line in text.splitlines():
        match = _DECODE.search(line)
        if match is not None:
            requests, rate = micro_batches * int(match[1]), float(match[2])
            if requests and rate:
                steps.append(requests / rate)
                ran.append(requests)
                if requests >= FULL_SHARE * running and not prefilled.get(_rank(line), True):
                    alone.append(steps[-1])
            prefilled[_rank(line)] = False
        elif "Prefill batch" in line:
            prefilled[_rank(line)] = True
        elif _COMPILE.search(line) and "HTTP/1.1" not in line and "server_args" not in line:
            compiled.append(line.strip()[:300])
    found: dict[str, Any] = {}
    if len(steps) >= LINES_NEEDED:
        found["decode_step_mean_seconds"] = sum(steps) / len(steps)
        found["decode_step_median_seconds"] = sorted(steps)[len(steps) // 2]
        found["decode_lines"] = len(steps)
        found["log_running_mean"] = sum(ran) / len(ran)
    if alone:
        found["decode_alone_step_median_seconds"] = statistics.median(alone)
        found["decode_alone_lines"] = len(alone)
    if compiled:
        found["compile_lines"] = compiled[:5]
    return found


def _rank(line: str) -> str:
    """`DP1 TP0` of a line that starts with [time DP1 TP0]; empty with one rank."""
    match = _RANK.match(line)
    return match[1] if match is not None else ""
