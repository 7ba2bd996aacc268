"""A foreign process on a simulated GPU: it holds bytes in the ledger until it is ended or its time is over.

SHARDSWEEP_SIMULATED_GPU=DIR python -m benchmark.simulator.hold GPU BYTES [SECONDS]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from .ledger import Ledger
from .settings import PREFIX, Settings, parse_amount

LONGEST_SECONDS = 3600.0


def main(arguments: Sequence[str], settings: Settings) -> int:
    """Holds, sleeps, and lets go; 2 for a command line that makes no sense."""
    try:
        gpu, size, *rest = arguments
        seconds = min(LONGEST_SECONDS, parse_amount(rest[0]) if rest else LONGEST_SECONDS)
        holding = int(gpu), int(parse_amount(size))
    except ValueError:
        sys.stderr.write("usage: python -m benchmark.simulator.hold GPU BYTES [SECONDS]   (bytes such as 60G)\n")
        return 2
    if settings.ledger is None:
        sys.stderr.write(f"{PREFIX}GPU names no ledger; set it to the folder that the engine uses.\n")
        return 2
    Ledger(settings.ledger).hold(*holding, name="python")
    time.sleep(seconds)
    Ledger(settings.ledger).release(holding[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Settings.from_environment(os.environ)))
