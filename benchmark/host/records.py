"""The records that this host holds: begun before a start, added to after each point, read by the controller.

One record an engine start. A verb names it by its configuration and its key: the fingerprint of the inputs, with `-s2`
and so on behind it from the second start on.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..campaign import record as rec
from ..campaign.ladder import reason_to_leave
from ..engine import configuration as conf
from ..engine import model_files
from ..engine.secrets import masked
from ..load.further import after_ladder
from ..load.workload import Workload, WorkloadError, named
from . import engine_http, gpus, promotion
from .services import engine_unit
from .serving import running
from .settings import HostError, Settings, locked, write_bytes

GIB = 1 << 30
LOG_DIGIT_BYTES = GIB // 100
"""Sizes in the engine's log have two digits."""
_KEY = re.compile(r"[A-Za-z0-9]+(-s[1-9][0-9]*)?")
_LOCK = "records"
"""Between reading a record and writing it nobody else does: a verb and the load generator are two processes."""
_COPY = "record-copy.json"
"""Hours of measuring hang on a record: a second one lies beside it."""
_ENDED_BY = ("aborted", "no_requests", "server_restarted")
"""Flags of a point in which the engine gave up: with more requests it would again."""


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def begin(settings: Settings, context: dict[str, Any]) -> dict[str, Any]:
    """Open the record of one engine start of a configuration, or find the one that was begun before.

    Args:
        context: {"configuration", "arguments", "engine": {"name", "version", "environment": which one it runs in},
            "model", "workload", "ladder", "further", "plan", "host", "start_number", "nodes"}: what the controller
            knows. The driver and the GPUs are looked at here.

    Returns:
        {"fingerprint", "key", "start_number", "complete", "outcome", "measured": [concurrencies], "ladder",
        "further": [points after the ladder that are still to be measured],
        "start_anew": whether what runs was measured as another start and has to be stopped first, "record": path}.
    """
    devices = gpus.gpus(settings)
    workload = workload_of(context["workload"])
    context = _whole(context)
    of = fingerprint_of(context, devices)
    fingerprint, number = conf.fingerprint(of), int(context.get("start_number", 1))
    name, key = context["configuration"]["name"], rec.folder_name(fingerprint, number)
    path = _path(settings, name, key)
    ladder = [int(rung) for rung in context["ladder"]]
    further = further_of(workload, ladder, context["further"]) if context.get("further") else []
    with locked(settings, _LOCK):
        record = _read(path)
        if record is None:
            record = _new(settings, context, devices, fingerprint, of)
        elif record.ladder != ladder:
            # What was left out was left for the other ladder's sake.
            record = msgspec.structs.replace(record, ladder=ladder, left=None)
        record = msgspec.structs.replace(record, after_ladder=further)
        if record.outcome == "failed":
            # Tried again: what a failed try has measured stays, its failure does not.
            outcome = "measured" if record.points else "skipped"
            record = msgspec.structs.replace(record, outcome=outcome, failure=None, complete=False)
        record = msgspec.structs.replace(record, complete=is_complete(record))
        _write(path, record)
    return {
        "fingerprint": fingerprint,
        "key": key,
        "start_number": number,
        "complete": record.complete,
        "outcome": record.outcome,
        "measured": [p.concurrency for p in record.points if p.valid and (p.workload, p.repeat) == (workload.name, 1)],
        "ladder": ladder,
        "further": further_left(record),
        "start_anew": not record.complete and _measured_elsewhere(settings, name, record),
        "record": str(path),
    }


def fingerprints(settings: Settings, contexts: list[dict[str, Any]]) -> dict[str, Any]:
    """What each configuration's record would be called now, and from what: {name: {"fingerprint", "of", "further":
    [[workload, concurrency, repeat] of the points after the ladder]}}."""
    devices = gpus.gpus(settings)
    found = {}
    for context in contexts:
        of = fingerprint_of(_whole(context), devices)
        after = further_of(workload_of(context["workload"]), context["ladder"], context.get("further") or {})
        found[context["configuration"]["name"]] = {
            "fingerprint": conf.fingerprint(of),
            "of": of,
            "further": [[point["workload"]["name"], point["concurrency"], point["repeat"]] for point in after],
        }
    return found


def _whole(context: dict[str, Any]) -> dict[str, Any]:
    known = context | {"workload": workload_of(context["workload"]).to_mapping()}
    if context["engine"].get("name") == "sglang" and (revision := _revision_here(context["model"])):
        # What an inventory or a fact says of the files may be older than they are.
        known["model"] = context["model"] | {"revision": revision}
    return known


def _revision_here(model: dict[str, Any]) -> str:
    """The revision of the model's folder as it is now; empty where it is no folder of this host, or has no model."""
    try:
        return model_files.look_at(Path(str(model.get("path") or "/nowhere"))).revision
    except OSError:
        return ""


def _measured_elsewhere(settings: Settings, name: str, record: rec.Record) -> bool:
    """Whether the engine that runs is the start of another record: it cannot be a second start as well."""
    runs = running(settings).get(engine_unit(name), {}).get("started_at")
    if runs is None:
        return False
    own = _path(settings, name, record.folder_name)
    others = (_read(path) for path in own.parent.parent.glob("*/record.json") if path != own)
    starts = [start for other in others if other for start in (*other.earlier_starts, other.start) if start]
    return _stamp(runs) in {start.started_at for start in starts}


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
    of = {
        "arguments": context["arguments"],
        "environment": conf.measured_environment(configuration["environment"], context.get("environment")),
        "engine": context["engine"],
        "model": context["model"],
        "workload": context["workload"],
        "driver": devices[0].driver if devices else None,
        "gpus": [gpu.name for gpu in devices],
    }
    return conf.measured_inputs(of)


def is_complete(record: rec.Record) -> bool:
    """Every rung has a point or was left out on purpose, and what follows has one; or the outcome is final without."""
    if record.outcome in ("failed", "rejected"):
        return True
    here = {(p.workload, p.concurrency, p.repeat) for p in record.points}
    after = {(f["workload"]["name"], f["concurrency"], f["repeat"]) for f in record.after_ladder}
    return record.covers(record.ladder) and after <= here


def _new(
    settings: Settings, context: dict[str, Any], devices: list[gpus.Gpu], fingerprint: str, of: dict[str, Any]
) -> rec.Record:
    from .preflight import for_record  # of a new record only; other verbs need none of it

    configuration = context["configuration"]
    known = {key: configuration.get(key) for key in ("name", "description", "against", "hypothesis")}
    return rec.Record(
        fingerprint=fingerprint,
        fingerprint_of=of,
        start_number=int(context.get("start_number", 1)),
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
            **for_record(settings, gpus.summary(devices)),
            driver=devices[0].driver if devices else None,
            hardware=context.get("hardware"),
        ),
        engine=msgspec.convert(context["engine"], rec.Engine),
        model=msgspec.convert(context["model"], rec.Model),
        workload=context["workload"],
        ladder=[int(rung) for rung in context["ladder"]],
        nodes=context.get("nodes") or [],
        outcome="skipped",
        plan=context.get("plan") or {},
        tools_version=__version__,
    )


def started(settings: Settings, name: str, key: str, start: dict[str, Any]) -> None:
    """Note how the engine started: the log's figures, then the engine's own where it answers.

    An earlier start that points were measured on is kept: a sweep that was cut off goes on with another engine.
    """
    record = opened(settings, name, key)
    if record.start and record.start.started_at == _stamp(start["started_at"]):
        return
    new = start_of(settings, start)

    def with_start(record: rec.Record) -> dict[str, Any]:
        earlier = list(record.earlier_starts)
        if record.start and record.start.started_at in {point.engine_started_at for point in record.points}:
            earlier.append(record.start)
        return {"start": new, "earlier_starts": [known for known in earlier if known.started_at != new.started_at]}

    _change(settings, name, key, with_start)


def start_of(settings: Settings, start: dict[str, Any]) -> rec.Start:
    figures = dict(start.get("figures") or {})
    memory = engine_http.memory(settings)
    for key, theirs in (("weights_bytes", "weight_gb"), ("kv_bytes", "kv_cache_gb"), ("graph_bytes", "graph_gb")):
        if theirs in memory:
            told = int(memory[theirs] * GIB)
            # The engine tells its first rank's, to the MiB; the log has all ranks', to 0.01 GB.
            another = figures.get(key, 0) > told + LOG_DIGIT_BYTES
            figures[key] = figures[key] if another else told
    if isinstance(memory.get("token_capacity"), int):
        figures["kv_tokens"] = memory["token_capacity"]
    fields = {field for field in rec.Start.__struct_fields__ if field in figures}
    return rec.Start(
        started_at=_stamp(start["started_at"]),
        ready_seconds=start.get("ready_seconds"),
        stages=[rec.Stage(name=name, seconds=seconds) for name, seconds in (start.get("stages") or {}).items()],
        transports=start.get("transports") or {},
        **{field: figures[field] for field in fields},
    )


def add_point(settings: Settings, name: str, key: str, point: rec.Point) -> None:
    """Append a point; the same rung and repeat measured again takes the place of the earlier one."""
    place = (point.workload, point.concurrency, point.repeat)

    def with_point(record: rec.Record) -> dict[str, Any]:
        others = [p for p in record.points if (p.workload, p.concurrency, p.repeat) != place]
        of = record.start.started_at if record.start else None
        return {"points": [*others, msgspec.structs.replace(point, engine_started_at=of)]}

    _change(settings, name, key, with_point, outcome="measured", failure=None)


def first_measured(settings: Settings, name: str, key: str, workload: str, concurrency: int) -> rec.Point | None:
    """The point as it was measured first on this start."""
    points = opened(settings, name, key).points
    wanted = (workload, concurrency, 1)
    return next((p for p in points if (p.workload, p.concurrency, p.repeat) == wanted), None)


def note(settings: Settings, name: str, key: str, **fields: Any) -> None:
    """Put what was found out about a start into its record: `warm_up`, `accuracy`."""
    if fields:
        _change(settings, name, key, **fields)


def leave(settings: Settings, name: str, key: str, rung: int, best: float | None, needed: list[int]) -> str:
    """Leave a rung out if what was measured says what it would bring: why, or an empty text if it is to be measured.

    `best` is the throughput to beat; rungs in `needed` are asked for whatever they bring.
    """
    record = opened(settings, name, key)
    valid = [p for p in record.ladder_points if p.valid and p.output_tokens_per_second]
    rates = {p.concurrency: p.output_tokens_per_second or 0.0 for p in valid}
    ended = {p.concurrency for p in record.ladder_points if any(flag.id in _ENDED_BY for flag in p.flags)}
    # A rung that failed before is tried again, not taken for lost.
    ended -= {*rates, rung}
    why = reason_to_leave(record.ladder, rates, ended, rung, best, needed)
    if why:
        rungs = sorted({rung, *(record.left.rungs if record.left else ())})
        reason = record.left.reason if record.left else why
        may_be_best = not any(concurrency < rung for concurrency in ended)
        _change(settings, name, key, left=rec.Left(rungs=rungs, reason=reason, may_be_best=may_be_best))
    return why


def fail(settings: Settings, name: str, key: str, failure: dict[str, Any], start: dict[str, Any]) -> None:
    known = {part: _masked(value) for part, value in failure.items() if part in rec.Failure.__struct_fields__}
    if start.get("started_at"):
        started(settings, name, key, start)
    _change(settings, name, key, outcome="failed", failure=msgspec.convert(known, rec.Failure))


def _masked(value: Any) -> Any:
    """Text of a failure may be anybody's: a log's, another process's, an answer's."""
    return (
        [_masked(item) for item in value]
        if isinstance(value, list)
        else masked(value)
        if isinstance(value, str)
        else value
    )


def finish(settings: Settings, name: str, key: str, facts: Path | None = None) -> dict[str, Any]:
    """Close the record, and write the configuration's host fact into the folder `facts`.

    Returns:
        The record's summary, with "fact": what the host says of the configuration, "changed": whether that is new,
        "record": the whole record as JSON.
    """
    record = opened(settings, name, key)
    # A record that was closed before stays as it is, the time of its last change included.
    if record.complete != is_complete(record):
        _change(settings, name, key, lambda record: {"complete": is_complete(record)})
    record = opened(settings, name, key)
    fact = _fact(settings, record)
    changed = facts is not None and _write_fact(facts / f"sglang_{name}.fact", fact)
    return summary(record) | {"fact": fact, "changed": changed, "record": text(settings, name, key)}


def _write_fact(path: Path, fact: dict[str, Any]) -> bool:
    content = json.dumps(fact, indent=4, sort_keys=True).encode() + b"\n"
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return True


def _fact(settings: Settings, record: rec.Record) -> dict[str, Any]:
    """What the host says of a configuration: its first start, which has the whole ladder, and how many there were."""
    name = record.configuration.name
    paths = [_path(settings, name, rec.folder_name(record.fingerprint, n)) for n in range(1, record.start_number + 1)]
    starts = [found for path in paths if (found := _read(path))]
    first = next((found for found in starts if found.outcome == "measured"), record)
    return summary(first) | {
        "starts": sum(found.outcome == "measured" for found in starts),
        "promoted": promotion.since(settings, name),
    }


def summary(record: rec.Record) -> dict[str, Any]:
    """A record in a few lines, for a host fact."""
    peak, single = record.peak(), record.at(1)
    return {
        "configuration": record.configuration.name,
        "fingerprint": record.fingerprint,
        "start_number": record.start_number,
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
        "left": record.left.reason if record.left else None,
        "updated_at": record.updated_at,
    }


def _stamp(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def _path(settings: Settings, name: str, key: str) -> Path:
    if not conf.NAME.fullmatch(name) or not _KEY.fullmatch(key):
        raise HostError(f"'{name}' with fingerprint '{key}' is no record's name.")
    return settings.state / "records" / name / key / "record.json"


def text(settings: Settings, name: str, key: str) -> str:
    """A record as it lies here."""
    return _path(settings, name, key).read_text(encoding="utf-8")


def folder(settings: Settings, name: str, key: str) -> Path:
    return _path(settings, name, key).parent


def _read(path: Path) -> rec.Record | None:
    try:
        return rec.load(path.read_bytes(), str(path))
    except FileNotFoundError:
        pass
    except rec.RecordError:
        # Kept aside, not overwritten: somebody may want to look.
        path.replace(path.with_suffix(".broken"))
    return _restored(path)


def _restored(path: Path) -> rec.Record | None:
    """The record from its copy, where it was broken; None where that is broken too: the measurement starts anew."""
    try:
        content = path.with_name(_COPY).read_bytes()
        record = rec.load(content, str(path))
    except (FileNotFoundError, rec.RecordError):
        return None
    write_bytes(path, content)
    return record


def opened(settings: Settings, name: str, key: str) -> rec.Record:
    """The record of a start, mended if its file is broken.

    Raises:
        HostError: there is none.
    """
    path = _path(settings, name, key)
    record = _read(path)
    if record is None:
        raise HostError(f"There is no record of {name} at {path}; begin it first.")
    return record


def _change(
    settings: Settings, name: str, key: str, found: Callable[[rec.Record], dict[str, Any]] | None = None, **fields: Any
) -> None:
    """Change fields of a record; `found` makes them from it as it is now: a point that is under way may just be added.

    Nothing that holds the lock calls this.
    """
    with locked(settings, _LOCK):
        record = opened(settings, name, key)
        changes = fields | (found(record) if found else {})
        _write(_path(settings, name, key), msgspec.structs.replace(record, updated_at=now(), **changes))


def _write(path: Path, record: rec.Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = rec.dump(record)
    write_bytes(path, content)
    write_bytes(path.with_name(_COPY), content)
