"""tests/hosts/hosts.sh asks podman for the right image; podman and all that would change this machine are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PODMAN = """echo "$*" >> "$ASKED"
case "$*" in
  *is-system-running*) echo running ;;
  "container inspect"*) exit 1 ;;
  "image exists"*) exit 1 ;;
  # An image that was built here, of other inputs.
  "image inspect"*) echo older ;;
esac
"""
STAND_INS = {
    "podman": PODMAN,
    "dpkg-query": "echo install ok installed",
    "stat": "echo cgroup2fs",
    # It builds nothing here.
    "mmdebstrap": "exit 1",
    **dict.fromkeys(("mount", "umount", "mountpoint", "flock", "sleep"), "exit 0"),
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts.sh wants root, also where nothing is mounted")


def asked(folder: Path, images: str, suite: str = "bookworm") -> tuple[int, list[str]]:
    """What podman was asked for by `up`, and the exit status."""
    for name, script in STAND_INS.items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "keys").mkdir()
    for name in ("key", "key.pub"):
        (folder / "keys" / name).touch()
    known = {
        "ASKED": folder / "asked",
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "TEST_HOSTS_IMAGES": images,
        "TEST_HOSTS_KEYS": folder / "keys",
        "TEST_HOSTS_PODMAN": folder / "bin/podman",
        "TEST_HOSTS_RUN": folder / "run",
        "TEST_HOSTS_STATE": folder / "state",
    }
    command = [str(ROOT / "tests/hosts/hosts.sh"), "up", "one", suite, "198.18.77.99"]
    environment = os.environ | {name: str(value) for name, value in known.items()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, (folder / "asked").read_text().splitlines()


IMAGES = "bookworm=registry.example/debian-systemd:12 trixie=registry.example/debian-systemd:13"


@pytest.mark.parametrize(("suite", "release"), [("bookworm", "12"), ("trixie", "13")])
def test_a_named_image_is_pulled_and_run(tmp_path, suite, release):
    status, calls = asked(tmp_path, IMAGES, suite)
    image = f"registry.example/debian-systemd:{release}"
    assert status == 0
    assert f"pull -q {image}" in calls
    (started,) = [call for call in calls if call.startswith("run ")]
    assert started.endswith(f" {image}")
    assert "--systemd=always" in started
    # What such an image may lack is put into the container before it is waited for.
    completed = next(place for place, call in enumerate(calls) if call.startswith("exec -i one sh -s -- systemd-sysv "))
    assert completed < next(place for place, call in enumerate(calls) if "is-system-running" in call)


def test_an_image_that_is_not_named_is_built(tmp_path):
    # The image for another suite does not serve, and what builds is a stand-in that fails.
    status, calls = asked(tmp_path, "trixie=registry.example/debian-systemd:13")
    assert status != 0
    assert not [call for call in calls if call.startswith(("pull ", "run "))]
    assert 'image inspect -f {{index .Labels "inputs"}} localhost/shardsweep-host:bookworm' in calls
