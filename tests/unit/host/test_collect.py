from __future__ import annotations

import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.host import collect
from benchmark.host.settings import HostError, Settings

UNIT = """[Service]
Environment="SHARDSWEEP_UNIT=sglang-ep4"
Environment="HF_TOKEN=hunter2-hf"
Environment="HTTPS_PROXY=http://me:proxy-word@proxy:3128"
ExecStart=/opt/venv/bin/python \\
  -m sglang.launch_server \\
  --api-key "se cret%%1" \\
  --max-total-tokens 4096
"""
SCRIPT = "export DB_PASSWORD='pass-word-1'\nexport OMP_NUM_THREADS=8\n"


def test_secrets_are_found_by_the_names_of_flags_and_variables():
    assert collect.secrets_of([UNIT, SCRIPT]) == {"hunter2-hf", "se cret%%1", "pass-word-1"}


def test_a_secret_is_removed_wherever_it_stands():
    log = "ServerArgs(api_key='se cret%1')\nurl http://me:proxy-word@proxy:3128\nBearer abcdef0123\nhunter2-hf!"
    said = collect.without_secrets(log, collect.secrets_of([UNIT]))
    for secret in ("se cret", "proxy-word", "abcdef0123", "hunter2"):
        assert secret not in said
    assert "http://REMOVED@proxy:3128" in said
    assert said.count("\n") == log.count("\n")


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\"'\\"), min_size=6))
def test_any_secret_is_removed(secret):
    secret = f"x{secret.strip()}x"
    found = collect.secrets_of([f'Environment="API_KEY={secret}"\n'])
    assert secret not in collect.without_secrets(f"before {secret} after", found)


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path):
    log = tmp_path / "engine.log"
    log.write_bytes(b"first\n" + b"x" * (collect.HEAD_BYTES + collect.TAIL_BYTES) + b"\nlast\n")
    shown = collect.head_and_tail(log)
    assert shown.startswith("first\n")
    assert shown.endswith("\nlast\n")
    # Twelve bytes more than is kept.
    assert "... 12 bytes left out ..." in shown


def host(tmp_path) -> Settings:
    units = tmp_path / "units"
    units.mkdir()
    (units / "sglang-ep4.conf").write_text("[program:sglang-ep4]\ncommand = /bin/true\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/sglang-ep4.sh").write_text(SCRIPT)
    (tmp_path / "log").mkdir()
    (tmp_path / "log/sglang-ep4.log").write_text("loading\nrank0: NCCL INFO Using network Socket\npass-word-1\n")
    record = tmp_path / "records/ep4/abc/record.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    (record.parent / "requests-chat-c001.jsonl.zst").write_bytes(b"prompts")
    (tmp_path / "switch.json").write_text(json.dumps({"phase": "ready"}))
    return Settings(state=tmp_path, unit_directory=units, manager="supervisor", nvidia_smi=[str(tmp_path / "none")])


def test_an_archive_has_what_a_report_needs_and_no_prompts(tmp_path):
    archive = tmp_path / "report.tar.gz"
    said = collect.collect(host(tmp_path), archive)
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        files = {member.name.removeprefix("report/"): opened.extractfile(member).read().decode() for member in members}
    assert said["files"] == len(files)
    assert said["secrets"] == 1
    assert {"observe.json", "switch.json", "units/units/sglang-ep4.conf", "units/run/sglang-ep4.sh"} <= set(files)
    assert {"records/ep4-abc.json", "log/sglang-ep4.log", "nvidia-smi.txt", "host/os-release.txt"} <= set(files)
    assert files["log/sglang-ep4-nccl.txt"] == "rank0: NCCL INFO Using network Socket\n"
    assert "pass-word-1" not in "".join(files.values())
    assert not any("requests" in name for name in files)
    assert json.loads(files["observe.json"])["gpus"] == "no GPU"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HostError, match=r"nowhere/x.tar.gz cannot be written"):
        collect.collect(host(tmp_path), tmp_path / "nowhere/x.tar.gz")
