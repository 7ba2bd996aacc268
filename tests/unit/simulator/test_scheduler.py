"""Continuous batching without a web server: what runs with what, how long it takes, and what memory allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmark.simulator.launch.texts import EngineError
from benchmark.simulator.serve import tokens
from benchmark.simulator.serve.request import Request, Sampling
from benchmark.simulator.serve.scheduler import Limits, Scheduler


def limits(**changes: object) -> Limits:
    values = {
        "capacity": 10_000, "running": 64, "chunk": 1000, "prefill": 16_384, "queue": None, "conservativeness": 1.0,
        "prefix_cache": True, "log_interval": 40, "graph_batch": 64,
    }  # fmt: skip
    return Limits(**(values | changes))


class Steps:
    """Notes each step that is timed."""

    def __init__(self, decode: float = 0.0, prefill: float = 0.0):
        self.log: list[tuple[str, int, int]] = []
        self._decode, self._prefill = decode, prefill

    def decode(self, batch: int, context: int) -> float:
        self.log.append(("decode", batch, context))
        return self._decode

    def prefill(self, new: int, context: int, prompts: int, under_way: int) -> float:
        self.log.append(("prefill", new, context))
        return self._prefill

    def of(self, kind: str) -> list[tuple[int, int]]:
        return [(count, context) for name, count, context in self.log if name == kind]


def ask(prompt: list[int], count: int, **sampling: object) -> Request:
    values = {"max_new_tokens": count, "ignore_eos": True, "temperature": 0.0} | sampling
    return Request(prompt, Sampling(**values), tokens.Answer(prompt, 1000, 0), count)


def run(scheduler: Callable[[], Scheduler], requests: list[Request], seconds: float = 5.0) -> Scheduler:
    """Runs requests to their ends; the scheduler must be made inside the event loop."""

    async def body() -> Scheduler:
        made = scheduler()
        loop = asyncio.create_task(made.run())
        for request in requests:
            made.submit(request)

        async def finished() -> None:
            for request in requests:
                while request.finish is None:
                    await request.progress(len(request.output))

        await asyncio.wait_for(finished(), seconds)
        loop.cancel()
        return made

    return asyncio.run(body())


def test_all_waiting_prompts_are_prefilled_together_and_then_decoded_together() -> None:
    steps = Steps()
    requests = [ask([number] * 10, 5) for number in range(20, 24)]
    scheduler = run(lambda: Scheduler(limits(), steps.decode, steps.prefill), requests)
    assert steps.of("prefill") == [(40, 0)]
    # The prefill makes the first of five tokens; a context of 11 to 14 tokens counts as 16.
    assert steps.of("decode") == [(4, 16)] * 4
    assert all(len(request.output) == 5 for request in requests)
    assert scheduler.idle() and scheduler.used_tokens() == 0
    assert scheduler.counters.finished_generated == 20
    assert scheduler.counters.finished_prompt == 40


def test_no_more_than_allowed_run_at_once() -> None:
    steps = Steps()
    requests = [ask([number] * 4, 3) for number in range(20, 25)]
    run(lambda: Scheduler(limits(running=2), steps.decode, steps.prefill), requests)
    assert max(batch for batch, _ in steps.of("decode")) == 2
    assert [new for new, _ in steps.of("prefill")] == [8, 8, 4]


def test_a_long_prompt_comes_in_chunks_and_others_fill_the_last() -> None:
    steps = Steps()
    requests = [ask(list(range(100, 2600)), 2), ask([7] * 100, 2)]
    run(lambda: Scheduler(limits(), steps.decode, steps.prefill), requests)
    # 1000 + 1000 + 500 with 100 of the next; the third chunk stands behind 2000: (500 x 2250 + 100 x 50)/600 pairs a
    # token, of which two prompts of 300 make 150 by themselves.
    assert steps.of("prefill") == [(1000, 0), (1000, 1000), (600, round((500 * 2250 + 100 * 50) / 600 - 150))]


def test_a_common_beginning_is_computed_once() -> None:
    steps = Steps()
    first, second = ask([5] * 50 + [1], 2), ask([5] * 50 + [2], 2)

    def make() -> Scheduler:
        return Scheduler(limits(), steps.decode, steps.prefill)

    async def body() -> None:
        scheduler = make()
        loop = asyncio.create_task(scheduler.run())
        for request in (first, second):
            scheduler.submit(request)
            while request.finish is None:
                await request.progress(len(request.output))
        assert scheduler.flush()
        assert scheduler.cache.evictable == 0
        loop.cancel()

    asyncio.run(body())
    assert (first.cached, second.cached) == (0, 50)
    assert steps.of("prefill") == [(51, 0), (1, 50)]


def test_without_prefix_cache_nothing_is_kept() -> None:
    steps = Steps()
    requests = [ask([5] * 50, 2)]
    scheduler = run(lambda: Scheduler(limits(prefix_cache=False), steps.decode, steps.prefill), requests)
    assert scheduler.cache.evictable == 0 and scheduler.used_tokens() == 0


def test_a_full_pool_makes_requests_wait_or_sends_the_newest_back() -> None:
    steps = Steps()
    requests = [ask([number] * 100, 400) for number in range(20, 26)]
    few = limits(capacity=1500, conservativeness=0.1)
    scheduler = run(lambda: Scheduler(few, steps.decode, steps.prefill), requests)
    assert all(len(request.output) == 400 for request in requests)
    assert scheduler.used_tokens() == 0
    assert scheduler.cache.evictable <= 1500
    assert sum(request.retractions for request in requests) > 0
    lengths = [len(request.output) for request in requests]
    assert lengths == [400] * 6, "a request that was sent back keeps what it had made"


def test_what_can_never_fit_is_given_up() -> None:
    steps = Steps()
    request = ask([9] * 300, 5)
    run(lambda: Scheduler(limits(capacity=200), steps.decode, steps.prefill), [request])
    assert request.finish is not None and request.finish["type"] == "abort"


def test_an_aborted_request_leaves_the_batch() -> None:
    async def body() -> None:
        scheduler = Scheduler(limits(), Steps(decode=0.002).decode, Steps().prefill)
        loop = asyncio.create_task(scheduler.run())
        request = ask([3] * 10, 5000)
        scheduler.submit(request)
        await asyncio.sleep(0.05)
        assert not scheduler.flush()
        scheduler.abort(request)
        await asyncio.sleep(0.05)
        assert scheduler.idle() and scheduler.used_tokens() == 0
        assert scheduler.counters.aborted == 1
        loop.cancel()

    asyncio.run(body())


def test_steps_keep_the_clock_on_average() -> None:
    began = time.monotonic()
    run(lambda: Scheduler(limits(), Steps(decode=0.0033).decode, Steps(prefill=0.01).prefill), [ask([3] * 10, 101)])
    taken = time.monotonic() - began
    # 10 ms and a hundred steps of 3.3 ms: sleeping is coarser than a step, but lateness does not add up.
    assert 0.34 <= taken < 0.6


def test_stream_interval_and_first_token() -> None:
    request = ask([3] * 10, 10)
    request.stream, request.stream_interval = True, 4
    seen: list[int] = []

    async def body() -> None:
        scheduler = Scheduler(limits(), Steps(decode=0.002).decode, Steps().prefill)
        loop = asyncio.create_task(scheduler.run())
        scheduler.submit(request)
        while request.finish is None:
            await request.progress(request.announced)
            seen.append(request.announced)
        loop.cancel()

    asyncio.run(body())
    assert seen == [1, 4, 8, 10]


def test_a_stop_string_and_a_natural_end() -> None:
    prompt = [3] * 10
    words = [tokens.word(token) for token in _first_tokens(prompt, 3)]
    stopped = ask(prompt, 50, stop=(words[2].strip(),))
    natural = ask([4] * 10, 5000, ignore_eos=False)
    steps = Steps()
    run(lambda: Scheduler(limits(), steps.decode, steps.prefill), [stopped, natural])
    assert len(stopped.output) == 3
    assert stopped.finish == {"type": "stop", "matched": words[2].strip()}
    assert natural.finish == {"type": "stop", "matched": tokens.END}
    assert len(natural.output) == natural.answer.natural_length


def _first_tokens(prompt: list[int], count: int) -> list[int]:
    answer = tokens.Answer(prompt, 1000, 0)
    return [answer.next() for _ in range(count)]


def test_a_failure_ends_the_loop_once() -> None:
    failures: list[EngineError] = []

    def fail(_scheduler: Scheduler) -> None:
        raise EngineError("decode", "RuntimeError: no")

    async def body() -> None:
        scheduler = Scheduler(limits(), Steps().decode, Steps().prefill, before_step=fail, on_failure=failures.append)
        loop = asyncio.create_task(scheduler.run())
        scheduler.submit(ask([1], 5))
        await asyncio.sleep(0.02)
        scheduler.submit(ask([2], 5))
        await asyncio.sleep(0.02)
        loop.cancel()

    asyncio.run(body())
    assert [str(failure) for failure in failures] == ["RuntimeError: no"]


def test_the_cache_is_not_flushed_under_a_prefill() -> None:
    async def body() -> None:
        scheduler = Scheduler(limits(), Steps().decode, Steps(prefill=0.1).prefill)
        loop = asyncio.create_task(scheduler.run())
        request = ask([3] * 10, 2)
        scheduler.submit(request)
        await asyncio.sleep(0.03)
        assert scheduler.running_requests() == 1
        assert not scheduler.flush()
        await request.progress(1)
        await asyncio.sleep(0.02)
        assert request.finish is not None and scheduler.flush()
        loop.cancel()

    asyncio.run(body())


def written(lines: list[str], of: str) -> list[str]:
    """`prefix running` of the lines of a kind."""
    found = []
    for line in lines:
        prefix, _, text = line.partition("|")
        if text.startswith(f"{of} batch"):
            found.append(f"{prefix.strip()} {text.split('#running-req: ')[1].split(',')[0]}")
    return found


def run_written(monkeypatch, requests: int, tokens_each: int, **ranks: object) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(
        "benchmark.simulator.serve.scheduler.texts.log", lambda text, of="": lines.append(f"{of}|{text}")
    )
    steps = Steps()
    made = lambda: Scheduler(limits(log_interval=10), steps.decode, steps.prefill, **ranks)  # noqa: E731
    run(made, [ask([i, 2, 3], tokens_each) for i in range(requests)])
    return lines


def test_each_attention_dp_rank_writes_of_its_own_requests(monkeypatch) -> None:
    """As SGLang did on two H200s (docs/evidence/several-gpus/fourth, dp2): a line a rank, none of an idle one."""
    ranks = {"prefixes": ((" DP0 TP0",), (" DP1 TP1",))}
    lines = run_written(monkeypatch, 3, 11, **ranks)
    assert written(lines, "Prefill") == ["DP0 TP0 0", "DP1 TP1 0"]
    lines = run_written(monkeypatch, 3, 25, **ranks)
    assert written(lines, "Decode") == ["DP0 TP0 2", "DP1 TP1 1"] * 2
    assert written(run_written(monkeypatch, 1, 25, **ranks), "Decode") == ["DP0 TP0 1"] * 2


def test_each_pipeline_stage_writes_of_its_micro_batches(monkeypatch) -> None:
    """As SGLang did (pp2): at eight requests both stages write of four, after every ten passes of micro-batches."""
    ranks = {"prefixes": ((" PP0", " PP1"),), "stages": 2}
    lines = run_written(monkeypatch, 8, 21, **ranks)
    assert written(lines, "Prefill") == ["PP0 0", "PP1 0"]
    # 20 decode steps of two micro-batches are 40 passes; the last step empties the batch.
    assert written(lines, "Decode") == ["PP0 4", "PP1 4"] * 3 + ["PP0 0", "PP1 0"]
    # One request is one micro-batch: ten passes are ten tokens.
    assert written(run_written(monkeypatch, 1, 25, **ranks), "Decode") == ["PP0 1", "PP1 1"] * 2
