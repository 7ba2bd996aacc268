"""`python -m benchmark.simulator <SGLang's flags>`: the simulated engine."""

from __future__ import annotations

import os
import sys
import time


def main() -> int:
    """Starts the engine and serves until it is stopped.

    Returns an exit status only for what the real engine answers with one; a running engine ends by SIGKILL.
    """
    began = time.monotonic()
    from benchmark.simulator.launch import launcher, texts
    from benchmark.simulator.settings import Settings, SettingsError

    try:
        settings = Settings.from_environment(os.environ)
        started = launcher.launch(sys.argv[1:], settings, began)
    except SettingsError as error:
        texts.write(f"simulated engine: {error}\n")
        return 2
    if isinstance(started, int):
        return started
    if started.blueprint.node:
        from benchmark.simulator.serve import node

        return node.serve(started)
    from benchmark.simulator.serve import server

    return server.serve(started, settings, began)


if __name__ == "__main__":
    sys.exit(main())
