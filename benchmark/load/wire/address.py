"""Where the server is, and what all connections of one measurement share."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .clock import keep_timestamps_on, realtime_offset_ns

READ_BYTES = 1 << 18


class WireError(Exception):
    """A connection that cannot be opened; the text says to where and why."""


@dataclass
class Wire:
    """What all connections of one measurement share: the address, the buffer, the clock, and counters."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    """Path in front of every route, for a server behind a proxy."""
    offset_ns: int = field(default_factory=realtime_offset_ns)
    reads: int = 0
    unstamped_reads: int = 0
    """Reads without a time from the kernel: the loop's clock stands in."""
    shared_reads: int = 0
    """Reads that carried several token events: these share one time of arrival."""
    reconnects: int = 0
    lag_ns: list[int] = field(default_factory=list)
    """Every 16th read: from the kernel's time of arrival to the moment it was read."""
    tokens: int = 0
    """Output tokens so far, as events came in (live figure)."""
    addresses: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        keep_timestamps_on()
        self.buffer = memoryview(bytearray(READ_BYTES))

    @classmethod
    def to(cls, base_url: str) -> Wire:
        """The way to an http or https address.

        Raises:
            WireError: it is none.
        """
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise WireError(f"{base_url!r} is no address of a server; write http://HOST:PORT.")
        tls = parts.scheme == "https"
        # An OpenAI client is given .../v1 as its address; here the routes have it.
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    @property
    def authority(self) -> str:
        """Host and port as they stand in a Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def clock(self) -> str:
        """Where the times of arrival come from: "kernel", or "loop" if more than one read in a hundred has none."""
        return "loop" if self.tls or self.unstamped_reads * 100 > self.reads else "kernel"

    async def resolve(self) -> None:
        """Look the host up once, before any clock runs."""
        if self.addresses:
            return
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise WireError(f"the host name {self.host!r} cannot be looked up: {error}") from error
        self.addresses = [(item[0], item[4]) for item in found]


def request_bytes(
    wire: Wire, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """A whole HTTP/1.1 request. `headers` come last and may not hold line ends."""
    lines = [f"{method} {wire.prefix}{path} HTTP/1.1", f"Host: {wire.authority}", "Accept: */*"]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in (headers or {}).items():
        if "\r" in f"{name}{value}" or "\n" in f"{name}{value}":
            raise WireError(f"the header {name!r} holds a line end.")
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
