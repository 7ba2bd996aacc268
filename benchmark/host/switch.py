"""Switching: stop what runs, prove it gone, start the wanted configuration, wait until it answers or has failed.

`switch` takes one step and says where things stand. It may be asked again after any interruption.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine import lifecycle
from ..engine.secrets import masked
from . import clock, engine_http, forms, holding, kept, log_file, outside, patience
from .managers import manager_for
from .services import JOB_UNIT, Manager, ServiceState, engine_unit
from .serving import note_start, running, serving_units
from .settings import Settings, locked, read_json, write_json
from .stop import StuckError, stop_step

SWITCH = "switch.json"
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.1, 0.5
"""Between two steps, each twice as long as the one before: what is told to stop is often gone at once, and what loads
takes minutes."""


def switch(
    settings: Settings,
    name: str | None,
    fingerprint: str,
    token: str,
    *,
    yields: list[str],
    seconds: float = 5.0,
    node: int = 0,
    anew: bool = False,
    sweep: str | None = None,
    gpus: list[int] | None = None,
    start: bool = True,
    proof: bool = True,
    earlier: bool = True,
) -> dict[str, Any]:
    """Steps towards `name` serving (None: nothing serving) for at most `seconds`; call again until it is over.

    Args:
        fingerprint: of command, environment, limits, engine and model: what runs with another one is restarted.
        token: one for each time somebody asks; tells a second look at one switch from a second switch.
        yields: units that are not ours and make room too.
        node: which of several nodes of the configuration this host is; those after the first answer /health alone.
        anew: what runs is started again even where it runs as wanted.
        sweep: the token of the sweep that asks, "" for whoever is none; None for who gives the host back and may
            in any case.
        gpus: indices of those that `name` takes; None where that is not known: all are looked at.
        start: False only makes room for it. Of several nodes none may start before each has stopped what ran on it: a
            rank of before that waits for its first node would meet the new one.
        proof: False takes for stopped also what has no process left on GPUs that do not tell their memory.
        earlier: to nothing serving belongs that the GPUs are free which an earlier stop did not see free. False leaves
            them to a later one.

    Returns:
        {"phase": "stopping" | "clear": there is room | "starting" | "ready" | "stopped" | "failed", "changed",
        "configuration", "node", "stopped": [units], "waiting_for", "start": {...}, "failure": {...} | None, "seconds",
        "untold": why the GPUs did not tell their memory | None}.

    Raises:
        HostError: a sweep holds the host, and not the one that asks.
    """
    manager = manager_for(settings)
    # A verb whose connection was lost may still be at it when it is asked again.
    with locked(settings, "switch"):
        deadline = time.monotonic() + seconds
        holding.claim(settings, sweep)
        state = _begin(
            settings,
            manager,
            name,
            fingerprint,
            token,
            yields,
            node=node,
            anew=anew,
            gpus=gpus,
            proof=proof,
            earlier=earlier,
        )
        if state["phase"] == "clear" and start:
            state["phase"] = "stopping"
        if start or state["phase"] == "stopping":
            _go_on(settings, manager, state, deadline, sweep, start=start)
    return _answer(state)


def _go_on(
    settings: Settings, manager: Manager, state: dict[str, Any], deadline: float, sweep: str | None, *, start: bool
) -> None:
    phase, pause = state["phase"], _FIRST_PAUSE_SECONDS
    while state["phase"] in ("stopping", "starting"):
        holding.claim(settings, sweep)
        try:
            _step(settings, manager, state, start=start)
        except StuckError as stuck:
            if stuck.held is not None:
                state["unproved"] = _unproved(state, stuck.held)
            _fail(state, stuck.kind, "stop", stuck.sentence, stuck.advice, stuck.evidence, stuck.may_pass)
        write_json(settings.state / SWITCH, state)
        if state["phase"] == "failed":
            _keep_failure(settings, state)
        if state["phase"] not in ("stopping", "starting") or time.monotonic() + pause > deadline:
            break
        if state["phase"] != phase:
            phase, pause = state["phase"], _FIRST_PAUSE_SECONDS
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS)


def _keep_failure(settings: Settings, state: dict[str, Any]) -> None:
    """For whoever asks later: the switch that restores what served before forgets it."""
    from . import failures  # it looks at switches

    failures.note(settings, state["configuration"] or "", state["failure"])


def _begin(
    settings: Settings,
    manager: Manager,
    name: str | None,
    fingerprint: str,
    token: str,
    yields: list[str],
    *,
    node: int,
    anew: bool,
    gpus: list[int] | None,
    proof: bool,
    earlier: bool,
) -> dict[str, Any]:
    state = read_json(settings.state / SWITCH, {}, forms.Switch)
    # What was under way before the host was booted is under way no more.
    if (state.get("token"), state.get("configuration"), state.get("boot")) == (token, name, clock.boot()):
        return state
    from . import failures  # it looks at switches

    failures.note_fallen(settings, manager)
    wanted = engine_unit(name) if name else None
    present = serving_units(settings, manager, yields)
    owed = state.get("unproved", []) if state.get("boot") == clock.boot() else []
    unproved = _all_of(owed, _judged(settings, None, present, None))
    state = {
        "token": token,
        "configuration": name,
        "fingerprint": fingerprint,
        "node": node,
        "gpus": gpus,
        "judged": unproved if name is None and earlier else _judged(settings, name, present, gpus),
        "unproved": unproved,
        "proof": proof,
        "boot": clock.boot(),
        "began": clock.mark(),
        "changed": True,
        "stopped": present,
        "progress": {},
        "start": {},
        "failure": None,
        "phase": "stopping",
        "waiting_for": None,
    }
    known = running(settings).get(wanted or "", {})
    if wanted and not anew and present == [wanted] and known.get("fingerprint") == fingerprint:
        # It runs as wanted already; it only has to answer.
        # However long ago it began, it is waited for from now on.
        start = known | {"signs": {"moved": clock.mark()}, "began": clock.mark()}
        state |= {"changed": False, "stopped": [], "phase": "starting", "start": start, "asked": True}
        state["unproved"] = owed
    elif wanted is None and not present:
        state |= {"changed": False}
    return state


def _judged(settings: Settings, name: str | None, stopped: list[str], gpus: list[int] | None) -> list[int] | None:
    """The GPUs that are to be free before a start: those that it takes, and those that what was stopped has used.

    None: all, where one of them does not say which it takes.
    """
    known = running(settings)
    used = [known.get(unit, {}).get("gpus") for unit in stopped] + ([gpus] if name else [])
    return _all_of(*used)


def _all_of(*several: list[int] | None) -> list[int] | None:
    """The GPUs of each; None, which is all, where one of them is that."""
    return None if None in several else sorted({gpu for places in several for gpu in places})


def _unproved(state: dict[str, Any], held: dict[int, bool]) -> list[int] | None:
    """GPUs that what was stopped has used and that nobody has seen free since, once the judged were looked at.

    A later stop is to prove them. None: all, since nobody knows which were used.

    Args:
        held: those of which the memory is held, and whether nvidia-smi lists who holds it.
    """
    unproved, judged = state.get("unproved", []), state.get("judged")
    if unproved is not None:
        return [place for place in unproved if place in held or (judged is not None and place not in judged)]
    # What somebody else's process holds there need never have been used by what was stopped.
    return None if judged is not None else [place for place, listed in held.items() if not listed]


def _step(settings: Settings, manager: Manager, state: dict[str, Any], *, start: bool) -> None:
    if state["phase"] == "stopping":
        # A load generator that lost its sweep would go on measuring whatever serves next.
        units = [*state["stopped"], *_job(manager)]
        judged, proof = state.get("judged"), state.get("proof", True)
        waiting = stop_step(settings, manager, units, state["progress"], judged, proof)
        state["waiting_for"] = waiting
        if waiting is None:
            if "untold" not in state["progress"]:
                state["unproved"] = _unproved(state, {})
            if state["configuration"] is None:
                state["phase"] = "stopped"
            elif not start:
                state["phase"] = "clear"
            else:
                _start(settings, manager, state)
        return
    if not state.get("asked"):
        # Written down before it is done: a verb that is killed in between asks again, and a start is asked for once.
        manager.start(engine_unit(state["configuration"]))
        state["asked"] = True
        return
    _watch(settings, manager, state)


def _job(manager: Manager) -> list[str]:
    return [JOB_UNIT] if manager.state(JOB_UNIT).running else []


def _start(settings: Settings, manager: Manager, state: dict[str, Any]) -> None:
    unit = engine_unit(state["configuration"])
    log = manager.log(unit)
    state["start"] = {
        "configuration": state["configuration"],
        "fingerprint": state["fingerprint"],
        "node": state["node"],
        "gpus": state.get("gpus"),
        "started_at": time.time(),
        "began": clock.mark(),
        "log_offset": log.stat().st_size if log.exists() else 0,
    }
    note_start(settings, unit, state["start"])
    state["phase"] = "starting"


def _watch(settings: Settings, manager: Manager, state: dict[str, Any]) -> None:
    unit = engine_unit(state["configuration"])
    service = manager.state(unit)
    seen = _read(manager.log(unit), state["start"])
    start, elapsed = state["start"], clock.since(state["start"].get("began"))
    _note_stages(start, seen, elapsed)
    patience.note(settings, start, manager.log(unit), manager.processes(unit), ended=seen.fatal)
    state["waiting_for"] = patience.told(state["configuration"], start, seen.stage, seen.figures.get("weights_percent"))
    restarts_in_vain = service.restarts > 0 and "ready_seconds" not in state["start"]
    if not service.running or restarts_in_vain:
        # A unit that its manager starts again and again before it ever was ready is failing, not starting.
        if restarts_in_vain:
            manager.stop(unit)
        _fail_from(
            state,
            _ended(settings, start, service, seen),
            f"The engine ended before it was ready ({service.detail}).",
            seen,
        )
        return
    if seen.failure is not None and seen.failure.kind == "port_taken":
        # The engine neither serves nor exits then: waiting for either would be waiting for ever.
        manager.stop(unit)
        _fail_from(state, seen.failure, "", seen)
        return
    if engine_http.health(settings) == "healthy":
        refusal = engine_http.generates(settings) if state["start"].get("node", 0) == 0 else None
        if refusal is None:
            state["phase"] = "ready"
            state["start"].setdefault("ready_seconds", elapsed)
            state["start"]["ready_fingerprint"] = state["fingerprint"]
            kept.keep(settings, unit)
            note_start(settings, unit, state["start"])
            return
        state["waiting_for"] = f"{state['configuration']} to generate a token ({refusal})"
    weights = patience.model_bytes((seen.figures.get("server_args") or {}).get("model_path", ""))
    over = patience.verdict(settings, state["configuration"], start, seen.stage, weights)
    if over is None and not (seen.fatal and patience.settled(settings, start, seen.lines)):
        return
    manager.stop(unit)
    # What the log names explains why nothing moves, unless the start has gone on since.
    if seen.failure is not None and (seen.fatal or seen.failure.stage == seen.stage):
        _fail_from(state, seen.failure, "", seen)
    elif over is not None:
        _fail(state, over.kind, seen.stage, over.sentence, over.advice, list(seen.last_lines), over.may_pass)


def _note_stages(start: dict[str, Any], seen: lifecycle.Lifecycle, elapsed: float) -> None:
    stages = start.setdefault("stages", {})
    for name, _ in seen.stages:
        stages.setdefault(name, round(elapsed, 2))
    # What an earlier look told stays known when it is in the middle of a long log.
    figures = {name: value for name, value in seen.figures.items() if isinstance(value, int)}
    start["figures"] = _most(start.get("figures"), figures)
    start["transports"] = _most(start.get("transports"), seen.transports)


def _most(known: Mapping[str, int] | None, told: Mapping[str, int]) -> dict[str, int]:
    return {**(known or {}), **{name: max(number, (known or {}).get(name, number)) for name, number in told.items()}}


def _read(log: Path, start: dict[str, Any]) -> lifecycle.Lifecycle:
    """What a log tells of a start (of switch.json or running.json)."""
    stages = start.get("stages") or {}
    # Kernels are compiled wherever they are missing.
    passed = [stage for stage in lifecycle.STAGES if stage in stages and stage != "kernels"]
    known = "ready" if "ready_seconds" in start else passed[-1] if passed else ""
    return lifecycle.read_log(log_file.since(log, start.get("log_offset", 0)), known)


def death(settings: Settings, name: str) -> dict[str, Any] | None:
    """How the engine of `name` ended by itself since its last start, as a failure; None while it runs."""
    unit = engine_unit(name)
    manager = manager_for(settings)
    service = manager.state(unit)
    if service.running:
        return None
    start = running(settings).get(unit, {})
    seen = _read(manager.log(unit), start)
    state: dict[str, Any] = {}
    failure = _ended(settings, start, service, seen)
    _fail_from(state, failure, f"The engine ended by itself ({service.detail}).", seen)
    return state["failure"]


def _ended(
    settings: Settings, start: dict[str, Any], service: ServiceState, seen: lifecycle.Lifecycle
) -> lifecycle.Failure | None:
    """Why an engine is gone that nobody asked to stop: its host's word, its log's, or its exit status."""
    if service.refusal is not None:
        return lifecycle.Failure("not_started", "process", service.refusal.sentence, advice=service.refusal.advice)
    if (why := outside.cause(settings, start, service, seen)) is not None:
        return why
    failure = lifecycle.classify_exit(seen, service.exit_signal or service.exit_code, requested_stop=False)
    if service.result == "start-limit-hit" and seen.failure is None:
        said = (
            "systemd has started it again and again, and gave up (start-limit-hit): each time it ended without a word."
        )
        return lifecycle.Failure("crash", seen.stage, said, tuple(seen.last_lines), "Read the end of the engine's log.")
    return failure


def _fail_from(
    state: dict[str, Any], failure: lifecycle.Failure | None, otherwise: str, seen: lifecycle.Lifecycle
) -> None:
    if failure is None:
        _fail(state, "died", seen.stage, otherwise, "Read the end of the engine's log.", list(seen.last_lines))
    else:
        evidence = list(failure.evidence) or list(seen.last_lines)
        _fail(state, failure.kind, failure.stage, failure.sentence, failure.advice, evidence, failure.may_pass)


def _fail(
    state: dict[str, Any],
    kind: str,
    stage: str,
    sentence: str,
    advice: str,
    evidence: list[str],
    may_pass: bool = False,
) -> None:
    state["phase"] = "failed"
    state["failure"] = {
        "kind": kind,
        "stage": stage,
        "sentence": masked(sentence),
        "advice": masked(advice),
        "evidence": [masked(line) for line in evidence[-12:]],
        "may_pass": may_pass,
    }


def _answer(state: dict[str, Any]) -> dict[str, Any]:
    keys = ("phase", "changed", "configuration", "stopped", "waiting_for", "start", "failure")
    return {key: state[key] for key in keys} | {
        "node": state.get("node", 0),
        "untold": state.get("progress", {}).get("untold"),
        "seconds": round(clock.since(state["began"]), 2),
    }
