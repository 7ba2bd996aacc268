"""Answers of a configuration held against the baseline's: is a fast configuration also right? Pure.

Two splits of the same weights add the same products in another order, so their logits differ by rounding, and a greedy
answer parts where two tokens were nearly equally likely; what follows is another text, and proves nothing. A broken
kernel, a wrong scale or a bad split parts where the model was sure, or gives other probabilities to the same text.

What counts is therefore the place of parting. Both configurations have read the same text there, and each has put its
own token first. A token that had probability p in one of them leaves at most 1 - p to the token that the other put
first, so the two sets of logits differ there by at least log(p / (1 - p)). Rounding of 16-bit and quantized weights
moves a logit by tenths, not by more than 1 (`ROUNDING_GAP`): a token that had p > 0.73 is not lost by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..campaign.record import Record

Verdict = Literal["same", "close", "different", "unknown"]

ROUNDING_GAP = 1.0
"""Nats by which logits must differ where two answers part, to count as more than rounding."""
CLOSE_LOGPROB = 0.5
"""Mean absolute difference of log-probabilities on the common prefix; above it, it is another model's answer."""
EARLY_SHARE = 0.25
"""Without log-probabilities, an answer that parts before this share of its length counts as apart."""
APART_ALLOWED = 1
"""So many prompts may part by more than rounding (an expert chosen otherwise moves more than a sum does)."""


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
        verdict: same (all equal), close (they part as rounding makes them), different (by more), or unknown (an answer
            is missing).
        exact: prompts with equal answers.
        apart: prompts whose answers part by more than rounding.
        prefix_share: mean over the prompts of the common prefix, as a share of the answer.
        logprob_difference: mean absolute difference on the common prefix; None where it was not told.
        widest_gap: nats, the largest that a parting proves; None where none was told.
    """

    verdict: Verdict
    sentence: str
    exact: int
    apart: int
    total: int
    prefix_share: float
    logprob_difference: float | None = None
    widest_gap: float | None = None


def compare(baseline: Sequence[Answer], found: Sequence[Answer]) -> Comparison:
    """Hold a configuration's answers against the baseline's, prompt by prompt."""
    pairs = [
        (a, b)
        for a, b in zip(baseline, found, strict=False)
        if a.error is None and b.error is None and a.prompt == b.prompt
    ]
    if len(pairs) < max(len(baseline), len(found)) or not pairs:
        missing = next((item.error for item in (*baseline, *found) if item.error), "not the same prompts")
        return _unknown(missing, len(pairs))
    shares, differences, gaps, exact, apart = [], [], [], 0, 0
    for a, b in pairs:
        left, right = _units(a, b)
        common = _common(left, right)
        share = common / max(len(left), len(right), 1)
        shares.append(share)
        if a.ids and b.ids:
            differences += [abs(x - y) for x, y in zip(a.logprobs[:common], b.logprobs[:common], strict=False)]
        if left == right:
            exact += 1
            continue
        gap = parting_gap(a, b, common)
        gaps += [] if gap is None else [gap]
        apart += share < EARLY_SHARE if gap is None else gap > ROUNDING_GAP
    difference = math.fsum(differences) / len(differences) if differences else None
    verdict: Verdict = "same" if exact == len(pairs) else "close"
    if apart > APART_ALLOWED or (difference is not None and difference > CLOSE_LOGPROB):
        verdict = "different"
    told = Comparison(
        verdict=verdict,
        sentence="",
        exact=exact,
        apart=apart,
        total=len(pairs),
        prefix_share=math.fsum(shares) / len(shares),
        logprob_difference=difference,
        widest_gap=max(gaps, default=None),
    )
    return msgspec.structs.replace(told, sentence=_sentence(told))


def parting_gap(a: Answer, b: Answer, common: int) -> float | None:
    """Nats by which the logits of two answers differ at least where they part; None where nothing was told there.

    Zero if neither token was more likely than all others together: rounding may choose either.
    """
    if not (a.ids and b.ids):
        return None
    told = [answer.logprobs[common] for answer in (a, b) if common < len(answer.logprobs)]
    if len(told) < 2:
        return None
    likely = min(max(math.exp(min(0.0, value)) for value in told), 1 - 1e-9)
    return max(0.0, math.log(likely / (1 - likely)))


def compare_records(baseline: Record, found: Record) -> Comparison:
    """Hold the answers of one record against those of another; unknown where one has none."""
    pair = [answers_of(record.accuracy) for record in (baseline, found)]
    for record, answers in zip((baseline, found), pair, strict=True):
        if not answers:
            return _unknown(f"{record.configuration.name} was not asked", 0)
    return compare(*pair)


def answers_of(accuracy: Mapping[str, Any]) -> list[Answer]:
    """The answers in a record's `accuracy`; [] where there are none, or of another form."""
    try:
        return msgspec.convert(accuracy.get("answers") or [], list[Answer])
    except msgspec.ValidationError:
        return []


def held_against_baseline(records: Iterable[Record]) -> list[tuple[Record, Record, Comparison]]:
    """(record, baseline's record, comparison) of each configuration with answers, host by host.

    The baseline is what a configuration is `against`; one that is against nothing, or against what was not measured
    there, is held against its host's first record with answers. Of several starts the newest counts.
    """
    newest: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda r: r.created_at):
        if answers_of(record.accuracy):
            newest[record.host.name, record.configuration.name] = record
    firsts: dict[str, Record] = {}
    for (host, _), record in newest.items():
        firsts.setdefault(host, record)
    found = []
    for (host, _), record in newest.items():
        against = newest.get((host, record.configuration.against or ""), firsts[host])
        if against is not record:
            found.append((record, against, compare_records(against, record)))
    return found


def notes(records: Iterable[Record]) -> list[str]:
    """What a reader must know before using a configuration: a sentence for each that answers otherwise."""
    return [
        f"{record.configuration.name} answers otherwise than {against.configuration.name}: {told.sentence}"
        for record, against, told in held_against_baseline(records)
        if told.verdict == "different"
    ]


def _unknown(why: str, total: int) -> Comparison:
    return Comparison(
        verdict="unknown",
        sentence=f"Answers could not be compared: {why}.",
        exact=0,
        apart=0,
        total=total,
        prefix_share=0.0,
    )


def _units(a: Answer, b: Answer) -> tuple[list[Any], list[Any]]:
    """Token ids if both have them, else characters."""
    return (list(a.ids), list(b.ids)) if a.ids and b.ids else (list(a.text), list(b.text))


def _common(left: list[Any], right: list[Any]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _sentence(told: Comparison) -> str:
    apart = told.logprob_difference
    beside = "" if apart is None else f" (log-probabilities {apart:.3f} apart there)"
    if told.verdict == "same":
        return f"All {told.total} answers are those of the baseline{beside.replace(' there', '')}."
    start = (
        f"{told.exact} of {told.total} answers are those of the baseline; "
        f"they have {100 * told.prefix_share:.0f} % in common on average{beside}"
    )
    if told.verdict == "close":
        return start + ", as rounding in another order makes them."
    if told.apart > APART_ALLOWED:
        start += f"; {told.apart} part where the model was sure, which rounding does not do"
    return start + ". Look at its text before using this configuration."
