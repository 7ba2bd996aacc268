"""The model that a unit is written for: how its folder is named, and the revision that it is pinned to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Site, said

pytestmark = pytest.mark.slow

ENTRY = {"description": "Experts in four groups", "engine": {"tp_size": 8, "ep_size": 4}}
TRUSTING = {"sglang_configs": {"ep4": ENTRY | {"engine": ENTRY["engine"] | {"trust_remote_code": True}}}}
STEPS = (("sglang_tools", "defaults.yml"), ("sglang_service", "model.yml"), ("sglang_service", "validate.yml"))


@pytest.fixture
def host(site) -> Site:
    """A site of the real engine, up to the command line: nothing is rendered or started."""
    model = site.folder / "models/Kimi-K2.6"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["KimiForCausalLM"]}')
    (model / "modeling_kimi.py").write_text("# as it was looked at\n")
    known = site.folder / "known.json"
    known.write_text(
        json.dumps({"state": str(site.state), "unit_directory": str(site.state / "units"), "manager": "supervisor"})
    )
    site.variables |= {
        "sglang_service_engine": "sglang",
        "sglang_model_path": str(model),
        "sglang_model_fact_path": str(site.folder / "facts.d"),
        "sglang_configs": {"ep4": ENTRY},
    }
    tasks = [
        {"ansible.builtin.include_role": {"name": f"shardsweep.serving.{role}", "tasks_from": file, "public": True}}
        for role, file in STEPS
    ]
    tasks.append({"ansible.builtin.copy": {"dest": str(site.folder / "told.json"), "content": TOLD, "mode": "0644"}})
    play = {"hosts": "here", "gather_facts": False, "tasks": tasks, "vars": {"sglang_service_config": "ep4"}}
    play["environment"] = {"PYTHONPATH": str(ROOT)}
    (site.folder / "validate.yml").write_text(yaml.safe_dump([play]))
    return site


TOLD = "{{ {'flags': __sglang_service_flags, 'revision': sglang_service_model_revision} | to_json }}"


def validate(host: Site, *arguments: str, **variables):
    # Of these sources, and not of an installation.
    verb = [sys.executable, "-m", "benchmark.host", "--settings", str(host.folder / "known.json")]
    return host.play(str(host.folder / "validate.yml"), *arguments, **{"sglang_tools_verb": verb} | variables)


def told(host: Site) -> dict:
    return json.loads((host.folder / "told.json").read_text())


def install(host: Site, folder: Path) -> str:
    """What the role sglang_model leaves: the answer of the verb `model` as the host fact."""
    from benchmark.engine import model_files

    seen = model_files.look_at(folder)
    (host.folder / "facts.d").mkdir(exist_ok=True)
    (host.folder / "facts.d/sglang_model.fact").write_text(json.dumps({"path": seen.path, "revision": seen.revision}))
    return seen.revision


def test_a_slash_at_the_end_of_the_path_is_the_same_model(host):
    model = host.variables["sglang_model_path"]
    revision = install(host, Path(model))
    for written in (f"{model}/", model.replace("/models/", "//models/./")):
        done = validate(host, sglang_model_path=written)
        assert done.returncode == 0, said(done)
        assert told(host)["revision"] == revision
        assert ["--served-model-name", "kimi-k2.6"] in told(host)["flags"]
        assert ["--model-path", written.rstrip("/")] in told(host)["flags"]


def test_a_model_without_a_name_is_refused(host):
    done = validate(host, sglang_model_path="/")
    assert done.returncode == 2
    assert "The model would be served under an empty name on here: sglang_model_path is '/'" in said(done)


def test_a_pin_is_held_against_what_lies_there_now(host):
    model = Path(host.variables["sglang_model_path"])
    revision = install(host, model)
    pinned = {"sglang_model_revision": revision[:12]}
    done = validate(host, **pinned, **TRUSTING)
    assert done.returncode == 0, said(done)
    # Whoever replaces the code leaves the host fact as it is.
    (model / "modeling_kimi.py").write_text("# not as it was looked at\n")
    for more in ({}, TRUSTING):
        done = validate(host, **pinned, **more)
        assert done.returncode == 2
        assert f"not {revision[:12]} as sglang_model_revision says. See what changed" in said(done)


def test_a_pin_does_not_hold_code_of_another_repository(host):
    model = Path(host.variables["sglang_model_path"])
    (model / "preprocessor_config.json").write_text('{"auto_map": {"AutoProcessor": "evil/repo--code.P"}}')
    pinned = {"sglang_model_revision": install(host, model)}
    done = validate(host, **pinned, **TRUSTING)
    assert done.returncode == 2
    assert "names evil/repo--code.P, which is not among the folder's own files" in said(done)
    assert validate(host, **pinned).returncode == 0


def test_a_pin_counts_on_a_host_that_nobody_looked_at(host):
    done = validate(host, sglang_model_revision="000000000000", **TRUSTING)
    assert done.returncode == 2
    assert "Kimi-K2.6 on here holds revision" in said(done)
    (Path(host.variables["sglang_model_path"]) / "config.json").unlink()
    done = validate(host, sglang_model_revision="000000000000", **TRUSTING)
    assert done.returncode == 2
    assert "holds no model whose revision can be told" in said(done)


def test_the_refusal_of_a_models_own_code_names_what_lies_there(host):
    revision = install(host, Path(host.variables["sglang_model_path"]))
    (host.folder / "facts.d/sglang_model.fact").unlink()
    done = validate(host, **TRUSTING)
    assert done.returncode == 2
    told = said(done)
    assert f"(modeling_kimi.py). Look at it, then pin it in your inventory: sglang_model_revision: {revision}" in told


def test_without_the_tools_a_pin_is_refused_but_in_check_mode(host):
    absent = {"sglang_tools_verb": [str(host.folder / "absent")], "sglang_model_revision": "000000000000"}
    done = validate(host, **absent)
    assert done.returncode == 2
    assert "The tools on here cannot look at" in said(done)
    assert validate(host, "--check", **absent).returncode == 0
