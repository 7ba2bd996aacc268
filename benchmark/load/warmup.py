"""What is done once an engine start, before the points: a probe, a warm-up, and what text is in tokens.

Also the flush of the prefix cache before each point, seen to have worked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .drive import Limits
from .further import too_long
from .loops import Burst
from .prompts import HIGHEST_ID, LOWEST_ID, PromptSource, Tokenization, corpus, prose_text, random_words
from .target import Target, TargetError, call, call_json, detect, try_once, wait_idle
from .wire.address import Wire
from .workload import Workload

AGREE_SHARE, AGREE_SECONDS = 0.25, 0.1
"""Two passes agree when no phase of a rung differs by more than a quarter of the shorter one, or by 0.1 s.

What a warm-up is to wait out is paid once: a kernel compiled (Triton 0.2 s and more, nvcc minutes), a library
loaded, an allocator grown. What differs from pass to pass on a warm engine is how a burst is cut into prefills: on an
H200 the prefills of 64 prompts took 0.11 to 0.20 s and those of 256 prompts 0.63 to 0.85 s, warm, pass by pass
(docs/evidence/h200-one-gpu; a whole pass, with what lies between its bursts, 1.7 to 2.6 s).
"""

WARM_UP_TOKENS = 8
"""Of an answer of the warm-up, at most: every step after the first has the same shapes."""


@dataclass(frozen=True)
class Flushed:
    """Whether the prefix cache is empty, and how that is known."""

    done: bool
    seen: bool
    """A prompt asked before the flush was not in the cache after it."""
    detail: str

    def to_mapping(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Probe:
    """One request of the workload's full length."""

    target: Target
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_seconds: float
    tpot_seconds: float | None
    e2e_seconds: float

    def to_mapping(self) -> dict[str, Any]:
        """Its figures; the target stands elsewhere."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "target"}


@dataclass(frozen=True)
class BurstTimes:
    """One rung of a pass: `concurrency` requests at once. Seconds."""

    concurrency: int
    prefill_seconds: float
    """From the first request sent to the last first token."""
    decode_seconds: float
    """From there to the last token."""


@dataclass(frozen=True)
class WarmUp:
    """The passes over the ladder, and whether the last two agreed."""

    passes: list[float]
    """Seconds each, all bursts and what lies between them."""
    agreed: bool
    requests: int
    probe: Probe | None = None
    bursts: list[list[BurstTimes]] = field(default_factory=list)
    """Of each pass, rung by rung."""
    longest: dict[str, Any] | None = None
    """The probe of a longer workload that the start is to serve as well, or its error."""

    def to_mapping(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {
            "passes_seconds": self.passes,
            "agreed": self.agreed,
            "requests": self.requests,
            "probe": self.probe.to_mapping() if self.probe is not None else None,
            "longest": self.longest,
            "last_pass": [dataclasses.asdict(burst) for burst in self.bursts[-1]] if self.bursts else [],
        }


async def flush_cache(target: Target, verify: bool = True) -> Flushed:
    """Empty the engine's prefix cache; an engine that runs requests refuses, so wait until it is idle.

    Never raises: a server without a cache to flush says so in `detail` (prompts are new for each point anyway).
    """
    target = await detect(target)
    if target.kind != "sglang":
        return Flushed(False, False, "the server offers no flush; every point has new prompts")
    if not await wait_idle(target, 60):
        return Flushed(False, False, "the engine still had requests after 60 s")
    draw = random.Random(time.monotonic_ns())
    marker = [draw.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(64)]
    text_only = target.abilities is not None and not target.abilities.token_ids
    prompt: Any = " ".join(str(token) for token in marker) if text_only or target.route == "chat" else marker
    if verify:
        await try_once(target, prompt, 1)
        await wait_idle(target, 5)
    exchange = None
    for _ in range(20):
        exchange = await call(target, "POST", "/flush_cache")
        if exchange.status != 400:
            break
        # Busy: the engine refuses while requests run or wait.
        await asyncio.sleep(0.1)
    if exchange.failure():
        return Flushed(False, False, f"POST /flush_cache: {exchange.failure()}")
    if not verify:
        return Flushed(True, False, "not looked at")
    again = await try_once(target, prompt, 1)
    cached = again.answer.cached_tokens
    if again.failure() or cached is None:
        return Flushed(True, False, "the server does not tell cached tokens")
    # A single shared token (a start token, say) is no sign of a cache that was kept.
    if cached > 4:
        return Flushed(False, True, f"{cached} of 64 tokens of a prompt from before the flush were still cached")
    return Flushed(True, True, "a prompt from before the flush was not cached after it")


async def tokenization_of(target: Target, workload: Workload) -> Tokenization:
    """How text becomes tokens on this server, as far as the workload needs to know."""
    target = await detect(target)
    needs_text = workload.kind in ("text", "shared_prefix") or target.route == "chat" or not target.abilities.token_ids
    if not needs_text or workload.kind == "replay":
        return Tokenization()
    if target.route != "chat" and target.abilities.token_ids:
        ids = await _corpus_ids(target)
        if ids is not None:
            return Tokenization(ids=ids)
    return await _measured(target, random_words if workload.kind == "random_ids" else prose_text)


async def _corpus_ids(target: Target) -> np.ndarray | None:
    """The corpus as the server tokenizes it, or None if it does not offer that."""
    for path in ("/tokenize", "/v1/tokenize"):
        body = {"model": target.model, "prompt": corpus(), "add_special_tokens": False}
        answer = await call_json(target, "POST", path, body, seconds=60)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if isinstance(ids, list) and len(ids) > 1000 and all(isinstance(token, int) for token in ids):
            return np.array(ids, dtype=np.int64)
    return None


async def _measured(target: Target, make: Callable[[np.random.Generator, int], str]) -> Tokenization:
    """Characters a token and the template's overhead, from two prompts of different length."""
    points = []
    for characters in (400, 2400):
        exchange = await try_once(target, make(np.random.default_rng(characters), characters), 1)
        if exchange.failure() or not exchange.answer.prompt_tokens:
            return Tokenization()
        points.append((characters, exchange.answer.prompt_tokens))
    (c1, t1), (c2, t2) = points
    if t2 <= t1:
        return Tokenization()
    per_token = (c2 - c1) / (t2 - t1)
    return Tokenization(characters_per_token=per_token, overhead_tokens=max(0.0, t1 - c1 / per_token))


async def probe(target: Target, workload: Workload, tokenization: Tokenization | None = None) -> Probe:
    """The workload's longest request, once: whether it works at all, and how long it takes.

    Raises:
        TargetError: it fails; the text has the server's reason.
    """
    target = await detect(target)
    longest = dataclasses.replace(workload, length_range=1.0)
    if tokenization is None:
        tokenization = await tokenization_of(target, longest)
    as_ids = target.route != "chat" and target.abilities.token_ids
    prompt = PromptSource(longest, (0, 0), tokenization, as_ids, target.route).longest()
    exchange = await try_once(target, prompt.content, prompt.output_tokens, seconds=900)
    if (why := exchange.failure()) is not None:
        raise TargetError(
            f"The probe of workload {workload.name!r} ({prompt.prompt_tokens} tokens in, {prompt.output_tokens} out) "
            f"failed on {target.base_url}: {why}"
        )
    answer = exchange.answer
    first = (answer.times[0] - exchange.sent_ns) / 1e9 if answer.times else 0.0
    tokens = answer.completion_tokens
    span = (answer.times[-1] - answer.times[0]) / 1e9 if answer.times else 0.0
    return Probe(
        target=target,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=tokens,
        ttft_seconds=first,
        tpot_seconds=span / (tokens - 1) if tokens and tokens > 1 else None,
        e2e_seconds=(exchange.done_ns - exchange.sent_ns) / 1e9,
    )


async def warm_up(
    target: Target,
    workload: Workload,
    ladder: Sequence[int] = (1,),
    *,
    beside: Sequence[Workload] = (),
    max_passes: int = 5,
    seconds: float = 300.0,
    on_pass: Callable[[int, float], None] | None = None,
) -> WarmUp:
    """Run every shape of the ladder until two passes agree (kernels compiled, caches of all kinds full).

    A pass sends, for each concurrency, that many requests with the workload's prompts and short answers at once.

    Args:
        beside: other workloads of the start; the longest of them that fits is probed first of all, so that an engine
            that it kills dies before the ladder and not after.
        seconds: after so long no further pass is begun; two are always made, whole.

    Raises:
        TargetError: a request of the probe failed.
    """
    target = await detect(target)
    tokenization = await tokenization_of(target, workload)
    longest = await _probe_longest(target, workload, beside)
    first = await probe(target, workload, tokenization)
    short = dataclasses.replace(workload, output_tokens=min(workload.output_tokens, WARM_UP_TOKENS), rate=None)
    passes: list[float] = []
    bursts: list[list[BurstTimes]] = []
    requests, agreed = 1, False
    deadline = time.monotonic() + seconds
    for number in range(max_passes):
        start = time.monotonic()
        bursts.append([])
        for concurrency in sorted(set(ladder)):
            times, sent = await _burst(target, short, concurrency, number, tokenization)
            requests += sent
            bursts[-1].append(times)
        passes.append(time.monotonic() - start)
        if on_pass is not None:
            on_pass(number + 1, passes[-1])
        agreed = len(passes) > 1 and agree(bursts[-2], bursts[-1])
        if agreed or (len(passes) > 1 and time.monotonic() > deadline):
            break
    return WarmUp(passes=passes, agreed=agreed, requests=requests, probe=first, bursts=bursts, longest=longest)


async def _probe_longest(target: Target, workload: Workload, beside: Sequence[Workload]) -> dict[str, Any] | None:
    """Probe what is longer than the workload itself, if anything is. A refusal is told; the ladder needs it not."""
    fitting = [work for work in beside if too_long(work, target.info) is None]
    longest = max(fitting, key=lambda work: work.longest_tokens, default=workload)
    if longest.longest_tokens <= workload.longest_tokens:
        return None
    try:
        found = (await probe(target, longest)).to_mapping()
    except TargetError as error:
        found = {"error": str(error)}
    return {"workload": longest.name, **found}


def agree(before: Sequence[BurstTimes], after: Sequence[BurstTimes]) -> bool:
    """Whether two passes over the same rungs took equally long in each of their phases."""
    if [burst.concurrency for burst in before] != [burst.concurrency for burst in after]:
        return False
    pairs = [
        pair
        for a, b in zip(before, after, strict=True)
        for pair in ((a.prefill_seconds, b.prefill_seconds), (a.decode_seconds, b.decode_seconds))
    ]
    return all(abs(a - b) <= max(AGREE_SECONDS, AGREE_SHARE * min(a, b)) for a, b in pairs)


async def _burst(
    target: Target, workload: Workload, concurrency: int, number: int, tokenization: Tokenization
) -> tuple[BurstTimes, int]:
    as_ids = target.route != "chat" and target.abilities.token_ids
    source = PromptSource(workload, (concurrency, 1_000_000 + number), tokenization, as_ids, target.route)
    driver = Burst(Wire.to(target.base_url), target, workload, source, concurrency, Limits(ramp_seconds=300))
    await driver.run()
    times = [exchange.answer.times for exchange in driver.finished if exchange.answer.times]
    first = max((each[0] for each in times), default=driver.started_ns)
    last = max((each[-1] for each in times), default=first)
    return BurstTimes(concurrency, (first - driver.started_ns) / 1e9, (last - first) / 1e9), len(driver.finished)
