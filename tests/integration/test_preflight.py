"""The role gpu_host as a user meets it: Ansible, the verbs, simulated GPUs; and all-reduces by torch where it is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLAY = """
- hosts: all
  gather_facts: false
  vars:
    sglang_tools_settings: "{{ folder }}/state/settings.json"
    sglang_tools_verb: ["{{ python }}", -m, benchmark.host, --settings, "{{ sglang_tools_settings }}"]
    gpu_host_fact_path: "{{ folder }}/facts.d"
    gpu_host_communication_python: "{{ python }}"
    gpu_host_communication_seconds: 60
    gpu_host_communication_user: ""
  environment:
    PYTHONPATH: "{{ root }}"
  roles:
    - shardsweep.serving.gpu_host
"""
SICK = """#!/bin/sh
case "$*" in
  *query-gpu*)
    echo 'index, name, memory.total [MiB], memory.used [MiB], pcie.link.width.current, pcie.link.width.max'
    echo '0, NVIDIA L40S, 46068 MiB, 1 MiB, 16, 16'
    echo '1, NVIDIA L40S, 46068 MiB, 1 MiB, 1, 16' ;;
esac
"""


def settings(folder: Path, **more) -> None:
    known = {
        "state": str(folder / "state"),
        "unit_directory": str(folder / "units"),
        "manager": "supervisor",
        "engine": "simulated",
        "port": 30361,
        "nvidia_smi": [sys.executable, "-m", "benchmark.simulator.nvidia_smi"],
        "environment": {"SHARDSWEEP_SIMULATED_HARDWARE": "8x RTX PRO 6000 Blackwell"},
    }
    (folder / "state").mkdir(parents=True, exist_ok=True)
    (folder / "state/settings.json").write_text(json.dumps(known | more))


def play(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "play.yml").write_text(PLAY)
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    known = {"folder": str(folder), "python": sys.executable, "root": str(ROOT)}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"here": host}, "vars": known}}))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            "-i",
            str(folder / "hosts.yml"),
            str(folder / "play.yml"),
            *arguments,
        ],
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(folder / "ansible")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_host_in_good_order_twice(tmp_path):
    settings(tmp_path)
    first = play(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition" in first.stdout
    fact = json.loads((tmp_path / "facts.d/sglang_preflight.fact").read_text())
    assert (fact["simulated"], len(fact["gpus"]), fact["verdicts"]["link_width"]) == (True, 8, "ok")
    known = json.loads((tmp_path / "state/host.json").read_text())
    assert known["gpus"][7]["pcie_width_max"] == 16
    assert "GPU7" in known["topology"]
    second = play(tmp_path)
    assert "changed=0" in second.stdout, second.stdout


def test_the_gpus_that_the_inventory_names_are_judged(tmp_path):
    settings(tmp_path)
    named = {"sglang_service_environment": {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}}
    answer = play(tmp_path, "-e", json.dumps(named))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = " ".join(answer.stdout.split())
    assert "4 x NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887 MiB, of 8 that are there" in told


def test_a_host_that_is_not_fit(tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SICK)
    smi.chmod(0o755)
    settings(tmp_path, nvidia_smi=[str(smi)])
    answer = play(tmp_path)
    assert answer.returncode == 2
    told = " ".join(answer.stdout.split())
    assert "here is not fit to serve. link_width: GPU 1 x1 of x16. Mend: Reboot" in told
    accepted = play(tmp_path, "-e", '{"gpu_host_accept": ["link_width"]}')
    assert accepted.returncode == 0, accepted.stdout


def test_a_bare_host_in_check_mode(tmp_path):
    answer = play(tmp_path, "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "so nothing was checked" in answer.stdout
    assert "changed=0" in answer.stdout
    assert not (tmp_path / "facts.d").exists()


def test_check_mode_where_the_tools_are_writes_nothing(tmp_path):
    settings(tmp_path)
    answer = play(tmp_path, "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition" in answer.stdout
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["settings.json"]
    assert not (tmp_path / "facts.d").exists()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed beside the tests")
def test_all_reduces_by_gloo(tmp_path):
    settings(tmp_path, engine="sglang", nvidia_smi=[str(tmp_path / "absent")])
    answer = play(tmp_path, "-e", "gpu_host_communication=true")
    assert answer.returncode == 0, answer.stdout
    known = json.loads((tmp_path / "state/host.json").read_text())
    results = known["communication"]["runs"][0]["results"]
    assert [(r["ranks"], r["backend"], r["outcome"]) for r in results] == [(2, "gloo", "ok"), (4, "gloo", "ok")]
