"""Lack of GPU memory: one exception at four stages, with opposite advice."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from .failure import GIB, Case, Failure

_AMOUNT = r"(\d{1,9}(?:\.\d+)?) (bytes|[KMGT]iB)"
OUT_OF_MEMORY = re.compile(
    rf"(?:OutOfMemoryError|CUDA out of memory).*?Tried to allocate {_AMOUNT}"
    rf"(?:.*?GPU (\d+) has a total capacity of {_AMOUNT} of which {_AMOUNT} is free)?"
)
OUT_OF_MEMORY_UNSIZED = re.compile(
    r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:\d+ )?'out of memory'", re.IGNORECASE
)
"""The driver's own word, past PyTorch's allocator: it names no amount."""
_OTHER_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_AMOUNT} memory in use")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40}
_FRAMES = (
    ("graphs", re.compile(r"cuda_graph|graph_runner|device_graphs|in capture\b")),
    ("kv", re.compile(r"memory_pool|pool_configurator|kv_cache|init_memory_pool")),
    ("weights", re.compile(r"model_loader|load_model|create_weights|process_weights")),
    ("ready", re.compile(r"run_event_loop|event_loop|run_batch|forward_batch_generation")),
)


def place(case: Case) -> str:
    """The stage of a failure by the frames of its traceback, the innermost meaning first; else by the log."""
    text = "\n".join(case.block)
    for stage, pattern in _FRAMES:
        if pattern.search(text):
            # The warm-up's requests go through the same loop.
            return "warmup" if (stage, case.stage) == ("ready", "warmup") else stage
    return case.stage


def out_of_memory(case: Case) -> Failure:
    stage = place(case)
    amount, unit, gpu, total, total_unit, free, free_unit = case.match.groups()
    asked = f"an allocation of {amount} {unit}"
    where = f" on GPU {gpu}, where {free} {free_unit} of {total} {total_unit} were free" if gpu else ""
    others = _OTHER_PROCESS.findall(case.line.text)
    held = sum(float(size) * _UNITS[size_unit] for _, size, size_unit in others)
    if held > GIB:
        pids = ", ".join(pid for pid, _, _ in others)
        return Failure(
            "blocked_by_others",
            stage,
            f"Another process holds {held / GIB:.2f} GiB of GPU {gpu or '?'} (pid {pids}); {asked} did not fit.",
            advice=f"Stop pid {pids} or wait until it ends, then start again. The configuration itself may fit.",
            may_pass=True,
        )
    return _OUT_OF_MEMORY.get(stage, _oom_weights)(case, asked + where)


def out_of_memory_unsized(case: Case) -> Failure:
    stage = place(case)
    if (named := _OUT_OF_MEMORY.get(stage)) is None:
        return Failure(
            "blocked_by_others",
            stage,
            "A GPU had no memory before the weights were loaded: something else holds it.",
            advice="See who holds it (nvidia-smi), end it or wait, then start again.",
            may_pass=True,
        )
    return named(case, "an allocation outside PyTorch's pool, whose size CUDA does not tell")


def _oom_weights(case: Case, what: str) -> Failure:
    tp, pp = case.setting("tp_size") or 1, case.setting("pp_size") or 1
    spread = tp * pp if isinstance(tp, int) and isinstance(pp, int) else None
    over = f"over {spread} GPU{'s' if spread != 1 else ''} (tp {tp} x pp {pp}; ep adds none)" if spread else ""
    more = f"--tp-size {2 * tp}" if spread and tp < 8 else f"--pp-size {2 * pp}"
    return Failure(
        "out_of_memory_weights",
        "weights",
        f"The weights do not fit {over}: {what}.".replace(" :", ":"),
        advice=f"Split the model over more GPUs ({more}), or use smaller weights (quantized). "
        "--mem-fraction-static changes nothing here.",
    )


def _oom_pool(case: Case, what: str) -> Failure:
    fraction = case.setting("mem_fraction_static")
    lower = f" from {fraction:g} to {max(0.05, fraction - 0.03):.2f}" if isinstance(fraction, float) else ""
    return Failure(
        "out_of_memory_pool",
        "kv",
        f"The KV pool that --mem-fraction-static asks for could not be allocated: {what}.",
        advice=f"Lower --mem-fraction-static{lower}, lower --context-length or --max-running-requests (the "
        "request table), or look for memory that something else holds.",
    )


def _oom_graphs(case: Case, what: str) -> Failure:
    fraction = case.setting("mem_fraction_static")
    lower = f" from {fraction:g} to {_floor(min(fraction - 0.02, 0.97)):.2f}" if isinstance(fraction, float) else ""
    return Failure(
        "out_of_memory_graphs",
        "graphs",
        f"No memory was left to capture the decode graphs: {what}.",
        advice=f"Lower --mem-fraction-static{lower}, or capture fewer batch sizes (--cuda-graph-max-bs "
        f"{_fewer_graphs(case)}; --cuda-graph-max-bs-decode from 0.5.15 on).",
    )


def _fewer_graphs(case: Case) -> int:
    largest = case.setting("cuda_graph_max_bs") or case.setting("max_running_requests")
    return max(16, largest // 4) if isinstance(largest, int) else 64


def _oom_running(case: Case, what: str) -> Failure:
    """In the first prefill, which is the warm-up's, or once it is ready, under load."""
    fraction, chunk = case.setting("mem_fraction_static"), case.setting("chunked_prefill_size")
    lower = f" from {fraction:g} to {_floor(fraction - 0.04):.2f}" if isinstance(fraction, float) else ""
    half = f" from {chunk} to {max(2048, min(chunk // 2, 8192))}" if isinstance(chunk, int) and chunk > 2048 else ""
    advice = (
        f"Lower --mem-fraction-static{lower}, or --chunked-prefill-size{half}: activations live outside the fraction."
    )
    # A log that was read from its middle does not say that it was ready.
    if case.stage != "ready" and "server_args" in case.figures:
        sentence = f"The engine ran out of memory in its first prefill: {what}."
        return Failure("out_of_memory_prefill", "warmup", sentence, advice=advice)
    prefill = "forward_extend" in "\n".join(case.block)
    sentence = f"The engine ran out of memory {'in a prefill' if prefill else 'under load'}: {what}."
    return Failure("out_of_memory_running", "ready", sentence, advice=advice)


def _floor(number: float) -> float:
    return max(0.05, math.floor(number * 100 + 1e-9) / 100)


_OUT_OF_MEMORY: dict[str, Callable[[Case, str], Failure]] = {
    "weights": _oom_weights,
    "kv": _oom_pool,
    "graphs": _oom_graphs,
    "kernels": _oom_graphs,
    "warmup": _oom_running,
    "ready": _oom_running,
}


def no_room_for_kv(case: Case) -> Failure:
    """The pool has no tokens: the fraction must go up, the opposite of every other lack of memory."""
    before, after = (case.figures.get(f"available_{when}_load_bytes") for when in ("before", "after"))
    fraction = case.setting("mem_fraction_static")
    given = f"--mem-fraction-static {fraction:g}" if isinstance(fraction, float) else "--mem-fraction-static"
    viable = re.search(r"Raise --mem-fraction-static above (\d\.\d+)", case.line.text)
    least = float(viable.group(1)) if viable else None
    sizes = ""
    if before and after:
        least = least if least is not None else 1 - after / before
        weights = case.figures.get("weights_bytes") or before - after
        sizes = f"; the weights take {weights / GIB:.2f} of {before / GIB:.2f} GiB"
    advice = "Raise --mem-fraction-static"
    if least is not None:
        advice += f" above {least:.3f}"
        wanted = math.ceil((least + 0.02) * 100) / 100
        if wanted < 0.97:
            advice += f", for example to {wanted:.2f}"
        else:
            advice += "; so little is left then that the weights should be split over more GPUs"
    return Failure("out_of_memory_kv", "kv", f"{given} leaves no room for the KV cache{sizes}.", advice=advice + ".")


def unbalanced(case: Case) -> Failure:
    least, local = case.match.groups()
    numbers = f" ({float(least):.1f} GiB free on one, {float(local):.1f} on another)" if least and local else ""
    return Failure(
        "blocked_by_others",
        "distributed",
        f"Some GPUs have much less free memory than others{numbers}: another process holds it.",
        advice="See who holds it (nvidia-smi), end it or wait, then start again.",
        may_pass=True,
    )
