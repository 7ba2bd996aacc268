"""make_wheels.py FOLDER CHECKOUT: engines of a few lines as wheels, and a lock with hashes for each.

0.5.11 prints the help that the checkout's flags.json describes; 0.5.22 cannot be imported; 0.5.23 lacks one flag and
has one more.
"""

import importlib
import shutil
import sys
from pathlib import Path

folder, checkout = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(checkout), str(checkout / "molecule/base")]

wheels = importlib.import_module("wheels")
flags = importlib.import_module("benchmark.engine.flags")

SERVER = """
import argparse

parser = argparse.ArgumentParser(prog="sglang serve")
for name, options in {declared!r}:
    parser.add_argument(name, **options)
parser.parse_args()
"""


def declared(release):
    for name, spec in flags.flag_table(release).items():
        if spec["kind"] == "switch":
            yield name, {"action": "store_true"}
        else:
            yield name, {"choices": spec.get("choices"), "nargs": "+" if spec["kind"] == "list" else None}


def engine(release, start, server):
    files = {"sglang/__init__.py": start, "sglang/launch_server.py": server}
    lock = wheels.wheel(folder / "wheels", "sglang", release, files)
    (folder / f"requirements-{release}.txt").write_text(lock)


def main():
    shutil.rmtree(folder, ignore_errors=True)
    engine("0.5.11", "", SERVER.format(declared=list(declared("0.5.11"))))
    engine("0.5.22", "raise ImportError('cannot import name use_kernel from kernels')\n", "")
    changed = [(name, options) for name, options in declared("0.5.23") if name != "--tp-size"]
    engine("0.5.23", "", SERVER.format(declared=[*changed, ("--brand-new", {})]))


if __name__ == "__main__":
    main()
