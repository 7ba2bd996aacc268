"""The records that this host holds: begun before a start, added to after each point, read by the controller."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..campaign import record as rec
from ..engine import configuration as conf
from ..load.further import after_ladder, drifted
from ..load.workload import Workload, WorkloadError, named
from . import engine_http, gpus, preflight
from .settings import HostError, Settings, write_bytes

GIB = 1 << 30


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def begin(settings: Settings, context: dict[str, Any]) -> dict[str, Any]:
    """Open the record of a configuration, or find the one that was begun before.

    Args:
        context: {"configuration", "arguments", "engine", "model", "workload", "ladder", "further", "plan", "host"}:
            what the controller knows. The driver and the GPUs are looked at here.

    Returns:
        {"fingerprint", "complete", "outcome", "measured": [concurrencies], "further": [points after the ladder that
        are still to be measured], "record": path}.
    """
    devices = gpus.gpus(settings)
    workload = workload_of(context["workload"])
    context = context | {"workload": workload.to_mapping()}
    of = fingerprint_of(context, devices)
    fingerprint = conf.fingerprint(of)
    path = _path(settings, context["configuration"]["name"], fingerprint)
    ladder = [int(rung) for rung in context["ladder"]]
    record = _read(path)
    if record is None:
        record = _new(settings, context, devices, fingerprint, of)
    elif record.ladder != ladder:
        record = msgspec.structs.replace(record, ladder=ladder)
    further = further_of(workload, ladder, context["further"]) if context.get("further") else []
    record = msgspec.structs.replace(record, after_ladder=further)
    if record.outcome == "failed" and not (record.complete and context.get("keep_failed")):
        # Tried again: what a failed try has measured stays, its failure does not.
        record = msgspec.structs.replace(record, outcome="skipped", failure=None, complete=False)
    record = msgspec.structs.replace(record, complete=is_complete(record))
    _write(path, record)
    return {
        "fingerprint": fingerprint,
        "complete": record.complete,
        "outcome": record.outcome,
        "measured": [p.concurrency for p in record.points if p.valid and (p.workload, p.repeat) == (workload.name, 1)],
        "ladder": ladder,
        "further": further_left(record),
        "record": str(path),
    }


def workload_of(wanted: str | dict[str, Any]) -> Workload:
    """A workload by its name or from a mapping.

    Raises:
        HostError: there is none of that name, or the mapping makes no sense.
    """
    try:
        return named(wanted) if isinstance(wanted, str) else Workload.from_mapping(wanted)
    except WorkloadError as error:
        raise HostError(f"{error} (sglang_benchmark_workload, or -e workload=...)") from error


def further_of(workload: Workload, ladder: list[int], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The points that follow the ladder on the same start.

    Args:
        wanted: {"points": [{"workload", "concurrency"}], "rate", "ttft_limit_seconds", "tpot_limit_seconds",
            "first_again"}, as load/further.py takes them.

    Raises:
        HostError: a point that makes no sense.
    """
    options = {key: value for key, value in wanted.items() if key != "points"}
    try:
        return [p.to_mapping() for p in after_ladder(workload, ladder, wanted.get("points") or [], **options)]
    except WorkloadError as error:
        raise HostError(f"{error} (sglang_benchmark_further, or -e rate=...)") from error


def further_left(record: rec.Record) -> list[dict[str, Any]]:
    """The points after the ladder that have no valid point yet."""
    here = {(p.workload, p.concurrency, p.repeat) for p in record.points if p.valid}
    return [f for f in record.after_ladder if (f["workload"]["name"], f["concurrency"], f["repeat"]) not in here]


def with_raw(point: rec.Point, raw: str) -> rec.Point:
    return msgspec.structs.replace(point, raw=raw)


def fingerprint_of(context: dict[str, Any], devices: list[gpus.Gpu]) -> dict[str, Any]:
    """What two measurements must share to be one: description and hypothesis may differ, these may not."""
    configuration = context["configuration"]
    return {
        "arguments": context["arguments"],
        "environment": configuration["environment"],
        "engine": context["engine"],
        "model": context["model"],
        "workload": context["workload"],
        "driver": devices[0].driver if devices else None,
        "gpus": [gpu.name for gpu in devices],
    }


def is_complete(record: rec.Record) -> bool:
    """Every rung has a point, or the outcome is final without one."""
    if record.outcome in ("failed", "rejected"):
        return True
    here = {(p.workload, p.concurrency, p.repeat) for p in record.points}
    after = {(f["workload"]["name"], f["concurrency"], f["repeat"]) for f in record.after_ladder}
    return set(record.ladder) <= {point.concurrency for point in record.points} and after <= here


def _new(
    settings: Settings, context: dict[str, Any], devices: list[gpus.Gpu], fingerprint: str, of: dict[str, Any]
) -> rec.Record:
    configuration = context["configuration"]
    known = {key: configuration.get(key) for key in ("name", "description", "against", "hypothesis")}
    return rec.Record(
        fingerprint=fingerprint,
        fingerprint_of=of,
        created_at=now(),
        updated_at=now(),
        configuration=rec.Configuration(
            **known,
            engine=configuration["engine"],
            environment={key: str(value) for key, value in configuration["environment"].items()},
            arguments=context["arguments"],
        ),
        host=rec.Host(
            name=context["host"],
            **preflight.for_record(settings, gpus.summary(devices)),
            driver=devices[0].driver if devices else None,
            hardware=context.get("hardware"),
        ),
        engine=msgspec.convert(context["engine"], rec.Engine),
        model=msgspec.convert(context["model"], rec.Model),
        workload=context["workload"],
        ladder=[int(rung) for rung in context["ladder"]],
        outcome="skipped",
        plan=context.get("plan") or {},
        tools_version=__version__,
    )


def started(settings: Settings, name: str, fingerprint: str, start: dict[str, Any]) -> None:
    """Note how the engine started: the log's figures, then the engine's own where it answers."""
    _change(settings, name, fingerprint, start=start_of(settings, start))


def start_of(settings: Settings, start: dict[str, Any]) -> rec.Start:
    figures = dict(start.get("figures") or {})
    answered = engine_http.loads(settings).get("loads") or [{}]
    memory = answered[0].get("memory") or {}
    for key, theirs in (("weights_bytes", "weight_gb"), ("kv_bytes", "kv_cache_gb"), ("graph_bytes", "graph_gb")):
        if isinstance(memory.get(theirs), (int, float)):
            figures[key] = int(memory[theirs] * GIB)
    if isinstance(memory.get("token_capacity"), int):
        figures["kv_tokens"] = memory["token_capacity"]
    fields = {field for field in rec.Start.__struct_fields__ if field in figures}
    return rec.Start(
        started_at=dt.datetime.fromtimestamp(start["started_at"], dt.UTC).isoformat(timespec="seconds"),
        ready_seconds=start.get("ready_seconds"),
        stages=[rec.Stage(name=name, seconds=seconds) for name, seconds in (start.get("stages") or {}).items()],
        transports=start.get("transports") or {},
        **{field: figures[field] for field in fields},
    )


def add_point(settings: Settings, name: str, fingerprint: str, point: rec.Point) -> None:
    """Append a point; the same rung and repeat measured again takes the place of the earlier one."""
    record = _open(settings, name, fingerprint)
    key = (point.workload, point.concurrency, point.repeat)
    others = [p for p in record.points if (p.workload, p.concurrency, p.repeat) != key]
    _change(settings, name, fingerprint, points=[*others, point], outcome="measured", failure=None)


def held_against_first(settings: Settings, name: str, fingerprint: str, again: rec.Point) -> rec.Point:
    """A point measured again, with a warning if it is not what it was."""
    record = _open(settings, name, fingerprint)
    first = next(
        (p for p in record.points if (p.workload, p.concurrency, p.repeat) == (again.workload, again.concurrency, 1)),
        None,
    )
    return again if first is None else msgspec.structs.replace(again, flags=[*again.flags, *drifted(first, again)])


def note(settings: Settings, name: str, fingerprint: str, **fields: Any) -> None:
    """Put what was found out about a start into its record: `warm_up`, `accuracy`."""
    if fields:
        _change(settings, name, fingerprint, **fields)


def fail(settings: Settings, name: str, fingerprint: str, failure: dict[str, Any], start: dict[str, Any]) -> None:
    known = {key: value for key, value in failure.items() if key in rec.Failure.__struct_fields__}
    begun = start_of(settings, start) if start.get("started_at") else None
    _change(settings, name, fingerprint, outcome="failed", failure=msgspec.convert(known, rec.Failure), start=begun)


def finish(settings: Settings, name: str, fingerprint: str) -> dict[str, Any]:
    """Close the record; its summary is what becomes the host fact."""
    record = _open(settings, name, fingerprint)
    # A record that was closed before stays as it is, the time of its last change included.
    if record.complete != is_complete(record):
        _change(settings, name, fingerprint, complete=is_complete(record))
    return summary(_open(settings, name, fingerprint))


def summary(record: rec.Record) -> dict[str, Any]:
    """A record in a few lines, for a host fact."""
    peak, single = record.peak(), record.at(1)
    return {
        "configuration": record.configuration.name,
        "fingerprint": record.fingerprint,
        "outcome": record.outcome,
        "complete": record.complete,
        "simulated": record.simulated,
        "engine": f"{record.engine.name} {record.engine.version}",
        "model": record.model.name,
        "workload": record.workload.get("name"),
        "peak_output_tokens_per_second": peak.output_tokens_per_second if peak else None,
        "peak_concurrency": peak.concurrency if peak else None,
        "single_stream_tokens_per_second": single.output_tokens_per_second if single else None,
        "failure": record.failure.sentence if record.failure else None,
        "updated_at": record.updated_at,
    }


def _path(settings: Settings, name: str, fingerprint: str) -> Path:
    if not conf.NAME.fullmatch(name) or not fingerprint.isalnum():
        raise HostError(f"'{name}' with fingerprint '{fingerprint}' is no record's name.")
    return settings.state / "records" / name / fingerprint / "record.json"


def folder(settings: Settings, name: str, fingerprint: str) -> Path:
    return _path(settings, name, fingerprint).parent


def _read(path: Path) -> rec.Record | None:
    if not path.exists():
        return None
    try:
        return rec.load(path.read_bytes(), str(path))
    except rec.RecordError:
        # Kept aside, not overwritten: somebody may want to look, and the measurement starts anew.
        path.replace(path.with_suffix(".broken"))
        return None


def _open(settings: Settings, name: str, fingerprint: str) -> rec.Record:
    path = _path(settings, name, fingerprint)
    record = _read(path)
    if record is None:
        raise HostError(f"There is no record of {name} at {path}; begin it first.")
    return record


def _change(settings: Settings, name: str, fingerprint: str, **changes: Any) -> None:
    record = msgspec.structs.replace(_open(settings, name, fingerprint), updated_at=now(), **changes)
    _write(_path(settings, name, fingerprint), record)


def _write(path: Path, record: rec.Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, rec.dump(record))
