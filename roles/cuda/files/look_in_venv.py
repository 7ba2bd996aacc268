"""One JSON object: where this environment's CUDA wheels are, which release, and whether nvcc is among them."""

import importlib.metadata
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


folder = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")
answer = {
    "folder": str(folder),
    "nvcc": version("nvidia-cuda-nvcc") if (folder / "bin" / "nvcc").exists() else None,
    "toolkit": version("cuda-toolkit"),
    "pip": importlib.util.find_spec("pip") is not None,
}
sys.stdout.write(json.dumps(answer) + "\n")
