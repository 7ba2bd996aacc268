"""What the role cuda asks uv for in an engine's environment that has parts of CUDA and no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Site, said

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

EXTRAS = "cuda-toolkit[cccl,cublas,cudart,curand,nvcc,nvrtc]"


def look_in(packages: Path, parts: dict[str, str]) -> dict[str, Any]:
    """What the role learns of an environment with these packages."""
    for name, version in parts.items():
        note = packages / f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
        note.parent.mkdir(parents=True)
        note.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    done = subprocess.run(
        [sys.executable, ROOT / "roles/cuda/files/look_in_venv.py"],
        env=os.environ | {"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout) | {"pip": False}


def stand_in(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def compiler_into(site: Site, cases: list[dict[str, Any]]) -> tuple[list[list[str]], str]:
    """Run the method `wheels` for environments with these `parts`: (what uv was asked for each, all that was printed).

    A case is {"parts": {package: version}, "then": a line of shell that uv ends with, and variables of the role}.
    """
    steps, asked = [], []
    for number, case in enumerate(cases):
        folder = site.folder / str(number)
        looked = look_in(folder / "packages", case.pop("parts")) | {"folder": str(folder / "cu13")}
        stand_in(folder / "bin/python", f"echo '{json.dumps(looked)}'")
        asked.append(folder / "asked")
        uv = stand_in(folder / "uv", f'printf "%s\\n" "$@" >{asked[-1]}\n{case.pop("then", "exit 0")}')
        role = {"name": "shardsweep.serving.cuda", "tasks_from": "wheels.yml"}
        steps.append({"ansible.builtin.include_role": role, "vars": {"cuda_venv": str(folder), "cuda_uv": uv, **case}})
    (site.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "here", "gather_facts": False, "tasks": steps}]))
    done = site.play(str(site.folder / "play.yml"))
    return [file.read_text().split() if file.exists() else [] for file in asked], said(done)


def test_the_compiler_follows_the_runtime_that_is_there(site):
    cases = [
        {"parts": {}},
        {"parts": {"cuda-toolkit": "13.1.0"}},
        # An engine on a PyTorch that names its parts one by one.
        {"parts": {"nvidia-cuda-runtime": "13.1.80", "nvidia-cublas": "13.2.0.9"}},
        {"parts": {"cuda-toolkit": "12.9.1"}, "then": "echo No solution found >&2; exit 1"},
    ]
    wanted = [
        ("13.0", []),
        ("13.1", ["cuda-toolkit==13.1.0"]),
        ("13.1", ["nvidia-cublas==13.2.0.9", "nvidia-cuda-runtime==13.1.80"]),
        ("12.9", ["cuda-toolkit==12.9.1"]),
    ]
    asked, told = compiler_into(site, cases)
    for number, (release, pins) in enumerate(wanted):
        packages = [f"{EXTRAS}=={release}.*", f"nvidia-cuda-crt=={release}.*", f"nvidia-nvvm=={release}.*", *pins]
        python = f"{site.folder}/{number}/bin/python"
        assert asked[number] == ["pip", "install", "--quiet", "--python", python, *packages], told
    assert "beside cuda-toolkit 12.9.1: No solution found Name a mirror" in told
