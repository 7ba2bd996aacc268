"""One HTTP/1.1 connection to the engine, and one exchange over it.

Plain TCP is read with recvmsg, so that each read has the kernel's time of arrival (SO_TIMESTAMPNS): how late Python
gets round to reading then does not matter. Over TLS, and where the kernel gives no timestamp, the loop's clock is
used and `Wire.clock` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
import time
from typing import Any

import httptools

from .address import Wire, WireError
from .answers import Reader
from .clock import SO_TIMESTAMPNS
from .exchange import MAX_BODY_BYTES, Exchange

_TIMESPEC = struct.Struct("qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


class Connection:
    """A connection that carries one exchange at a time, and is opened anew when the server has closed it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.exchange: Exchange | None = None
        self.uses = 0
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._unsent = b""
        self._parser: httptools.HttpResponseParser | None = None
        self._now = 0
        self._read_tokens = 0
        self._closed_by_server = False
        self._task: asyncio.Task[None] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Connect; to be done before the clock starts.

        Raises:
            WireError: nothing listens there, or it does not answer within ten seconds.
        """
        await self.wire.resolve()
        self.uses = 0
        self._closed_by_server = False
        where = f"{self.wire.host}:{self.wire.port}"
        reason: Exception | None = None
        for family, address in self.wire.addresses:
            try:
                async with asyncio.timeout(10):
                    await self._open_one(family, address)
                return
            except (OSError, TimeoutError) as error:
                reason = error
        raise WireError(f"no connection to {where}: {reason or 'no address'}")

    async def _open_one(self, family: int, address: Any) -> None:
        if self.wire.tls:
            context = ssl.create_default_context()
            transport, _ = await self._loop.create_connection(
                lambda: _Plain(self), *address[:2], ssl=context, server_hostname=self.wire.host
            )
            self._transport = transport
            return
        raw = socket.socket(family, socket.SOCK_STREAM)
        raw.setblocking(False)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):
                # Where it is refused, reads come without a time and are counted.
                raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            await self._loop.sock_connect(raw, address)
        except BaseException:
            raw.close()
            raise
        self._socket = raw
        self._loop.add_reader(raw.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        return (self._socket is not None or self._transport is not None) and not self._closed_by_server

    def close(self) -> None:
        """Close, without a word to the exchange that may be under way."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            if self._unsent:
                self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._unsent = b""
        self._parser = None

    # One exchange

    def start(self, exchange: Exchange) -> None:
        """Send the request now; on a closed connection, open it first (the clock starts when it is sent)."""
        self.exchange = exchange
        if not self.is_open:
            self._reopen()
            return
        self._send(exchange)

    def _send(self, exchange: Exchange) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.uses += 1
        exchange.sent_ns = exchange.last_read_ns = time.monotonic_ns()
        if self._transport is not None:
            self._transport.write(exchange.request)
            return
        try:
            sent = self._socket.send(exchange.request)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent < len(exchange.request):
            self._unsent = exchange.request[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _reopen(self) -> None:
        self._drop()
        self.wire.reconnects += 1
        self._task = self._loop.create_task(self._open_and_send())

    async def _open_and_send(self) -> None:
        exchange = self.exchange
        try:
            await self.open()
        except WireError as error:
            if exchange is not None:
                exchange.sent_ns = exchange.sent_ns or time.monotonic_ns()
                self._finish(time.monotonic_ns(), str(error))
            return
        finally:
            self._task = None
        if exchange is not None and exchange is self.exchange:
            self._send(exchange)

    def give_up(self, reason: str) -> None:
        """End the exchange under way as failed, and close (an engine aborts a request whose client is gone)."""
        self._drop()
        if self.exchange is not None:
            self._finish(time.monotonic_ns(), reason)

    # Reading

    def _readable(self) -> None:
        wire = self.wire
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([wire.buffer], _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if not size:
            self._lost(None)
            return
        for level, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS and level == socket.SOL_SOCKET:
                seconds, rest = _TIMESPEC.unpack(value)
                at_ns = seconds * 1_000_000_000 + rest - wire.offset_ns
                break
        else:
            wire.unstamped_reads += 1
            at_ns = time.monotonic_ns()
        self.received(wire.buffer[:size], at_ns)

    def received(self, data: memoryview | bytes, at_ns: int) -> None:
        """Bytes of the answer and their time of arrival (CLOCK_MONOTONIC nanoseconds)."""
        exchange, wire = self.exchange, self.wire
        wire.reads += 1
        if not wire.reads & 15:
            wire.lag_ns.append(time.monotonic_ns() - at_ns)
        if exchange is None or self._parser is None:
            # Nobody asked: the server speaks after the end of an answer. Do not use this connection again.
            self._closed_by_server = True
            return
        self._now = exchange.last_read_ns = at_ns
        self._read_tokens = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.exchange is exchange:
                self._drop()
                self._finish(at_ns, f"the answer is no HTTP/1.1: {error}")
            return
        if self._read_tokens > 1:
            self._count_shared(exchange)

    def _count_shared(self, exchange: Exchange) -> None:
        self.wire.shared_reads += 1
        exchange.shared_events += self._read_tokens - 1
        self._read_tokens = 0

    def _lost(self, reason: OSError | None) -> None:
        """The server closed, or the connection broke."""
        exchange = self.exchange
        fresh = self.uses <= 1
        self._closed_by_server = True
        self._drop()
        if exchange is None:
            return
        now = time.monotonic_ns()
        if exchange.head_ns is None and not fresh and not exchange.retried:
            # A kept-alive connection that the server closed as the request was sent: ask again, once, on a new one.
            exchange.retried += 1
            exchange.reset()
            self._reopen()
            return
        if exchange.head_ns is not None and not exchange.framed and reason is None:
            # No length and no chunks (HTTP/1.0): the end of the connection is the end of the body.
            exchange.whole = True
            self._finish(exchange.last_read_ns, None)
            return
        broken = reason is not None and reason.errno not in (errno.ECONNRESET, errno.EPIPE)
        text = f"the connection broke: {reason}" if broken else "the connection closed before the answer was whole"
        if exchange.head_ns is None:
            text = "the connection closed without an answer"
        self._finish(now, text)

    def _finish(self, at_ns: int, error: str | None) -> None:
        exchange = self.exchange
        self.exchange = None
        self._parser = None
        if exchange.streaming:
            for payload in exchange.splitter.finish():
                self.wire.tokens += exchange.read(exchange.answer, payload, exchange.last_read_ns)
        if self._read_tokens > 1:
            self._count_shared(exchange)
        exchange.done_ns = at_ns
        exchange.error = exchange.error or error
        exchange.on_done(exchange, at_ns)

    # What httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self.exchange.streaming = self.exchange.read is not None and b"text/event-stream" in value
        elif lower == b"content-length" or (lower == b"transfer-encoding" and b"chunked" in value.lower()):
            self.exchange.framed = True

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        exchange.status = self._parser.get_status_code()
        exchange.head_ns = self._now
        exchange.streaming = exchange.streaming and exchange.status == 200

    def on_body(self, piece: bytes) -> None:
        exchange = self.exchange
        if not exchange.streaming:
            if len(exchange.body) < MAX_BODY_BYTES:
                exchange.body += piece
            return
        read, answer, now = exchange.read, exchange.answer, self._now
        before = len(answer.times)
        payload = exchange.splitter.single(piece)
        if payload is not None:
            self.wire.tokens += read(answer, payload, now)
        else:
            for payload in exchange.splitter.feed(piece):
                self.wire.tokens += read(answer, payload, now)
        self._read_tokens += len(answer.times) - before

    def on_message_complete(self) -> None:
        exchange = self.exchange
        if 100 <= exchange.status < 200:
            return
        exchange.whole = True
        if not self._parser.should_keep_alive():
            self._closed_by_server = True
        self._finish(self._now, None)


class _Plain(asyncio.Protocol):
    """Reads through the loop, for TLS."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def data_received(self, data: bytes) -> None:
        self.connection.received(data, time.monotonic_ns())

    def connection_lost(self, error: Exception | None) -> None:
        if self.connection._transport is not None:
            self.connection._lost(error if isinstance(error, OSError) else None)


async def ask(
    wire: Wire, request: bytes, read: Reader | None = None, seconds: float = 30.0, keep_text: bool = False
) -> Exchange:
    """One exchange on a connection of its own; never raises for what the server does, see `Exchange.failure`."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finished(_exchange: Exchange, _at_ns: int) -> None:
        if not done.done():
            done.set_result(None)

    connection = Connection(wire)
    exchange = Exchange(request, finished, read, keep_text=keep_text)
    try:
        await connection.open()
        connection.start(exchange)
        async with asyncio.timeout(seconds):
            await done
    except WireError as error:
        exchange.error = str(error)
    except TimeoutError:
        exchange.error = f"no whole answer within {seconds:g} s"
    finally:
        with contextlib.suppress(OSError):
            connection.close()
    return exchange
