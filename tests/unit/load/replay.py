"""Feeds recorded bytes of an HTTP answer to the client, without a network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httptools

from benchmark.load.wire.address import Wire
from benchmark.load.wire.answers import reader
from benchmark.load.wire.connection import Connection
from benchmark.load.wire.exchange import Exchange

CAPTURES = Path(__file__).resolve().parents[2] / "captures"


def replay(raw: bytes, route: str | None, pieces: list[bytes] | None = None, closed: bool = True) -> Exchange:
    """The exchange after these bytes; piece number i arrives at i + 1 nanoseconds. Afterwards the server closes."""
    return asyncio.run(_replay(raw, route, pieces, closed))


def replay_at(pieces: list[tuple[int, bytes]], route: str) -> Exchange:
    """The exchange after pieces that arrive at these nanoseconds. Afterwards the server closes."""
    return asyncio.run(_replay(b"", route, [piece for _, piece in pieces], True, [at_ns for at_ns, _ in pieces]))


async def _replay(
    raw: bytes, route: str | None, pieces: list[bytes] | None, closed: bool, at_ns: list[int] | None = None
) -> Exchange:
    ended: list[Exchange] = []
    connection = Connection(Wire("127.0.0.1", 1))
    exchange = Exchange(b"", lambda done, _at: ended.append(done), reader(route) if route else None)
    connection.exchange = exchange
    connection.uses = 1
    connection._parser = httptools.HttpResponseParser(connection)
    for number, piece in enumerate([raw] if pieces is None else pieces):
        connection.received(piece, at_ns[number] if at_ns else number + 1)
    if closed and not ended:
        connection._lost(None)
    assert ended == [exchange] or not closed
    return exchange


def http(body: bytes, content_type: bytes = b"text/event-stream", status: bytes = b"200 OK", end: bool = True) -> bytes:
    """A chunked answer with this body in one chunk; `end`: with the last, empty chunk."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % (status, content_type)
    return head + b"%x\r\n%b\r\n" % (len(body), body) + (b"0\r\n\r\n" if end else b"")
