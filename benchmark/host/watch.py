"""An engine that is measured: is it still there, does it still make tokens? `/health` alone is green over a dead
scheduler, and requests that nobody answers wait for their time limits.

While tokens come nothing is asked, so that a measurement is not disturbed by who watches it.
"""

from __future__ import annotations

from typing import Any

from . import clock, engine_http, forms, gpus, patience
from .services import Manager, engine_unit
from .serving import running
from .settings import Settings, read_json, write_json

_WATCH = "job-watch.json"
_STILL_SHARE = 0.1
"""Of `quiet_seconds`: so long a point that is under way may bring no token before the engine is asked for one."""
_WARMING = ("warm-up", "fixed prompts", None)
"""Phases in which kernels are compiled, which takes minutes without a token."""


def ended(manager: Manager, configuration: str, pid: int | None = None) -> str | None:
    """Why the engine's main process is no longer the one that is measured; None while it is.

    Args:
        pid: of the main process when the point began; None where that is not known.
    """
    state = manager.state(engine_unit(configuration))
    if not state.running:
        return f"The engine ended ({state.detail})."
    if state.restarts:
        return "The engine was started again by its service manager."
    if pid and state.pid and state.pid != pid:
        # Nothing else tells: a service manager counts only what it starts again by itself.
        return f"The engine was started again past these tools: its main process was pid {pid}, and is pid {state.pid}."
    return None


def silent(settings: Settings, manager: Manager, job: dict[str, Any], progress: dict[str, Any]) -> str | None:
    """Why this point is waited for no longer, though the engine's process is there; None while it moves."""
    state = read_json(settings.state / _WATCH, {}, forms.Watch)
    seen = [progress.get(key) for key in ("phase", "completed", "failed")]
    brings = bool(progress.get("output_tokens_per_second"))
    if state.get("job") != job.get("id") or state.get("seen") != seen or brings:
        write_json(settings.state / _WATCH, {"job": job.get("id"), "seen": seen, "moved": clock.mark()})
        return None
    unit = engine_unit(job["configuration"])
    # What somebody else computes on another GPU is no sign of life.
    state["gpus"] = running(settings).get(unit, {}).get("gpus")
    patience.note(settings, state, manager.log(unit), manager.processes(unit))
    write_json(settings.state / _WATCH, state)
    quiet = clock.since(state.get("moved"))
    if progress.get("phase") in _WARMING:
        quiet = min(quiet, clock.since(state["signs"].get("moved")))
        longest = settings.quiet_seconds
    else:
        longest = settings.quiet_seconds * _STILL_SHARE
    # A long prefill brings no token either, but it computes.
    if quiet < longest or any(gpu.computes for gpu in gpus.among(gpus.activity(settings), state["gpus"])):
        return None
    if (refusal := engine_http.generates(settings)) is None:
        return None
    why = (
        f"The engine makes no token any more ({refusal}), though its process runs and /health says "
        f"{engine_http.health(settings)}: nothing came for {quiet:.0f} s."
    )
    write_json(settings.state / _WATCH, state | {"configuration": job["configuration"], "why": why})
    return why


def failure(settings: Settings, configuration: str) -> dict[str, Any] | None:
    """The failure that `silent` found last, if it was of this configuration."""
    state = read_json(settings.state / _WATCH, {}, forms.Watch)
    if state.get("configuration") != configuration or not isinstance(state.get("why"), str):
        return None
    return {
        "kind": "scheduler_dead",
        "stage": "ready",
        "sentence": state["why"],
        "advice": "Look at the engine's log from the last token on; it is started anew for the next try.",
        "evidence": [],
        "may_pass": True,
    }
