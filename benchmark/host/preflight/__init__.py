"""Is this host fit to serve? Checks, each with a verdict, what was seen and what mends it (docs/preflight.md)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import msgspec

from .. import forms
from ..settings import Settings, read_json, write_json
from . import hints, judge, look
from .check import Check, counted, lines

HOST_FILE = "host.json"
"""In the state folder: what is known of the host. The preflight writes its part, the communication check its own."""


def preflight(settings: Settings, yields: list[str], visible: str = "", *, keep: bool = True) -> dict[str, Any]:
    """Look at the host, judge, remember.

    Args:
        yields: units that make room for a start.
        visible: CUDA_VISIBLE_DEVICES of every engine here; the GPUs that it leaves out are not judged.
        keep: remember it; check mode does not.

    Returns:
        {"checks": [{"id", "verdict", "seen", "mend"}], "counts": {verdict: number}, "lines": [text for people],
        "hints": [lines of a diff], "gpus": [{"index", "bus_id", "pcie_width", ...}], "topology": text or None,
        "simulated": bool, "seen_at": time, "fact": what changes only when the host does}.
    """
    seen = look.look(settings, yields, visible)
    checks = judge.judge(seen, settings.free_memory_bytes)
    answer = {
        "checks": msgspec.to_builtins(checks),
        "counts": counted(checks),
        "lines": lines(checks),
        "hints": [] if seen.simulated else _hints(seen, checks),
        "gpus": judge.gpu_facts(seen),
        "topology": seen.topology.text if seen.topology.ok else None,
        "simulated": seen.simulated,
        "fact": judge.fact(seen, checks),
        "seen_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    if keep:
        remember(settings, {key: value for key, value in answer.items() if key not in ("lines", "hints", "fact")})
    return answer


def _hints(seen: look.Seen, checks: Sequence[Check]) -> list[str]:
    vendor = look.vendor(look.text_of("/proc/cpuinfo") or "")
    return hints.hints(checks, seen.files, seen.files.get("/proc/cmdline", ""), vendor)


def remember(settings: Settings, part: dict[str, Any]) -> None:
    """Lay a part of what is known of the host over what was known before."""
    path = settings.state / HOST_FILE
    write_json(path, {**read_json(path, {}, forms.Host), **part})


def for_record(settings: Settings, devices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a record's host takes from the last preflight: {"gpus": [...], "details": {...}}.

    Args:
        devices: the GPUs as the record has them now; each gets what is known of it, matched by bus id.
    """
    known = read_json(settings.state / HOST_FILE, {}, forms.Host)
    by_bus = {gpu.get("bus_id"): gpu for gpu in known.get("gpus") or []}
    details = {name: known[name] for name in ("topology", "seen_at", "communication") if known.get(name)}
    if known.get("checks"):
        details["checks"] = [check for check in known["checks"] if check.get("verdict") != "ok"]
    return {"gpus": [{**by_bus.get(gpu.get("bus_id"), {}), **gpu} for gpu in devices], "details": details}


__all__ = ["HOST_FILE", "Check", "for_record", "preflight", "remember"]
