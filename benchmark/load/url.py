"""Measures any running server by its address alone: no Ansible, no service, the same points and the same record."""

from __future__ import annotations

import datetime
import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from .. import __version__
from ..campaign import record as rec
from .drive import Limits, Progress
from .measure import measure_point
from .target import Target, detect
from .warmup import WarmUp, tokenization_of, warm_up
from .workload import Workload

LADDER = (1, 4, 16, 64)


async def measure_url(
    url: str,
    *,
    workloads: Sequence[Workload],
    ladder: Sequence[int] = LADDER,
    repeats: int = 1,
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
    on_point: Callable[[rec.Point], None] | None = None,
) -> rec.Record:
    """Climb the ladder with each workload on the server at `url`.

    Args:
        name: of the configuration in the record: what to call the server in a report.
        folder: where record.json and the requests are kept; the record is written again after each point.
        telemetry: to be switched off for a server on another machine: it reads this host's GPUs.

    Raises:
        TargetError: the server cannot be reached, refuses the key, or gives no stream.
    """
    target = await detect(Target(url, route=route, model=model, headers=headers or {}))
    record = _record(target, workloads, ladder, name)
    _write(folder, record)
    for workload in workloads:
        warm = await warm_up(target, workload, ladder)
        if on_warm_up is not None:
            on_warm_up(warm)
        tokenization = await tokenization_of(target, workload)
        for repeat in range(1, repeats + 1):
            for concurrency in ladder:
                got = await measure_point(
                    target,
                    workload,
                    concurrency,
                    repeat=repeat,
                    tokenization=tokenization,
                    engine_log=engine_log,
                    telemetry=telemetry,
                    limits=limits,
                    on_progress=on_progress,
                )
                point = got.point
                if folder is not None:
                    again = f"-r{repeat}" if repeat > 1 else ""
                    point = msgspec.structs.replace(
                        point, raw=f"requests-{workload.name}-c{concurrency:03d}{again}.jsonl.zst"
                    )
                    got.write(folder / point.raw)
                record = msgspec.structs.replace(record, points=[*record.points, point], updated_at=_now())
                _write(folder, record)
                if on_point is not None:
                    on_point(point)
    record = msgspec.structs.replace(record, complete=True, updated_at=_now())
    _write(folder, record)
    return record


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write(folder: Path | None, record: rec.Record) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "record.json.part"
    temporary.write_bytes(rec.dump(record))
    temporary.replace(folder / "record.json")


def _record(target: Target, workloads: Sequence[Workload], ladder: Sequence[int], name: str) -> rec.Record:
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
        "workloads": [workload.to_mapping() for workload in workloads],
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
        workload=workloads[0].to_mapping() if workloads else {},
        ladder=list(ladder),
        outcome="measured",
        tools_version=__version__,
    )
