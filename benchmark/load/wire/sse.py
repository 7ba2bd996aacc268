"""Server-sent events: bytes of an HTTP body in, payloads of whole events out.

After https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end with LF, CRLF or CR, a blank line
ends an event, a line that starts with a colon is a comment, several `data:` lines are joined with a line feed.
"""

from __future__ import annotations

DONE = b"[DONE]"
_LINE_FEED = ord("\n")


class EventSplitter:
    """Cuts a body that arrives in pieces of any size into the payloads of its events."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def single(self, piece: bytes) -> bytes | None:
        """The payload, if this piece is one whole event of one line, as it usually is; else None: then `feed` it."""
        if (
            piece[:6] == b"data: "
            and not self._pending
            and piece.find(b"\n", 6) == len(piece) - 2
            and piece[-1] == _LINE_FEED
            and b"\r" not in piece
        ):
            return piece[6:-2]
        return None

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads that this piece completes, in order; comments and empty events give none."""
        payload = self.single(piece)
        if payload is not None:
            return [payload]
        return self._feed_any(piece)

    def finish(self) -> list[bytes]:
        """The payloads of what is left when the body has ended: servers forget the last blank line."""
        left, self._pending = self._pending, b""
        return _payloads(_normal(left) + b"\n\n")[0] if left else []

    def _feed_any(self, piece: bytes) -> list[bytes]:
        text = self._pending + piece
        held = b""
        if text.endswith(b"\r"):
            # It may be the first half of a CRLF.
            text, held = text[:-1], b"\r"
        payloads, left = _payloads(_normal(text))
        self._pending = left + held
        return payloads


def _normal(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _payloads(text: bytes) -> tuple[list[bytes], bytes]:
    """Payloads of the whole events in `text`, and the start of the next one."""
    *blocks, left = text.split(b"\n\n")
    found = []
    for block in blocks:
        lines = [_value(line) for line in block.split(b"\n") if line.startswith((b"data:", b"\xef\xbb\xbfdata:"))]
        if lines:
            found.append(lines[0] if len(lines) == 1 else b"\n".join(lines))
    return found, left


def _value(line: bytes) -> bytes:
    value = line.partition(b":")[2]
    return value[1:] if value.startswith(b" ") else value
