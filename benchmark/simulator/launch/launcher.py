"""The engine's main process: it checks the command line, starts the ranks, watches them, and serves."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.engine.hardware import UnknownHardware
from benchmark.engine.models import UnknownModel
from benchmark.simulator import blueprint as blueprints
from benchmark.simulator.blueprint import Blueprint
from benchmark.simulator.ledger import Ledger
from benchmark.simulator.settings import Settings, SettingsError

from . import processes, rank, texts
from .arguments import ServerArguments, parse_arguments
from .meeting import Meeting

SERVER_ARGUMENTS, TOKENIZER = 0.10, 0.12
ORPHAN_LIFETIME_SECONDS = 600
"""A child that outlives the engine on request ends by itself after this, so that no test leaves it for good."""
_ORPHAN = "import sys, time; time.sleep(float(sys.argv[1]))"


@dataclass(frozen=True)
class Started:
    """Ranks that are up."""

    blueprint: Blueprint
    pids: tuple[int, ...]
    """Of the schedulers, by rank; the detokenizer's comes last."""
    token_capacity: int
    sparing: frozenset[int]
    """Processes that the engine leaves alone when it ends."""
    meeting: Meeting | None = None
    """With the other nodes, where there are any."""


def launch(arguments: Sequence[str], settings: Settings, began: float) -> Started | int:
    """Brings the ranks up. Returns an exit status instead where the real engine exits before it has any.

    A rank that fails ends this process by SIGKILL, as the engine ends.
    """
    server_arguments = parse_arguments(arguments, settings.release)
    try:
        blueprint = blueprints.build(server_arguments, settings.hardware, os.environ)
    except UnknownModel:
        return _no_model(server_arguments)
    except UnknownHardware as error:
        raise SettingsError(f"SHARDSWEEP_SIMULATED_HARDWARE: {error}") from error
    except blueprints.Refused as refused:
        where, last = refused.args
        if where == "spawn":
            _announce(server_arguments, settings, began)
        texts.write(texts.traceback(where, last) + "\n")
        return 1
    _announce(server_arguments, settings, began, blueprint.resolved())
    return _start_ranks(blueprint, settings, began)


def _announce(
    arguments: ServerArguments, settings: Settings, began: float, resolved: Mapping[str, Any] | None = None
) -> None:
    time.sleep(max(0.0, began + SERVER_ARGUMENTS * settings.start_seconds - time.monotonic()))
    if arguments.values.get("enforce_disable_flashinfer_allreduce_fusion"):
        texts.log("FlashInfer allreduce fusion is forcibly disabled via --enforce-disable-flashinfer-allreduce-fusion.")
    if resolved and arguments.values.get("enable_dp_attention"):
        chunk = resolved["chunked_prefill_size"]
        texts.log(
            f"DP attention is enabled. The chunked prefill size is adjusted to {chunk} to avoid MoE kernel issues. "
        )
    if (arguments["pp_size"] or 1) > 1:
        texts.log("Pipeline parallelism is incompatible with overlap schedule.")
    texts.log(f"server_args={arguments.shown(resolved)}")
    texts.log("Using default HuggingFace chat template with detected content format: string")


def _no_model(arguments: ServerArguments) -> int:
    path = arguments["model_path"]
    texts.write(
        texts.traceback(
            "config",
            f"OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
            "Use `repo_type` argument if needed.",
        )
        + "\n"
    )
    return 1


def _start_ranks(blueprint: Blueprint, settings: Settings, began: float) -> Started:
    foreign = [0] * len(blueprint.ranks)
    if settings.ledger:
        ledger = Ledger(settings.ledger)
        ledger.clean()
        foreign = [ledger.used_bytes(item.gpu) for item in blueprint.ranks if item.gpu >= 0]
        foreign += [0] * (len(blueprint.ranks) - len(foreign))
    sparing = frozenset([_orphan(settings)] if "orphan" in settings.faults else [])
    _fail_on_sigquit("Received sigquit from a child process. It usually means the child failed.", sparing)
    me = os.getpid()
    meeting = Meeting.of(blueprint, sparing)
    pids, answers = [], []
    for item in blueprint.ranks:
        reading, writing = os.pipe()
        start = rank.Start(item, blueprint, settings, began, tuple(foreign), met=meeting.follow if meeting else None)
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            if meeting:
                os.close(meeting.lead)
            _run_child(lambda start=start, writing=writing: rank.run(start, me, writing))
        os.close(writing)
        pids.append(pid)
        answers.append(reading)
    detokenizer = os.fork()
    if detokenizer == 0:
        if meeting:
            os.close(meeting.lead)
        _run_child(lambda: _detokenizer(me))
    pids.append(detokenizer)
    if meeting:
        meeting.begin()
    from benchmark.simulator.serve import application  # noqa: F401  (the web server loads while the ranks do)

    _await_ranks(answers, pids)
    if meeting:
        meeting.wait_ready()
    start = rank.Start(blueprint.ranks[0], blueprint, settings, began, tuple(foreign))
    return Started(blueprint, tuple(pids), rank.token_capacity(start), sparing, meeting)


def _run_child(body) -> None:
    """Runs a forked child's body; it never returns into the parent's code."""
    try:
        body()
    finally:
        os._exit(1)


def _detokenizer(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    processes.die_with(parent)
    processes.set_title("sglang::detokenizer")
    while True:
        signal.pause()


def _orphan(settings: Settings) -> int:
    """Starts a child in a session of its own that nothing ends with the engine."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _ORPHAN, str(ORPHAN_LIFETIME_SECONDS)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    size = int(settings.faults["orphan"])
    if settings.ledger and size:
        Ledger(settings.ledger).hold(0, size, pid=child.pid, name="nvcc")
    settings.note_fault("orphan")
    return child.pid


def _fail_on_sigquit(text: str, sparing: frozenset[int]) -> None:
    def fail(_number: int, _frame: object) -> None:
        texts.log(text)
        processes.kill_tree(sparing)

    signal.signal(signal.SIGQUIT, fail)


def _await_ranks(answers: list[int], pids: list[int]) -> None:
    """Returns when every rank has answered; a rank that ends before raises as the engine does."""
    waiting = dict(zip(answers, pids, strict=False))
    while waiting:
        readable, _, _ = select.select(list(waiting), [], [], 1.0)
        for reading in readable:
            if os.read(reading, 64):
                del waiting[reading]
                os.close(reading)
                continue
            pid = waiting.pop(reading)
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            number = pids.index(pid)
            texts.write(
                texts.traceback(
                    "spawn",
                    f"RuntimeError: Rank {number} scheduler died during initialization (exit code: {code}). "
                    "If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. "
                    "Run `dmesg -T | grep -i oom` to check.",
                )
                + "\n"
            )
            for other in pids:
                if other != pid:
                    os.kill(other, signal.SIGKILL)
            os._exit(1)
