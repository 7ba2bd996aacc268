"""A log read within bounds: of a long one its head, where a start is, and its tail, where its end is."""

from __future__ import annotations

from pathlib import Path

from ..engine import lifecycle

LOG_BYTES = lifecycle.LARGEST_TEXT
"""A log that is no longer is read whole."""
_HEAD_BYTES, _TAIL_BYTES = 3 << 20, 4 << 20
_STEP_BYTES = 1 << 20


def since(log: Path, offset: int = 0) -> str:
    """The log from an offset on, in bytes; of more than LOG_BYTES the whole lines of head and tail, around LEFT_OUT.

    One that was truncated since is read from its beginning; what it held before counts as left out. A log that is not
    there is empty.
    """
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            truncated = offset > size
            begin = 0 if truncated else offset
            stream.seek(begin)
            if size - begin <= LOG_BYTES:
                text = stream.read(size - begin).decode(errors="replace")
                return lifecycle.joined("", text) if truncated else text
            head = stream.read(_HEAD_BYTES)
            # In steps, so that a look at a log that grew by some lines sees those of the look before, and these.
            left_out = -(-(size - begin - _TAIL_BYTES) // _STEP_BYTES) * _STEP_BYTES
            stream.seek(begin + left_out)
            tail = stream.read(size - begin - left_out)
    except OSError:
        return ""
    return lifecycle.joined(head.decode(errors="replace"), tail.decode(errors="replace"))
