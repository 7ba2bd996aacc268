"""When requests are sent: a closed loop at a concurrency, an open loop at a Poisson rate, or a single burst."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import numpy as np

from .drive import Driver
from .wire.address import WireError
from .wire.connection import Connection
from .wire.exchange import Exchange

FAILURE_PAUSE_SECONDS = 0.1
STRETCH = 1.25
"""A window may last so much longer than its cap, to end with a whole turnover."""


SPARE_CONNECTIONS = 4
"""At least so many open and idle ones are kept in an open loop: none is to be opened on a request's time."""
SPARE_SECONDS = 0.1
"""And as many as arrivals are expected in so long: more than a connection takes."""
TIMER_SECONDS = 0.0015
"""How late a timer of uvloop may be: they are of whole milliseconds, and so is its time."""
EXACT_RATE = 100.0
"""Requests a second up to which the last of the wait is spent awake; above it that would be much of a core."""


class ClosedLoop(Driver):
    """Always `concurrency` requests in flight: each answer is followed at once by the next request."""

    spread_first = True
    """Whether lengths of the first wave are spread, so that the loop starts as it goes on."""

    async def begin(self) -> None:
        wave = self.concurrency
        for _ in range(wave):
            self.prepare(first_wave_of=wave if self.spread_first else None)
        for _ in range(min(wave, 64)):
            self.prepare()
        self.connections = [Connection(self.wire) for _ in range(wave)]
        # In groups: the accept queue of a server is often 128 long, or less.
        for start in range(0, wave, 64):
            await asyncio.gather(*(connection.open() for connection in self.connections[start : start + 64]))
        self.started_ns = time.monotonic_ns()
        self._first_wave = [self._first(connection) for connection in self.connections]
        self._needed = max(1, math.ceil(self.workload.ramp_turnover * wave))

    def _first(self, connection: Connection) -> Exchange | None:
        self.send(connection, first_wave=True)
        return connection.exchange

    def after(self, exchange: Exchange, at_ns: int) -> None:
        if self.stopping:
            return
        connection = exchange.tag.connection
        if self.failures_in_a_row >= max(5, self.concurrency):
            self.stop(at_ns, "failures")
        elif self.failures_in_a_row:
            self.loop.call_later(FAILURE_PAUSE_SECONDS, self._again, connection)
        else:
            self.send(connection)
            self.loop.call_soon(self._refill)

    def _again(self, connection: Connection) -> None:
        if not self.stopping:
            self.send(connection)

    def _refill(self) -> None:
        if len(self._prepared) < min(self.concurrency, 64) and not self.stopping:
            self.prepare()

    def _ramp_is_over(self) -> bool:
        """Enough requests have ended, and each of the first wave has had its first token (or has ended)."""
        if len(self.finished) < self._needed:
            return False
        self._first_wave = [e for e in self._first_wave if e is not None and e in self.active and not e.answer.times]
        return not self._first_wave

    def at_completion(self, edge_ns: int) -> None:
        window, work = self.window, self.workload
        if window.start_ns is None:
            if self._ramp_is_over():
                self.open_window(edge_ns)
            return
        elapsed = (edge_ns - window.start_ns) / 1e9
        turnovers, part = divmod(window.completed, self.concurrency)
        if work.requests is not None and window.completed >= work.requests:
            self.stop(edge_ns, "requests")
        elif part:
            # Only whole turnovers: requests that march in step would be cut at another place each time.
            return
        elif (
            elapsed >= work.minimum_window_seconds
            and window.completed >= work.minimum_requests
            and self.is_settled(edge_ns)
        ):
            self.stop(edge_ns, "half_width")
        elif elapsed * (turnovers + 1) / turnovers > STRETCH * work.window_seconds:
            # The next turnover would end too late.
            self.stop(edge_ns, "time")

    def at_tick(self, now_ns: int) -> None:
        window = self.window
        if window.start_ns is None:
            if (now_ns - self.started_ns) / 1e9 > self.limits.ramp_seconds:
                self.stop(now_ns, "time")
        elif (now_ns - window.start_ns) / 1e9 > STRETCH * self.workload.window_seconds:
            # Not one turnover in all that time; the window ends where it is.
            self.stop(now_ns, "time")

    @property
    def waits_for_all(self) -> bool:
        return self.window.end_ns is not None and self.window.ended_by != "failures"

    def close(self) -> None:
        for connection in getattr(self, "connections", []):
            connection.close()


class Burst(ClosedLoop):
    """`concurrency` requests at once, and no more: a pass of the warm-up."""

    spread_first = False

    async def begin(self) -> None:
        await super().begin()
        self._prepared.clear()

    def _first(self, connection: Connection) -> Exchange | None:
        self.send(connection)
        return connection.exchange

    def after(self, exchange: Exchange, at_ns: int) -> None:
        if not self.active:
            self.stop(at_ns, "requests")

    def at_completion(self, edge_ns: int) -> None:
        """There is no window."""


class OpenLoop(Driver):
    """Requests leave at times drawn beforehand, whatever the engine does; latencies count from those times."""

    async def begin(self) -> None:
        work = self.workload
        self._spare = max(SPARE_CONNECTIONS, math.ceil(SPARE_SECONDS * work.rate))
        self._opening: set[asyncio.Task[None]] = set()
        self._early = TIMER_SECONDS if work.rate <= EXACT_RATE else 0.0
        self.idle = [Connection(self.wire) for _ in range(max(self._spare, self.concurrency))]
        for start in range(0, len(self.idle), 64):
            await asyncio.gather(*(connection.open() for connection in self.idle[start : start + 64]))
        self.connections = set(self.idle)
        for _ in range(32):
            self.prepare()
        self._random = np.random.default_rng([work.seed, *self.source.point, 1 << 42])
        self._ramp_ns = round(1e9 * min(0.25 * work.window_seconds, max(2.0, 10 / work.rate)))
        self.started_ns = time.monotonic_ns()
        self._due_ns = self.started_ns
        self._schedule()

    def _schedule(self) -> None:
        self._due_ns += round(1e9 * float(self._random.exponential(1 / self.workload.rate)))
        self._wait_for_arrival((self._due_ns - time.monotonic_ns()) / 1e9)

    def _wait_for_arrival(self, seconds: float) -> None:
        if seconds > self._early:
            self._arrival = self.loop.call_later(seconds - self._early, self._arrive)
        else:
            self._arrival = self.loop.call_soon(self._arrive)

    def _arrive(self) -> None:
        if self.stopping:
            return
        early = (self._due_ns - time.monotonic_ns()) / 1e9
        if early > 0:
            self._wait_for_arrival(early)
            return
        intended = self._due_ns
        while self.idle and not self.idle[-1].is_open:
            self.idle.pop()
        connection = self.idle.pop() if self.idle else Connection(self.wire)
        self.connections.add(connection)
        self.send(connection, intended_ns=intended)
        self._schedule()
        self.loop.call_soon(self._refill)

    def _refill(self) -> None:
        """The next request made, and connections open for those that may come at once."""
        self.prepare()
        if len(self.idle) + len(self._opening) < self._spare and not self.stopping:
            task = self.loop.create_task(self._open_spare())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_spare(self) -> None:
        connection = Connection(self.wire)
        self.connections.add(connection)
        # A server that takes no more says so to the request that needs one.
        with contextlib.suppress(WireError):
            await connection.open()
            self.idle.append(connection)

    def after(self, exchange: Exchange, at_ns: int) -> None:
        if exchange.tag.connection.is_open:
            self.idle.append(exchange.tag.connection)
        if self.failures_in_a_row >= max(20, self.concurrency) and not self.stopping:
            self.stop(at_ns, "failures")

    def at_completion(self, edge_ns: int) -> None:
        """The window of an open loop is a stretch of time; arrivals go on until its last request has ended."""

    def at_tick(self, now_ns: int) -> None:
        window, work = self.window, self.workload
        if window.start_ns is None:
            if now_ns - self.started_ns >= self._ramp_ns:
                self.open_window(now_ns)
            return
        if window.end_ns is None:
            full = work.requests is not None and window.completed >= work.requests
            if full or (now_ns - window.start_ns) / 1e9 >= work.window_seconds:
                self.close_window(now_ns, "requests" if full else "time")
            return
        late = (now_ns - window.end_ns) / 1e9 > self.limits.drain_seconds
        if late or not any(e.tag.intended_ns <= window.end_ns for e in self.active):
            self.stop(now_ns, window.ended_by or "time")

    def close(self) -> None:
        if hasattr(self, "_arrival"):
            self._arrival.cancel()
            for task in self._opening:
                task.cancel()
        for connection in getattr(self, "connections", []):
            connection.close()
