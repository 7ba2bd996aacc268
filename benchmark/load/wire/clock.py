"""The two clocks: the loop's (CLOCK_MONOTONIC) and the kernel's receive timestamps (CLOCK_REALTIME)."""

from __future__ import annotations

import contextlib
import functools
import socket
import time

SO_TIMESTAMPNS = 35
"""Linux: asm-generic/socket.h; the control message has the same number and holds two 64-bit integers."""


def realtime_offset_ns(tries: int = 200) -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds, from the tightest of `tries` readings.

    Both clocks are slewed alike by NTP, so the difference changes only when the time is stepped.
    """
    best_width, best = 1 << 62, 0
    for _ in range(tries):
        before = time.monotonic_ns()
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.monotonic_ns()
        if after - before < best_width:
            best_width, best = after - before, real - (before + after) // 2
    return best


@functools.cache
def keep_timestamps_on() -> socket.socket:
    """A socket that asks for timestamps as long as this process lives.

    The kernel stamps packets only while some socket wants it, and begins a little after the first one asks: without
    this the first packets of a measurement could come without a time.
    """
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        asking.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return asking
