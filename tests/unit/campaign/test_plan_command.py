"""`shardsweep plan` as its user sees it: what it prints, what it rests on, and its exit status."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmark.campaign import plan_command
from benchmark.cli import application

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = ROOT / "docs" / "evidence" / "h200-one-gpu" / "campaigns"
HOST = ["--hardware", "1x H200", "--model", "mini-moe"]


@pytest.fixture(autouse=True)
def no_campaigns_of_this_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(plan_command, "CAMPAIGNS", tmp_path / "none")


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("sglang_site_configs:\n  one:\n    engine: {mem_fraction_static: 0.7, max_running_requests: 64}\n")
    return ["--catalogue", str(path)]


def plan(*words):
    return CliRunner().invoke(application, ["plan", *map(str, words)], env={"COLUMNS": "140"})


def planned(*words):
    answer = plan("one", *HOST, "--json", *words)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)[0]


def test_the_catalogue_says_what_is_wrong_without_another_page():
    answer = plan()
    assert answer.exit_code == 1
    text = " ".join(answer.stdout.split())
    assert "tp4ep2: Will not fit: it uses 4 of 8 GPUs" in text
    assert "expert parallelism divides the tensor-parallel group and adds none" in text
    assert "request of 672.00 MiB" in text
    assert "tp2ep4: ep 4 is larger than tp 2" in text
    assert "(rule: will-not-fit)" in text and "(rule: ep-larger-than-tp)" in text
    assert "num_continuous_decode_steps is parsed by SGLang 0.5.11 and read by nothing" in text


def test_hardware_from_what_nvidia_smi_printed(catalogue, tmp_path):
    """A card with 12 GiB less holds that much less of KV cache, times its fraction, and the same weights."""
    told = tmp_path / "gpus.csv"
    told.write_text("name, memory.total [MiB], pcie.link.gen.max\nNVIDIA H200, 143771 MiB, 5\n")
    assert planned(*catalogue, "--hardware", told) == planned(*catalogue)
    told.write_text("name, memory.total [MiB], pcie.link.gen.max\nNVIDIA H200, 131483 MiB, 5\n")
    small, whole = planned(*catalogue, "--hardware", told), planned(*catalogue)
    assert planned(*catalogue, "--hardware", told.read_text()) == small
    assert small["weights_bytes"] == whole["weights_bytes"]
    # 12,288 MiB less at a fraction of 0.7.
    fewer = (whole["memory"]["kv_pool_bytes"] - small["memory"]["kv_pool_bytes"]) / 2**20
    assert fewer == pytest.approx(0.7 * 12288, rel=0.01)
    told.write_text("no GPU here\n")
    refused = plan("one", *catalogue, "--hardware", told)
    assert refused.exit_code == 2
    assert "nvidia-smi told no GPU" in refused.stderr


def test_exit_status_follows_the_verdict(catalogue):
    assert plan("tp8").exit_code == 0
    assert plan("tp8", "tp2ep4").exit_code == 1
    assert plan("no_such").exit_code == 2
    assert plan("one", *catalogue, "--hardware", "8x Abacus").exit_code == 2


def test_an_unknown_architecture_is_said_to_be_unknown(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Sibyl"], "model_type": "sibyl"}))
    answer = plan("tp8", "--model", tmp_path)
    assert answer.exit_code == 2
    assert "architecture Sibyl is not known to the planner" in " ".join(answer.output.split())


def test_a_rule_is_explained():
    answer = plan("--explain", "ep-larger-than-tp")
    text = " ".join(answer.stdout.split())
    assert answer.exit_code == 0
    assert "The engine says: ZeroDivisionError: integer division or modulo by zero" in text
    assert "Instead:" in text
    assert "Source:" in text
    listed = plan("--explain", "list").stdout.splitlines()
    assert "ep-larger-than-tp: ep_size cannot be larger than tp_size" in listed
    assert len(listed) > 50
    near = plan("--explain", "ep-larger-than-tq")
    assert near.exit_code == 2
    assert "ep-larger-than-tp" in near.output


def test_campaigns_of_the_host_correct_the_plan(catalogue):
    answer = plan("one", *HOST, *catalogue, "--calibrate", EVIDENCE)
    assert "calibrated on mini-moe-short, k2-slice-short/h200 (" in answer.stdout
    assert "2026-11-29): 12 starts, 42 measurements" in answer.stdout
    corrected, plain = planned(*catalogue, "--calibrate", EVIDENCE), planned(*catalogue)
    assert plain["calibrated_on"] is None
    assert corrected["calibrated_on"].startswith("mini-moe-short, k2-slice-short/h200")
    # TPOT at one user is 1.53 to 1.71 ms over the seven starts.
    assert 1 / 0.00171 < corrected["speed"]["single_user"]["expected"] < 1 / 0.00153
    width = {key: found["speed"]["single_user"] for key, found in (("corrected", corrected), ("plain", plain))}
    assert width["corrected"]["high"] / width["corrected"]["low"] < width["plain"]["high"] / width["plain"]["low"]
    # 5.062 GiB in every start.
    assert corrected["weights_bytes"] / 2**30 == pytest.approx(5.062, abs=0.001)


def test_the_projects_own_campaigns_are_found_and_can_be_left_out(catalogue, monkeypatch):
    monkeypatch.setattr(plan_command, "CAMPAIGNS", EVIDENCE)
    assert planned(*catalogue)["calibrated_on"]
    assert planned(*catalogue, "--no-calibration")["calibrated_on"] is None
    # Another release, or more GPUs, is another host.
    assert planned(*catalogue, "--release", "0.5.12.post1")["calibrated_on"] is None
    assert json.loads(plan("one", *catalogue, "--hardware", "2x H200", "--json").stdout)[0]["calibrated_on"] is None


def test_a_simulated_engine_never_speaks_for_a_real_one(catalogue, tmp_path, monkeypatch):
    shutil.copytree(EVIDENCE, tmp_path / "campaigns")
    for path in (tmp_path / "campaigns").rglob("record.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"engine": record["engine"] | {"name": "simulated"}}))
    monkeypatch.setattr(plan_command, "CAMPAIGNS", tmp_path / "campaigns")
    assert planned(*catalogue)["calibrated_on"] is None
    assert planned(*catalogue, "--simulated")["calibrated_on"]
    monkeypatch.setattr(plan_command, "CAMPAIGNS", EVIDENCE)
    assert planned(*catalogue, "--simulated")["calibrated_on"] is None


def test_a_folder_that_teaches_nothing_is_refused(catalogue, tmp_path):
    answer = plan("one", *HOST, *catalogue, "--calibrate", tmp_path)
    assert answer.exit_code == 2
    assert "so it calibrates nothing" in answer.output
    other = plan("one", *HOST, *catalogue, "--calibrate", EVIDENCE, "--host", "gpu9")
    assert other.exit_code == 2
    assert "named gpu9" in other.output


def test_damaged_records_are_passed_over(catalogue, tmp_path):
    shutil.copytree(EVIDENCE, tmp_path / "campaigns")
    kept = tmp_path / "campaigns" / "mini-moe-short" / "h200" / "mini"
    next(kept.rglob("record.json")).write_text('{"engine": ')
    assert "11 starts" in planned(*catalogue, "--calibrate", tmp_path / "campaigns")["calibrated_on"]


@pytest.mark.parametrize("words", [[], ["--search"]])
def test_a_narrow_screen_cuts_no_word(words):
    wide, narrow = (
        CliRunner().invoke(application, ["plan", "--no-calibration", *words], env={"COLUMNS": columns}).stdout
        for columns in ("200", "80")
    )
    assert "…" not in narrow
    # Every risk in the wide table's column is told in full below or beside the narrow one.
    risks = [line.split("  ")[-1].strip() for line in wide.splitlines() if "runs" in line and "/8" in line]
    told = " ".join(narrow.split())
    assert risks
    assert all(word in told for risk in risks for word in risk.split())


def test_search_lists_entries_ready_to_paste(tmp_path):
    answer = plan("--search", "--no-calibration")
    assert answer.exit_code == 0
    pasted = tmp_path / "found.yml"
    pasted.write_text(answer.stdout[answer.stdout.index("sglang_site_configs:") :])
    entries = yaml.safe_load(pasted.read_text())["sglang_site_configs"]
    # As the catalogue's own baseline has it.
    assert entries["split_tp8_ep8"]["environment"]["NCCL_IB_DISABLE"] == "1"
    again = plan("split_tp8_ep8", "--catalogue", pasted, "--json")
    assert json.loads(again.stdout)[0]["verdict"] in ("runs", "doubtful")
