"""What must be there after a power cut. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def flush_names(folder: Path) -> None:
    """A renamed file is there after a power cut only when its folder is on disk too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
