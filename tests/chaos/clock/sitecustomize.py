"""A clock that jumps: `time.time` of every process that has this folder on its PYTHONPATH, by a file's offset.

What a wrong clock does to a process without a tool that the machine may not have. Monotonic clocks go on, as they do
on a host whose clock is set.

Where libfaketime is preloaded it sets the clock, below Python. It then takes the deadline of `time.sleep`, which is of
the monotonic clock, for one of the other (0.9.10); `select` it leaves alone.
"""

import os
import select
import time
from pathlib import Path

_real, _file = time.time, Path(os.environ.get("SHARDSWEEP_CHAOS_CLOCK", ""))


def _now() -> float:
    try:
        return _real() + float(_file.read_text(encoding="ascii") or 0)
    except (OSError, ValueError):
        return _real()


if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
elif _file.name:
    time.time = _now
