"""What the events of one answer say, for the three routes.

A *token event* is one that carried new output: text, reasoning or a tool call, or a higher token count. The role
event of a chat, an empty finish event and a usage event are none. Events are never called tokens: the number of
tokens comes from the server's `usage` (or `meta_info`), and per event only where the server reports it there.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any

import orjson

from .sse import DONE

ROUTES = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}

# Inside a JSON string every quote has a backslash before it, so `"key":` can only be a key: these patterns may be
# looked for in the raw bytes. `/generate` repeats the whole text in each event, which makes parsing all of them
# quadratic in the length of the answer.
_COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
_QUOTE = ord('"')


class Answer:
    """One answer while it arrives.

    Attributes:
        times: nanoseconds of each token event.
        counts: output tokens after each token event; empty unless the server reports them with every event.
        finish_reason, error: None while neither was told. An error may come inside a 200.
    """

    __slots__ = (
        "by_choice",
        "cached_tokens",
        "completion_tokens",
        "counts",
        "done_seen",
        "error",
        "events",
        "finish_reason",
        "first_content_ns",
        "keep_text",
        "pieces",
        "prompt_tokens",
        "server_details",
        "times",
    )

    def __init__(self, keep_text: bool = False) -> None:
        self.times = array("q")
        self.counts = array("q")
        self.events = 0
        self.by_choice: dict[Any, int] = {}
        """Completion tokens of each choice, where usage comes with a choice and so is of that one alone."""
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done_seen = False
        self.first_content_ns: int | None = None
        self.keep_text = keep_text
        self.pieces: list[str] = []
        self.server_details: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The text, reasoning first where it came first; only if `keep_text`."""
        return "".join(self.pieces)

    def token(self, at_ns: int, is_content: bool = True) -> None:
        self.times.append(at_ns)
        if is_content and self.first_content_ns is None:
            self.first_content_ns = at_ns


Reader = Callable[[Answer, bytes, int], int]
"""(answer, payload of one event, arrival in nanoseconds) -> how many output tokens it adds, as far as is known."""


def reader(route: str) -> Reader:
    """The function that reads the events of a route ("generate", "completions" or "chat")."""
    return read_generate if route == "generate" else read_openai


def read_generate(answer: Answer, payload: bytes, at_ns: int) -> int:
    """One event of SGLang's `/generate`: cumulative text and count; the finish event has the totals."""
    answer.events += 1
    at = payload.rfind(b'"completion_tokens":')
    if at >= 0 and not answer.keep_text and payload.rfind(b'"finish_reason":null') >= 0:
        match = _COUNT.match(payload, at)
        if match:
            return _generate_count(answer, int(match[1]), at_ns)
    event = _decode(answer, payload)
    if event is None:
        return 0
    return _generate_event(answer, event, at_ns)


def _generate_count(answer: Answer, count: int, at_ns: int) -> int:
    before = answer.counts[-1] if answer.counts else 0
    if count <= before:
        return 0
    answer.token(at_ns)
    answer.counts.append(count)
    return count - before


def _generate_event(answer: Answer, event: dict[str, Any], at_ns: int) -> int:
    meta = event.get("meta_info") or {}
    _take_usage(answer, meta)
    reason = meta.get("finish_reason")
    if reason is not None:
        _generate_finish(answer, reason, meta)
    if answer.keep_text and isinstance(event.get("text"), str):
        # Cumulative, unless the server was started with --incremental-streaming-output.
        so_far = answer.text
        answer.pieces += [event["text"][len(so_far) :] if event["text"].startswith(so_far) else event["text"]]
    count = meta.get("completion_tokens")
    return _generate_count(answer, count, at_ns) if isinstance(count, int) else 0


def _generate_finish(answer: Answer, reason: Any, meta: dict[str, Any]) -> None:
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == "abort":
        answer.error = str(reason.get("message") or "aborted by the engine")
    answer.finish_reason = str(kind)
    answer.server_details = {
        key: meta[key] for key in ("queue_time", "e2e_latency", "total_retractions") if meta.get(key) is not None
    }


def read_openai(answer: Answer, payload: bytes, at_ns: int) -> int:
    """One event of `/v1/completions` or `/v1/chat/completions`."""
    answer.events += 1
    if not answer.keep_text and answer.first_content_ns is not None:
        # The usual event, seen without parsing: text, no finish, no usage.
        at = payload.find(b'"text":"') + 8
        if at == 7:
            at = payload.find(b'"content":"') + 11
        if at > 10 and payload[at] != _QUOTE and b'"finish_reason":null' in payload and b'"usage":{' not in payload:
            answer.times.append(at_ns)
            return 1
    event = _decode(answer, payload)
    if event is None:
        return 0
    usage, choices = event.get("usage"), event.get("choices")
    choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    counted = False
    if isinstance(usage, dict):
        _take_usage(answer, usage)
        counted = isinstance(usage.get("completion_tokens"), int)
        if counted and len(choices) == 1:
            # Of several answers to one request (n, or a list of prompts) each has its own; the last event, without
            # choices, may have the sum.
            answer.by_choice[choices[0].get("index")] = usage["completion_tokens"]
            answer.completion_tokens = sum(answer.by_choice.values())
    return sum(
        _openai_choice(answer, choice, answer.completion_tokens if counted else None, at_ns) for choice in choices
    )


def _openai_choice(answer: Answer, choice: dict[str, Any], count: int | None, at_ns: int) -> int:
    """`count`: output tokens by now, if this event tells."""
    if choice.get("finish_reason") is not None:
        answer.finish_reason = str(choice["finish_reason"])
        if answer.finish_reason == "abort":
            answer.error = answer.error or "aborted by the engine"
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    content = delta.get("content") or choice.get("text")
    if answer.keep_text:
        answer.pieces += [part for part in (reasoning, content) if isinstance(part, str)]
    before = answer.counts[-1] if answer.counts else 0
    more = count is not None and count > before and len(answer.counts) == len(answer.times)
    if not (content or reasoning or delta.get("tool_calls")):
        # No text: with a count for each event it may still carry tokens (half of a UTF-8 character, say).
        if not (more and answer.counts):
            return 0
        content = "-"
    answer.token(at_ns, bool(content))
    if more:
        answer.counts.append(count)
        return count - before
    return 1


def _take_usage(answer: Answer, usage: dict[str, Any]) -> None:
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        if isinstance(usage.get(name), int):
            setattr(answer, name, usage[name])
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
        answer.cached_tokens = details["cached_tokens"]


def _decode(answer: Answer, payload: bytes) -> dict[str, Any] | None:
    """The event as a mapping, or None for [DONE], an error, or what is no JSON."""
    if payload == DONE:
        answer.done_seen = True
        answer.events -= 1
        return None
    if payload == b"null":
        # llama.cpp ends one prompt of several so.
        return None
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        answer.error = answer.error or f"an event is not JSON: {payload[:200].decode('utf-8', 'replace')}"
        return None
    if not isinstance(event, dict):
        answer.error = answer.error or f"an event is not an object: {payload[:200].decode('utf-8', 'replace')}"
        return None
    if event.get("error") is not None:
        answer.error = error_text(event)
        return None
    if event.get("object") == "error":
        answer.error = error_text(event)
        return None
    return event


def error_text(body: Any) -> str:
    """The message of an error, in whichever of the usual shapes it came.

    `{"error": {"message": ...}}`, `{"error": "..."}`, `{"detail": "..."}`, `{"detail": [{"msg": ...}]}`,
    `{"object": "error", "message": ...}`, or plain text.
    """
    if isinstance(body, bytes):
        try:
            body = orjson.loads(body)
        except orjson.JSONDecodeError:
            return body[:500].decode("utf-8", "replace").strip() or "no text"
    if not isinstance(body, dict):
        return str(body)[:500]
    found = body.get("error") or body.get("detail") or body.get("message") or body
    if isinstance(found, dict):
        found = found.get("message") or found
    if isinstance(found, list) and found:
        first = found[0]
        found = first.get("msg") or first if isinstance(first, dict) else first
    return str(found)[:500]


def counts_per_event(answer: Answer) -> tuple[array, str]:
    """Output tokens after each token event, and how that is known.

    Returns:
        (counts, source): source is "reported" (with each event), "one_each" (as many token events as tokens),
        "interpolated" (`usage` spread evenly over the events) or "unknown" (no usage: counts is empty).
    """
    events, total = len(answer.times), answer.completion_tokens
    if len(answer.counts) == events and events:
        counts = answer.counts[:]
        if total is None or counts[-1] == total:
            return counts, "reported"
    if total is None or not events:
        return array("q"), "unknown"
    if total == events:
        return array("q", range(1, events + 1)), "one_each"
    return array("q", [round(total * (i + 1) / events) for i in range(events)]), "interpolated"
