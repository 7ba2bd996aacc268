"""One rank's process: it prints what a scheduler prints, and holds the bytes that a scheduler would hold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmark.simulator.blueprint import Blueprint, Rank
from benchmark.simulator.ledger import Ledger
from benchmark.simulator.settings import Settings

from . import processes, texts
from .texts import GIB, EngineError, GpuMemory

# Where each stage of a start stands, as a share of the whole start.
DISTRIBUTED_BEGIN, DISTRIBUTED_END = 0.20, 0.27
LOAD_BEGIN, BUILT, LOAD_END = 0.32, 0.42, 0.65
POOL, GRAPHS_BEGIN, GRAPHS_END, UP = 0.68, 0.70, 0.84, 0.86

HANG_POWER = 0.22
"""Power of a GPU that only waits for its peers, as a share of its limit."""
_STEPS_OF_A_LOAD = 16


@dataclass
class Start:
    """What a rank's start needs and how far it came. Offsets are seconds since `began`."""

    rank: Rank
    blueprint: Blueprint
    settings: Settings
    began: float
    """time.monotonic() of the launch."""
    foreign: tuple[int, ...]
    """Bytes that others held on each rank's GPU at the launch."""
    allocated: int = 0
    delay: float = 0.0
    met: int | None = None
    """A file descriptor that ends when the other nodes are there; None without others."""

    @property
    def words(self) -> texts.Words:
        return texts.words(self.blueprint.arguments.release)

    @property
    def ledger(self) -> Ledger | None:
        return Ledger(self.settings.ledger) if self.settings.ledger else None

    @property
    def context(self) -> int:
        """Bytes outside torch's allocator: the CUDA context and the communicators."""
        return self.blueprint.gpu_total_bytes - self.blueprint.free_before_load_bytes

    def wait_until(self, share: float) -> None:
        """Sleeps until this share of the start has passed."""
        target = self.began + share * self.settings.start_seconds + self.delay
        time.sleep(max(0.0, target - time.monotonic()))

    def log(self, text: str, everyone: bool = True) -> None:
        """A line of this rank; `everyone=False`: only the first rank of a stage prints it."""
        if everyone or self.rank.tp == 0:
            texts.log(text, self.rank.prefix)

    def hold(self) -> None:
        """Writes what this rank holds now into the ledger."""
        if self.ledger:
            self.ledger.hold(self.rank.gpu, self.context + self.allocated, name=self.rank.name)

    def memory(self) -> GpuMemory:
        """The GPU as it is now, with what others hold."""
        others, lost = [], 0
        if self.ledger:
            for holder in self.ledger.holders(self.rank.gpu):
                if holder.leaked:
                    lost += holder.bytes
                elif holder.pid != os.getpid():
                    others.append((holder.pid, holder.bytes))
        total = self.blueprint.gpu_total_bytes
        return GpuMemory(self.rank.gpu, total, self.context, self.allocated, tuple(others), lost)

    def available(self) -> str:
        return f"{self.memory().free / GIB:.2f} GB"

    def allocate(self, size: int, where: str) -> None:
        """Takes `size` bytes of the GPU.

        Raises:
            EngineError: they are not free; `where` says in which frame that happens.
        """
        memory = self.memory()
        if size > memory.free:
            raise EngineError(where, "torch.OutOfMemoryError: " + texts.out_of_memory(size, memory))
        self.allocated += size


def run(start: Start, parent: int, answer: int) -> None:
    """The life of a rank's process: start, report on `answer` (a file descriptor), then wait to be killed."""
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.SIG_IGN)
    processes.die_with(parent)
    processes.set_title(start.rank.name)
    try:
        _start(start)
    except EngineError as error:
        texts.log(f"Scheduler hit an exception: {error.traceback()}\n", start.rank.prefix)
        os.kill(parent, signal.SIGQUIT)
    else:
        os.write(answer, b"ready\n")
    while True:
        signal.pause()


def _start(start: Start) -> None:
    blueprint = start.blueprint
    start.wait_until(DISTRIBUTED_BEGIN)
    start.log(f"{start.words.distributed} begin.")
    _init_distributed(start)
    start.wait_until(LOAD_BEGIN)
    _load_weights(start)
    start.wait_until(POOL)
    _allocate_pool(start)
    if blueprint.graph_batches:
        start.wait_until(GRAPHS_BEGIN)
        _capture_graphs(start)
    start.wait_until(UP)
    arguments = blueprint.arguments
    tokens = token_capacity(start)
    start.log(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={blueprint.chunked_prefill_size}, "
        f"max_prefill_tokens={arguments['max_prefill_tokens']}, "
        f"max_running_requests={blueprint.running_per_rank}, context_len={blueprint.context_length}, "
        f"available_gpu_mem={start.available()}",
        everyone=False,
    )


def _init_distributed(start: Start) -> None:
    blueprint, rank = start.blueprint, start.rank
    if rank.gpu < 0:
        raise EngineError(
            "device",
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
            "GPU device may be out of range, do you have enough GPUs?\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
            "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        )
    tp, ep = blueprint.arguments["tp_size"], blueprint.arguments["ep_size"]
    if tp % ep:
        raise EngineError("groups", "AssertionError")
    start.hold()
    leak = start.settings.faults.get("leak")
    if leak and start.ledger:
        start.ledger.hold(rank.gpu, int(leak), name=rank.name, leaked=True)
        start.settings.note_fault("leak")
    if len(blueprint.ranks) > 1:
        if rank.index == 0:
            start.log("sglang is using nccl==2.28.9")
        _meet(start)
        if "hang_init" in start.settings.faults:
            if start.ledger:
                start.ledger.work([rank.gpu], 1.0, HANG_POWER, None)
            start.settings.note_fault("hang_init")
            while True:
                signal.pause()
    start.wait_until(DISTRIBUTED_END)
    free = [blueprint.free_before_load_bytes - bytes_ for bytes_ in start.foreign]
    least, mine = min(free) / GIB, free[rank.index] / GIB
    if least < mine * 0.9 and blueprint.arguments["tp_size"] > 1:
        raise EngineError(
            "distributed",
            "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
            f"pre_model_load_memory={least}, local_gpu_memory={mine}, local_gpu_memory * 0.9={mine * 0.9}",
        )
    elapsed = (DISTRIBUTED_END - DISTRIBUTED_BEGIN) * start.settings.start_seconds
    start.log(f"Init torch distributed ends. elapsed={elapsed:.2f} s, mem usage={start.context / GIB:.2f} GB")


def _meet(start: Start) -> None:
    """Waits for the ranks of other nodes; what comes later in the start comes so much later."""
    if start.met is not None:
        began = time.monotonic()
        os.read(start.met, 1)
        start.delay += time.monotonic() - began


def _groups(tensors: tuple[tuple[str, int | None, int], ...]) -> Iterator[list[int]]:
    """Sizes of consecutive tensors, in at most about _STEPS_OF_A_LOAD groups."""
    width = max(1, -(-len(tensors) // _STEPS_OF_A_LOAD))
    for first in range(0, len(tensors), width):
        yield [size for _, _, size in tensors[first : first + width]]


def _load_weights(start: Start) -> None:
    blueprint, faults = start.blueprint, start.settings.faults
    began = time.monotonic()
    start.log(f"Load weight begin. avail mem={start.available()}")
    if blueprint.quantization == "compressed-tensors":
        start.log("Using CompressedTensorsWNA16MarlinMoEMethod", everyone=False)
    if blueprint.refusal:
        raise EngineError("weights", blueprint.refusal)
    groups = list(_groups(blueprint.stage_tensors[start.rank.pp]))
    for number, sizes in enumerate(groups, 1):
        # The whole group at once when it fits: looking at the ledger for every tensor costs more than it shows.
        if sum(sizes) <= start.memory().free:
            start.allocated += sum(sizes)
        else:
            for size in sizes:
                start.allocate(size, "weights")
        start.hold()
        start.wait_until(LOAD_BEGIN + (BUILT - LOAD_BEGIN) * number / len(groups))
    if blueprint.arguments["load_format"] == "dummy":
        start.delay += faults.get("slow_load") or 0.0
    else:
        _read_checkpoint(start)
    if "hang_load" in faults:
        start.settings.note_fault("hang_load")
        while True:
            signal.pause()
    if "crash_load" in faults and start.rank.index == 0:
        start.settings.note_fault("crash_load")
        raise EngineError(
            "files",
            "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, "
            "file not fully covered",
        )
    start.wait_until(LOAD_END)
    if "slow_load" in faults:
        start.settings.note_fault("slow_load")
    start.allocated = blueprint.stage_weights[start.rank.pp]
    start.hold()
    quantization = f"quant={blueprint.quantization}, " if blueprint.quantization else ""
    start.log(
        f"Load weight end. elapsed={time.monotonic() - began:.2f} s, type={blueprint.architecture}, "
        f"{quantization}avail mem={start.available()}, mem usage={start.allocated / GIB:.2f} GB."
    )


def _read_checkpoint(start: Start) -> None:
    """The progress bar of the first rank; every rank spends the time."""
    files, faults = 64, start.settings.faults
    stop = files // 2 if {"crash_load", "hang_load"} & set(faults.requested) else files
    extra = faults.get("slow_load") or 0.0
    before = start.delay
    shown = start.rank.index == 0 and start.blueprint.node == 0
    for number in range(0, stop + 1, 8):
        done = number / files
        start.delay = before + extra * done
        start.wait_until(BUILT + (LOAD_END - BUILT) * done)
        if shown:
            bar = "█" * int(10 * done)
            texts.write(
                f"\rLoading safetensors checkpoint shards: {int(100 * done):3d}% Completed | {number}/{files} "
                f"[00:00<00:00, 20.00it/s]{bar}"
            )
    if shown:
        texts.write("\n")


def token_capacity(start: Start) -> int:
    """Tokens of the KV pool: the plan's, less what others' memory takes of the fraction on the worst GPU."""
    blueprint = start.blueprint
    tokens, taken = blueprint.token_capacity, blueprint.mem_fraction * max(start.foreign)
    if not taken:
        return tokens
    return max(0, min(int(tokens - taken / max(1, cell)) for cell in blueprint.stage_kv_bytes_per_token))


def _allocate_pool(start: Start) -> None:
    start.log("Using KV cache dtype: torch.bfloat16", everyone=False)
    tokens = token_capacity(start)
    size = tokens * start.blueprint.stage_kv_bytes_per_token[start.rank.pp]
    if size <= 0:
        raise EngineError("kv", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    start.allocate(size, "kv")
    start.allocate(start.blueprint.request_table_bytes, "kv")
    start.hold()
    start.log(f"KV Cache is allocated. #tokens: {tokens}, KV size: {size / GIB:.2f} GB")
    start.log(f"Memory pool end. avail mem={start.available()}")


def _capture_graphs(start: Start) -> None:
    blueprint = start.blueprint
    batches = blueprint.graph_batches
    began = time.monotonic()
    start.allocate(blueprint.workspace_bytes, "graphs")
    start.log(start.words.graph_begin.format(batches=list(batches), free=start.available()))
    if not start.words.newer:
        start.log(f"Capture cuda graph bs {list(batches)}", everyone=False)
    shown = start.rank.index == 0 and blueprint.node == 0
    bar = "Capturing batches (bs={} avail_mem={}): {:3d}%|{:<10}| {}/{} [00:00<00:00, 20.00it/s]"
    if shown:
        texts.write("\r" + bar.format(batches[-1], start.available(), 0, "", 0, len(batches)))
    memory = start.memory()
    if blueprint.graph_bytes > memory.free:
        cause = texts.out_of_memory(20 << 20, memory)
        raise EngineError(
            "graphs",
            texts.graph_failure(cause),
            texts.traceback("capture", "torch.OutOfMemoryError: " + cause),
        )
    start.wait_until(GRAPHS_END)
    start.allocated += blueprint.graph_bytes
    start.hold()
    if shown:
        done = bar.format(batches[0], start.available(), 100, "█" * 10, len(batches), len(batches))
        texts.write("\r" + done + "\n")
    start.log(
        start.words.graph_end.format(
            seconds=time.monotonic() - began, size=blueprint.graph_bytes / GIB, free=start.available()
        )
    )
