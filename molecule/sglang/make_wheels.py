"""make_wheels.py FOLDER CHECKOUT: engines of a few lines as wheels, and a lock with hashes for each.

0.5.11 prints the help that the checkout's flags.json describes; 0.5.22 cannot be imported; 0.5.23 lacks one flag and
has one more.
"""

import hashlib
import importlib
import shutil
import sys
import zipfile
from pathlib import Path

folder, checkout = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(checkout))

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


def wheel(release, start, server):
    information = f"sglang-{release}.dist-info"
    files = {
        "sglang/__init__.py": start,
        "sglang/launch_server.py": server,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {release}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{information}/RECORD"])
    path = folder / "wheels" / f"sglang-{release}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lock = folder / f"requirements-{release}.txt"
    lock.write_text(f"sglang=={release} --hash=sha256:{digest}\n")


def main():
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    wheel("0.5.11", "", SERVER.format(declared=list(declared("0.5.11"))))
    wheel("0.5.22", "raise ImportError('cannot import name use_kernel from kernels')\n", "")
    changed = [(name, options) for name, options in declared("0.5.23") if name != "--tp-size"]
    wheel("0.5.23", "", SERVER.format(declared=[*changed, ("--brand-new", {})]))


if __name__ == "__main__":
    main()
