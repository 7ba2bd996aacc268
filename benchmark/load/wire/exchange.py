"""One request and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...engine.secrets import masked
from .answers import Answer, Reader, error_text
from .sse import EventSplitter

MAX_BODY_BYTES = 1 << 24


class Exchange:
    """One request and its answer. `on_done` is called once, when the answer is complete or has failed."""

    __slots__ = (
        "answer",
        "body",
        "done_ns",
        "error",
        "framed",
        "head_ns",
        "last_read_ns",
        "on_done",
        "read",
        "request",
        "retried",
        "sent_ns",
        "shared_events",
        "splitter",
        "status",
        "streaming",
        "tag",
        "whole",
    )

    def __init__(
        self,
        request: bytes,
        on_done: Callable[[Exchange, int], None],
        read: Reader | None = None,
        tag: Any = None,
        keep_text: bool = False,
    ) -> None:
        self.request = request
        self.on_done = on_done
        self.read = read
        self.tag = tag
        self.answer = Answer(keep_text)
        self.retried = 0
        self.reset()

    def reset(self) -> None:
        self.sent_ns = self.done_ns = self.last_read_ns = 0
        self.head_ns: int | None = None
        self.status = 0
        self.body = b""
        self.splitter = EventSplitter()
        self.streaming = False
        self.framed = False
        self.whole = False
        self.shared_events = 0
        self.error: str | None = None

    def failure(self) -> str | None:
        """Why this is no success, or None, without secrets. A success has status 200, a whole body, a finish reason."""
        why = self._failure()
        return why and masked(why)

    def _failure(self) -> str | None:
        if self.error:
            return self.error
        if self.status != 200:
            return f"HTTP {self.status}: {error_text(self.body)}"
        if self.answer.error:
            return f"error inside a 200: {self.answer.error}"
        if self.read is None:
            return None if self.whole else "the connection closed before the answer was whole"
        if not self.whole:
            return "the connection closed before the answer was whole"
        if not self.streaming:
            return f"a stream was asked for and something else came: {error_text(self.body)}"
        if self.answer.finish_reason is None:
            return "the stream ended without a finish reason"
        return None
