"""A server whose schedule is known exactly, to hold load generators against. It also serves the tests.

One event a live stream a global tick, as an engine's steps are. A request that arrives at t is due at
t + TTFT (+ a spread that depends on its number), and its first event leaves on the next tick. The moment before each
send is recorded; arrivals are the kernel's (SO_TIMESTAMPNS), so that the truth does not depend on how busy this
process is. A tick that comes more than half a tick late shifts the grid, and is counted: events of one stream are
never sent back to back.

    python -m benchmark.load.reference_server --port 0 --tick 0.02 --ttft 0.1 --truth truth.npz

prints its port as the first line, and on SIGTERM writes the truth and prints one JSON line about its own lateness.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from .reference_events import HEAD, Connection, Schedule, Stream, chunk, event, prompt_tokens
from .wire.clock import SO_TIMESTAMPNS, realtime_offset_ns

_TIMESPEC = struct.Struct("qq")
FAULTS = ("error", "cut", "refuse", "silent", "short")


class ReferenceServer:
    """Serves on 127.0.0.1 until `stop` is set. One thread, one epoll."""

    def __init__(self, schedule: Schedule, port: int = 0) -> None:
        self.schedule = schedule
        self.listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.stop = False
        self.streams: list[Stream] = []
        self.active: list[Stream] = []
        self.waiting: deque[Stream] = deque()
        self.late_ns = array("q")
        self.shifted = 0
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self._offset_ns = realtime_offset_ns()
        self._epoll = select.epoll()
        self._epoll.register(self.listener.fileno(), select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._cpu_start = 0.0
        self._first_ns = self._last_ns = 0

    # The grid

    def serve(self) -> None:
        tick = round(self.schedule.tick_seconds * 1e9)
        due = time.monotonic_ns() + tick
        while not self.stop:
            now = time.monotonic_ns()
            if now < due:
                # epoll waits whole milliseconds; the last one is spent polling.
                self._poll(max(0, (due - now) // 1_000_000 - 1) / 1000)
                continue
            self._tick(due, now)
            due += tick
            now = time.monotonic_ns()
            if now > due + tick // 2:
                self.shifted += 1
                due = now + tick // 2
        for connection in list(self._connections.values()):
            self._close(connection)
        self.listener.close()
        self._epoll.close()

    def _tick(self, grid_ns: int, now_ns: int) -> None:
        sent = 0
        limit = self.schedule.max_running
        while self.waiting and (not limit or len(self.active) < limit):
            self.active.append(self.waiting.popleft())
        for stream in list(self.active):
            if stream.due_ns <= grid_ns and stream.connection.current is stream:
                self._emit(stream)
                sent += 1
                if not sent % 64:
                    self._poll(0)
        if sent:
            self.late_ns.append(now_ns - grid_ns)

    def _emit(self, stream: Stream) -> None:
        made = min(stream.made + self.schedule.tokens_per_event, stream.tokens)
        if stream.fault == "silent":
            return
        if stream.fault and stream.made * 2 >= stream.tokens and self._fail(stream):
            return
        last = made >= stream.tokens
        data = event(stream, made, last)
        now = self._last_ns = time.monotonic_ns()
        stream.sends.append(now)
        stream.made = made
        if last:
            self._finished(stream)
        self._write(stream.connection, data)

    def _fail(self, stream: Stream) -> bool:
        """Let the fault happen; False if it is over and the stream goes on."""
        if stream.fault == "short":
            stream.tokens = stream.made + 1
            stream.fault = None
            return False
        self._leave(stream)
        if stream.fault == "error":
            stream.connection.current = None
            said = chunk(b'data: {"error":{"message":"reference fault"}}\n\n') + chunk(b"data: [DONE]\n\n")
            self._write(stream.connection, said + b"0\r\n\r\n")
        else:
            self._close(stream.connection)
        return True

    def _finished(self, stream: Stream) -> None:
        self._leave(stream)
        stream.connection.current = None
        self.generation_tokens += stream.made
        self.prompt_tokens += stream.prompt

    def _leave(self, stream: Stream) -> None:
        with contextlib.suppress(ValueError):
            self.active.remove(stream)
        with contextlib.suppress(ValueError):
            self.waiting.remove(stream)

    # The network

    def _poll(self, seconds: float) -> None:
        for number, events in self._epoll.poll(seconds):
            if number == self.listener.fileno():
                self._accept()
                continue
            connection = self._connections.get(number)
            if connection is None:
                continue
            if events & select.EPOLLOUT:
                self._flush(connection)
            if events & ~select.EPOLLOUT:
                self._read(connection)

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self.listener.accept()
            except BlockingIOError:
                return
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._connections[raw.fileno()] = Connection(raw)
            self._epoll.register(raw.fileno(), select.EPOLLIN)

    def _close(self, connection: Connection) -> None:
        if connection.socket.fileno() < 0:
            return
        if connection.current is not None:
            self._leave(connection.current)
        self._connections.pop(connection.socket.fileno(), None)
        self._epoll.unregister(connection.socket.fileno())
        connection.socket.close()

    def _write(self, connection: Connection, data: bytes) -> None:
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        if sent < len(data):
            connection.unsent = data[sent:]
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: Connection) -> None:
        data, connection.unsent = connection.unsent, b""
        self._epoll.modify(connection.socket.fileno(), select.EPOLLIN)
        self._write(connection, data)

    def _read(self, connection: Connection) -> None:
        try:
            data, ancillary, _, _ = connection.socket.recvmsg(1 << 18, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._close(connection)
            return
        at_ns = time.monotonic_ns()
        for _level, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, rest = _TIMESPEC.unpack(value)
                at_ns = seconds * 1_000_000_000 + rest - self._offset_ns
        connection.buffer += data
        while connection.current is None and self._one_request(connection, at_ns):
            pass

    def _one_request(self, connection: Connection, at_ns: int) -> bool:
        head, gap, rest = connection.buffer.partition(b"\r\n\r\n")
        if not gap:
            return False
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return False
        connection.buffer = rest[length:]
        method, path, _ = head.split(b" ", 2)
        self._answer(connection, method.decode(), path.decode().partition("?")[0], rest[:length], at_ns)
        return connection.socket.fileno() >= 0

    # The answers

    def _answer(self, connection: Connection, method: str, path: str, body: bytes, at_ns: int) -> None:
        if method == "POST" and path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self._begin(connection, path, body, at_ns)
            return
        found = self._plain(path)
        status = "404 Not Found" if found is None else "200 OK"
        text = found if isinstance(found, bytes) else orjson.dumps(found or {"detail": "Not Found"})
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        self._write(connection, head.encode() + text)

    def _plain(self, path: str) -> Any:
        if path == "/health":
            return {"status": "ok"}
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "reference", "object": "model", "max_model_len": 1 << 20}]}
        if self.schedule.kind != "sglang":
            return None
        load = {
            "num_running_reqs": len(self.active),
            "num_waiting_reqs": len(self.waiting),
            "num_used_tokens": 0,
            "max_total_num_tokens": 1 << 24,
            "max_running_requests": self.schedule.max_running or 4096,
        }
        return {
            "/server_info": {"version": "reference", "tp_size": 1, "max_total_num_tokens": 1 << 24},
            "/v1/loads": {"loads": [load]},
            "/flush_cache": b"Cache flushed.\n",
            "/metrics": (
                f"sglang:generation_tokens_total {self.generation_tokens}\n"
                f"sglang:prompt_tokens_total {self.prompt_tokens}\n"
            ).encode(),
        }.get(path)  # fmt: skip

    def _begin(self, connection: Connection, path: str, body: bytes, at_ns: int) -> None:
        asked = orjson.loads(body)
        stream = Stream(len(self.streams), at_ns, connection)
        stream.fault = self.schedule.faults.get(stream.number)
        if stream.fault == "refuse":
            text = b'{"error":{"message":"reference fault"}}'
            self._write(connection, b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
            self.streams.append(stream)
            return
        stream.route = path
        stream.stream = asked.get("stream", False)
        sampling = asked.get("sampling_params") or {}
        length = asked.get("max_tokens") or asked.get("max_completion_tokens") or sampling.get("max_new_tokens") or 16
        stream.tokens = int(length)
        stream.options = asked.get("stream_options") or {}
        stream.prompt = prompt_tokens(asked)
        spread = round(self.schedule.spread_seconds * 1e9)
        extra = (stream.number * 2_654_435_761) % spread if spread else 0
        stream.due_ns = at_ns + round(self.schedule.ttft_seconds * 1e9) + extra
        connection.current = stream
        self.streams.append(stream)
        self.waiting.append(stream)
        if not self._first_ns:
            self._first_ns, self._cpu_start = at_ns, _cpu_seconds()
        if stream.stream:
            self._write(connection, HEAD)

    # The truth

    def report(self) -> dict[str, Any]:
        """How late this server was itself."""
        wall = max(1e-9, (self._last_ns - self._first_ns) / 1e9)
        late = np.asarray(self.late_ns, dtype=float) / 1000 if self.late_ns else np.zeros(1)
        return {
            "requests": len(self.streams),
            "events": sum(len(stream.sends) for stream in self.streams),
            "wall_seconds": wall,
            "cpu_share": (_cpu_seconds() - self._cpu_start) / wall,
            "tick_late_us_p50": float(np.percentile(late, 50)),
            "tick_late_us_p99": float(np.percentile(late, 99)),
            "tick_late_us_max": float(late.max()),
            "shifted": self.shifted,
        }

    def write_truth(self, path: Path) -> None:
        """What was really sent: arrival of each request and time of each event, monotonic nanoseconds."""
        sends = [np.frombuffer(stream.sends, dtype=np.int64) for stream in self.streams]
        np.savez(
            path,
            arrived_ns=np.array([stream.arrived_ns for stream in self.streams], dtype=np.int64),
            counts=np.array([len(times) for times in sends], dtype=np.int64),
            sends_ns=np.concatenate(sends) if sends else np.array([], dtype=np.int64),
        )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str] | None = None) -> int:
    """The command: see the module's docstring."""
    parser = argparse.ArgumentParser(description="A reference server for load generators.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tick", type=float, default=0.02, help="seconds between two events of a stream")
    parser.add_argument("--ttft", type=float, default=0.1, help="seconds until a request is due")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds that TTFT is spread over")
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--max-running", type=int, default=0)
    parser.add_argument("--kind", choices=("sglang", "openai"), default="sglang")
    parser.add_argument("--fault", action="append", default=[], metavar="NUMBER:FAULT", help=", ".join(FAULTS))
    parser.add_argument("--truth", type=Path, help="write what was sent there (.npz) at the end")
    parser.add_argument("--realtime", action="store_true", help="ask for SCHED_FIFO (root)")
    given = parser.parse_args(arguments)
    if given.realtime:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    faults = {int(number): fault for number, _, fault in (item.partition(":") for item in given.fault)}
    server = ReferenceServer(
        Schedule(
            tick_seconds=given.tick,
            ttft_seconds=given.ttft,
            spread_seconds=given.spread,
            tokens_per_event=given.tokens_per_event,
            max_running=given.max_running,
            faults=faults,
            kind=given.kind,
        ),
        given.port,
    )

    def stop(_number: int, _frame: Any) -> None:
        server.stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve()
    if given.truth is not None:
        server.write_truth(given.truth)
    sys.stdout.write(orjson.dumps(server.report()).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
