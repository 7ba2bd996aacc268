"""make_repository.py VERSION DRIVER: NVIDIA's repository for Debian 12 in small, at /srv/repository.

The packages have the names and the dependencies of the real ones; they hold the shell scripts of make_toolkit.py. An
earlier version stays beside a later one, as in the real one.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import make_toolkit

HERE = Path("/srv/repository/debian12/x86_64")
LIST = f"deb [trusted=yes] file:{HERE} /\n"


def package(name, version, fields=(), fill=None):
    root = Path("/srv/build") / name
    shutil.rmtree(root, ignore_errors=True)
    (root / "DEBIAN").mkdir(parents=True)
    lines = [f"Package: {name}", f"Version: {version}", "Architecture: all", "Maintainer: nobody <nobody@localhost>"]
    (root / "DEBIAN/control").write_text("\n".join([*lines, *fields, "Description: stands in for the real one", ""]))
    if fill:
        fill(root)
    target = HERE / f"{name}_{version.partition(':')[2] or version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, target], check=True, stdout=subprocess.DEVNULL)


def compiler(root):
    make_toolkit.toolkit(root / "usr/local/cuda-13.0", "lib64/libcudart.so", 0o755)


def tools(root):
    make_toolkit.program(root / "usr/bin/ninja", "#!/bin/sh\necho 1.13.0\n")


def source(root):
    path = root / "etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    path.parent.mkdir(parents=True)
    path.write_text(LIST)


def index():
    """The flat repository's list of packages."""
    entries = []
    for deb in sorted(HERE.glob("*.deb")):
        control = subprocess.run(["dpkg-deb", "--field", deb], check=True, capture_output=True, text=True).stdout
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        entries.append(f"{control}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n")
    (HERE / "Packages").write_text("\n".join(entries))


def main():
    version, driver = sys.argv[1:]
    HERE.mkdir(parents=True, exist_ok=True)
    package("cuda-keyring", "1.1-1", fill=source)
    # Above Debian's own, which is large.
    package("g++", "9:99", fill=tools)
    package("cuda-nvcc-13-0", version, fill=compiler)
    wants = [f"Depends: cuda-nvcc-13-0 (>= {version})", "Recommends: cuda-drivers"]
    package("cuda-toolkit-13-0", version, wants)
    package("libnvidia-compute", driver)
    package("nvidia-open", driver, [f"Depends: libnvidia-compute (>= {driver})"])
    package("cuda-drivers", driver, [f"Depends: libnvidia-compute (>= {driver})"])
    index()


if __name__ == "__main__":
    main()
