"""make_engine.py FOLDER CHECKOUT: a stand-in for SGLang 0.5.11 as wheels, with the lock that names them.

It installs, imports and answers --help as the engine does, and serves by the simulated engine of the tools. Beside it
lies what the role sglang_model loads a model with.
"""

import importlib
import shutil
import sys
from pathlib import Path

folder, checkout = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(checkout / "molecule/base"))
wheels = importlib.import_module("wheels")

RELEASE = "0.5.11"
SERVER = """
import os
import sys

PYTHON = "/opt/shardsweep/venv/bin/python"
simulated = {"SHARDSWEEP_SIMULATED_GPU": "/srv/gpu", "SHARDSWEEP_SIMULATED_START_SECONDS": "1"}
os.execve(PYTHON, [PYTHON, "-m", "benchmark.simulator", *sys.argv[1:]], simulated | dict(os.environ))
"""
TRANSFORMERS = """
import json
import os


class AutoConfig:
    @classmethod
    def from_pretrained(cls, folder, trust_remote_code=False):
        with open(os.path.join(folder, "config.json")) as stream:
            json.load(stream)
        return cls()


class AutoTokenizer(list):
    @classmethod
    def from_pretrained(cls, folder, trust_remote_code=False):
        with open(os.path.join(folder, "tokenizer.json")) as stream:
            return cls(json.load(stream)["model"]["vocab"])

    def encode(self, text):
        return [ord(letter) for letter in text]
"""


def main():
    shutil.rmtree(folder, ignore_errors=True)
    engine = {
        "sglang/__init__.py": "",
        "sglang/launch_server.py": SERVER,
        f"sglang-{RELEASE}.data/scripts/ninja": "#!/bin/sh\necho 1.13.0\n",
    }
    lock = wheels.wheel(folder / "wheels", "sglang", RELEASE, engine)
    lock += wheels.wheel(folder / "wheels", "transformers", "5.6.0", {"transformers/__init__.py": TRANSFORMERS})
    (folder / "requirements.txt").write_text(lock)


if __name__ == "__main__":
    main()
