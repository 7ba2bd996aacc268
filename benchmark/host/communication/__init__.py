"""Do the GPUs really talk to each other? All-reduces by the engine's own torch and NCCL, under a hard time limit.

A run takes minutes, so it is a process of its own (__main__.py): the verb starts it, and is asked until it is over.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ...engine.communication import Messages, messages
from ...engine.hardware import Host
from ...engine.sweep import known_host, known_model
from .. import gpus, processes
from ..bounded import run as run_command
from ..managers import manager_for
from ..preflight import pcie, remember, smi
from ..preflight.check import Check, counted, lines
from ..serving import serving_units
from ..settings import HostError, Settings, read_json, write_json
from .group import Request

FOLDER, STATE, PLAN, RESULT = "communication", "state.json", "plan.json", "result.json"
_LOOK_SECONDS = 0.2
_SIZES_WITHOUT_GPU = (1 << 10, 32 << 10, 1 << 20)
_KIMI_K2 = Messages(tokens=(8192,), hidden=7168, all_reduces=123, groups=())
"""Where the model or the GPU is not known: two all-reduces for each of 61 layers, and the embedding's."""
_PASSED_ON = ("NCCL_", "CUDA_", "TORCH_", "LD_LIBRARY_PATH", "PATH")
"""Of an engine's environment. The rest (tokens and keys among it) is not the ranks' business."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One environment, and the configurations that have it."""

    name: str
    environment: dict[str, str] = {}
    engine: dict[str, Any] = {}
    """Their flags, which say what groups talk; tensor parallelism over all GPUs without any."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asks for."""

    python: str
    """The engine's."""
    runs: list[Run]
    environment: dict[str, str] = {}
    """Of every engine on the host, which those of the runs contain."""
    seconds: float = 120.0
    """Hard limit of each group of ranks."""
    model: str = ""
    """Its folder or shipped name: its hidden size and all-reduces are taken."""
    release: str = ""
    ladder: tuple[int, ...] = (1, 8, 64, 256)
    """Requests at once of a decode step; prefill chunks come from the engines' flags."""
    user: str | None = None
    ranks_without_gpu: int = 4


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    requests: list[Request]


def communication(settings: Settings, said: Mapping[str, Any], token: str, *, seconds: float = 5.0) -> dict[str, Any]:
    """Start the check that `token` names if it was not yet started; look at it for at most `seconds`.

    Returns:
        {"phase": "running" | "done" | "failed", "changed", "checks", "counts", "lines", "runs", "error"}.

    Raises:
        HostError: what is asked for makes no sense, an engine serves, or another check is under way.
    """
    folder = settings.state / FOLDER
    state = read_json(folder / STATE, {})
    if state.get("token") != token:
        spec = _spec(said)
        if settings.engine == "simulated":
            return _unneeded("the engine is simulated, and so are its GPUs: nothing to send")
        if _alive(state):
            raise HostError("Another communication check is under way. Wait for it, at most a few minutes.")
        found = gpus.gpus(settings)
        host = known_host([{"name": gpu.name} for gpu in found])
        planned = plan(spec, len(found), _links(settings, len(found)), host, [gpu.uuid for gpu in found])
        if not planned:
            return _unneeded("one GPU: nobody to talk to")
        state = _start(settings, planned, spec, token)
    deadline = time.monotonic() + seconds
    while (result := read_json(folder / RESULT, {})).get("token") != token:
        if not _alive(state):
            return _broken(folder)
        if time.monotonic() + _LOOK_SECONDS > deadline:
            return _answer("running", [])
        time.sleep(_LOOK_SECONDS)
    checks = msgspec.convert(result["checks"], list[Check])
    kept = ("at", "runs", "checks", "allreduce", "environment")
    remember(settings, {"communication": {key: result[key] for key in kept}})
    return _answer("done", checks) | {"runs": result["runs"]}


def _spec(said: Mapping[str, Any]) -> Spec:
    try:
        spec = msgspec.convert(said, Spec)
    except msgspec.ValidationError as error:
        raise HostError(f"The communication check cannot read what it was asked for: {error}.") from error
    if not spec.runs:
        raise HostError("The communication check was given no environment to run with.")
    return spec


def _links(settings: Settings, count: int) -> smi.Topology | None:
    told = run_command([*settings.nvidia_smi, "topo", "-m"], environment=settings.environment) if count else None
    return smi.topology(told.text) if told else None


def plan(
    spec: Spec, count: int, links: smi.Topology | None, host: Host | None = None, uuids: Sequence[str] = ()
) -> list[Planned]:
    """For each environment a pair (the two GPUs farthest apart), the groups that its configurations form, and all
    GPUs; equal environments once. Only GPUs that the environment's CUDA_VISIBLE_DEVICES leaves are taken.

    Without a GPU the ranks use gloo: that proves the check, not the host. One GPU has nobody to talk to.

    Args:
        count: GPUs that the host has.
        links: between them, which tell the pair; the first and the last without.
        uuids: theirs, by index.
    """
    alike: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in spec.runs:
        kept = {name: text for name, text in run.environment.items() if name.startswith(_PASSED_ON)}
        alike.setdefault(tuple(sorted(kept.items())), []).append(run)
    planned = []
    for environment, runs in alike.items():
        visible = gpus.visible(dict(environment).get("CUDA_VISIBLE_DEVICES"), count, uuids)
        if count and len(visible) < 2:
            continue
        sent = _messages(spec, [run.engine for run in runs], len(visible), host)
        groups = [list(pcie.worst_pair(links, count, visible))] if count else [[]]
        groups += [visible[:size] for size in sorted({*sent.groups, len(visible)}) if 2 < size <= len(visible)]
        requests = [_request(spec, sent, dict(environment), members, count) for members in groups]
        if not count:
            requests.append(msgspec.structs.replace(requests[0], ranks=max(2, spec.ranks_without_gpu)))
        planned.append(Planned(name=", ".join(run.name for run in runs), requests=requests))
    return planned


def _messages(spec: Spec, engines: Sequence[Mapping[str, Any]], count: int, host: Host | None) -> Messages:
    shape = known_model(spec.model)
    if shape is None or host is None:
        return replace(_KIMI_K2, tokens=(*sorted(set(spec.ladder)), *_KIMI_K2.tokens))
    # Tensor parallelism over all GPUs too: a pipeline has no all-reduce of its own, and all are to talk anyway.
    return messages([*filter(None, engines), {"tp_size": count}], shape, host, spec.release, spec.ladder)


def _request(spec: Spec, sent: Messages, environment: dict[str, str], members: list[int], count: int) -> Request:
    known: dict[str, Any] = {} if count else {"bytes": _SIZES_WITHOUT_GPU, "tokens": sent.tokens[:1], "backend": "gloo"}
    return Request(
        python=spec.python,
        environment=environment,
        ranks=len(members) or 2,
        gpus=members,
        whole=len(members) == count,
        hidden=sent.hidden,
        all_reduces=sent.all_reduces,
        seconds=spec.seconds,
        user=spec.user,
        **({"tokens": sent.tokens} | known),
    )


def _start(settings: Settings, planned: Sequence[Planned], spec: Spec, token: str) -> dict[str, Any]:
    if serving := _serving(settings):
        raise HostError(f"{serving[0]} serves here and the check would disturb it. Stop it first: playbooks/stop.yml.")
    folder = settings.state / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).unlink(missing_ok=True)
    own = {name: text for name, text in spec.environment.items() if name.startswith("NCCL_")}
    write_json(folder / PLAN, {"token": token, "environment": own, "planned": msgspec.to_builtins(planned)})
    with (folder / "check.log").open("wb") as out:
        # A session of its own: it outlives this verb, and its own limits end it when nobody asks again.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=Path(__file__).parents[3],
        )
    state = {"token": token, "pid": process.pid, "started": processes.started_at(process.pid)}
    write_json(folder / STATE, state)
    return state


def _serving(settings: Settings) -> list[str]:
    try:
        return serving_units(settings, manager_for(settings), [])
    except HostError:
        return []  # without its service manager nothing of ours can run here


def _alive(state: Mapping[str, Any]) -> bool:
    pid = state.get("pid")
    return bool(pid) and processes.describe(pid) is not None and processes.started_at(pid) == state.get("started")


def _answer(phase: str, checks: Sequence[Check], **more: Any) -> dict[str, Any]:
    return {
        "phase": phase,
        "changed": False,
        "checks": msgspec.to_builtins(checks),
        "counts": counted(checks),
        "lines": lines(checks),
        "runs": [],
        **more,
    }


def _unneeded(why: str) -> dict[str, Any]:
    return _answer("done", [Check("communication", "unknown", why)])


def _broken(folder: Path) -> dict[str, Any]:
    try:
        told = (folder / "check.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        told = []
    error = (
        f"The communication check ended without a result. The end of {folder / 'check.log'}: {' / '.join(told[-3:])}"
    )
    return _answer("failed", [], error=error)
