"""How long ago, on a host whose wall clock may be set at any time and which may have been booted since.

Dates that people read come from `time.time()`; nothing is decided by them.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """The name of this boot of the host; empty where the kernel gives none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def mark() -> dict[str, Any]:
    """Now, to be kept in a file and asked about with `since`, by another process too. Suspension counts."""
    return {"boot": boot(), "seconds": round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)}


def since(marked: Any) -> float:
    """Seconds since a mark; infinite for one of another boot, and for what is no mark."""
    if not isinstance(marked, dict) or marked.get("boot") != boot():
        return math.inf
    seconds = marked.get("seconds")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - seconds if isinstance(seconds, (int, float)) else math.inf
