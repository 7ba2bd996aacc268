from __future__ import annotations

import gzip
import json
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.host import collect
from benchmark.host.settings import HostError, Settings, write_json

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


def test_after_a_rotation_the_engines_start_is_in_the_packed_log(tmp_path):
    settings = host(tmp_path)
    log = tmp_path / "log/sglang-ep4.log"
    log.write_text("Decode batch\n")
    # As logrotate names them; the engine was started when the second was written.
    for number, at, text in ((1, 300.0, "Decode batch"), (2, 200.0, "rank0: NCCL INFO via SHM"), (3, 100.0, "old")):
        packed = log.with_name(f"{log.name}.{number}.gz")
        packed.write_bytes(gzip.compress(f"{text} {number}\n".encode()))
        os.utime(packed, (at, at))
    write_json(tmp_path / "running.json", {"sglang-ep4": {"started_at": 150.0}})
    assert collect.rotated(log).name == "sglang-ep4.log.1.gz"
    archive = tmp_path / "report.tar.gz"
    collect.collect(settings, archive)
    with tarfile.open(archive) as opened:
        before, said = (
            opened.extractfile(f"report/log/{name}").read()
            for name in ("sglang-ep4-before.log", "sglang-ep4-before-nccl.txt")
        )
    assert before == said == b"rank0: NCCL INFO via SHM 2\n"


def test_a_packed_log_that_is_cut_is_told_and_stops_nothing(tmp_path):
    settings = host(tmp_path)
    (tmp_path / "log/sglang-ep4.log.1.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    archive = tmp_path / "report.tar.gz"
    collect.collect(settings, archive)
    with tarfile.open(archive) as opened:
        told = opened.extractfile("report/log/sglang-ep4-before.log").read()
    assert b"sglang-ep4.log.1.gz: " in told


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (3, ["1", "2", "3"]),
        # Beginning and end overlap: each line once.
        (5, ["1", "2", "3", "4", "5"]),
        (9, ["1", "2", "3", "4", "... lines left out ...", "6", "7", "8", "9"]),
    ],
)
def test_a_journal_keeps_its_beginning_and_its_end(tmp_path, monkeypatch, lines, shown):
    journalctl = tmp_path / "journalctl"
    journalctl.write_text(
        f"#!/bin/sh\ncase $* in *--lines=*) seq 1 {lines} | tail -n ${{4#--lines=}} ;; *) seq 1 {lines} ;; esac\n"
    )
    journalctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(collect, "JOURNAL_LINES", 4)
    assert collect._journal("sglang-ep4").splitlines() == shown


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


def test_what_nccl_writes_into_files_of_its_own_is_taken_from_there(tmp_path, monkeypatch):
    settings = host(tmp_path)
    said, home = tmp_path / "said", tmp_path / "units"
    said.mkdir()
    monkeypatch.setattr(collect.socket, "gethostname", lambda: "gpu1.example.org")
    monkeypatch.setattr(collect, "NCCL_FILES", 2)
    (home / "sglang-tp8.service").write_text(f'[Service]\nEnvironment="NCCL_DEBUG_FILE={said}/50%%%%.%%h.%%p.log"\n')
    (tmp_path / "run/sglang-ep4.sh").write_text(f"{SCRIPT}export NCCL_DEBUG_FILE='{said}/ep4 50%%.log'\n")
    (tmp_path / "run/sglang-ep8.sh").write_text("export NCCL_DEBUG_FILE=nccl.log\n")
    # As NCCL expands it: the host's name up to its first dot, the process, one % for two.
    for name, at in (("50%.gpu1.7.log", 100.0), ("50%.gpu1.88.log", 300.0), ("50%.gpu1.9.log", 200.0),
                     ("50%.gpu2.5.log", 400.0), ("50%.gpu1.x.log", 400.0)):  # fmt: skip
        (said / name).write_text(f"gpu1:7:7 [0] NCCL INFO via SHM {name}\na prompt\n")
        os.utime(said / name, (at, at))
    (said / "ep4 50%.log").write_text("gpu1:7:7 [0] NCCL INFO comment pass-word-1\n")
    monkeypatch.setattr(collect, "_unit_files", lambda _: [*home.glob("*.service"), *(tmp_path / "run").glob("*.sh")])
    collect.collect(settings, tmp_path / "report.tar.gz")
    with tarfile.open(tmp_path / "report.tar.gz") as opened:
        texts = {name: opened.extractfile(name).read().decode() for name in opened.getnames() if "/nccl/" in name}
    folder = "-".join(said.parts[1:])
    assert texts.pop("report/nccl/files.txt").splitlines() == [
        f"{said}/50%%.%h.%p.log (units/sglang-tp8.service): 3 there, the newest 2 here",
        f"{said}/ep4 50%%.log (run/sglang-ep4.sh): 1 there, the newest 1 here",
        "nccl.log (run/sglang-ep8.sh): none could be seen; look there by hand",
    ]
    assert texts == {
        f"report/nccl/{folder}-50%.gpu1.88.log": "gpu1:7:7 [0] NCCL INFO via SHM 50%.gpu1.88.log\n",
        f"report/nccl/{folder}-50%.gpu1.9.log": "gpu1:7:7 [0] NCCL INFO via SHM 50%.gpu1.9.log\n",
        f"report/nccl/{folder}-ep4 50%.log": "gpu1:7:7 [0] NCCL INFO comment REMOVED\n",
    }


def test_a_broken_nvidia_smi_leaves_the_rest_of_what_is_seen(tmp_path):
    here = host(tmp_path)
    (tmp_path / "none").write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n"
    )
    (tmp_path / "none").chmod(0o755)
    collect.collect(here, tmp_path / "report.tar.gz")
    with tarfile.open(tmp_path / "report.tar.gz") as opened:
        seen = json.load(opened.extractfile("report/observe.json"))
    said = "nvidia-smi failed (exit 18): Failed to initialize NVML: Driver/library version mismatch."
    assert seen["gpus"] == f"unknown: {said}"
    assert (seen["manager"], seen["serving"], seen["lease"]) == ("supervisor", [], None)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HostError, match=r"nowhere/x.tar.gz cannot be written"):
        collect.collect(host(tmp_path), tmp_path / "nowhere/x.tar.gz")
