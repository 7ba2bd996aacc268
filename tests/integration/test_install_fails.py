"""What the roles say when something that they run fails or does not end; a stand-in is what they run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Site, said

pytestmark = pytest.mark.slow


def stand_in(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def refused(site: Site, role: str, tasks: str, **variables: Any) -> str:
    """All that is printed by a part of a role, which must fail."""
    step = {"ansible.builtin.include_role": {"name": f"shardsweep.serving.{role}", "tasks_from": tasks}}
    facts = ["!all", "!min", "user"]
    play = {"hosts": "here", "gather_facts": True, "gather_subset": facts, "tasks": [step]}
    (site.folder / "play.yml").write_text(yaml.safe_dump([play]))
    done = site.play(str(site.folder / "play.yml"), **variables)
    assert done.returncode == 2, said(done)
    return said(done)


def download(site: Site, then: str, **more: Any) -> str:
    plan = '{"files": 1, "needed_bytes": 1, "free_bytes": 1000}'
    # It reads the program as Python does: nobody can write to a process that has ended.
    python = stand_in(site.folder / "python", f"cat >/dev/null; case $2 in plan) echo '{plan}';; *) {then};; esac")
    variables = {
        "sglang_model_python": python,
        "sglang_model_folder": str(site.folder / "model"),
        "sglang_model_repository": "moonshotai/Kimi-K2.6",
        "sglang_model_commit": "a" * 40,
        "sglang_model_token": "hf_secret",
        "sglang_model_spare_bytes": 0,
        "__sglang_model_poll_seconds": 1,
    }
    return refused(site, "sglang_model", "download.yml", **variables | more)


def test_a_download_that_fails_says_why_and_not_the_token(site):
    told = download(site, "echo 403: the license of moonshotai/Kimi-K2.6 was not accepted >&2; exit 1")
    assert "moonshotai/Kimi-K2.6 was not fetched into" in told
    assert "403: the license of moonshotai/Kimi-K2.6 was not accepted" in told
    assert "hf_secret" not in told


def test_a_download_that_takes_too_long_says_how_it_goes_on(site):
    told = download(site, "sleep 60", sglang_model_download_seconds=2)
    assert "it did not end within sglang_model_download_seconds (2). Run this again, which goes on" in told


@pytest.mark.parametrize("script", ["sleep 60", "trap '' TERM; sleep 60 & wait; wait"])
def test_an_engine_that_does_not_come_up_is_told_by_its_time_limit(site, script):
    venv = site.folder / "venv-0.5.11-abcdef01"
    stand_in(venv / "bin/python", script)
    told = refused(site, "sglang", "verify.yml", sglang_venv=str(venv), sglang_user="", sglang_verify_seconds=1)
    assert "it did not end within 1 s (sglang_verify_seconds); look at the disk" in told
    assert "non-zero return code" not in told


def test_a_plan_does_not_wait_for_an_nvidia_smi_that_takes_no_signal(site, monkeypatch):
    stand_in(site.folder / "bin/nvidia-smi", "trap '' TERM; sleep 60 & wait; wait")
    monkeypatch.setenv("PATH", f"{site.folder}/bin:{os.environ['PATH']}")
    began = time.monotonic()
    done = site.play("playbooks/plan.yml", sglang_service_engine="sglang", __cards_seconds=2)
    assert time.monotonic() - began < 50
    assert "nvidia-smi shows no GPU on here (it did not end within 2 s; look at dmesg). Say what to plan" in said(done)


def test_a_folder_of_somebody_elses_is_not_given_to_the_engine(site):
    data = site.folder / "data"
    (data / "home").mkdir(parents=True)
    told = refused(
        *(site, "sglang_service", "account.yml"),
        sglang_service_manager="systemd", sglang_service_cache=str(data), sglang_service_user="nobody",
    )  # fmt: skip
    assert (
        f"sglang_service_cache ({data}) on here belongs to {data.owner()} and holds home: it would be given to" in told
    )
    assert (data / "home").owner() == data.owner() == site.folder.owner()


def test_an_engine_that_fails_is_told_by_its_last_line(site):
    venv = site.folder / "venv-0.5.11-abcdef01"
    stand_in(venv / "bin/python", "cat >/dev/null; echo ImportError: kernels >&2; exit 1")
    told = refused(site, "sglang", "verify.yml", sglang_venv=str(venv), sglang_user="")
    assert "does not work for" in told
    assert "ImportError: kernels What was in use stays in use." in told


def test_a_tokenizer_that_does_not_load_in_time(site):
    python = stand_in(site.folder / "python", "sleep 60")
    looked = {"rc": 0, "stdout": '{"whole": true, "revision": "0", "python_files": []}'}
    variables = {"sglang_model_python": python, "sglang_model_user": "", "__sglang_model_load_seconds": 1}
    told = refused(site, "sglang_model", "load.yml", __sglang_model_look=looked, sglang_model_path="/m", **variables)
    assert "do not load without a network: it did not end within 1 s; look at the disk" in told
