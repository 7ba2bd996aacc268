"""Import the engine and ask it for its help: one JSON object {"versions": {...}, "help": "..."} on the last line.

Runs on the engine's own Python. Exit status 1 with the reason on standard error when the engine does not answer.
"""

import importlib.metadata
import json
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

RECORDED = (
    "sglang",
    "sglang-kernel",
    "torch",
    "triton",
    "transformers",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "nvidia-nccl-cu13",
    "cuda-toolkit",
    "nvidia-cuda-nvcc",
    "ninja",
    "huggingface-hub",
)


def versions():
    found = {"python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def same_flashinfer(found):
    """The engine refuses to start when FlashInfer's parts are of different releases."""
    parts = {name: found[name].split("+")[0] for name in found if name.startswith("flashinfer")}
    if len(set(parts.values())) > 1:
        sys.exit(f"FlashInfer's parts are of different releases: {parts}. Make the environment anew from one lock.")


def headers():
    """Triton compiles a launcher against Python itself; a distribution's Python comes without its headers."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        name = ".".join(platform.python_version_tuple()[:2])
        packages = f"python{name}-dev (Debian, Ubuntu) or python{name}-devel (Enterprise Linux)"
        sys.exit(f"{header} is not there: install {packages} and run this again.")


def main():
    found = versions()
    headers()
    same_flashinfer(found)
    # Its own process: what the engine prints while it is imported stays out of the answer.
    helped = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--help"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if helped.returncode != 0:
        sys.exit(helped.stderr.strip()[-4000:] or f"`sglang.launch_server --help` ended with {helped.returncode}")
    sys.stdout.write(json.dumps({"versions": found, "help": helped.stdout}) + "\n")


if __name__ == "__main__":
    main()
