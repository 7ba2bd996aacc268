"""make_toolkit.py FOLDER: an engine's environment with CUDA as the wheels lay it out, and toolkits as packages do.

The programs are shell scripts that fail as the real ones do: without the links, without the modes.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo "Cuda compilation tools, release RELEASE, VRELEASE.88"; exit; }
case $1 in -arch=sm_120) ;; *) echo "nvcc fatal : Unsupported gpu architecture '$1'" >&2; exit 1 ;; esac
[ -x "$(dirname "$0")/ptxas" ] || { echo "sh: 1: ptxas: Permission denied" >&2; exit 126; }
echo object >check.o
"""
# Stands before the host's compiler on PATH.
COMPILER = """#!/bin/sh
[ -e "$CUDA_HOME/lib64/libcudart.so" ] || { echo "/usr/bin/ld: cannot find -lcudart: No such file" >&2; exit 1; }
printf '#!/bin/sh\\necho 13000\\n' >check && chmod +x check
"""


def program(path, text, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def toolkit(folder, library, mode, release="13.0"):
    program(folder / "bin/nvcc", NVCC.replace("RELEASE", release), mode)
    program(folder / "bin/ptxas", "#!/bin/sh\n", mode)
    program(folder / "bin/c++", COMPILER)
    (folder / library).parent.mkdir(parents=True)
    (folder / library).write_text("")


def main():
    root = Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    venv = root / "engine/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    program(venv / "bin/ninja", "#!/bin/sh\necho 1.13.0\n")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    toolkit(packages / "nvidia/cu13", "lib/libcudart.so.13", 0o744)
    for name, version in (("nvidia_cuda_nvcc", "13.0.88"), ("cuda_toolkit", "13.0.2")):
        note = packages / f"{name}-{version}.dist-info/METADATA"
        note.parent.mkdir()
        note.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    toolkit(root / "cuda-13.0", "lib64/libcudart.so", 0o755)
    toolkit(root / "without-link", "lib/libcudart.so.13", 0o755)
    toolkit(root / "cuda-12.9", "lib64/libcudart.so", 0o755, "12.9")
    toolkit(root / "endless", "lib64/libcudart.so", 0o755)
    for name, release in (("cuda", "12.8"), ("cuda-13.9", "13.9"), ("cuda-13.10", "13.10")):
        toolkit(root / "several" / name, "lib64/libcudart.so", 0o755, release)
    (root / "endless/bin/c++").write_text("#!/bin/sh\nexec sleep 60\n")


if __name__ == "__main__":
    main()
