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

    What uv was asked for begins with the index and the day that its environment names.

    A case is {"parts": {package: version}, "then": a line of shell that uv ends with, and variables of the role}.
    """
    steps, asked = [], []
    for number, case in enumerate(cases):
        folder = site.folder / str(number)
        looked = look_in(folder / "packages", case.pop("parts")) | {"folder": str(folder / "cu13")}
        stand_in(folder / "bin/python", f"echo '{json.dumps(looked)}'")
        asked.append(folder / "asked")
        uv = stand_in(
            folder / "uv",
            f'printf "%s\\n" "$UV_DEFAULT_INDEX" "$UV_EXCLUDE_NEWER" "$@" >{asked[-1]}\n{case.pop("then", "exit 0")}',
        )
        role = {"name": "shardsweep.serving.cuda", "tasks_from": "wheels.yml"}
        steps.append(
            {
                "vars": {"cuda_venv": str(folder), "cuda_uv": uv, **case},
                "block": [{"ansible.builtin.include_role": role}],
                "rescue": [{"ansible.builtin.debug": {"msg": "{{ ansible_failed_result.msg }}"}}],
            }
        )
    (site.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "here", "gather_facts": False, "tasks": steps}]))
    done = site.play(str(site.folder / "play.yml"))
    return [file.read_text().splitlines() if file.exists() else [] for file in asked], said(done)


def test_the_compiler_follows_the_runtime_and_comes_from_where_the_engine_came_from(site):
    mirror = "https://me:PlantedPassword@mirror/simple"
    cases = [
        # An engine on a PyTorch that names its parts one by one.
        {
            "parts": {"nvidia-cuda-runtime": "13.1.80", "nvidia-cublas": "13.2.0.9"},
            "sglang_index_url": mirror,
            "sglang_exclude_newer": "2026-11-06",
        },
        {
            "parts": {"cuda-toolkit": "13.2.0"},
            "sglang_wheels": "/srv/wheels",
            "then": "echo No solution found >&2; exit 1",
        },
        {"parts": {}, "cuda_pip_arguments": [f"--index-url={mirror}"]},
    ]
    (runtime, toolkit, refused), told = compiler_into(site, cases)
    begin = ["pip", "install", "--quiet", "--python"]
    assert runtime == [
        *(mirror, "2026-11-06", *begin, f"{site.folder}/0/bin/python"),
        *(f"{EXTRAS}==13.1.*", "nvidia-cuda-crt==13.1.*", "nvidia-nvvm==13.1.*"),
        *("nvidia-cublas==13.2.0.9", "nvidia-cuda-runtime==13.1.80"),
    ], told
    assert toolkit == [
        *("", "", *begin, f"{site.folder}/1/bin/python", "--no-index", "--find-links", "/srv/wheels"),
        *(f"{EXTRAS}==13.2.*", "nvidia-cuda-crt==13.2.*", "nvidia-nvvm==13.2.*", "cuda-toolkit==13.2.0"),
    ], told
    assert "beside cuda-toolkit 13.2.0: No solution found Name a mirror" in told
    assert refused == []
    assert "cuda_pip_arguments has a URL with a password" in told
    assert "PlantedPassword" not in told
    assert not list(site.folder.glob("*/.installing"))
