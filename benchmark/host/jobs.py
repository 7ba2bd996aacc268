"""One point at a time, as a unit of its own: asked for, looked at, collected. A lost connection loses nothing."""

from __future__ import annotations

import time
from typing import Any

from ..campaign import record as rec
from . import lease, records
from .managers import manager_for
from .services import JOB_UNIT, Manager
from .settings import HostError, Settings, read_json, write_json

_CURRENT, _PROGRESS, _RESULT = "job.json", "job-progress.json", "job-result.json"
_LOOK_SECONDS = 0.2


def measure(settings: Settings, spec: dict[str, Any], *, seconds: float = 5.0) -> dict[str, Any]:
    """Start the point that `spec` names if it is neither there nor under way; look at it for at most `seconds`.

    Args:
        spec: {"id", "configuration", "fingerprint": the record's key, "workload", "concurrency", "repeat", "ladder",
            "model", "start": how the engine started, "best": throughput to beat or None, "needed": rungs that are
            measured whatever they bring, "accuracy": whether the fixed prompts are asked after the start's warm-up,
            "label": of a point after the ladder}.

    Returns:
        {"phase": "running" | "done" | "left" | "failed", "changed", "progress": {...}, "point": {...},
        "failure": str, "reason": why it was left, "record": the whole record as JSON once the point is done,
        "seconds": from being asked for to its result, the load generator's start and warm-up included}.

    Raises:
        HostError: another point is being measured.
    """
    manager = manager_for(settings)
    lease.renew(settings)
    # An invalid point of an earlier try (the engine died in it, say) is measured again.
    if (point := _measured(settings, spec)) is not None and point.valid and not _mine(settings, spec):
        return _done(settings, spec, point, changed=False)
    if not _mine(settings, spec):
        if spec.get("start"):
            records.started(settings, spec["configuration"], spec["fingerprint"], spec["start"])
        # What follows the ladder is asked for whatever the ladder brought.
        if not spec.get("label") and (reason := _reason_to_leave(settings, spec)):
            return {"phase": "left", "changed": True, "reason": reason, "failure": None, "progress": {}, "point": {}}
        _start(settings, manager, spec)
    deadline = time.monotonic() + seconds
    while True:
        result = read_json(settings.state / _RESULT, {})
        if result.get("id") == spec["id"]:
            lease.renew(settings)
            if result["phase"] == "failed":
                return {"phase": "failed", "changed": True, "failure": result["failure"], "progress": {}, "point": {}}
            return _done(settings, spec, _measured(settings, spec), changed=True)
        if not manager.state(JOB_UNIT).running:
            tail = _tail(settings, manager)
            return _failed(f"The load generator ended without a result. The end of its log: {tail}")
        if time.monotonic() + _LOOK_SECONDS > deadline:
            progress = read_json(settings.state / _PROGRESS, {})
            return {"phase": "running", "changed": True, "progress": progress, "point": {}, "failure": None}
        time.sleep(_LOOK_SECONDS)


def current(settings: Settings) -> dict[str, Any] | None:
    """The point under way or last measured."""
    return read_json(settings.state / _CURRENT)


def report(settings: Settings, job_id: str, phase: str, failure: str | None = None) -> None:
    write_json(settings.state / _RESULT, {"id": job_id, "phase": phase, "failure": failure})


def report_progress(settings: Settings, progress: dict[str, Any]) -> None:
    write_json(settings.state / _PROGRESS, progress)


def _mine(settings: Settings, spec: dict[str, Any]) -> bool:
    return (current(settings) or {}).get("id") == spec["id"]


def _measured(settings: Settings, spec: dict[str, Any]) -> rec.Point | None:
    path = records.folder(settings, spec["configuration"], spec["fingerprint"]) / "record.json"
    if not path.exists():
        raise HostError(f"There is no record at {path}; begin it before its points.")
    record = rec.load(path.read_bytes(), str(path))
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
    if manager.state(JOB_UNIT).running:
        other = current(settings) or {}
        raise HostError(f"Another point is being measured on this host: {other.get('id', 'unknown')}. Wait for it.")
    (settings.state / _RESULT).unlink(missing_ok=True)
    (settings.state / _PROGRESS).unlink(missing_ok=True)
    write_json(settings.state / _CURRENT, spec | {"asked_at": time.time()})
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
    return told | {"seconds": _took(settings) if changed else 0.0}


def _took(settings: Settings) -> float:
    asked = (current(settings) or {}).get("asked_at")
    return round((settings.state / _RESULT).stat().st_mtime - asked, 2) if asked else 0.0


def _failed(text: str) -> dict[str, Any]:
    return {"phase": "failed", "changed": True, "failure": text, "progress": {}, "point": {}}


def _tail(settings: Settings, manager: Manager) -> str:
    try:
        lines = manager.log(JOB_UNIT).read_text(errors="replace").splitlines()
    except OSError:
        return "(none)"
    return " | ".join(lines[-3:])[-600:] or "(empty)"
