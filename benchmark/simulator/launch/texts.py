"""What the engine prints: stamped lines, and the tracebacks of starts that fail, in its own words."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.engine import flags

GIB = 1 << 30

_SITE = "/opt/sglang/venv/lib/python3.12/site-packages"
_SRT = f"{_SITE}/sglang/srt"
_INIT = (
    ("managers/scheduler.py", 3918, "run_scheduler_process", "scheduler = Scheduler("),
    ("managers/scheduler.py", 648, "init_tp_model_worker", "self.tp_worker = TpModelWorker(**worker_kwargs)"),
    ("managers/tp_worker.py", 345, "_init_model_runner", "self._model_runner = ModelRunner("),
)
FRAMES: Mapping[str, tuple[tuple[str, int, str, str], ...]] = {
    "weights": (
        *_INIT,
        ("model_executor/model_runner.py", 1380, "load_model", "self.model = self.loader.load_model("),
        ("model_loader/loader.py", 286, "_initialize_model", "return model_class(**kwargs)"),
        ("models/deepseek_v2.py", 1678, "__init__", "self.mlp = DeepseekV2MoE("),
        ("layers/moe/fused_moe_triton/layer.py", 286, "__init__", "self.quant_method.create_weights("),
    ),
    "files": (
        *_INIT,
        ("model_executor/model_runner.py", 1380, "load_model", "self.model = self.loader.load_model("),
        ("model_loader/loader.py", 713, "load_weights_and_postprocess", "model.load_weights(weights)"),
        ("model_loader/weight_utils.py", 741, "safetensors_weights_iterator", "with safe_open(st_file) as f:"),
    ),
    "kv": (
        *_INIT,
        (
            "model_executor/model_runner.py",
            733,
            "initialize",
            "self.init_memory_pool(pre_model_load_memory)",
        ),
        ("model_executor/pool_configurator.py", 44, "__post_init__", "raise RuntimeError(msg)"),
    ),
    "graphs": (
        *_INIT,
        ("model_executor/model_runner.py", 771, "initialize", "self.init_device_graphs()"),
        ("model_executor/cuda_graph_runner.py", 716, "__init__", "raise Exception("),
    ),
    "capture": (
        ("model_executor/cuda_graph_runner.py", 714, "__init__", "self.capture()"),
        ("model_executor/cuda_graph_runner.py", 1165, "capture_one_batch_size", "run_once()"),
        ("models/deepseek_v2.py", 2032, "forward", "hidden_states = self.embed_tokens(input_ids)"),
    ),
    "device": (
        *_INIT,
        (
            "model_executor/model_runner.py",
            1106,
            "init_torch_distributed",
            "torch.get_device_module(self.device).set_device(self.gpu_id)",
        ),
    ),
    "distributed": (
        *_INIT,
        (
            "model_executor/model_runner.py",
            481,
            "__init__",
            "pre_model_load_memory = self.init_torch_distributed()",
        ),
    ),
    "meeting": (
        *_INIT,
        ("model_executor/model_runner.py", 481, "__init__", "pre_model_load_memory = self.init_torch_distributed()"),
        (
            "distributed/parallel_state.py",
            1520,
            "init_distributed_environment",
            "torch.distributed.init_process_group(",
        ),
    ),
    "broadcast": (
        ("managers/scheduler.py", 3934, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("managers/scheduler.py", 1384, "recv_requests", "recv_reqs = broadcast_pyobj("),
        ("utils/common.py", 1243, "broadcast_pyobj", "dist.broadcast(tensor_size, src=src, group=dist_group)"),
    ),
    "groups": (
        *_INIT,
        ("distributed/parallel_state.py", 420, "__init__", "assert self.cpu_group is not None"),
    ),
    "prefill": (
        ("managers/scheduler.py", 3934, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("managers/scheduler.py", 2947, "run_batch", "self.model_worker.forward_batch_generation("),
        (
            "model_executor/model_runner.py",
            3063,
            "forward_extend",
            "ret = self.model.forward(",
        ),
        ("layers/linear.py", 466, "forward", "output_parallel = self.quant_method.apply(self, input_, bias)"),
    ),
    "decode": (
        ("managers/scheduler.py", 3934, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("managers/scheduler.py", 2947, "run_batch", "self.model_worker.forward_batch_generation("),
        ("model_executor/model_runner.py", 3042, "forward_decode", "ret = self.model.forward("),
    ),
    "arguments": (
        ("../launch_server.py", 66, "<module>", "server_args = prepare_server_args(sys.argv[1:])"),
        ("server_args.py", 7299, "prepare_server_args", "return ServerArgs.from_cli_args(raw_args)"),
        ("server_args.py", 836, "__post_init__", "self._handle_piecewise_cuda_graph()"),
    ),
    "config": (
        ("../launch_server.py", 66, "<module>", "server_args = prepare_server_args(sys.argv[1:])"),
        ("configs/model_config.py", 169, "__init__", "self.hf_config = get_config("),
        ("utils/hf_transformers/config.py", 79, "get_config", "config = AutoConfig.from_pretrained("),
    ),
    "spawn": (
        ("../launch_server.py", 69, "<module>", "run_server(server_args)"),
        ("entrypoints/http_server.py", 2344, "launch_server", ") = Engine._launch_subprocesses("),
        ("entrypoints/engine.py", 1307, "_compute_parallelism_ranks", "tp_rank"),
    ),
}


@dataclass(frozen=True)
class Words:
    """What changed in the start-up lines between releases."""

    newer: bool
    distributed: str
    graph_begin: str
    graph_end: str


_OLDER_WORDS = Words(
    False,
    "Init torch distributed",
    "Capture cuda graph begin. This can take up to several minutes. avail mem={free}",
    "Capture cuda graph end. Time elapsed: {seconds:.2f} s. mem usage={size:.2f} GB. avail mem={free}.",
)
_NEWER_WORDS = Words(
    True,
    "Init parallel",
    "Capture target decode CUDA graph begin. backend=full, bs={batches}, avail mem={free}",
    "Capture target decode CUDA graph end. elapsed={seconds:.2f} s, mem usage={size:.2f} GB, avail mem={free}.",
)


def words(release: str) -> Words:
    """0.5.11 is captured and 0.5.23 read; where between them the words changed is not known to the day."""
    return _NEWER_WORDS if flags.release_at_least(release, "0.5.20") else _OLDER_WORDS


class EngineError(Exception):
    """A failure of the simulated engine; the text is the last line of its traceback, with the type."""

    def __init__(self, where: str, text: str, cause: str | None = None):
        super().__init__(text)
        self.where = where
        self.cause = cause
        """A whole traceback that this one was raised while handling."""

    def traceback(self) -> str:
        """As Python prints it, without a final newline."""
        text = traceback(self.where, str(self))
        if self.cause is None:
            return text
        joint = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        return self.cause + joint + text


def traceback(where: str, last: str) -> str:
    """A traceback through the engine's files to `where` (a key of FRAMES), ending in `last`."""
    lines = ["Traceback (most recent call last):"]
    for file, number, function, source in FRAMES[where]:
        path = f"{_SITE}/sglang/{file[3:]}" if file.startswith("../") else f"{_SRT}/{file}"
        lines += [f'  File "{path}", line {number}, in {function}', f"    {source}"]
    return "\n".join([*lines, last])


def size_text(size: float) -> str:
    """Bytes as torch prints them: `672.00 MiB`."""
    if size <= 1024:
        return f"{int(size)} bytes"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size <= 1024:
            return f"{size:.2f} {unit}"
    return f"{size / 1024:.2f} GiB"


@dataclass(frozen=True)
class GpuMemory:
    """One GPU as torch sees it when an allocation fails. All in bytes."""

    gpu: int
    total: int
    context: int
    """What this process holds outside torch's allocator."""
    allocated: int
    others: Sequence[tuple[int, int]] = ()
    """(pid, bytes) of other processes on it."""
    lost: int = 0
    """Held by no process that can be named."""

    @property
    def free(self) -> int:
        return max(0, self.total - self.context - self.allocated - self.lost - sum(b for _, b in self.others))


def out_of_memory(requested: int, memory: GpuMemory, unallocated: int = 0) -> str:
    """torch's words for an allocation that does not fit."""
    others = "".join(f"Process {pid} has {size_text(size)} memory in use. " for pid, size in memory.others)
    mine = memory.context + memory.allocated
    return (
        f"CUDA out of memory. Tried to allocate {size_text(requested)}. GPU {memory.gpu} has a total capacity of "
        f"{size_text(memory.total)} of which {size_text(memory.free)} is free. {others}Including non-PyTorch "
        f"memory, this process has {size_text(mine)} memory in use. Of the allocated memory "
        f"{size_text(memory.allocated)} is allocated by PyTorch, and {size_text(unallocated)} is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
        "Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def graph_failure(message: str) -> str:
    """The engine's words when capturing decode graphs failed."""
    return (
        f"Exception: Capture cuda graph failed: {message}\n"
        "Possible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
        "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
        "3. disable torch compile by not using --enable-torch-compile\n"
        "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
        "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
    )


def log(text: str, prefix: str = "") -> None:
    """One line on stderr, `[2026-11-29 11:34:10 TP0] text`, written whole so that ranks do not mix."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    write(f"[{stamp}{prefix}] {text}\n")


def write(text: str) -> None:
    """Text on stderr as it is, in one write; a closed pipe is nobody's business here."""
    data = text.encode("utf-8", "replace")
    while data:
        try:
            data = data[os.write(2, data) :]
        except InterruptedError:
            continue
        except OSError:
            return
