"""One generation request: what was asked, what has been made so far, and who waits for it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import tokens
from .radix import Node


class RequestError(ValueError):
    """A request that the engine refuses; the text is its answer's message."""


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters that change how many tokens there are, or which."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def read(cls, body: Mapping[str, Any], default_max: int | None) -> Sampling:
        """From a body in any of the three dialects (`max_new_tokens`, `max_tokens`, ...).

        Raises:
            RequestError: a value outside its range, in the engine's words.
        """
        longest = _first(body, ("max_new_tokens", "max_completion_tokens", "max_tokens"), default_max)
        shortest = _first(body, ("min_new_tokens", "min_tokens"), 0)
        temperature = _first(body, ("temperature",), 1.0)
        seed = _first(body, ("sampling_seed", "seed"), None)
        stop = body.get("stop") or ()
        if longest is not None and (not _whole(longest) or longest < 0):
            raise RequestError(f"max_new_tokens must be at least 0, got {longest}.")
        if not _whole(shortest) or shortest < 0:
            raise RequestError(f"min_new_tokens must be at least 0, got {shortest}.")
        if longest is not None and shortest > longest:
            raise RequestError(f"min_new_tokens must be in [0, max_new_tokens({longest})], got {shortest}.")
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or temperature < 0:
            raise RequestError(f"temperature must be non-negative, got {temperature}.")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(item, str) for item in stops):
            raise RequestError("stop must be a string or a list of strings.")
        return cls(
            longest,
            shortest,
            bool(body.get("ignore_eos")),
            float(temperature),
            seed if _whole(seed) else None,
            stops,
        )


def _first(body: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
    return next((body[key] for key in keys if body.get(key) is not None), default)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(eq=False)
class Request:
    """A request on its way through the scheduler. Times are `time.time()` seconds."""

    prompt: list[int]
    sampling: Sampling
    answer: tokens.Answer
    limit: int
    """Tokens it may make at most."""
    stream: bool = False
    stream_interval: int = 1
    probe: bool = False
    """A health check's: it stays out of the counters."""
    rank: int = 0
    """The data-parallel rank that serves it."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    received: float = field(default_factory=time.time)
    dispatched: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0

    output: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Text of each output token."""
    finish: dict[str, Any] | None = None
    """The finish reason as /generate gives it; None while it runs."""
    aborted: bool = False
    cached: int = 0
    """Prompt tokens found in the prefix cache."""
    retractions: int = 0
    announced: int = 0
    """Output tokens that the client may see."""

    filled: int = 0
    """Tokens of prompt and earlier output whose keys and values are in memory (prefill progress)."""
    private: int = 0
    """Tokens it holds outside the prefix cache."""
    node: Node | None = None
    _waiter: asyncio.Future[None] | None = None

    def context(self) -> list[int]:
        """Prompt and what was made so far: what a prefill has to cover."""
        return self.prompt + self.output if self.output else self.prompt

    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    def push(self, token: int) -> None:
        """One more token; decides whether the answer ends with it."""
        count = len(self.output) + 1
        sampling = self.sampling
        if not sampling.ignore_eos and count >= max(self.answer.natural_length, sampling.min_new_tokens + 1):
            self.output.append(tokens.END)
            self.pieces.append("")
            self.finish = {"type": "stop", "matched": tokens.END}
            return
        self.output.append(token)
        self.pieces.append(tokens.word(token))
        if sampling.stop and (matched := self._stopped_by()) is not None:
            self.finish = {"type": "stop", "matched": matched}
        elif count >= self.limit:
            self.finish = {"type": "length", "length": count}

    def _stopped_by(self) -> str | None:
        tail = "".join(self.pieces[-8:])
        return next((stop for stop in self.sampling.stop if stop and stop in tail), None)

    def wants_notice(self) -> bool:
        """Whether the client is to hear of the newest token now."""
        if self.finish is not None:
            return True
        count = len(self.output)
        return self.stream and (count == 1 or count % self.stream_interval == 0)

    def notify(self) -> None:
        """Tells whoever waits of everything made so far."""
        self.announced = len(self.output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def progress(self, seen: int) -> None:
        """Returns when more than `seen` tokens are announced, or the request has ended."""
        while self.finish is None and self.announced <= seen:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
