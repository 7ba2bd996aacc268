"""What the reference server sends: SGLang's events, made of as few bytes and operations as they can be."""

from __future__ import annotations

import socket
from array import array
from dataclasses import dataclass, field
from typing import Any

import orjson

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True)
class Schedule:
    """When what is sent.

    Attributes:
        tick_seconds: between two events of a stream.
        ttft_seconds: from a request's arrival to when it is due; its first event leaves on the next tick.
        spread_seconds: added to TTFT, evenly spread over requests.
        tokens_per_event: as with speculative decoding.
        max_running: streams at a time; the others wait for their turn. 0: no limit.
        faults: request number (from 0) -> error (an error event in a 200), cut (the connection closes half way),
            refuse (HTTP 503), silent (no event ever comes), short (half the tokens).
    """

    tick_seconds: float = 0.02
    ttft_seconds: float = 0.1
    spread_seconds: float = 0.0
    tokens_per_event: int = 1
    max_running: int = 0
    faults: dict[int, str] = field(default_factory=dict)
    kind: str = "sglang"


class Stream:
    """One request."""

    __slots__ = (
        "arrived_ns", "connection", "due_ns", "fault", "made", "number", "options", "prompt", "route", "sends",
        "stream", "tokens",
    )  # fmt: skip

    def __init__(self, number: int, arrived_ns: int, connection: Connection) -> None:
        self.number = number
        self.arrived_ns = arrived_ns
        self.connection = connection
        self.sends = array("q")
        self.made = 0
        self.fault: str | None = None


class Connection:
    __slots__ = ("buffer", "current", "socket", "unsent")

    def __init__(self, raw: socket.socket) -> None:
        self.socket = raw
        self.buffer = b""
        self.unsent = b""
        self.current: Stream | None = None


def prompt_tokens(asked: dict[str, Any]) -> int:
    """As many as there are ids; of text, a quarter of its characters."""
    ids = asked.get("input_ids") or asked.get("prompt") or asked.get("text") or asked.get("messages") or ""
    if isinstance(ids, list) and ids and isinstance(ids[0], int):
        return len(ids)
    return max(1, len(ids if isinstance(ids, str) else orjson.dumps(ids)) // 4)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


_COMPLETION = chunk(
    b'data: {"id":"0123456789abcdef0123456789abcdef","object":"text_completion","created":1795952156,"model":'
    b'"reference","choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":null,"matched_stop":null}],'
    b'"usage":null}\n\n'
)
_CHAT = (
    b'data: {"id":"0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1795952156,"model":'
    b'"reference","choices":[{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b,"matched_stop":null}],'
    b'"usage":null}\n\n'
)
_CHAT_ROLE = chunk(_CHAT % (b'"role":"assistant","content":"","reasoning_content":null', b"null"))
_CHAT_TOKEN = chunk(_CHAT % (b'"content":" the","reasoning_content":null', b"null"))
_CHAT_LAST = chunk(_CHAT % (b'"content":null,"reasoning_content":null', b'"length"'))
_DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def event(stream: Stream, made: int, last: bool) -> bytes:
    """The bytes of one event (and, of the last one, all that follows it)."""
    if not stream.stream:
        return _whole(stream, made) if last else b""
    if stream.route == "/generate":
        return _generate_event(stream, made, last)
    if stream.options.get("continuous_usage_stats"):
        data = chunk(b'data: {"choices":[{"index":0,"text":" the","delta":{"content":" the"},"finish_reason":null}],'
                      b'"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (stream.prompt, made))  # fmt: skip
    elif stream.route == "/v1/chat/completions":
        data = _CHAT_TOKEN if stream.sends else _CHAT_ROLE + _CHAT_TOKEN
    else:
        data = _COMPLETION
    if not last:
        return data
    if stream.route == "/v1/chat/completions":
        data += _CHAT_LAST
    else:
        data += chunk(b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null}\n\n')
    if stream.options.get("include_usage"):
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        data += chunk(usage % (stream.prompt, stream.prompt + made, made))
    return data + _DONE


_GENERATE = (
    b'data: {"text":"%b","output_ids":[%d],"meta_info":{"id":"0123456789abcdef0123456789abcdef","finish_reason":%b,'
    b'"prompt_tokens":%d,"weight_version":"default","total_retractions":0,"completion_tokens":%d,"cached_tokens":0}}\n\n'
)


def _generate_event(stream: Stream, made: int, last: bool) -> bytes:
    reason = b'{"type":"length","length":%d}' % stream.tokens if last else b"null"
    data = chunk(_GENERATE % (b" the" * made, made, reason, stream.prompt, made))
    return data + _DONE if last else data


def _whole(stream: Stream, made: int) -> bytes:
    text, prompt = " the" * made, stream.prompt
    choice = {"index": 0, "text": text, "message": {"content": text}, "finish_reason": "length"}
    meta = {"prompt_tokens": prompt, "completion_tokens": made, "finish_reason": {"type": "length"}}
    usage = {"prompt_tokens": prompt, "completion_tokens": made}
    body = orjson.dumps({"text": text, "choices": [choice], "meta_info": meta, "usage": usage})
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
