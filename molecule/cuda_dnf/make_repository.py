"""make_repository.py VERSION DRIVER: NVIDIA's repository for Enterprise Linux 9 in small, at /srv/repository.

The packages have the names, epochs and dependencies of the real ones and are signed; they hold the shell scripts of
make_toolkit.py. The driver is in module streams. An earlier version stays beside a later one, as in the real one.
/srv/unsigned holds the same packages without a signature.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import make_toolkit

SIGNED = Path("/srv/repository/rhel9/x86_64")
UNSIGNED = Path("/srv/unsigned/rhel9/x86_64")
BUILD = Path("/srv/build")
ROOT = BUILD / "root"
SIGNER = "cudatools"
PLUGIN = "/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py"
PLUGIN_SETTINGS = "/etc/dnf/plugins/versionlock.conf"
STREAMS = {
    "open-dkms": ["nvidia-open", "kmod-nvidia-open-dkms", "nvidia-driver", "nvidia-driver-cuda"],
    "latest-dkms": ["kmod-nvidia-latest-dkms", "nvidia-driver", "nvidia-driver-cuda"],
}
HEADING = f"""\
Name: cuda
Version: 1
Release: 1
Summary: only its parts
License: none
BuildArch: noarch
%description
Only its parts.
%install
cp -a {ROOT}/. %{{buildroot}}
"""


def run(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def package(name, version, fields=(), files=()):
    """The part of a .spec file that makes one package."""
    epoch, _, version = version.rpartition(":")
    lines = [f"%package -n {name}", "Summary: stands in for the real one", "AutoReqProv: no", f"Version: {version}"]
    lines += [f"Epoch: {epoch}"] if epoch else []
    return "\n".join([*lines, *fields, f"%description -n {name}", f"%files -n {name}", *files, ""])


def specification(toolkit, driver):
    driver = f"3:{driver}"
    parts = [f"Requires: {name} = {driver}" for name in ("nvidia-driver", "nvidia-driver-cuda")]
    packages = [
        package("cuda-nvcc-13-0", toolkit, files=["/usr/local/cuda-13.0"]),
        package("cuda-toolkit-13-0", toolkit, [f"Requires: cuda-nvcc-13-0 >= {toolkit}", "Recommends: cuda-drivers"]),
        package("nvidia-driver", driver),
        package("nvidia-driver-cuda", driver, [f"Requires: nvidia-driver = {driver}"]),
        package("kmod-nvidia-open-dkms", driver, ["Provides: nvidia-kmod"]),
        package("kmod-nvidia-latest-dkms", driver, ["Provides: nvidia-kmod"]),
        package("nvidia-open", driver, [*parts, f"Requires: kmod-nvidia-open-dkms = {driver}"]),
        package("cuda-drivers", driver),
        # The distribution's own.
        package("gcc-c++", "11.5.0", files=["/usr/bin/ninja"]),
        package(
            "python3-dnf-plugin-versionlock",
            "4.3.0",
            files=[PLUGIN, PLUGIN_SETTINGS, "%config(noreplace) /etc/dnf/plugins/versionlock.list"],
        ),
    ]
    return "\n".join([HEADING, *packages])


def fill():
    """The files of all packages, where they will be on the host."""
    shutil.rmtree(ROOT, ignore_errors=True)
    make_toolkit.toolkit(ROOT / "usr/local/cuda-13.0", "lib64/libcudart.so", 0o755)
    make_toolkit.program(ROOT / "usr/bin/ninja", "#!/bin/sh\necho 1.13.0\n")
    for path in (PLUGIN, PLUGIN_SETTINGS):
        target = ROOT / path.lstrip("/")
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    (ROOT / "etc/dnf/plugins/versionlock.list").touch()


def build(toolkit, driver):
    """Build all packages; returns their files."""
    (BUILD / "cuda.spec").write_text(specification(toolkit, driver))
    shutil.rmtree(BUILD / "packages", ignore_errors=True)
    settings = {
        "_topdir": BUILD,
        "_rpmdir": BUILD / "packages",
        "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        # The files are to stay as they are.
        "__os_install_post": "%{nil}",
    }
    defined = [word for name, value in settings.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "--quiet", "-bb", *defined, BUILD / "cuda.spec")
    return sorted((BUILD / "packages").glob("*.rpm"))


def sign(packages):
    home = BUILD / "key"
    environment = os.environ | {"GNUPGHOME": str(home)}
    if not home.exists():
        home.mkdir(mode=0o700)
        unlocked = ["--batch", "--passphrase", ""]
        run("gpg", *unlocked, "--quick-generate-key", SIGNER, "rsa2048", "sign", "never", env=environment)
    settings = ["--define", f"_gpg_name {SIGNER}", "--define", "__gpg /usr/bin/gpg"]
    run("rpmsign", *settings, "--addsign", *packages, env=environment)
    return run("gpg", "--armor", "--export", SIGNER, env=environment)


def index(folder, key):
    """The repository's metadata, with the driver's streams, and its key."""
    (folder / "D42D0685.pub").write_text(key)
    form = "%{NAME} %{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\n"
    found = [line.split() for line in run("rpm", "-qp", "--qf", form, *folder.glob("*.rpm")).splitlines()]
    documents = []
    for stream, names in STREAMS.items():
        module = {
            "name": "nvidia-driver",
            "stream": stream,
            "version": 1,
            "context": "shardsweep",
            "arch": "x86_64",
            "summary": "stands in for the real one",
            "description": "stands in for the real one",
            "license": {"module": ["none"]},
            "artifacts": {"rpms": [full for name, full in found if name in names]},
        }
        documents.append("---\n" + json.dumps({"document": "modulemd", "version": 2, "data": module}) + "\n")
    (BUILD / "modules.yaml").write_text("".join(documents))
    run("createrepo_c", "--quiet", folder)
    run("modifyrepo_c", "--mdtype=modules", BUILD / "modules.yaml", folder / "repodata", stderr=subprocess.DEVNULL)


def main():
    for folder in (SIGNED, UNSIGNED, BUILD):
        folder.mkdir(parents=True, exist_ok=True)
    fill()
    packages = build(*sys.argv[1:])
    for path in packages:
        shutil.copy(path, UNSIGNED)
    key = sign(packages)
    for path in packages:
        shutil.copy(path, SIGNED)
    index(UNSIGNED, key)
    index(SIGNED, key)


if __name__ == "__main__":
    main()
