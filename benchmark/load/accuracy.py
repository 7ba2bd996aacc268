"""Is a fast configuration also right? A few fixed prompts at temperature 0, compared with the baseline's answers.

Two configurations of the same weights need not agree to the last token (sums are rounded in another order), but
they agree on most; a broken kernel, a wrong scale or a bad split shows within a few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: token ids and their log-probabilities where the server tells them (SGLang), else the text alone."""

    prompt: str
    text: str
    ids: list[int] = []
    logprobs: list[float] = []
    error: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Answers held against a baseline's.

    Attributes:
        verdict: same (all equal), close (they part late, or where the baseline itself was unsure), different, or
            unknown (an answer is missing).
        prefix_share: mean over the prompts of the common prefix, as a share of the answer.
        logprob_difference: mean absolute difference on the common prefix; None where it was not told.
    """

    verdict: str
    sentence: str
    exact: int
    total: int
    prefix_share: float
    logprob_difference: float | None = None


async def answers(target: Target, prompts: Sequence[str] = PROMPTS, output_tokens: int = OUTPUT_TOKENS) -> list[Answer]:
    """The server's answers at temperature 0, one at a time (a batch would round differently)."""
    target = await detect(target)
    ask = _ask_generate if target.kind == "sglang" else _ask_stream
    return [await ask(target, prompt, output_tokens) for prompt in prompts]


async def _ask_generate(target: Target, prompt: str, output_tokens: int) -> Answer:
    body = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": -1,
    }
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


CLOSE_PREFIX = 0.25
CLOSE_LOGPROB = 0.5
"""Below a quarter of the answer in common, or half a nat apart on what is common, it is another model's answer."""


def compare(baseline: Sequence[Answer], found: Sequence[Answer]) -> Comparison:
    """Hold a configuration's answers against the baseline's, prompt by prompt."""
    pairs = [
        (a, b)
        for a, b in zip(baseline, found, strict=False)
        if a.error is None and b.error is None and a.prompt == b.prompt
    ]
    if len(pairs) < max(len(baseline), len(found)) or not pairs:
        missing = next((item.error for item in (*baseline, *found) if item.error), "other prompts")
        return Comparison(
            verdict="unknown",
            sentence=f"Answers could not be compared: {missing}",
            exact=0,
            total=len(pairs),
            prefix_share=0.0,
        )
    shares, differences, exact = [], [], 0
    for a, b in pairs:
        left, right = _units(a), _units(b)
        common = _common(left, right)
        exact += left == right
        shares.append(common / max(len(left), len(right), 1))
        differences += [abs(x - y) for x, y in zip(a.logprobs[:common], b.logprobs[:common], strict=False)]
    share = sum(shares) / len(shares)
    apart = sum(differences) / len(differences) if differences else None
    verdict = "same" if exact == len(pairs) else "close"
    if share < CLOSE_PREFIX or (apart is not None and apart > CLOSE_LOGPROB):
        verdict = "different"
    return Comparison(
        verdict=verdict,
        sentence=_sentence(verdict, exact, len(pairs), share, apart),
        exact=exact,
        total=len(pairs),
        prefix_share=share,
        logprob_difference=apart,
    )


def _units(answer: Answer) -> list[Any]:
    return list(answer.ids) if answer.ids else list(answer.text)


def _common(left: list[Any], right: list[Any]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _sentence(verdict: str, exact: int, total: int, share: float, apart: float | None) -> str:
    if verdict == "same":
        return f"All {total} answers are those of the baseline."
    start = f"{exact} of {total} answers are those of the baseline; they have {100 * share:.0f} % in common on average"
    start += "" if apart is None else f" (log-probabilities {apart:.3f} apart there)"
    if verdict == "close":
        return start + ", as rounding in another order makes them."
    return start + ": look at its text before using this configuration."
