"""What check mode says of a toolkit that somebody else put there, before and after the engine's environment is made."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import pytest
import yaml
from conftest import recap, said

pytestmark = pytest.mark.slow


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_check_mode_fails_for_a_compiler_and_not_for_an_environment_that_is_not_made_yet(site):
    toolkit, host = site.folder / "cuda-13.0", site.folder / "programs"
    program(toolkit / "bin/nvcc", '[ "$1" = --version ] && echo release 13.0, && exit; echo broken >&2; exit 1')
    program(site.folder / "made/bin/ninja", "echo 1.13.0")
    # Without this machine's own ninja.
    host.mkdir()
    for name in ("cat", "grep", "id", "mktemp", "rm"):
        (host / name).symlink_to(f"/bin/{name}")
    site.variables |= {
        "cuda_method": "present",
        "cuda_path": str(toolkit),
        "cuda_home": str(site.folder / "cuda"),
        "cuda_user": getpass.getuser(),
        "cuda_architecture": "120",
        "cuda_venv": f"{site.folder}/{{{{ 'bare' if inventory_hostname == 'here' else 'made' }}}}",
        "cuda_environment": {"PATH": f"{{{{ cuda_venv }}}}/bin:{toolkit}/bin:{host}"},
    }
    site.hosts["there"] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    play = [{"hosts": "gpu_servers", "gather_facts": False, "roles": ["shardsweep.serving.cuda"]}]
    (site.folder / "play.yml").write_text(yaml.safe_dump(play))

    done = site.play(str(site.folder / "play.yml"), "--check")
    assert (recap(done)["failed"], recap(done, "there")["failed"]) == (0, 1), said(done)
    assert f"Not verified: the environment of the engine, with ninja, is not there yet ({toolkit})" in said(done)
    assert f"cannot compile with {toolkit} on there: nvcc does not compile for sm_120" in said(done)
