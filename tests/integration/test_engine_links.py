"""The engine that is installed and the unit that is written for it: release, folders, an upgrade under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import Site, said

RELEASE = "0.5.23"


def install(site: Site, lock: str, release: str = RELEASE) -> Path:
    """What the roles sglang and cuda (wheels) leave: an environment, the links to it, the host fact."""
    home = site.folder / "sglang"
    venv = home / f"venv-{release}-{lock}"
    (venv / "bin").mkdir(parents=True)
    (venv / "nvidia").mkdir()
    (venv / "cuda").symlink_to("nvidia")
    for link, target in (("venv", venv.name), ("cuda", "venv/cuda")):
        (home / link).unlink(missing_ok=True)
        (home / link).symlink_to(target)
    facts = site.folder / "facts.d"
    facts.mkdir(exist_ok=True)
    (facts / "sglang_engine.fact").write_text(json.dumps({"release": release, "venv": str(venv)}))
    return venv


@pytest.fixture
def engine(site) -> Site:
    """A site of the real engine, up to the unit's text: nothing is started."""
    site.variables |= {
        "sglang_service_engine": "sglang",
        "sglang_home": str(site.folder / "sglang"),
        "sglang_fact_path": str(site.folder / "facts.d"),
        "sglang_model_path": str(site.folder / "model"),
        "sglang_configs": {"ep4": {"description": "Experts in four groups", "engine": {"tp_size": 8, "ep_size": 4}}},
    }
    (site.state / "run").mkdir(parents=True)
    steps = [
        {"ansible.builtin.include_role": {"name": f"shardsweep.serving.{role}", "tasks_from": file, "public": True}}
        for role, file in (
            ("sglang_tools", "defaults.yml"),
            ("sglang_service", "engine.yml"),
            ("sglang_service", "installed.yml"),
            ("sglang_service", "validate.yml"),
            ("sglang_service", "render.yml"),
            ("sglang_benchmark", "defaults.yml"),
        )
    ]
    kept = {"content": "{{ __sglang_benchmark_shared.engine | to_json }}", "dest": str(site.state / "run/engine.json")}
    steps.append({"ansible.builtin.copy": kept | {"mode": "0644"}})
    play = {"hosts": "here", "gather_facts": False, "tasks": steps, "vars": {"sglang_service_config": "ep4"}}
    (site.folder / "render.yml").write_text(yaml.safe_dump([play]))
    return site


def launch(site: Site, **variables) -> str:
    (site.state / "units").mkdir(exist_ok=True)
    done = site.play(str(site.folder / "render.yml"), **variables)
    assert done.returncode == 0, said(done)
    return (site.state / "run/sglang-ep4.sh").read_text()


def measured(site: Site) -> str:
    """Which engine a record would say was measured."""
    return json.loads((site.state / "run/engine.json").read_text())["environment"]


def fingerprint(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("# Fingerprint ")]
    return line.split()[-1]


def test_a_unit_names_the_environment_itself_and_an_upgrade_of_the_link_is_another_fingerprint(engine):
    old = install(engine, "aaaaaaaa")
    before = launch(engine, sglang_release=RELEASE)
    assert f"exec {old}/bin/python " in before
    assert f"export CUDA_HOME={old}/nvidia\n" in before
    assert f"export PATH={old}/bin:{old}/nvidia/bin:/usr/local/sbin:" in before
    assert measured(engine) == f"venv-{RELEASE}-aaaaaaaa"
    # Another lock of the same release: what was rendered still names the old one, and what is rendered now is another.
    new = install(engine, "bbbbbbbb")
    after = launch(engine, sglang_release=RELEASE)
    assert str(old) not in after
    assert f"exec {new}/bin/python " in after
    assert fingerprint(before) != fingerprint(after)
    assert measured(engine) == f"venv-{RELEASE}-bbbbbbbb"


def test_one_setting_names_the_release_that_is_installed_and_written_for(engine):
    install(engine, "aaaaaaaa")
    refused = engine.play(str(engine.folder / "render.yml"), sglang_release="0.5.11")
    assert refused.returncode != 0
    assert f"has SGLang {RELEASE} in {engine.folder}/sglang/venv-{RELEASE}-aaaaaaaa" in said(refused)
    assert "Set sglang_release" in said(refused)
    assert launch(engine, sglang_release=RELEASE)


@pytest.mark.parametrize("place", ["own/bin", "own"])
def test_an_engine_that_the_role_did_not_install_has_no_release_to_differ_from(engine, place):
    install(engine, "aaaaaaaa")
    own = engine.folder / place
    own.mkdir(parents=True)
    assert f"exec {own}/python " in launch(engine, sglang_service_python=f"{own}/python", sglang_release="0.5.11")
    assert measured(engine) == f"{own}/python"


def test_two_releases_for_one_host_are_refused_before_anything_is_installed(engine):
    play = {"hosts": "here", "gather_facts": False, "roles": ["shardsweep.serving.sglang"]}
    (engine.folder / "install.yml").write_text(yaml.safe_dump([play]))
    refused = engine.play(
        str(engine.folder / "install.yml"), sglang_release="0.5.11", sglang_service_release=RELEASE, sglang_user=""
    )
    assert refused.returncode != 0
    assert f"sglang_service_release is {RELEASE} and sglang_release 0.5.11" in said(refused)
    assert not (engine.folder / "sglang").exists()


def test_a_graph_file_is_held_against_the_gpus_of_the_host(engine):
    install(engine, "aaaaaaaa")
    nvidia_smi = engine.folder / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\nseq 0 7\n")
    nvidia_smi.chmod(0o755)
    four = {"description": "Half of the host", "engine": {"tp_size": 4}, "environment": {"NCCL_GRAPH_FILE": "/g.xml"}}
    engine.variables |= {"sglang_configs": {"ep4": four}, "sglang_service_nvidia_smi": [str(nvidia_smi)]}
    refused = engine.play(str(engine.folder / "render.yml"), sglang_release=RELEASE)
    assert refused.returncode != 0
    assert "NCCL_GRAPH_FILE describes 8 GPUs, and this split has tensor-parallel groups of 4" in said(refused)


def test_a_variable_of_the_host_does_not_take_the_compiler_away(engine):
    # docs/hosts.md asks for one; PATH and CUDA_HOME stay, or a start hangs in a compile.
    venv = install(engine, "aaaaaaaa")
    engine.variables["sglang_service_environment"] = {"NCCL_SOCKET_IFNAME": "eth1", "LD_LIBRARY_PATH": "/srv/lib"}
    text = launch(engine, sglang_release=RELEASE)
    assert "export NCCL_SOCKET_IFNAME=eth1\n" in text
    assert f"export CUDA_HOME={venv}/nvidia\n" in text
    assert f"export PATH={venv}/bin:" in text
    assert "export LD_LIBRARY_PATH=/srv/lib\n" in text
