"""What drives a measurement: requests out, answers in, the window, the clockwork. loops.py says when to send.

Everything here runs in callbacks of one event loop; nothing is parsed, stored or computed while requests run that
can wait until after.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import resource
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .prompts import Prompt, PromptSource
from .rows import CANCELLED
from .statistics import batch_edges, half_width
from .target import Target, body_of
from .wire.address import Wire, request_bytes
from .wire.answers import ROUTES, reader
from .wire.connection import Connection
from .wire.exchange import Exchange
from .workload import Workload

TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Progress:
    """A point while it runs, for a live display. `phase`: ramp, window, drain."""

    phase: str
    concurrency: int
    elapsed_seconds: float
    remaining_seconds: float | None
    """At most, as far as is known."""
    in_flight: int
    completed: int
    failed: int
    output_tokens_per_second: float | None
    """Over the last two seconds; events stand for tokens until `usage` tells."""
    half_width: float | None
    """Of the throughput so far, 95 %, relative."""


@dataclass
class Sent:
    """What belongs to one exchange."""

    index: int
    first_wave: bool
    prompt: Prompt
    connection: Connection
    intended_ns: int | None = None


@dataclass
class Window:
    """The steady part. Times are monotonic nanoseconds; `ended_by`: half_width, requests, time, failures."""

    start_ns: int | None = None
    end_ns: int | None = None
    ended_by: str | None = None
    cpu_start: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process, inside the window."""
    completed: int = 0


@dataclass
class Marks:
    """Called as the window opens and closes, for what is observed beside the client."""

    opened: Callable[[], None] = lambda: None
    closed: Callable[[], None] = lambda: None


@dataclass
class Limits:
    """How long to wait for what, in seconds."""

    ramp_seconds: float = 900.0
    silence_seconds: float = 600.0
    """A request is given up when no byte has come for so long."""
    drain_seconds: float = 300.0
    """Of an open loop, or of a point that has failed; a closed loop's window waits for all that ran in it."""


@dataclass
class Driver(ABC):
    """State common to both loops."""

    wire: Wire
    target: Target
    workload: Workload
    source: PromptSource
    concurrency: int
    limits: Limits
    marks: Marks = field(default_factory=Marks)
    on_progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.read = reader(self.target.route)
        self.finished: list[Exchange] = []
        self.active: set[Exchange] = set()
        self.window = Window()
        self.stopping = False
        self.completed = 0
        self.failed = 0
        self.failures_in_a_row = 0
        self.sample_ns = array("q")
        self.sample_tokens = array("q")
        self.lag_ns = array("q")
        self.started_ns = 0
        self.half_width = math.inf
        self._checked_ns = 0
        self._ended_ns = array("q")
        self._ended_tokens = array("q")
        self._tokens_at_start = 0
        self._all_done: asyncio.Future[None] = self.loop.create_future()
        self._prepared: deque[tuple[int, Prompt, bytes]] = deque()
        self._next_index = 0
        self._expected_tick = 0.0
        self._watched_ns = 0
        self._progress_ns = 0

    # Requests

    def prepare(self, first_wave_of: int | None = None) -> None:
        """Make the next request ready to send."""
        index = self._next_index
        self._next_index += 1
        prompt = self.source.prompt(index, first_wave_of)
        body = body_of(
            self.target,
            prompt.content,
            prompt.output_tokens,
            ignore_eos=self.workload.ignore_eos,
            temperature=self.workload.temperature,
        )
        request = request_bytes(self.wire, "POST", ROUTES[self.target.route], body, dict(self.target.headers))
        # Its bytes are all that is needed from here on; ids as Python objects would fill the memory.
        self._prepared.append((index, dataclasses.replace(prompt, content=""), request))

    def send(self, connection: Connection, first_wave: bool = False, intended_ns: int | None = None) -> None:
        if not self._prepared:
            self.prepare()
        index, prompt, request = self._prepared.popleft()
        exchange = Exchange(request, self._done, self.read, Sent(index, first_wave, prompt, connection, intended_ns))
        self.active.add(exchange)
        connection.start(exchange)

    def _done(self, exchange: Exchange, at_ns: int) -> None:
        self.active.discard(exchange)
        exchange.request = b""
        self.finished.append(exchange)
        if exchange.status == 200 and exchange.whole and exchange.answer.error is None:
            self.completed += 1
            self.failures_in_a_row = 0
        elif exchange.error != CANCELLED:
            self.failed += 1
            self.failures_in_a_row += 1
        self.after(exchange, at_ns)
        edge = at_ns + between_steps_ns(exchange)
        if self.window.start_ns is not None and self.window.end_ns is None:
            self.window.completed += 1
            self.loop.call_later((edge - at_ns) / 1e9, self._note_end, edge)
        if not self.stopping:
            self.at_completion(edge)
        if self.stopping and not self.active and not self._all_done.done():
            self._all_done.set_result(None)

    @abstractmethod
    def after(self, exchange: Exchange, at_ns: int) -> None:
        """What comes after an exchange: the next one, in a closed loop."""

    @abstractmethod
    def at_completion(self, edge_ns: int) -> None:
        """Window edges follow completions where they can: at concurrency 1 it then holds whole requests."""

    # The window

    def _note_end(self, at_ns: int) -> None:
        self._ended_ns.append(at_ns)
        self._ended_tokens.append(self.wire.tokens)

    def open_window(self, at_ns: int) -> None:
        self.window.start_ns = at_ns
        self.window.cpu_start = _cpu_seconds()
        self._tokens_at_start = self.wire.tokens
        self.sample(time.monotonic_ns())
        self.marks.opened()

    def close_window(self, at_ns: int, ended_by: str) -> None:
        window = self.window
        if window.start_ns is not None and window.end_ns is None:
            window.end_ns = at_ns
            window.ended_by = ended_by
            window.cpu_seconds = _cpu_seconds() - window.cpu_start
            self.sample(time.monotonic_ns())
            self.marks.closed()

    def stop(self, at_ns: int, ended_by: str) -> None:
        """Send no more; what runs may end."""
        self.close_window(at_ns, ended_by)
        self.stopping = True
        if not self.active and not self._all_done.done():
            self._all_done.set_result(None)

    def sample(self, at_ns: int) -> None:
        if not self.sample_ns or at_ns > self.sample_ns[-1]:
            self.sample_ns.append(at_ns)
            self.sample_tokens.append(self.wire.tokens)

    def is_settled(self, at_ns: int) -> bool:
        """Whether the throughput is known well enough; looked at four times a second at most."""
        if at_ns - self._checked_ns < 250_000_000:
            return False
        self._checked_ns = at_ns
        times = np.array([self.window.start_ns, *self._ended_ns], dtype=float)
        totals = np.array([self._tokens_at_start, *self._ended_tokens], dtype=float)
        order = np.argsort(times, kind="stable")[batch_edges(len(times), self.concurrency)]
        self.half_width = half_width(times[order], totals[order])
        return self.half_width <= self.workload.half_width

    # The clockwork

    def tick(self) -> None:
        """Every TICK_SECONDS: how late the loop is, a sample of the running total, and what time decides."""
        now = time.monotonic_ns()
        self.lag_ns.append(max(0, now - round(self._expected_tick * 1e9)))
        self.sample(now)
        if not self.stopping:
            self.at_tick(now)
        if now - self._watched_ns > 1_000_000_000:
            self._watched_ns = now
            self._give_up_silent(now)
        if self.on_progress is not None and now - self._progress_ns > 500_000_000:
            self._progress_ns = now
            self.on_progress(self.progress(now))
        self._expected_tick = now / 1e9 + TICK_SECONDS
        self._timer = self.loop.call_later(TICK_SECONDS, self.tick)

    @abstractmethod
    def at_tick(self, now_ns: int) -> None:
        """What is looked at a few times a second."""

    def _give_up_silent(self, now_ns: int) -> None:
        limit = self.limits.silence_seconds
        for exchange in [e for e in self.active if e.sent_ns and now_ns - e.last_read_ns > limit * 1e9]:
            exchange.tag.connection.give_up(f"no byte came for {limit:g} s")

    def progress(self, now_ns: int) -> Progress:
        window, work = self.window, self.workload
        phase = "drain" if self.stopping else ("ramp" if window.start_ns is None else "window")
        left = None
        if phase == "window":
            left = max(0.0, work.window_seconds - (now_ns - window.start_ns) / 1e9)
        return Progress(
            phase=phase,
            concurrency=self.concurrency,
            elapsed_seconds=(now_ns - self.started_ns) / 1e9,
            remaining_seconds=left,
            in_flight=len(self.active),
            completed=self.completed,
            failed=self.failed,
            output_tokens_per_second=self._recent_rate(),
            half_width=self.half_width if math.isfinite(self.half_width) else None,
        )

    def _recent_rate(self) -> float | None:
        back = min(len(self.sample_ns), round(2 / TICK_SECONDS))
        if back < 2:
            return None
        seconds = (self.sample_ns[-1] - self.sample_ns[-back]) / 1e9
        return (self.sample_tokens[-1] - self.sample_tokens[-back]) / seconds if seconds > 0 else None

    @abstractmethod
    async def begin(self) -> None:
        """Open the connections and send the first requests."""

    async def run(self) -> None:
        """Send, measure, drain. Whatever happens, all connections are closed at the end."""
        try:
            await self.begin()
            self._expected_tick = time.monotonic() + TICK_SECONDS
            self._timer = self.loop.call_later(TICK_SECONDS, self.tick)
            try:
                await self._wait()
            finally:
                self._timer.cancel()
        finally:
            self.close()

    async def _wait(self) -> None:
        while not self._all_done.done():
            await asyncio.wait([self._all_done], timeout=0.25)
            if self.stopping and self.active and not self.waits_for_all:
                stopped = self.window.end_ns or self.sample_ns[-1]
                if (time.monotonic_ns() - stopped) / 1e9 > self.limits.drain_seconds:
                    for exchange in list(self.active):
                        exchange.tag.connection.give_up(CANCELLED)

    @property
    def waits_for_all(self) -> bool:
        """Whether what still runs after the window may end, however long it takes: its tokens are the window's."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End the window and let nothing new begin."""


def between_steps_ns(exchange: Exchange) -> int:
    """Half of an answer's last gap between token events.

    An engine's step sends one event to every stream, and the answer's end is one of them. An edge there would cut the
    step in two; half a gap later it falls between two steps.
    """
    times = exchange.answer.times
    return max(0, times[-1] - times[-2]) // 2 if len(times) > 1 else 0


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
