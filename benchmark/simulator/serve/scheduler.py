"""Continuous batching on a step clock: each step takes as long as the engine model says that it would."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmark.simulator.launch import texts
from benchmark.simulator.launch.texts import EngineError

from .histogram import Histogram
from .radix import RadixCache
from .request import Request

_LARGEST_LAG_SECONDS = 0.5
"""A step that ends this late (the machine was busy) moves the clock instead of being caught up."""
_LONGEST_RESERVATION = 4096
"""Tokens of a request's answer that admission counts at most, as the engine does."""
_FIRST_NEW_TOKEN_RATIO = 0.7
_LEAST_SHARE_OF_RATIO = 0.14
_RATIO_DECAY_STEPS = 600
_CONTEXT_GRAIN = 16
"""Lengths are rounded up to this for timing, so that the step model can answer most steps from its memory."""


@dataclass(frozen=True)
class Limits:
    """What the scheduler may do; sizes in tokens."""

    capacity: int
    running: int
    chunk: int
    prefill: int
    queue: int | None
    conservativeness: float
    prefix_cache: bool
    log_interval: int
    graph_batch: int
    """Largest batch of one rank that a captured graph serves; 0 without graphs."""


@dataclass
class Counters:
    """Totals since the start. Times are seconds."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0
    decode_steps: int = 0
    prefill_steps: int = 0
    graph_steps: int = 0
    aborted: int = 0
    finished_prompt: int = 0
    finished_generated: int = 0
    busy_decode: float = 0.0
    busy_prefill: float = 0.0
    late: float = 0.0
    throughput: float = 0.0
    """Tokens a second at the last logged interval."""
    ttft: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)


@dataclass
class Scheduler:
    """The one batch of an engine. Everything happens in the event loop's thread.

    It stands for all data-parallel ranks and pipeline stages: they step together, and the log is written as each of
    them would write it.
    """

    limits: Limits
    decode_seconds: Callable[[int, int], float]
    prefill_seconds: Callable[[int, int, int, int], float]
    speed: float = 1.0
    prefixes: tuple[tuple[str, ...], ...] = (("",),)
    """Of the log lines: for each data-parallel rank those of its pipeline stages on this node."""
    stages: int = 1
    """Of the pipeline, on all nodes: the running requests of a rank are cut into as many micro-batches."""
    before_step: Callable[[Scheduler], None] | None = None
    """May raise EngineError: where faults on request come in."""
    on_failure: Callable[[EngineError], None] | None = None

    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    prefilling: list[Request] = field(default_factory=list)
    """In the prefill step that runs now."""
    chunked: Request | None = None
    cache: RadixCache = field(default_factory=RadixCache)
    counters: Counters = field(default_factory=Counters)
    alive: bool = True

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._clock = 0.0
        self._private = 0
        self._ratio = min(1.0, _FIRST_NEW_TOKEN_RATIO * self.limits.conservativeness)
        self._least_ratio = self._ratio * _LEAST_SHARE_OF_RATIO
        now = time.monotonic()
        self._written = [_Written(now, now) for _ in self.prefixes]
        self._submitted = self._passes = 0

    @property
    def prefix(self) -> str:
        """Of what only the first rank of this node writes."""
        return next(stages[0] for stages in self.prefixes if stages)

    # What the HTTP side calls.

    def submit(self, request: Request) -> None:
        """Queues a request."""
        request.dispatched = time.time()
        # Ranks are served in turn (--load-balance-method round_robin).
        request.rank = self._submitted % len(self.prefixes)
        self._submitted += 1
        self.waiting.append(request)
        self._wake.set()

    def abort(self, request: Request) -> None:
        """The client has gone: the request is dropped at the next step."""
        if request.finish is None:
            request.aborted = True
            self.counters.aborted += not request.probe
            self._wake.set()

    def idle(self) -> bool:
        return not (self.running or self.waiting or self.prefilling or self.chunked)

    def flush(self) -> bool:
        """Empties the prefix cache; refuses (False) while anything runs or waits."""
        if not self.idle():
            return False
        self.cache = RadixCache()
        return True

    def used_tokens(self) -> int:
        """Tokens that running requests hold."""
        return self.cache.locked + self._private

    def running_requests(self) -> int:
        """Requests that are in the batch, decoding or being prefilled."""
        waiting_for_more = self.chunked is not None and self.chunked not in self.prefilling
        return len(self.running) + len(self.prefilling) + waiting_for_more

    # The loop.

    async def run(self) -> None:
        """Steps for ever. A failure ends it by `on_failure`."""
        self._clock = time.monotonic()
        while True:
            self._drop_aborted()
            if self.idle() or not self.alive:
                self._wake.clear()
                await self._wake.wait()
                self._clock = time.monotonic()
                continue
            try:
                await self._step()
            except EngineError as error:
                self.alive = False
                if self.on_failure:
                    self.on_failure(error)

    async def _step(self) -> None:
        if self.before_step:
            self.before_step(self)
        batch = self._admit()
        if batch:
            new = sum(count for _, count in batch)
            self._log_prefill(batch)
            under_way = len(self.running) + len(batch) + len(self.waiting)
            seconds = self.prefill_seconds(new, _context_of_chunk(batch, new), len(batch), under_way) / self.speed
            self.counters.busy_prefill += seconds
            self.prefilling = [request for request, _ in batch]
            await self._pass(seconds)
            self.prefilling = []
            self._finish_prefill(batch)
        elif self.running:
            self._make_room()
            total = sum(request.length() for request in self.running)
            context = _CONTEXT_GRAIN * -(-total // (_CONTEXT_GRAIN * len(self.running)))
            seconds = self.decode_seconds(len(self.running), context) / self.speed
            self.counters.busy_decode += seconds
            await self._pass(seconds)
            self._finish_decode()
        else:
            # Nothing fits and nothing runs that could make room: this cannot end by itself.
            self._end(self.waiting.popleft(), {"type": "abort", "message": "KV cache pool is too small."})

    async def _pass(self, seconds: float) -> None:
        self._clock += seconds
        left = self._clock - time.monotonic()
        await asyncio.sleep(max(0.0, left))
        late = time.monotonic() - self._clock
        if late > _LARGEST_LAG_SECONDS:
            self.counters.late += late
            self._clock = time.monotonic()

    # Memory.

    def _room(self) -> int:
        """Tokens that could be had, evicting what nobody uses."""
        return self.limits.capacity - self.cache.locked - self._private

    def _take(self, request: Request, count: int) -> None:
        free = self._room() - self.cache.evictable
        if free < count:
            self.cache.evict(count - free)
        request.private += count
        self._private += count

    def _release(self, request: Request) -> None:
        """Gives back what a request holds; what it computed stays in the prefix cache as long as there is room."""
        self._private -= request.private
        request.private = 0
        if self.limits.prefix_cache and request.filled:
            computed = request.context()[: request.filled]
            self.cache.insert(computed)
            self.cache.lock(request.node, -1)
            excess = self.cache.evictable - self._room()
            if excess > 0:
                self.cache.evict(excess)
        request.node = None
        request.filled = 0

    def _reserved(self) -> float:
        return sum(
            min(request.limit - len(request.output), _LONGEST_RESERVATION) * self._ratio for request in self.running
        )

    def _admit(self) -> list[tuple[Request, int]]:
        """The next prefill: requests and how many tokens of each; empty when it is decode's turn."""
        batch: list[tuple[Request, int]] = []
        budget = self.limits.chunk if self.limits.chunk > 0 else self.limits.prefill
        if self.chunked is not None:
            count = min(self.chunked.length() - self.chunked.filled, budget)
            batch.append((self.chunked, count))
            self._take(self.chunked, count)
            budget -= count
        room = self._room() - self._reserved()
        while self.waiting and budget > 0 and self.limits.running > len(self.running) + len(batch):
            request = self.waiting[0]
            context = request.context()
            cached, node = self.cache.match(context[:-1]) if self.limits.prefix_cache else (0, None)
            new = len(context) - cached
            answer = min(request.limit - len(request.output), _LONGEST_RESERVATION)
            if new + answer > room and (self.running or batch or new + 1 > self._room()):
                break
            self.waiting.popleft()
            self.cache.lock(node)
            request.node, request.filled = node, cached
            if not request.output:
                request.cached = cached
            self.counters.cached += cached
            count = min(new, budget)
            self._take(request, count)
            budget -= count
            room -= new + answer
            batch.append((request, count))
            if count < new:
                self.chunked = request
                break
        return batch

    def _finish_prefill(self, batch: list[tuple[Request, int]]) -> None:
        self.counters.prefill_steps += 1
        for request, count in batch:
            self.counters.prefilled += count
            request.filled += count
            if request.filled < request.length():
                self.chunked = request
                continue
            if request is self.chunked:
                self.chunked = None
            if self.limits.prefix_cache:
                self._share(request)
            self.running.append(request)
            self._advance(request)
        self._sweep()

    def _share(self, request: Request) -> None:
        """Puts a prefilled prompt into the cache, so that requests with the same beginning use it now."""
        _, node = self.cache.insert(request.context())
        self.cache.lock(node)
        self.cache.lock(request.node, -1)
        request.node = node
        self._private -= request.private
        request.private = 0

    def _make_room(self) -> None:
        """Before a decode step: one token for each running request, or the newest go back to the queue."""
        while len(self.running) > 1 and self._room() < len(self.running):
            victim = self.running.pop()
            before, self._ratio = self._ratio, min(1.0, self._ratio + 0.1)
            self._release(victim)
            victim.retractions += 1
            self.waiting.appendleft(victim)
            texts.log(
                "KV cache pool is full. Retract requests. #retracted_reqs: 1, "
                f"#new_token_ratio: {before:.4f} -> {self._ratio:.4f}",
                self.prefix,
            )
        for request in self.running:
            self._take(request, 1)
            request.filled += 1
        decay = (_FIRST_NEW_TOKEN_RATIO - self._least_ratio) / _RATIO_DECAY_STEPS
        self._ratio = max(self._least_ratio, self._ratio - decay)

    def _finish_decode(self) -> None:
        self.counters.decode_steps += 1
        most = max(map(len, self._by_rank(self.running)))
        if self._in_graph(most):
            self.counters.graph_steps += 1
        for request in self.running:
            self._advance(request)
        self._sweep()
        # With pipeline stages the interval counts the passes of micro-batches.
        before, self._passes = self._passes, self._passes + min(self.stages, most)
        if self._passes // self.limits.log_interval > before // self.limits.log_interval:
            self._log_decode()

    def _by_rank(self, requests: Iterable[Request]) -> list[list[Request]]:
        ranks: list[list[Request]] = [[] for _ in self.prefixes]
        for request in requests:
            ranks[request.rank].append(request)
        return ranks

    def _in_graph(self, running: int) -> bool:
        """Whether a step of a rank's requests runs from a captured graph."""
        return 0 < -(-running // self.stages) <= self.limits.graph_batch

    def _advance(self, request: Request) -> None:
        request.push(request.answer.next())
        self.counters.generated += 1
        self._written[request.rank].generated += 1
        if not request.first_token:
            request.first_token = time.time()
            if not request.probe:
                self.counters.ttft.add(request.first_token - request.received)
        if request.wants_notice():
            request.notify()

    def _sweep(self) -> None:
        """Takes finished requests out of the batch."""
        if all(request.finish is None for request in self.running):
            return
        for request in self.running:
            if request.finish is not None:
                self._end(request, request.finish)
        self.running = [request for request in self.running if request.finish is None]

    def _end(self, request: Request, finish: dict) -> None:
        self._release(request)
        request.finish = finish
        request.finished = time.time()
        if finish["type"] != "abort" and not request.probe:
            self.counters.finished_prompt += len(request.prompt)
            self.counters.finished_generated += len(request.output)
            self.counters.e2e.add(request.finished - request.received)
        request.notify()

    def _drop_aborted(self) -> None:
        gone = [request for request in (*self.running, *self.waiting) if request.aborted]
        if self.chunked is not None and self.chunked.aborted:
            gone.append(self.chunked)
            self.chunked = None
        for request in gone:
            self._end(request, {"type": "abort", "message": "Abort before prefill"})
        if gone:
            self.running = [request for request in self.running if not request.aborted]
            self.waiting = deque(request for request in self.waiting if not request.aborted)

    # The log.

    def _usage(self) -> float:
        return self.used_tokens() / max(1, self.limits.capacity)

    def _log_prefill(self, batch: list[tuple[Request, int]]) -> None:
        counts = dict(batch)
        running, waiting = self._by_rank(self.running), self._by_rank(self.waiting)
        for rank, prefilled in enumerate(self._by_rank(counts)):
            if not prefilled:
                continue
            new = sum(counts[request] for request in prefilled)
            cached = sum(request.cached for request in prefilled)
            pending = sum(request.length() - request.filled - counts[request] for request in prefilled)
            pending += sum(request.length() for request in waiting[rank])
            self._log(
                rank,
                f"Prefill batch, #new-seq: {len(prefilled)}, #new-token: {new}, #cached-token: {cached}, "
                f"token usage: {self._usage():.2f}, #running-req: {len(running[rank])}, "
                f"#queue-req: {len(waiting[rank])}, #pending-token: {pending}, cuda graph: False, "
                f"input throughput (token/s): {self._written[rank].prefill_rate(new):.2f}",
            )

    def _log_decode(self) -> None:
        waiting = self._by_rank(self.waiting)
        rates = [written.decode_rate() for written in self._written]
        self.counters.throughput = sum(rates)
        for rank, running in enumerate(self._by_rank(self.running)):
            if not running and len(self.prefixes) > 1:
                continue
            micro = -(-len(running) // self.stages)
            self._log(
                rank,
                f"Decode batch, #running-req: {micro}, #token: {sum(request.length() for request in running)}, "
                f"token usage: {self._usage():.2f}, cuda graph: {self._in_graph(len(running))}, "
                f"gen throughput (token/s): {rates[rank]:.2f}, #queue-req: {len(waiting[rank])}",
            )

    def _log(self, rank: int, text: str) -> None:
        for prefix in self.prefixes[rank]:
            texts.log(text, prefix)


@dataclass
class _Written:
    """What a data-parallel rank has written of itself: when, and what it has made since. Times are monotonic."""

    decoded_at: float
    prefilled_at: float
    generated: int = 0

    def decode_rate(self) -> float:
        """Tokens a second since the last line."""
        since, self.decoded_at = self.decoded_at, time.monotonic()
        made, self.generated = self.generated, 0
        return made / max(1e-6, self.decoded_at - since)

    def prefill_rate(self, new: int) -> float:
        since, self.prefilled_at = self.prefilled_at, time.monotonic()
        return new / max(1e-6, self.prefilled_at - since)


def _context_of_chunk(batch: list[tuple[Request, int]], new: int) -> int:
    """The context that equal prompts of `new` tokens together would need for as many pairs of attention as this batch.

    A sequence with c tokens there and n new ones has n x (c + n/2) pairs.
    """
    pairs = sum(count * (request.filled + count / 2) for request, count in batch)
    return max(0, round(pairs / max(1, new) - new / len(batch) / 2))
