"""Measures one point: one concurrency (or rate) of one workload on a running engine.

A point is: wait until the engine is idle, flush its cache, read its counters, open all connections, then ramp,
window, drain, and read the counters again. What came is only looked at afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import gc
import resource
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop

from ..campaign.record import Point
from .drive import Driver, Limits, Marks, Progress
from .loops import ClosedLoop, OpenLoop
from .metrics import About, first_of
from .observe import counters
from .observe.log import LogWindow
from .observe.telemetry import Telemetry
from .prompts import PromptSource, Tokenization
from .rows import RequestRow, row_of, write_requests
from .summary import summarise
from .target import Target, TargetError, detect, wait_idle
from .warmup import flush_cache, tokenization_of
from .wire.address import Wire, WireError
from .wire.clock import realtime_offset_ns
from .workload import Workload

T = TypeVar("T")


@dataclass(frozen=True)
class PointResult:
    """A measured point, and the requests that it was made from."""

    point: Point
    requests: list[RequestRow]
    about: About

    def write(self, path: Path) -> None:
        """Keep the requests (`.jsonl.zst`); `summary.reanalyse` makes the point from them again."""
        write_requests(path, self.requests, self.about.to_mapping())


def raw_name(point: Point) -> str:
    """The file of a point's requests, beside its record."""
    again = f"-r{point.repeat}" if point.repeat > 1 else ""
    return f"requests-{point.workload}-c{point.concurrency:03d}{again}.jsonl.zst"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop that the client is made for."""
    return uvloop.run(main)


async def measure_point(
    target: Target,
    workload: Workload,
    concurrency: int,
    *,
    repeat: int = 1,
    seed: int | None = None,
    tokenization: Tokenization | None = None,
    flush: bool = True,
    warmed_up: bool | None = None,
    first: Point | None = None,
    limits: Limits | None = None,
    engine_log: Path | None = None,
    telemetry: Telemetry | bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> PointResult:
    """Measure `workload` at `concurrency` requests in flight (at `workload.rate`, if it has one).

    Args:
        repeat: counts the measurements of the same point; each has prompts of its own.
        seed: in place of the workload's.
        warmed_up: whether the passes of the warm-up agreed; None: not told.
        first: the same point as it was measured at the beginning of the start, to be held against.
        engine_log: the file that the engine writes its log to; steps and compilations are read from it.
        telemetry: whether to read GPU power and clocks during the window (a process of its own), or what reads them.

    Raises:
        TargetError: the server cannot be reached, or gives no stream.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1.")
    if seed is not None:
        workload = Workload.from_mapping({**workload.to_mapping(), "seed": seed})
    target = await detect(target)
    if tokenization is None:
        tokenization = await tokenization_of(target, workload)
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    _allow_files(concurrency)
    server: dict[str, Any] = {"kind": target.kind, "route": target.route, **target.info}
    server["abilities"] = dataclasses.asdict(target.abilities)
    if flush:
        server["flush"] = (await flush_cache(target)).to_mapping()
    if warmed_up is not None:
        server["warmed_up"] = warmed_up
    before = await counters.read(target) if target.kind == "sglang" else {}
    observed = _Observed(target, engine_log, telemetry)
    driver = await _drive(
        target, workload, concurrency, repeat, tokenization, limits or Limits(), observed, on_progress
    )
    await wait_idle(target, 10)
    server.update(await _difference(target, before))
    server.update(observed.server(concurrency))
    about = About(
        workload=workload.to_mapping(),
        concurrency=concurrency,
        repeat=repeat,
        started_at=started_at,
        route=target.route,
        client=_client(driver),
        server=server,
        telemetry=await observed.telemetry(driver),
        ended_by=driver.window.ended_by,
        first=first_of(first) if first is not None else None,
    )
    zero = driver.started_ns
    if driver.window.end_ns is not None:
        about.window_start_us = (driver.window.start_ns - zero + 500) // 1000
        about.window_end_us = (driver.window.end_ns - zero + 500) // 1000
    rows = _rows(driver, zero)
    return PointResult(summarise(rows, about), rows, about)


async def _difference(target: Target, before: dict[str, float]) -> dict[str, Any]:
    """Counters move a little after the last answer; ask until they stand still."""
    if not before:
        return {}
    after = await counters.read(target)
    for _ in range(10):
        await asyncio.sleep(0.1)
        again = await counters.read(target)
        if again == after:
            break
        after = again
    return counters.difference(before, after)


class _Observed:
    """What is observed beside the client while the window is open."""

    def __init__(self, target: Target, engine_log: Path | None, telemetry: Telemetry | bool) -> None:
        self.poller = counters.LoadPoller(target)
        self.log = LogWindow(engine_log) if engine_log is not None else None
        self.gpus = Telemetry() if telemetry is True else telemetry or None

    def opened(self) -> None:
        self.poller.start()
        if self.log is not None:
            self.log.open()

    def closed(self) -> None:
        self.poller.stop()
        if self.log is not None:
            self.log.close()

    def server(self, concurrency: int) -> dict[str, Any]:
        """What the engine told; its log's lines are those of one data-parallel rank each."""
        load = self.poller.summary()
        if self.log is None:
            return load
        info, running = self.poller.target.info, min(concurrency, load.get("max_running") or concurrency)
        return {**load, **self.log.summary(running / (info.get("dp_size") or 1), info.get("pp_size") or 1)}

    async def telemetry(self, driver: Driver) -> dict[str, Any]:
        if self.gpus is None:
            return {}
        return await self.gpus.finish(driver.window.start_ns, driver.window.end_ns)

    async def stop(self) -> None:
        """End what runs beside the client; what it saw stays."""
        self.closed()
        if self.gpus is not None:
            await self.gpus.stop()


async def _drive(
    target: Target,
    workload: Workload,
    concurrency: int,
    repeat: int,
    tokenization: Tokenization,
    limits: Limits,
    observed: _Observed,
    on_progress: Callable[[Progress], None] | None,
) -> Driver:
    wire = Wire.to(target.base_url)
    source = PromptSource(workload, (concurrency, repeat), tokenization, _takes_ids(target), target.route)
    kind = ClosedLoop if workload.rate is None else OpenLoop
    driver = kind(
        wire, target, workload, source, concurrency, limits, Marks(observed.opened, observed.closed), on_progress
    )
    if observed.gpus is not None:
        await observed.gpus.start()
    # A pause of the collector would be a pause of the measurement.
    collects = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await driver.run()
    except BaseException as error:
        await observed.stop()
        if isinstance(error, WireError):
            raise TargetError(str(error)) from error
        raise
    finally:
        observed.closed()
        if collects:
            gc.enable()
        gc.unfreeze()
    return driver


def _takes_ids(target: Target) -> bool:
    return target.route != "chat" and (target.abilities is None or target.abilities.token_ids)


def _rows(driver: Driver, zero_ns: int) -> list[RequestRow]:
    """The rows, in the order of sending; exchanges are let go as they are turned into rows."""
    rows = []
    while driver.finished:
        exchange = driver.finished.pop()
        sent = exchange.tag
        rows.append(
            row_of(
                exchange,
                zero_ns,
                index=sent.index,
                first_wave=sent.first_wave,
                intended_ns=sent.intended_ns,
                prompt_asked=sent.prompt.prompt_tokens,
                output_asked=sent.prompt.output_tokens,
            )
        )
    rows.sort(key=lambda row: row.index)
    return rows


def _client(driver: Driver) -> dict[str, Any]:
    """The load generator about itself."""
    wire, window = driver.wire, driver.window
    offset_after = realtime_offset_ns()
    seconds = (window.end_ns - window.start_ns) / 1e9 if window.end_ns is not None else 0.0
    token_events = sum(len(exchange.answer.times) for exchange in driver.finished)
    shared = sum(exchange.shared_events for exchange in driver.finished)
    return {
        "clock": wire.clock,
        "clock_offset_before_ns": wire.offset_ns,
        "clock_offset_after_ns": offset_after,
        "clock_drift_seconds": (offset_after - wire.offset_ns) / 1e9,
        "cpu_share": window.cpu_seconds / seconds if seconds else None,
        "loop_lag_p99_seconds": _percentile(driver.lag_ns, 99),
        "read_lag_p50_seconds": _percentile(wire.lag_ns, 50),
        "read_lag_p99_seconds": _percentile(wire.lag_ns, 99),
        "offered_share": _offered(driver),
        "token_events": token_events,
        "shared_events_share": shared / token_events if token_events else None,
        "reads": wire.reads,
        "shared_reads": wire.shared_reads,
        "unstamped_reads": wire.unstamped_reads,
        "reconnects": wire.reconnects,
        "loop": type(driver.loop).__module__,
        "started_monotonic_ns": driver.started_ns,
    }


def _percentile(values_ns: array | list[int], q: float) -> float | None:
    return float(np.percentile(np.asarray(values_ns, dtype=float), q)) / 1e9 if len(values_ns) else None


def _offered(driver: Driver) -> float | None:
    """Closed loop: time that requests were under way in the window, over concurrency times window.

    What is missing is the time from the arrival of an answer's end to the sending of the next request.
    """
    window = driver.window
    if window.end_ns is None or driver.workload.rate is not None:
        return None
    a, b = window.start_ns, window.end_ns
    busy = sum(max(0, min(e.done_ns, b) - max(e.sent_ns, a)) for e in driver.finished if e.sent_ns)
    return busy / (driver.concurrency * (b - a)) if b > a else None


def _allow_files(connections: int) -> None:
    """Raise the soft limit of open files as far as needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * connections + 256
    if soft < needed:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
