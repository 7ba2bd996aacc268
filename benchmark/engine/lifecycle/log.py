"""A start of the engine read from its log: how far it came, what it measured, and why it failed.

Wording changes between releases, lines carry rank prefixes and escape codes, progress bars end in carriage returns,
and everything is input that nobody vouches for: it is bounded in size, and nothing in it is obeyed. Sizes are bytes
(the engine prints GiB and writes GB), times are seconds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..nccl import transport
from .failure import GIB, LEFT_OUT, LONGEST_LINE, Failure, Line, shown
from .find import failure_from_exit, find_failure, says_its_end

STAGES = ("process", "distributed", "weights", "kv", "graphs", "kernels", "warmup", "ready")
"""In the order of a start; `kernels` (compiling) comes wherever it comes."""

LARGEST_TEXT = 8 << 20
"""Characters that are read: of a longer log the first and the last half of this."""
_LONGEST_ARGUMENTS = 64_000
LAST_LINES = 20

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_STAMP = re.compile(r"\[(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)((?: [A-Z][A-Z_]*\d+)*)\] ?")
_OFFSET = re.compile(r"\s*(\d{1,7}\.\d\d) ")
_JOURNAL = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: ?")
_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("ready", re.compile(r"server is fired up and ready", re.IGNORECASE)),
    ("warmup", re.compile(r"max_total_num_tokens=\d+, |Uvicorn running on|Application startup complete")),
    (
        "kernels",
        re.compile(
            r"Compiling (?:num tokens|a graph)|\bninja\b.*\bbuild|\[\d+/\d+\] .*nvcc|JIT[- ]?(?:compil|build|load)"
            r"|DeepGEMM.*(?:warm|compil)|autotun(?:e|ing).*(?:begin|start|process)|piecewise CUDA graph begin",
            re.IGNORECASE,
        ),
    ),
    ("graphs", re.compile(r"Captur(?:e|ing)\b.*(?:graph begin|batches \(bs=)|Capture cuda graph bs", re.IGNORECASE)),
    ("kv", re.compile(r"Load weight end|KV Cache is allocated|Using KV cache dtype|Memory pool end", re.IGNORECASE)),
    ("weights", re.compile(r"Load weight begin|Loading \w+ checkpoint shards", re.IGNORECASE)),
    ("distributed", re.compile(r"Init (?:torch distributed|parallel) begin", re.IGNORECASE)),
    ("process", re.compile(r"server_args=|usage: sglang|launch_server", re.IGNORECASE)),
)
_ANY_MARK = re.compile("|".join(f"(?:{pattern.pattern})" for _, pattern in _MARKS), re.IGNORECASE)

_NUMBER = r"(-?\d{1,15}(?:\.\d{1,9})?)"
_FIGURES: tuple[tuple[re.Pattern[str], tuple[tuple[str, float], ...]], ...] = (
    (re.compile(rf"Load weight begin.*avail mem={_NUMBER}"), (("available_before_load_bytes", GIB),)),
    (
        re.compile(rf"Load weight end.*avail mem={_NUMBER} GB, mem usage={_NUMBER}"),
        (("available_after_load_bytes", GIB), ("weights_bytes", GIB)),
    ),
    (re.compile(rf"KV Cache is allocated.*?#tokens: {_NUMBER}"), (("kv_tokens", 1),)),
    (re.compile(rf"KV Cache is allocated.*?KV size: {_NUMBER}"), (("kv_bytes", GIB),)),
    (re.compile(rf"Memory pool end.*avail mem={_NUMBER}"), (("available_after_pool_bytes", GIB),)),
    (re.compile(rf"Init (?:torch distributed|parallel) ends.*mem usage={_NUMBER}"), (("context_bytes", GIB),)),
    (
        re.compile(rf"max_total_num_tokens={_NUMBER}.*?max_running_requests={_NUMBER}"),
        (("max_total_num_tokens", 1), ("max_running_requests", 1)),
    ),
    (re.compile(rf"max_total_num_tokens=.*?chunked_prefill_size={_NUMBER}"), (("chunked_prefill_size", 1),)),
    (re.compile(rf"max_total_num_tokens=.*?context_len={_NUMBER}"), (("context_length", 1),)),
    (
        re.compile(rf"max_total_num_tokens=.*?available_gpu_mem={_NUMBER}"),
        (("available_at_ready_bytes", GIB),),
    ),
)
_LARGEST = ("weights_bytes", "kv_bytes")
_KV_HALVES = re.compile(rf"K size: {_NUMBER} GB, V size: {_NUMBER} GB")
_GRAPH_END = re.compile(rf"Capture\b.*graph end.*mem usage={_NUMBER} GB", re.IGNORECASE)
_PREFILL_GRAPH = re.compile(r"piecewise|prefill", re.IGNORECASE)
_PERCENT = re.compile(r"Loading .*?(?:shards|weights).*?(\d{1,3})% Completed")
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? ?:.* via (\S+)")
_FEW_ARGUMENTS = re.compile(
    r"\b(model_path|host|port|tp_size|pp_size|ep_size|dp_size|nnodes|mem_fraction_static|chunked_prefill_size"
    r"|max_running_requests|context_length|attention_backend|cuda_graph_max_bs|disable_cuda_graph|moe_runner_backend"
    r"|moe_a2a_backend|kv_cache_dtype|load_format|quantization|page_size|enable_dp_attention)=('[^']{0,300}'|-?[\w.]+)"
)
_QUIET = ("Decode batch", "Prefill batch", '"GET /', '"POST /')
"""Lines that come by the thousand and tell nothing of a start."""
_CONNECTIONS = ("NCCL INFO Channel", "NCCL INFO Tree", "NCCL INFO Ring")
"""As many where NCCL_DEBUG is set: transports, and that a start goes on, but never why it failed."""
_REQUEST = "Exception in ASGI application"
_CHAINED = ("Traceback (most recent", "During handling of", "The above exception was")


@dataclass(frozen=True)
class Lifecycle:
    """What a log tells of a start."""

    stage: str
    """Where the start is: the furthest stage, or `kernels` while it compiles."""
    stages: tuple[tuple[str, float | None], ...]
    """Each stage reached, with the seconds from the log's first stamped line to its first (None: no stamps)."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Sizes in bytes: weights and cache of the rank that holds most (stages of a pipeline differ), the rest as the
    first rank that told them; `server_args`: some settings; `weights_percent`."""
    transports: dict[str, int] = field(default_factory=dict)
    """NCCL's choice (P2P/CUMEM, P2P/IPC, SHM, NET) -> channels."""
    failure: Failure | None = None
    fatal: bool = False
    """Whether a process of the engine says that it ended, and not only that something failed in it."""
    last_lines: tuple[str, ...] = ()
    lines: int = 0
    """How many tell of the engine: without those of requests and batches."""


def read_log(text: str, known: str = "") -> Lifecycle:
    """Follows a start through the engine's log, from its beginning.

    Never raises for anything that a log may hold. The first cause counts, not the last line.

    Args:
        known: the furthest stage that the start is known to have come to. Where the text is LEFT_OUT it has come to it,
            if not before.
    """
    lines = list(_lines(_bounded(text)))
    first = next((line.seconds for line in lines if line.seconds is not None), None)
    reached: dict[str, float | None] = {}
    figures: dict[str, Any] = {}
    transports: dict[str, int] = {}
    graphs: dict[tuple[str, str], float] = {}
    interesting: list[Line] = []
    current: dict[str, str] = {}
    whole, ready, request, connections = "", False, "", 0
    for line in lines:
        if any(word in line.text for word in _QUIET):
            request = ""
            continue
        if any(word in line.text for word in _CONNECTIONS):
            _count_transport(line, transports)
            connections += 1
            continue
        # Of a running engine a request's traceback tells nothing; before, it may be the warm-up's.
        if ready and _of_request(line, request):
            request = line.text or "\n"
            continue
        request = ""
        interesting.append(line)
        if line.text == LEFT_OUT and known:
            whole = _next_stage(whole, known)
            current = {rank: _next_stage(stage, known) for rank, stage in ({"": ""} | current).items()}
        stage = _stage(line.text)
        if stage and stage not in reached:
            seconds = None if line.seconds is None or first is None else line.seconds - first
            reached[stage] = seconds
        if stage:
            whole = _next_stage(whole, stage)
            current[line.rank] = _next_stage(current.get(line.rank, ""), stage)
        ready = ready or whole == "ready"
        # The server's word that it is ready is for all of its ranks.
        line.stage = whole if whole == "ready" else current.get(line.rank) or current.get("") or "process"
        _read_figures(line, figures, graphs)
    for name in ("graph_bytes", "prefill_graph_bytes"):
        sizes = [size for (_, kind), size in graphs.items() if kind == name]
        if sizes:
            figures[name] = int(max(sizes) * GIB)
    if any(line.text.strip() for line in lines):
        reached.setdefault("process", None if first is None else 0.0)
    stages = tuple((name, reached[name]) for name in sorted(reached, key=STAGES.index))
    failure = find_failure(interesting, figures)
    return Lifecycle(
        stage=whole or "process",
        stages=stages,
        figures=figures,
        transports=transports,
        failure=failure,
        fatal=failure is not None and says_its_end(interesting),
        last_lines=tuple(shown(line.text) for line in [line for line in lines if line.text.strip()][-LAST_LINES:]),
        lines=connections + sum(1 for line in interesting if line.text.strip()),
    )


def classify_exit(seen: Lifecycle, status: int | str | None, requested_stop: bool) -> Failure | None:
    """Why the engine's process ended; None if somebody asked it to (its exit status then means nothing).

    Args:
        status: an exit status, or a signal as its number, its negative number, 128 plus it, or its name. The
            engine's own exit statuses are 0, 1 and 2; 4 to 15 are taken for signals.
    """
    if requested_stop:
        return None
    return seen.failure or failure_from_exit(_signal(status), status, seen.stage, seen.last_lines)


def _signal(status: int | str | None) -> int | None:
    names = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "TERM": 15}
    if isinstance(status, str):
        name = status.strip().upper().removeprefix("SIG")
        if name in names:
            return names[name]
        status = int(name) if re.fullmatch(r"-?\d{1,4}", name) else None
    if status is None:
        return None
    if status < 0:
        return -status
    if 128 < status < 193:
        return status - 128
    return status if 4 <= status <= 15 else None


def _bounded(text: str) -> str:
    if len(text) <= LARGEST_TEXT:
        return text
    half = LARGEST_TEXT // 2
    return joined(text[:half], text[-half:])


def joined(head: str, tail: str) -> str:
    """What there is of a log whose middle is left out: whole lines only, half of one could say something else."""
    ended = max(head.rfind("\n"), head.rfind("\r")) + 1
    begun = re.search(r"[\r\n]", tail)
    return f"{head[:ended]}{LEFT_OUT}\n{tail[begun.end() :] if begun else ''}"


def _lines(text: str) -> Iterator[Line]:
    """Lines without their prefixes; a stamp inside a line (behind a progress bar) begins a new one."""
    seconds: float | None = None
    rank = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        if raw == LEFT_OUT:
            rank = ""
            yield Line(raw, rank, seconds, stamped=True)
            continue
        clean = _ESCAPE.sub("", raw[:_LONGEST_ARGUMENTS]) if "\x1b" in raw else raw[:_LONGEST_ARGUMENTS]
        offset = _OFFSET.match(clean)
        if offset:
            clean = clean[offset.end() :]
        journal = _JOURNAL.match(clean)
        if journal:
            clean = clean[journal.end() :]
        for part in _split_at_stamps(clean):
            stamp = _STAMP.match(part)
            if stamp:
                rank = stamp.group(7).strip()
                seconds = _seconds(stamp)
                part = part[stamp.end() :]
            if offset:
                seconds = float(offset.group(1))
            yield Line(part, rank, seconds, stamped=stamp is not None)


def _split_at_stamps(text: str) -> Iterable[str]:
    places = [found.start() for found in _STAMP.finditer(text)]
    if not places or places == [0]:
        return (text,)
    edges = [0, *(place for place in places if place), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges) if text[start:end].strip()]


def _seconds(stamp: re.Match[str]) -> float:
    """Seconds on an axis of its own: days counted roughly, which is enough for differences within a start."""
    year, month, day, hour, minute, second = (int(stamp.group(number)) for number in range(1, 7))
    days = (year * 12 + month) * 31 + day
    return ((days * 24 + hour) * 60 + minute) * 60.0 + second


def _stage(text: str) -> str | None:
    head = text[:LONGEST_LINE]
    if not _ANY_MARK.search(head):
        return None
    return next((stage for stage, pattern in _MARKS if pattern.search(head)), None)


def _of_request(line: Line, before: str) -> bool:
    """Whether a line is of a request's traceback, as uvicorn writes it; `before`: the one before, if that one is."""
    if _REQUEST in line.text:
        return True
    if not before or line.stamped:
        return False
    return line.text[:1] in (" ", "\t", "") or line.text.startswith(_CHAINED) or before[:1] in (" ", "\t")


def _next_stage(current: str, mark: str) -> str:
    """A start only goes on, except that compiling comes between any two stages and ends with the next mark."""
    if mark == "kernels" or current in ("", "kernels"):
        return mark
    return max(current, mark, key=STAGES.index)


def _count_transport(line: Line, transports: dict[str, int]) -> None:
    channel = _CHANNEL.search(line.text[:LONGEST_LINE])
    kind = transport(channel.group(1)[:40]) if channel else ""
    if kind and (kind in transports or len(transports) < 16):
        transports[kind] = transports.get(kind, 0) + 1


def _read_figures(line: Line, figures: dict[str, Any], graphs: dict[tuple[str, str], float]) -> None:
    text = line.text
    if "server_args=" in text and "server_args" not in figures:
        figures["server_args"] = dict(_few_arguments(text))
        return
    if "% Completed" in text:
        percent = _PERCENT.search(text[:LONGEST_LINE])
        if percent:
            figures["weights_percent"] = min(100, int(percent.group(1)))
        return
    if "mem" not in text and "KV" not in text:
        return
    text = text[:LONGEST_LINE]
    for pattern, targets in _FIGURES:
        found = pattern.search(text)
        if found:
            for (name, unit), number in zip(targets, found.groups(), strict=True):
                _keep(figures, name, int(float(number) * unit))
    halves = _KV_HALVES.search(text)
    if halves:
        _keep(figures, "kv_bytes", int((float(halves.group(1)) + float(halves.group(2))) * GIB))
    graph = _GRAPH_END.search(text)
    if graph:
        kind = "prefill_graph_bytes" if _PREFILL_GRAPH.search(text) else "graph_bytes"
        graphs[line.rank, kind] = graphs.get((line.rank, kind), 0.0) + float(graph.group(1))


def _keep(figures: dict[str, Any], name: str, told: int) -> None:
    if name in _LARGEST:
        figures[name] = max(told, figures.get(name, 0))
    figures.setdefault(name, told)


def _few_arguments(text: str) -> Iterator[tuple[str, Any]]:
    for name, value in _FEW_ARGUMENTS.findall(text):
        if value.startswith("'"):
            yield name, value[1:-1]
        elif value in ("None", "True", "False"):
            yield name, {"None": None, "True": True, "False": False}[value]
        else:
            yield name, _as_number(value)


def _as_number(value: str) -> int | float | str:
    if re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    return float(value) if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", value) else value
