"""The Molecule scenario that needs no container, as its users run it."""

from __future__ import annotations

import subprocess

import pytest
from conftest import BIN, ROOT, Site

pytestmark = pytest.mark.slow


def test_the_default_scenario(tmp_path):
    environment = Site(tmp_path, tmp_path, 0).environment() | {
        "MOLECULE_GLOB": "molecule/*/molecule.yml",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path / "molecule"),
    }
    done = subprocess.run(
        [str(BIN / "molecule"), "test", "-s", "default"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert not (ROOT / ".shardsweep/molecule-default").exists()
