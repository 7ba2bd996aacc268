"""Switching: stop what runs, prove it gone, start the wanted configuration, wait until it answers or has failed.

`switch` takes one step and says where things stand. It may be asked again after any interruption.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..engine import lifecycle
from . import engine_http, kept, lease, processes
from .managers import manager_for
from .services import Manager, ServiceState, configuration_of, engine_unit
from .settings import Settings, read_json, write_json
from .stop import StuckError, stop_step

_SWITCH, _RUNNING = "switch.json", "running.json"
_STEP_SECONDS = 0.5
LOG_BYTES = 8 << 20
"""More than any start writes; a log that is longer is read from its start's end backwards."""


def switch(
    settings: Settings, name: str | None, fingerprint: str, token: str, *, yields: list[str], seconds: float = 5.0
) -> dict[str, Any]:
    """Steps towards `name` serving (None: nothing serving) for at most `seconds`; call again until it is over.

    Args:
        fingerprint: of command, environment, limits, engine and model: what runs with another one is restarted.
        token: one for each time somebody asks; tells a second look at one switch from a second switch.
        yields: units that are not ours and make room too.

    Returns:
        {"phase": "stopping" | "starting" | "ready" | "stopped" | "failed", "changed", "configuration",
        "stopped": [units], "waiting_for", "start": {...}, "failure": {...} | None, "seconds"}.
    """
    manager = manager_for(settings)
    deadline = time.monotonic() + seconds
    state = _begin(settings, manager, name, fingerprint, token, yields)
    while state["phase"] in ("stopping", "starting"):
        lease.renew(settings)
        try:
            _step(settings, manager, state)
        except StuckError as stuck:
            _fail(state, stuck.kind, "stop", stuck.sentence, stuck.advice, stuck.evidence)
        write_json(settings.state / _SWITCH, state)
        if state["phase"] not in ("stopping", "starting") or time.monotonic() + _STEP_SECONDS > deadline:
            break
        time.sleep(_STEP_SECONDS)
    return _answer(state)


def running(settings: Settings) -> dict[str, Any]:
    """{unit: {"fingerprint", "started_at", "configuration"}} of the last start of each of our engines."""
    return read_json(settings.state / _RUNNING, {})


def serving_units(settings: Settings, manager: Manager, yields: list[str]) -> list[str]:
    """The engines that run now, or of which processes are left: ours, and those that make room."""
    ours = [unit for unit in manager.units() if configuration_of(unit)]
    left = processes.marked(settings.state)
    return [unit for unit in dict.fromkeys([*ours, *yields]) if unit in left or manager.state(unit).running]


def _begin(
    settings: Settings, manager: Manager, name: str | None, fingerprint: str, token: str, yields: list[str]
) -> dict[str, Any]:
    state = read_json(settings.state / _SWITCH, {})
    if state.get("token") == token and state.get("configuration") == name:
        return state
    wanted = engine_unit(name) if name else None
    present = serving_units(settings, manager, yields)
    state = {
        "token": token,
        "configuration": name,
        "fingerprint": fingerprint,
        "began_at": time.time(),
        "changed": True,
        "stopped": present,
        "progress": {},
        "start": {},
        "failure": None,
        "phase": "stopping",
        "waiting_for": None,
    }
    known = running(settings).get(wanted or "", {})
    if wanted and present == [wanted] and known.get("fingerprint") == fingerprint:
        # It runs as wanted already; it only has to answer.
        state |= {"changed": False, "stopped": [], "phase": "starting", "start": dict(known)}
    elif wanted is None and not present:
        state |= {"changed": False}
    return state


def _step(settings: Settings, manager: Manager, state: dict[str, Any]) -> None:
    if state["phase"] == "stopping":
        waiting = stop_step(settings, manager, state["stopped"], state["progress"])
        state["waiting_for"] = waiting
        if waiting is None:
            if state["configuration"] is None:
                state["phase"] = "stopped"
            else:
                _start(settings, manager, state)
        return
    _watch(settings, manager, state)


def _start(settings: Settings, manager: Manager, state: dict[str, Any]) -> None:
    unit = engine_unit(state["configuration"])
    log = manager.log(unit)
    state["start"] = {
        "configuration": state["configuration"],
        "fingerprint": state["fingerprint"],
        "started_at": time.time(),
        "log_offset": log.stat().st_size if log.exists() else 0,
    }
    write_json(settings.state / _RUNNING, running(settings) | {unit: state["start"]})
    manager.start(unit)
    state["phase"] = "starting"


def _watch(settings: Settings, manager: Manager, state: dict[str, Any]) -> None:
    unit = engine_unit(state["configuration"])
    service = manager.state(unit)
    text = log_since(manager.log(unit), state["start"].get("log_offset", 0))
    seen = lifecycle.read_log(text)
    elapsed = time.time() - state["start"]["started_at"]
    _note_stages(state["start"], seen, elapsed)
    state["waiting_for"] = f"{state['configuration']}: {seen.stage}"
    restarts_in_vain = service.restarts > 0 and "ready_seconds" not in state["start"]
    if not service.running or restarts_in_vain:
        # A unit that its manager starts again and again before it ever was ready is failing, not starting.
        if restarts_in_vain:
            manager.stop(unit)
        _fail_from(state, _ended(service, seen), f"The engine ended before it was ready ({service.detail}).", seen)
        return
    if seen.failure is not None and seen.failure.kind == "port_taken":
        # The engine neither serves nor exits then: waiting for either would be waiting for ever.
        manager.stop(unit)
        _fail_from(state, seen.failure, "", seen)
        return
    if engine_http.health(settings) == "healthy":
        refusal = engine_http.generates(settings)
        if refusal is None:
            state["phase"] = "ready"
            state["start"].setdefault("ready_seconds", elapsed)
            state["start"]["ready_fingerprint"] = state["fingerprint"]
            kept.keep(settings, unit)
            write_json(settings.state / _RUNNING, running(settings) | {unit: state["start"]})
            return
        state["waiting_for"] = f"{state['configuration']} to generate a token ({refusal})"
    if elapsed > settings.start_seconds:
        manager.stop(unit)
        _fail(
            state,
            "start_too_slow",
            seen.stage,
            f"The engine was not ready {elapsed:.0f} s after its start; it is at '{seen.stage}'.",
            "Raise sglang_service_start_seconds if it still moves; look at the log if it does not.",
            list(seen.last_lines),
        )


def _note_stages(start: dict[str, Any], seen: lifecycle.Lifecycle, elapsed: float) -> None:
    stages = start.setdefault("stages", {})
    for name, _ in seen.stages:
        stages.setdefault(name, round(elapsed, 2))
    start["figures"] = {name: value for name, value in seen.figures.items() if isinstance(value, int)}
    start["transports"] = dict(seen.transports)


def death(settings: Settings, name: str) -> dict[str, Any] | None:
    """How the engine of `name` ended by itself since its last start, as a failure; None while it runs."""
    unit = engine_unit(name)
    manager = manager_for(settings)
    service = manager.state(unit)
    if service.running:
        return None
    offset = running(settings).get(unit, {}).get("log_offset", 0)
    log = manager.log(unit)
    # The end tells; an engine that measured has written much before it.
    if log.exists() and log.stat().st_size - offset > LOG_BYTES:
        offset = log.stat().st_size - LOG_BYTES
    seen = lifecycle.read_log(log_since(log, offset))
    state: dict[str, Any] = {}
    _fail_from(state, _ended(service, seen), f"The engine ended while it was measured ({service.detail}).", seen)
    return state["failure"]


def _ended(service: ServiceState, seen: lifecycle.Lifecycle) -> lifecycle.Failure | None:
    """Why an engine is gone that nobody asked to stop: the service manager's word, its log's, or its exit status."""
    if service.refusal is not None:
        return lifecycle.Failure("not_started", "process", service.refusal.sentence, advice=service.refusal.advice)
    return lifecycle.classify_exit(seen, service.exit_signal or service.exit_code, requested_stop=False)


def log_since(log: Path, offset: int) -> str:
    """The log from an offset on (from its beginning if it was truncated since), bounded."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(offset if offset <= size else 0)
            return stream.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


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
        "sentence": sentence,
        "advice": advice,
        "evidence": evidence[-12:],
        "may_pass": may_pass,
    }


def _answer(state: dict[str, Any]) -> dict[str, Any]:
    keys = ("phase", "changed", "configuration", "stopped", "waiting_for", "start", "failure")
    return {key: state[key] for key in keys} | {"seconds": round(time.time() - state["began_at"], 2)}
