"""Run one group of ranks under a hard time limit, and say what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import log_file
from . import nccl_log

RANKS = Path(__file__).with_name("ranks.py")
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 3.0
"""After one rank has failed the others get this long to tell of it; then they only wait for it."""

Outcome = Literal["ok", "hang", "failed", "wrong", "no python", "no torch"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Sizes in bytes; `tokens` x `hidden` x 2 bytes are the messages of a step."""

    python: str
    environment: dict[str, str] = {}
    ranks: int = 2
    gpus: list[int] = []
    """Which, by nvidia-smi's index; [] where there is none."""
    whole: bool = True
    """These are all GPUs that there are."""
    backend: Literal["", "nccl", "gloo"] = ""
    """Empty: nccl where torch sees a GPU, else gloo."""
    bytes: tuple[int, ...] = (1 << 10, 32 << 10, 256 << 10, 1 << 20, 16 << 20, 256 << 20)
    tokens: tuple[int, ...] = (1, 8, 64, 256)
    hidden: int = 7168
    all_reduces: int = 123
    """Two of each of 61 layers, and the embedding's."""
    seconds: float = 120.0
    """Hard limit of the whole group."""
    user: str | None = None
    """Whom the ranks run as, where we are root."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    ranks: int
    gpus: list[int]
    stage: str
    """How far the slowest rank came: import, group, first all-reduce, sizes, steps, done."""
    seconds: float
    error: str = ""
    backend: str | None = None
    torch: str | None = None
    nccl: str | None = None
    sizes: list[dict[str, Any]] = []
    """{"bytes", "graph", "seconds" of one, "bandwidth_bytes_per_second", "bus_bandwidth_bytes_per_second"}."""
    steps: list[dict[str, Any]] = []
    """{"tokens", "bytes", "all_reduces", "graph", "seconds" of all, "all_reduce_seconds"}."""
    transports: dict[str, int] = {}
    pairs: dict[str, str] = {}
    environment: list[str] = []
    warnings: list[str] = []


_STAGES = ("", "import", "no torch", "group", "first all-reduce", "wrong data", "sizes", "steps", "done")


def run(request: Request, folder: Path, script: Path = RANKS) -> Result:
    """Start the ranks, wait for them until the limit, end what is left of them, read what they told.

    Args:
        folder: each rank's output goes here as rank-N.log.
        script: another one in tests.
    """
    # Looked for here: runuser finds it as little, and tells so as a failure of its own.
    if shutil.which(request.python, path=request.environment.get("PATH")) is None:
        error = f"the engine's Python is not there: {request.python}"
        return Result(outcome="no python", ranks=request.ranks, gpus=request.gpus, stage="", seconds=0.0, error=error)
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    began = time.monotonic()
    logs = [folder / f"rank-{rank}.log" for rank in range(request.ranks)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            started.append(_start(request, rank, port, log, script))
        hung = _wait(started, began + request.seconds)
    except OSError as error:
        return Result(outcome="failed", ranks=request.ranks, gpus=request.gpus, stage="", seconds=0.0, error=str(error))
    finally:
        _end(started)
    return result(
        request, [log_file.since(log) for log in logs], [p.returncode for p in started], hung, time.monotonic() - began
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(request: Request, rank: int, port: int, log: Path, script: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **request.environment}
    if not request.whole:
        environment.pop("NCCL_GRAPH_FILE", None)  # a graph file of all GPUs fails every smaller group
    environment.pop("NCCL_DEBUG_FILE", None)  # NCCL's lines are read from the ranks' own output
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,SHM,NET",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "OMP_NUM_THREADS": "1",
    }
    if request.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, request.gpus))
    asked = {name: getattr(request, name) for name in ("backend", "bytes", "tokens", "hidden", "all_reduces")}
    command = [request.python, "-u", str(script), json.dumps(asked)]
    if request.user and os.geteuid() == 0:
        command = ["runuser", "-u", request.user, "--", *command]
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _wait(started: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """True when the limit came first."""
    failed_at: float | None = None
    while None in (codes := [process.poll() for process in started]):
        now = time.monotonic()
        if any(codes):
            failed_at = failed_at or now
            if now - failed_at > _GRACE_SECONDS:
                return False
        if now > deadline:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits in the kernel is left
            process.wait(_GRACE_SECONDS)


def result(request: Request, texts: Sequence[str], codes: Sequence[int | None], hung: bool, seconds: float) -> Result:
    """What the ranks told, as a result. Pure."""
    told = [_told(text) for text in texts]
    stages = [next((said["stage"] for said in reversed(rank) if "stage" in said), "") for rank in told]
    first = told[0] if told else []
    group: Mapping[str, Any] = next((said for rank in told for said in rank if said.get("stage") == "group"), {})
    log = nccl_log.read(line for text in texts for line in text.splitlines())
    outcome, error = _outcome(stages, codes, hung, texts)
    return Result(
        outcome=outcome,
        ranks=request.ranks,
        gpus=request.gpus,
        stage=min(stages, key=_place, default=""),
        seconds=round(seconds, 2),
        error=error,
        backend=group.get("backend"),
        torch=group.get("torch"),
        nccl=group.get("nccl") or log.version,
        sizes=[_size(said["size"], request.ranks) for said in first if "size" in said],
        steps=[said["step"] for said in first if "step" in said],
        transports=log.transports,
        pairs=log.pairs,
        environment=log.environment,
        warnings=log.warnings,
    )


def _told(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        if line.startswith("@"):
            with contextlib.suppress(ValueError):
                said = json.loads(line[1:])
                found += [said] if isinstance(said, dict) else []
    return found


def _place(stage: str) -> int:
    return _STAGES.index(stage) if stage in _STAGES else 0


def _outcome(
    stages: Sequence[str], codes: Sequence[int | None], hung: bool, texts: Sequence[str]
) -> tuple[Outcome, str]:
    if "no torch" in stages:
        return "no torch", _last_line(texts[stages.index("no torch")])
    if "wrong data" in stages:
        return "wrong", ""
    if all(stage == "done" for stage in stages) and stages:
        return "ok", ""
    if hung:
        return "hang", ""
    # The rank that failed by itself tells more than those that were ended for it.
    guilty = next((place for place, code in enumerate(codes) if code not in (0, None, -signal.SIGKILL)), 0)
    return "failed", f"rank {guilty}: {_last_line(texts[guilty] if texts else '')}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("@")]
    errors = [line for line in lines if "Error" in line or "NCCL WARN" in line]
    return ((errors or lines or ["it said nothing"])[-1])[:300]


def _size(said: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """With bandwidth in bytes a second: of the message, and of each link, 2 (n - 1) / n times it (nccl-tests)."""
    rate = said["bytes"] / said["seconds"] if said["seconds"] else 0.0
    return {
        "bytes": said["bytes"],
        "seconds": said["seconds"],
        "graph": bool(said.get("graph")),
        "bandwidth_bytes_per_second": rate,
        "bus_bandwidth_bytes_per_second": rate * 2 * (ranks - 1) / ranks,
    }
