"""One JSON object: where this environment's CUDA wheels are, which they are, and whether nvcc is among them."""

import importlib.metadata
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path

# What came with the engine's PyTorch: an installer would move each to the release of the compiler.
PARTS = (
    "cuda-toolkit",
    "nvidia-cublas",
    "nvidia-cuda-cccl",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-curand",
)


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


folder = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")
answer = {
    "folder": str(folder),
    "nvcc": version("nvidia-cuda-nvcc") if (folder / "bin" / "nvcc").exists() else None,
    "parts": {name: found for name in PARTS if (found := version(name))},
    "pip": importlib.util.find_spec("pip") is not None,
}
sys.stdout.write(json.dumps(answer) + "\n")
