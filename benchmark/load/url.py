"""Measures any running server by its address alone: no Ansible, no service, the same points and the same record."""

from __future__ import annotations

import datetime
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from .. import __version__
from ..campaign import record as rec
from . import accuracy
from .cost import Cost, from_warm_up
from .drive import Limits, Progress
from .further import Further, gap, too_long
from .measure import PointResult, measure_point, raw_name
from .prompts import Tokenization
from .target import Target, detect
from .warmup import WarmUp, tokenization_of, warm_up
from .workload import Workload

LADDER = (1, 4, 16, 64)


async def measure_url(
    url: str,
    *,
    workload: Workload,
    ladder: Sequence[int] = LADDER,
    further: Sequence[Further] = (),
    repeats: int = 1,
    answers: bool = True,
    route: str = "auto",
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    name: str = "server",
    folder: Path | None = None,
    engine_log: Path | None = None,
    telemetry: bool = True,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_warm_up: Callable[[WarmUp], None] | None = None,
    on_cost: Callable[[str, Cost], None] | None = None,
    on_point: Callable[[rec.Point], None] | None = None,
) -> rec.Record:
    """Climb the ladder on the server at `url`, then measure what follows it.

    Args:
        further: see `further.after_ladder`.
        repeats: of the ladder.
        answers: whether the fixed prompts are asked, before the first point.
        name: of the configuration in the record: what to call the server in a report.
        folder: where record.json and the requests are kept; the record is written again after each point.
        telemetry: to be switched off for a server on another machine: it reads this host's GPUs.
        on_cost: told before each point what it is and how long it will take.

    Raises:
        TargetError: the server cannot be reached, refuses the key, or gives no stream.
    """
    target = await detect(Target(url, route=route, model=model, headers=headers or {}))
    record = _record(target, workload, ladder, further, name)
    _write(folder, record)
    points = [Further(workload, rung, repeat, tuple(ladder)) for repeat in range(1, repeats + 1) for rung in ladder]
    points += [replace(point, repeat=point.repeat + repeats - 1) if point.repeat > 1 else point for point in further]
    warmed: dict[str, tuple[Tokenization, dict[str, Any]]] = {}
    for asked in points:
        first = asked.workload.name == workload.name
        if not first and (why := too_long(asked.workload, target.info)):
            point = gap(asked, why, _now())
        else:
            if asked.twin not in warmed:
                others = () if warmed else [point.workload for point in points]
                warm = await warm_up(target, asked.workload, asked.ladder, beside=others)
                if on_warm_up is not None:
                    on_warm_up(warm)
                warmed[asked.twin] = (await tokenization_of(target, asked.workload), warm.to_mapping())
                if not record.warm_up:
                    told = await accuracy.check(target) if answers else {}
                    record = msgspec.structs.replace(record, warm_up=warm.to_mapping(), accuracy=told)
            tokenization, passes = warmed[asked.twin]
            costs = from_warm_up(asked.workload, passes)
            if on_cost is not None and asked.concurrency in costs:
                on_cost(asked.label, costs[asked.concurrency])
            got = await measure_point(
                target,
                asked.workload,
                asked.concurrency,
                repeat=asked.repeat,
                tokenization=tokenization,
                warmed_up=passes["agreed"],
                first=record.points[0] if first and asked.repeat > repeats else None,
                engine_log=engine_log,
                telemetry=telemetry,
                limits=limits,
                on_progress=on_progress,
            )
            point = _kept(got, folder)
        record = msgspec.structs.replace(record, points=[*record.points, point], updated_at=_now())
        _write(folder, record)
        if on_point is not None:
            on_point(point)
    record = msgspec.structs.replace(record, complete=True, updated_at=_now())
    _write(folder, record)
    return record


def _kept(got: PointResult, folder: Path | None) -> rec.Point:
    """The point, its requests beside the record."""
    if folder is None:
        return got.point
    point = msgspec.structs.replace(got.point, raw=raw_name(got.point))
    got.write(folder / point.raw)
    return point


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write(folder: Path | None, record: rec.Record) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "record.json.part"
    temporary.write_bytes(rec.dump(record))
    temporary.replace(folder / "record.json")


def _record(
    target: Target, workload: Workload, ladder: Sequence[int], further: Sequence[Further], name: str
) -> rec.Record:
    """The record before its first point. What the server told of itself stands where a configuration's flags would."""
    parts = urlsplit(target.base_url)
    # Without a user and password, should the address hold them.
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    info: dict[str, Any] = {key: value for key, value in target.info.items() if key not in ("version", "simulated")}
    engine = "other"
    if target.kind == "sglang":
        engine = "simulated" if target.info.get("simulated") else "sglang"
    inputs = {
        "url": where,
        "model": target.model,
        "engine": dict(target.info),
        "workload": workload.to_mapping(),
        "ladder": list(ladder),
    }
    now = _now()
    return rec.Record(
        fingerprint=hashlib.sha256(orjson.dumps(inputs, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        fingerprint_of=inputs,
        created_at=now,
        updated_at=now,
        configuration=rec.Configuration(name=name, description=f"the server at {where}", engine=info),
        host=rec.Host(name=socket.gethostname()),
        engine=rec.Engine(name=engine, version=str(target.info.get("version", "unknown"))),
        model=rec.Model(name=str(target.model)),
        workload=workload.to_mapping(),
        ladder=list(ladder),
        after_ladder=[point.to_mapping() for point in further],
        outcome="measured",
        tools_version=__version__,
    )
