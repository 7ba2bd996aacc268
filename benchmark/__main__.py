"""`shardsweep`, or `python -m benchmark`."""

from __future__ import annotations

import sys


def main() -> None:
    from .cli import application

    application(prog_name="shardsweep")


if __name__ == "__main__":
    sys.exit(main())
