"""One point at a time, as a unit of its own: asked for, looked at, collected. A lost connection loses nothing."""

from __future__ import annotations

import base64
import time
from typing import Any

from ..campaign import record as rec
from ..engine.secrets import masked
from . import clock, forms, holding, records, watch
from .managers import manager_for
from .services import JOB_UNIT, Manager, engine_unit
from .settings import HostError, Settings, read_json, write_json

_CURRENT, _PROGRESS, _RESULT = "job.json", "job-progress.json", "job-result.json"
_LOOK_SECONDS = 0.2
_TAIL_CHARACTERS = 600
_CARRIED_BYTES = 512 << 10
"""A raw file of several hundred requests; the measured ones of docs/evidence are all smaller."""


def measure(settings: Settings, spec: dict[str, Any], *, seconds: float = 5.0) -> dict[str, Any]:
    """Start the point that `spec` names if it is neither there nor under way; look at it for at most `seconds`.

    Args:
        spec: {"id", "configuration", "fingerprint": the record's key, "workload", "concurrency", "repeat", "ladder",
            "model", "start": how the engine started, "best": throughput to beat or None, "needed": rungs that are
            measured whatever they bring, "accuracy": whether the fixed prompts are asked after the start's warm-up,
            "label": of a point after the ladder, "limit_seconds": how long it may take, "sweep": the token of the sweep
            that asks}.

    Returns:
        {"phase": "running" | "done" | "left" | "failed", "changed", "progress": {...}, "point": {...},
        "failure": str, with "kind", "advice" and "may_pass" where it has a name, "reason": why it was left, "record":
        the whole record as JSON once the point is done,
        "requests": {name of its raw file: content in base64} unless that is large, "seconds": from being asked for to
        its result, the load generator's start and warm-up included}.

    Raises:
        HostError: another point is being measured; or a sweep holds the host, and not the one that asks.
    """
    manager = manager_for(settings)
    sweep = spec.get("sweep")
    holding.claim(settings, sweep)
    # An invalid point of an earlier try (the engine died in it, say) is measured again.
    if (point := _measured(settings, spec)) is not None and point.valid and not _mine(settings, spec):
        return _done(settings, spec, point, changed=False)
    deadline = time.monotonic() + seconds
    if not _mine(settings, spec) and not _adopted(settings, manager, spec, deadline):
        if spec.get("start"):
            records.started(settings, spec["configuration"], spec["fingerprint"], spec["start"])
        # What follows the ladder is asked for whatever the ladder brought.
        if not spec.get("label") and (reason := _reason_to_leave(settings, spec)):
            return {"phase": "left", "changed": True, "reason": reason, "failure": None, "progress": {}, "point": {}}
        _start(settings, manager, spec)
    while True:
        # In this order: a load generator reports, and then it ends.
        over = not manager.state(JOB_UNIT).running
        if result := _result(settings):
            holding.claim(settings, sweep)
            if result["phase"] == "failed":
                return _failed(str(result.get("failure")))
            return _done(settings, spec, _measured(settings, spec), changed=True)
        if why := watch.ended(manager, spec["configuration"], (current(settings) or {}).get("engine_pid")):
            return _given_up(manager, spec, why)
        if over and (point := _measured(settings, spec)) is not None and point.valid:
            # It is there; only the word that it is there was lost.
            return _done(settings, spec, point, changed=True)
        if over and not _once_more(settings, manager):
            tail = _tail(settings, manager)
            return _failed(f"The load generator ended twice without a result. The end of its log: {tail}")
        if limit := _over_time(settings, spec):
            return _too_slow(manager, spec, limit)
        if time.monotonic() + _LOOK_SECONDS > deadline:
            progress = read_json(settings.state / _PROGRESS, {})
            if why := watch.silent(settings, manager, current(settings) or spec, progress):
                return _given_up(manager, spec, why)
            return {"phase": "running", "changed": True, "progress": progress, "point": {}, "failure": None}
        time.sleep(_LOOK_SECONDS)


def _given_up(manager: Manager, spec: dict[str, Any], why: str) -> dict[str, Any]:
    """Requests that still wait would wait for their time limits."""
    manager.stop(JOB_UNIT)
    return _failed(f"{why} It was measured at concurrency {spec['concurrency']}; what was measured before is kept.")


def _over_time(settings: Settings, spec: dict[str, Any]) -> float | None:
    """The limit in seconds, where the point under way has taken longer; counted from when it was first asked for."""
    limit, took = float(spec.get("limit_seconds") or 0), clock.since((current(settings) or {}).get("asked"))
    return limit if 0 < limit < took < float("inf") else None


def _too_slow(manager: Manager, spec: dict[str, Any], limit: float) -> dict[str, Any]:
    said = _given_up(manager, spec, f"A point took longer than sglang_benchmark_point_seconds ({limit:.0f} s).")
    advice = "Raise it, or measure fewer or shorter requests; the record's warm-up says how long one takes."
    return said | {"kind": "point_too_slow", "advice": advice, "may_pass": False}


def current(settings: Settings) -> dict[str, Any] | None:
    """The point under way or last measured."""
    return read_json(settings.state / _CURRENT, form=forms.Job)


def report(settings: Settings, job_id: str, phase: str, failure: str | None = None) -> None:
    write_json(settings.state / _RESULT, {"id": job_id, "phase": phase, "failure": failure, "at": clock.mark()})


def report_progress(settings: Settings, progress: dict[str, Any]) -> None:
    """Of this moment only, so the disk is not waited for: the load generator would not read its answers meanwhile."""
    write_json(settings.state / _PROGRESS, progress, lasting=False)


def _mine(settings: Settings, spec: dict[str, Any]) -> bool:
    known = current(settings) or {}
    return spec["id"] in (known.get("id"), known.get("asked_again"))


def _result(settings: Settings) -> dict[str, Any] | None:
    """How the point under way ended, if it has."""
    result = read_json(settings.state / _RESULT, {}, forms.Result)
    known = current(settings) or {}
    told = result.get("id") == known.get("id") and result.get("phase") in ("done", "failed")
    return result if told else None


def _adopted(settings: Settings, manager: Manager, spec: dict[str, Any], deadline: float) -> bool:
    """Whether the point that is under way is this one, asked for by a controller that is gone.

    Raises:
        HostError: it is another one, and it does not end.
    """
    while manager.state(JOB_UNIT).running:
        other = current(settings) or {}
        if _result(settings) is None:
            if _place(other) != _place(spec):
                raise HostError(f"Another point is being measured here: {other.get('id', 'unknown')}. Wait for it.")
            write_json(settings.state / _CURRENT, other | {"asked_again": spec["id"]})
            return True
        # It has reported and is about to end.
        if time.monotonic() > deadline:
            raise HostError(f"The load generator of {other.get('id', 'unknown')} has reported and does not end.")
        time.sleep(_LOOK_SECONDS)
    return False


def _place(spec: dict[str, Any]) -> tuple[Any, ...]:
    workload = records.workload_of(spec["workload"]) if "workload" in spec else None
    return (
        spec.get("configuration"),
        spec.get("fingerprint"),
        workload,
        spec.get("concurrency"),
        spec.get("repeat", 1),
    )


def _once_more(settings: Settings, manager: Manager) -> bool:
    """Start a load generator that was killed a second time; never a third."""
    known = current(settings) or {}
    if known.get("tries", 1) > 1:
        return False
    write_json(settings.state / _CURRENT, known | {"tries": 2})
    manager.start(JOB_UNIT)
    return True


def _measured(settings: Settings, spec: dict[str, Any]) -> rec.Point | None:
    record = records.opened(settings, spec["configuration"], spec["fingerprint"])
    workload = records.workload_of(spec["workload"]).name
    wanted = (workload, int(spec["concurrency"]), int(spec.get("repeat", 1)))
    return next((p for p in record.points if (p.workload, p.concurrency, p.repeat) == wanted), None)


def _reason_to_leave(settings: Settings, spec: dict[str, Any]) -> str:
    """Of the ladder only: what follows it is asked for by name."""
    if spec.get("label"):
        return ""
    name, key, rung = spec["configuration"], spec["fingerprint"], int(spec["concurrency"])
    return records.leave(settings, name, key, rung, spec.get("best"), [int(n) for n in spec.get("needed") or ()])


def _start(settings: Settings, manager: Manager, spec: dict[str, Any]) -> None:
    (settings.state / _RESULT).unlink(missing_ok=True)
    (settings.state / _PROGRESS).unlink(missing_ok=True)
    pid = manager.state(engine_unit(spec["configuration"])).pid
    write_json(settings.state / _CURRENT, spec | {"asked": clock.mark(), "engine_pid": pid})
    manager.start(JOB_UNIT)


def _done(settings: Settings, spec: dict[str, Any], point: rec.Point | None, *, changed: bool) -> dict[str, Any]:
    if point is None:
        return _failed("The load generator reported a point that is not in the record.")
    shown = {
        "label": spec.get("label"),
        "concurrency": point.concurrency,
        "repeat": point.repeat,
        "valid": point.valid,
        "output_tokens_per_second": point.output_tokens_per_second,
        "prompt_tokens_per_second": point.prompt_tokens_per_second if spec.get("label") else None,
        "goodput_requests_per_second": point.goodput_requests_per_second,
        "ttft_p50_seconds": point.ttft_seconds.p50 if point.ttft_seconds else None,
        "requests_failed": point.requests_failed,
        "flags": [flag.message for flag in point.flags if flag.severity == "invalid"],
        "raw": point.raw,
    }
    record = records.text(settings, spec["configuration"], spec["fingerprint"])
    told = {"phase": "done", "changed": changed, "point": shown, "progress": {}, "failure": None, "record": record}
    return told | {"requests": _requests(settings, spec, point), "seconds": _took(settings) if changed else 0.0}


def _requests(settings: Settings, spec: dict[str, Any], point: rec.Point) -> dict[str, str]:
    """The point's raw file, to go with the answer; one that is large is fetched by itself."""
    if not point.raw:
        return {}
    path = records.folder(settings, spec["configuration"], spec["fingerprint"]) / point.raw
    try:
        small = path.stat().st_size <= _CARRIED_BYTES
        return {point.raw: base64.b64encode(path.read_bytes()).decode()} if small else {}
    except FileNotFoundError:
        return {}


def _took(settings: Settings) -> float:
    asked = clock.since((current(settings) or {}).get("asked"))
    ended = clock.since(read_json(settings.state / _RESULT, {}).get("at"))
    return round(asked - ended, 2) if max(asked, ended) < float("inf") else 0.0


def _failed(text: str) -> dict[str, Any]:
    return {"phase": "failed", "changed": True, "failure": masked(text), "progress": {}, "point": {}}


def _tail(settings: Settings, manager: Manager) -> str:
    try:
        lines = manager.log(JOB_UNIT).read_text(errors="replace").splitlines()
    except OSError:
        return "(none)"
    # Secrets are looked for before the cut: half of one would not look like one.
    return " | ".join(masked(line) for line in lines[-3:])[-_TAIL_CHARACTERS:] or "(empty)"
