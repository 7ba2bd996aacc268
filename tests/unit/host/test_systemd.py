"""systemd's answers as two real hosts gave them (Debian 12 with systemd 252, Debian 13 with 257)."""

from __future__ import annotations

import time

import pytest

from benchmark.host import clock, switch
from benchmark.host.settings import HostError, Settings, write_json
from benchmark.host.systemd import Systemd

RUNS = """MainPID=2417
Result=success
NRestarts=0
ExecMainStartTimestampMonotonic=1000000
ExecMainCode=0
ExecMainStatus=0
ControlGroup=/system.slice/sglang-ep4.service
ActiveState=active
SubState=running"""
NO_USER = """MainPID=0
Result=exit-code
NRestarts=0
ExecMainStartTimestampMonotonic=1000000
ExecMainCode=1
ExecMainStatus=217
ControlGroup=
ActiveState=failed
SubState=failed"""
CRASHED_AND_TO_COME_BACK = """MainPID=0
Result=success
NRestarts=2
ExecMainStartTimestampMonotonic=1000000
ExecMainCode=2
ExecMainStatus=9
ControlGroup=
ActiveState=activating
SubState=auto-restart"""
NEVER_RAN = """MainPID=0
Result=success
NRestarts=0
ExecMainStartTimestampMonotonic=0
ExecMainCode=0
ExecMainStatus=0
ControlGroup=
ActiveState=inactive
SubState=dead"""


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A manager whose systemctl writes down what it is asked, and answers with the file `answer`."""
    command = tmp_path / "bin/systemctl"
    command.parent.mkdir()
    lines = [
        "#!/bin/sh",
        f'echo "$@" >> {tmp_path}/asked',
        f"cat {tmp_path}/answer",
        f'exit "$(cat {tmp_path}/status)"',
    ]
    command.write_text("\n".join(lines))
    command.chmod(0o755)
    (tmp_path / "answer").write_text("")
    (tmp_path / "status").write_text("0")
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return Systemd(Settings(state=tmp_path, unit_directory=tmp_path / "units"))


def state(manager, tmp_path, answer):
    (tmp_path / "answer").write_text(answer)
    return manager.state("sglang-ep4")


def test_a_unit_that_runs(manager, tmp_path):
    seen = state(manager, tmp_path, RUNS)
    assert (seen.activity, seen.pid, seen.exit_code, seen.exit_signal) == ("active", 2417, None, None)
    # One second after the machine's start.
    assert seen.started_at == pytest.approx(time.time() - time.monotonic() + 1, abs=1)


def test_a_unit_whose_user_is_not_there_says_so(manager, tmp_path):
    seen = state(manager, tmp_path, NO_USER)
    assert (seen.activity, seen.running, seen.exit_code) == ("failed", False, 217)
    assert seen.refusal.sentence == (
        "systemd could not start sglang-ep4.service: its user is not there (status 217/USER)."
    )
    assert "sglang_service_user" in seen.refusal.advice


@pytest.mark.parametrize(
    ("status", "words", "mend"),
    [
        (203, "its program is not there or may not be executed by its user (status 203/EXEC)", "playbooks/install.yml"),
        (
            226,
            "its view of the file system could not be made (status 226/NAMESPACE)",
            "systemctl cat sglang-ep4.service",
        ),
        (209, "its log file could not be opened (status 209/STDOUT)", "/log/sglang-ep4.log"),
        (205, "a limit could not be set (status 205/LIMITS)", "journalctl -u sglang-ep4.service"),
        # One of systemd's range that this project has no word for.
        (237, "see systemd.exec(5), process exit codes (status 237)", "journalctl -u sglang-ep4.service"),
    ],
)
def test_each_step_of_systemds_own_is_named(manager, tmp_path, status, words, mend):
    seen = state(manager, tmp_path, NO_USER.replace("217", str(status)))
    assert seen.refusal.sentence == f"systemd could not start sglang-ep4.service: {words}."
    assert mend in seen.refusal.advice


@pytest.mark.parametrize("status", [0, 1, 2, 137, 199, 250])
def test_a_status_of_the_engines_own_is_no_refusal_of_systemds(manager, tmp_path, status):
    assert state(manager, tmp_path, NO_USER.replace("217", str(status))).refusal is None


def test_a_signal_of_that_number_is_no_refusal_either(manager, tmp_path):
    assert state(manager, tmp_path, NO_USER.replace("ExecMainCode=1", "ExecMainCode=2")).refusal is None


def test_a_start_that_systemd_refuses_fails_with_its_words(manager, tmp_path):
    settings = Settings(state=tmp_path, unit_directory=tmp_path / "units")
    (tmp_path / "answer").write_text(NO_USER)
    began = {"configuration": "ep4", "started_at": time.time(), "log_offset": 0}
    write_json(tmp_path / "running.json", {"sglang-ep4": began})
    failure = switch.death(settings, "ep4")
    assert (failure["kind"], failure["stage"], failure["may_pass"]) == ("not_started", "process", False)
    assert "217/USER" in failure["sentence"]
    assert "left no word" not in failure["sentence"]


def test_a_crash_that_systemd_mends_counts_as_running_and_tells_of_it(manager, tmp_path):
    seen = state(manager, tmp_path, CRASHED_AND_TO_COME_BACK)
    assert (seen.activity, seen.pid, seen.exit_code, seen.exit_signal) == ("starting", None, None, 9)
    assert seen.detail == "auto-restart (success); restarted 2 times"


def test_a_core_dump_is_a_signal(manager, tmp_path):
    dumped = NO_USER.replace("ExecMainCode=1", "ExecMainCode=3").replace("ExecMainStatus=217", "ExecMainStatus=11")
    seen = state(manager, tmp_path, dumped)
    assert (seen.exit_code, seen.exit_signal) == (None, 11)


def test_a_process_that_the_kernel_killed_for_memory_is_told_of(manager, tmp_path):
    settings = Settings(state=tmp_path, unit_directory=tmp_path / "units")
    (tmp_path / "answer").write_text(NO_USER.replace("Result=exit-code", "Result=oom-kill").replace("=217", "=0"))
    write_json(tmp_path / "running.json", {"sglang-ep4": {"configuration": "ep4", "began": clock.mark()}})
    failure = switch.death(settings, "ep4")
    assert (failure["kind"], failure["may_pass"]) == ("host_memory", True)


def test_a_unit_that_never_ran(manager, tmp_path):
    seen = state(manager, tmp_path, NEVER_RAN)
    assert (seen.activity, seen.pid, seen.started_at, seen.exit_signal) == ("inactive", None, None, None)


def test_a_start_forgets_earlier_failures_and_waits_for_nothing(manager, tmp_path):
    manager.start("sglang-ep4")
    assert (tmp_path / "asked").read_text().splitlines() == [
        "reset-failed sglang-ep4.service",
        "start --no-block sglang-ep4.service",
    ]


def test_a_start_that_is_refused_says_why(manager, tmp_path):
    (tmp_path / "status").write_text("1")
    with pytest.raises(HostError, match=r"systemctl start --no-block sglang-ep4.service: failed"):
        manager.start("sglang-ep4")
    manager.stop("sglang-ep4")


def test_only_units_with_our_mark_are_ours(manager, tmp_path):
    units = tmp_path / "units"
    units.mkdir()
    (units / "sglang-ep4.service").write_text('[Service]\nEnvironment="SHARDSWEEP_UNIT=sglang-ep4"\n')
    (units / "sglang-router.service").write_text("[Service]\nExecStart=/bin/true\n")
    (units / "nginx.service").write_text("[Service]\nEnvironment=SHARDSWEEP_UNIT=x\n")
    assert manager.units() == ["sglang-ep4"]


def test_a_host_without_systemd_is_told_of_supervisor(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="Set sglang_service_manager to supervisor"):
        Systemd(Settings(state=tmp_path, unit_directory=tmp_path)).state("sglang-ep4")
