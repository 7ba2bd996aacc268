"""A server in a few lines, for behaviour that the reference server does not have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import contextmanager

Answer = tuple[bytes, bool]
"""Bytes to send, and whether the connection is closed afterwards."""


def plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def stream(*events: bytes) -> bytes:
    """A chunked stream, one event a chunk."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"data: " + event + b"\n\n" for event in events]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def completion(tokens: int) -> bytes:
    """A stream of /v1/completions with so many tokens, one an event."""
    token = b'{"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null}'
    last = b'{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":null}'
    usage = b'{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":%d}}' % tokens
    return stream(*[token] * (tokens - 1), last, usage, b"[DONE]")


@contextmanager
def serving(answer: Callable[[str, bytes, bytes], Answer | None]):
    """Serve; `answer(path, head, body)` gives the answer, or None to close without one. Yields (url, paths asked)."""
    asked: list[str] = []
    ready, done = threading.Event(), threading.Event()
    port = [0]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                body = await reader.readexactly(length)
                path = head.split(b" ", 2)[1].decode()
                asked.append(path)
                found = answer(path, head, body)
                if found is None:
                    return
                writer.write(found[0])
                await writer.drain()
                if found[1]:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port[0] = server.sockets[0].getsockname()[1]
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.02)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}", asked
    finally:
        done.set()
        thread.join(10)
