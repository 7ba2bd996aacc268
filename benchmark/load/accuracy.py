"""Asks a few fixed prompts at temperature 0, once an engine start. agreement.py holds the answers of two together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from .agreement import Answer
from .target import Target, call, detect, try_once
from .wire.answers import error_text

OUTPUT_TOKENS = 48

PROMPTS = (
    "The capital of France is Paris. The capital of Japan is",
    "Count from one to twenty in words: one, two, three,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The first law of thermodynamics says that energy can neither be",
    "Translate to German. English: The weather is fine today. German:",
    "2 + 2 = 4\n3 + 5 = 8\n12 + 9 = 21\n17 + 26 =",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do:",
    '{"name": "Ada", "born": 1815, "field": "mathematics"}\n{"name": "Emmy", "born": 1882, "field":',
)
"""Plain continuations: they need no chat template, and have one likely next token."""


_LOGPROBS = {"return_logprob": True, "logprob_start_len": -1}


async def answers(target: Target, prompts: Sequence[str] = PROMPTS, output_tokens: int = OUTPUT_TOKENS) -> list[Answer]:
    """The server's answers at temperature 0, one at a time: how a batch is cut would change the rounding."""
    target = await detect(target)
    ask = _ask_generate if target.kind == "sglang" else _ask_stream
    if target.info.get("simulated"):
        # It rounds nothing, so that nobody need wait for one after the other.
        return list(await asyncio.gather(*(ask(target, prompt, output_tokens) for prompt in prompts)))
    return [await ask(target, prompt, output_tokens) for prompt in prompts]


async def check(target: Target) -> dict[str, Any]:
    """A record's `accuracy`: what was asked for, and the answers.

    Raises:
        TargetError: the server gives no stream at all. A prompt that fails is an answer with an `error`.
    """
    return {
        "temperature": 0,
        "output_tokens": OUTPUT_TOKENS,
        "answers": [msgspec.to_builtins(answer) for answer in await answers(target)],
    }


async def _ask_generate(target: Target, prompt: str, output_tokens: int) -> Answer:
    body = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
    }
    exchange = await call(target, "POST", "/generate", {**body, **_LOGPROBS}, seconds=300)
    if exchange.status == 400:
        # Some kinds of speculative decoding give none; tokens alone still tell something.
        exchange = await call(target, "POST", "/generate", body, seconds=300)
    if (why := exchange.failure()) is not None:
        return Answer(prompt=prompt, text="", error=why)
    return read_generated(prompt, exchange.body)


def read_generated(prompt: str, body: bytes) -> Answer:
    """An answer of `/generate` without streaming; SGLang gives log-probabilities as [[logprob, id, text], ...]."""
    try:
        found = orjson.loads(body)
        meta = found["meta_info"]
        pairs = meta.get("output_token_logprobs") or []
        ids = [int(item[1]) for item in pairs] or [int(token) for token in found.get("output_ids") or []]
        logprobs = [float(item[0]) for item in pairs]
        return Answer(prompt=prompt, text=str(found["text"]), ids=ids, logprobs=logprobs)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError):
        return Answer(prompt=prompt, text="", error=f"not an answer of /generate: {error_text(body)}")


async def _ask_stream(target: Target, prompt: str, output_tokens: int) -> Answer:
    exchange = await try_once(target, prompt, output_tokens, seconds=300, keep_text=True)
    return Answer(prompt=prompt, text=exchange.answer.text, error=exchange.failure())
