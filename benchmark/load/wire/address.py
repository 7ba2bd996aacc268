"""Where the server is, and what all connections of one measurement share."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .clock import realtime_offset_ns

READ_BYTES = 1 << 18


class WireError(Exception):
    """A connection that cannot be opened; the text says to where and why."""


@dataclass
class Wire:
    """What all connections of one measurement share: the address, the buffer, the clock, and counters."""

    host: str
    port: int
    tls: bool = False
    offset_ns: int = field(default_factory=realtime_offset_ns)
    clock: str = "kernel"
    """"kernel" or "loop": where arrival times come from."""
    reads: int = 0
    shared_reads: int = 0
    """Reads that carried several token events: these share one time of arrival."""
    reconnects: int = 0
    lag_ns: list[int] = field(default_factory=list)
    """Every 16th read: from the kernel's time of arrival to the moment it was read."""
    tokens: int = 0
    """Output tokens so far, as events came in (live figure)."""
    addresses: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))

    @classmethod
    def to(cls, base_url: str) -> Wire:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WireError(f"{base_url!r} is no address of a server; write http://HOST:PORT.")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls)

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
    lines = [f"{method} {path} HTTP/1.1", f"Host: {wire.host}:{wire.port}", "Accept: */*"]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    for name, value in (headers or {}).items():
        if "\r" in f"{name}{value}" or "\n" in f"{name}{value}":
            raise WireError(f"the header {name!r} holds a line end.")
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
