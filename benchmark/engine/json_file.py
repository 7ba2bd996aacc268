"""JSON files of a model, which anybody may have made: read within bounds of size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LARGEST = 100_000_000
"""Bytes; the safetensors library takes no longer list of tensors either."""


def read(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, larger than LARGEST, or nested more deeply than Python's parser goes.
    """
    with path.open("rb") as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
