"""One rank of the communication check. Run by the engine's own Python, which has torch and not this package.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29999 python ranks.py REQUEST

REQUEST is JSON: {"backend": "nccl" | "gloo" | "", "bytes": [...], "tokens": [...], "hidden": 7168, "all_reduces": 123}.
Each line on standard output that begins with `@` is JSON: {"stage": ...}, {"size": {...}}, {"step": {...}}; NCCL's own
lines stand between them. Standard library and torch only, Python 3.10.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from typing import Any

WARM_UP, LEAST_ROUNDS, MOST_ROUNDS = 5, 10, 200
ROUND_SECONDS = 0.4
"""About how long one message size is measured."""
REPEATS = 5
"""Of the 123 all-reduces of a step; the median counts."""


def tell(**said: Any) -> None:
    sys.stdout.write("@" + json.dumps(said) + "\n")
    sys.stdout.flush()


class Ranks:
    """This rank's view of the group. Times are seconds of the slowest rank."""

    def __init__(self, request: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.gpu = torch.cuda.is_available()
        self.backend = request.get("backend") or ("nccl" if self.gpu else "gloo")
        if self.gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)))
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.gpu else torch.device("cpu")
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.first = self.rank == 0
        tell(stage="group", torch=str(torch.__version__), backend=self.backend, nccl=self._nccl())
        dist.init_process_group(self.backend, timeout=datetime.timedelta(hours=1))

    def _nccl(self) -> str | None:
        if self.backend != "nccl":
            return None
        return ".".join(str(part) for part in self.torch.cuda.nccl.version())

    def tensor(self, size: int) -> Any:
        """Of `size` bytes, in the engine's type (bf16), or float32 without a GPU."""
        return self.torch.zeros(max(1, size // self.dtype.itemsize), dtype=self.dtype, device=self.device)

    def wait(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()

    def right(self) -> bool:
        """Each rank adds its number and one: every element must be n (n + 1) / 2. NVML's word is not proof of data."""
        tensor = self.tensor(1 << 20)
        tensor += self.rank + 1
        self.dist.all_reduce(tensor)
        self.wait()
        wanted = self.count * (self.count + 1) // 2
        return bool((tensor == wanted).all().item())

    def slowest(self, seconds: float) -> float:
        told = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(told, op=self.dist.ReduceOp.MAX)
        return float(told.item())

    def timed(self, work: Any) -> float:
        """Seconds of one call, all ranks beginning together."""
        self.dist.barrier()
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - began

    def size(self, size: int) -> None:
        """One message size: `rounds` all-reduces, in one CUDA graph, for a decode step has them so too.

        One at a time, Python takes longer to ask for a small one than the GPUs take to do it.
        """
        tensor = self.tensor(size)
        for _ in range(WARM_UP):
            self.dist.all_reduce(tensor)
        once = self.slowest(self.timed(lambda: self.dist.all_reduce(tensor)))
        rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, ROUND_SECONDS / max(once, 1e-6))))
        work, graph = self._captured(tensor, rounds)
        work()
        whole = self.slowest(self.timed(work))
        if self.first:
            sent = tensor.numel() * self.dtype.itemsize
            tell(size={"bytes": sent, "rounds": rounds, "graph": graph, "seconds": whole / rounds})

    def step(self, tokens: int, hidden: int, all_reduces: int) -> None:
        """The all-reduces of one forward pass: `all_reduces` of tokens x hidden x 2 bytes, in one CUDA graph.

        Without a GPU there is no graph: they run one after the other.
        """
        tensor = self.tensor(tokens * hidden * 2)
        for _ in range(WARM_UP):
            self.dist.all_reduce(tensor)
        self.wait()
        work, graph = self._captured(tensor, all_reduces)
        work()
        seconds = statistics.median(self.slowest(self.timed(work)) for _ in range(REPEATS))
        if self.first:
            tell(
                step={
                    "tokens": tokens,
                    "bytes": tokens * hidden * 2,
                    "all_reduces": all_reduces,
                    "graph": graph,
                    "seconds": seconds,
                    "all_reduce_seconds": seconds / all_reduces,
                }
            )

    def _captured(self, tensor: Any, all_reduces: int) -> tuple[Any, bool]:
        def run() -> None:
            for _ in range(all_reduces):
                self.dist.all_reduce(tensor)

        if not self.gpu:
            return run, False
        graph = self.torch.cuda.CUDAGraph()
        # thread_local: the process group's watchdog asks for events in another thread while we capture.
        with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph.replay, True


def main(request: dict[str, Any]) -> int:
    tell(stage="import")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        tell(stage="no torch", error=str(error))
        return 3
    ranks = Ranks(request)
    tell(stage="first all-reduce")
    if not ranks.right():
        tell(stage="wrong data")
        return 4
    tell(stage="sizes")
    for size in request["bytes"]:
        ranks.size(int(size))
    tell(stage="steps")
    for tokens in request["tokens"]:
        ranks.step(int(tokens), int(request["hidden"]), int(request["all_reduces"]))
    ranks.dist.barrier()
    tell(stage="done")
    # A clean destroy can hang on a communicator that is in trouble; the result is told already.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
