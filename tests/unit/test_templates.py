"""The units that the role writes, read back as systemd reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jinja2
import pytest
from ansible.plugins.filter.core import FilterModule as CoreFilters
from ansible_collections.shardsweep.serving.plugins.filter.configurations import FilterModule as OurFilters
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.unit import ASK_TO_END

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "roles/sglang_service/templates"

WILD = [
    "it's",
    'say "so"',
    "two  words ",
    "100%",
    "%h %n %%",
    "$HOME ${x} $$",
    "#5 ; x",
    ";",
    "C:\\temp\\",
    "\\x41 \\n",
    '{"a": [1, "b c"], "d": "\\"e\\""}',
    "",
    "é 漢 🙂",
    "-",
    "@!+:/bin/true",
    "~/x *.log $(id) `id` | & > <",
]
anything = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")))


def environment() -> jinja2.Environment:
    """As Ansible sets Jinja up."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    found.filters |= CoreFilters().filters()
    found.filters |= {f"shardsweep.serving.{name}": filter_ for name, filter_ in OurFilters().filters().items()}
    return found


JINJA = environment()


def render(template: str = "sglang.systemd.j2", **changes) -> str:
    values = {
        "ansible_managed": "Ansible managed",
        "__sglang_service_configuration": {"name": "ep4", "description": "Experts in four groups"},
        "__sglang_service_fingerprint": "f" * 64,
        "__sglang_service_hosts": ["gpu1"],
        "__sglang_service_node": 0,
        "__sglang_service_module": "sglang.launch_server",
        "__sglang_service_flags": [["--tp-size", "8"]],
        "__sglang_service_environment": {},
        "__sglang_service_cache_environment": {"HOME": "/var/cache/shardsweep"},
        "__sglang_service_exclusive": ["sglang-ep4", "sglang-ep8"],
        "__sglang_service_engine_python": "/opt/sglang/venv/bin/python",
        "sglang_service_engine": "sglang",
        "sglang_service_user": "sglang",
        "sglang_service_cache": "/var/cache/shardsweep",
        "sglang_service_groups": [],
        "sglang_service_restart": "no",
        "sglang_service_start_seconds": 3600,
        "sglang_service_stop_seconds": 120,
        "sglang_service_log_megabytes": 200,
        "sglang_service_log_copies": 3,
        "sglang_tools_state": "/var/lib/shardsweep",
        "sglang_tools_verb": ["/opt/shardsweep/venv/bin/shardsweep-host", "--settings", "/var/lib/x y/settings.json"],
        "item": {"unit": "shardsweep-guard", "verb": "guard", "what": "Watch", "at_boot": True},
    }
    return JINJA.get_template(template).render(values | changes)


def read_unit(text: str) -> dict[str, list[tuple[str, str]]]:
    """{section: [(key, value)]}, continued lines joined, comments left out, as systemd.syntax(7) has it."""
    sections: dict[str, list[tuple[str, str]]] = {}
    here, pending = None, ""
    for line in text.split("\n"):
        if line.lstrip().startswith(("#", ";")):
            continue
        joined = pending + line
        if joined.endswith("\\"):
            pending = joined[:-1] + " "
            continue
        pending = ""
        if not joined.strip():
            continue
        if joined.startswith("["):
            here = sections.setdefault(joined.strip("[]"), [])
        else:
            key, equals, value = joined.partition("=")
            assert equals, joined
            assert here is not None, joined
            here.append((key, value))
    return sections


def read_words(value: str, *, dollars: bool) -> list[str]:
    """Words of Environment= or ExecStart=: quotes, backslashes, then specifiers, then (ExecStart=) variables."""
    words, index = [], 0
    while index < len(value):
        if value[index] == " ":
            index += 1
            continue
        word = ""
        quote = ""
        while index < len(value) and (quote or value[index] != " "):
            char = value[index]
            if char == "\\":
                index += 1
                assert value[index] in '\\"', "an escape that means something else"
                word += value[index]
            elif quote:
                if char == quote:
                    quote = ""
                else:
                    word += char
            elif char in "\"'":
                quote = char
            else:
                word += char
            index += 1
        assert not quote
        words.append(word)
    for mark in "%$" if dollars else "%":
        assert all(word.replace(mark * 2, "").count(mark) == 0 for word in words), "a specifier or variable"
        words = [word.replace(mark * 2, mark) for word in words]
    return words


def process_of(text: str) -> tuple[list[str], dict[str, str]]:
    """What the process of a unit is given: its words, its environment."""
    service = read_unit(text)["Service"]
    (command,) = [value for key, value in service if key == "ExecStart"]
    assigned = [read_words(value, dollars=False) for key, value in service if key == "Environment"]
    assert all(len(words) == 1 for words in assigned)
    return read_words(command, dollars=True), dict(word.split("=", 1) for (word,) in assigned)


def service_of(text: str) -> dict[str, str]:
    return dict(read_unit(text)["Service"])


@pytest.mark.parametrize("value", WILD)
def test_a_wild_value_arrives_as_it_was_written(value):
    flags = [["--tp-size", "8"], ["--chat-template", value], ["--stop", value, "next"], ["--trust-remote-code"]]
    words, variables = process_of(
        render(__sglang_service_flags=flags, __sglang_service_environment={"PROBE": value, "LAST": "1"})
    )
    assert words == [
        "/opt/sglang/venv/bin/python",
        "-m",
        "sglang.launch_server",
        *["--tp-size", "8", "--chat-template", value, "--stop", value, "next", "--trust-remote-code"],
    ]
    assert variables["PROBE"] == value
    assert variables["LAST"] == "1"


@settings(max_examples=200, deadline=None)
@given(anything, anything)
def test_any_value_arrives_as_it_was_written(argument, variable):
    words, variables = process_of(
        render(__sglang_service_flags=[["--x", argument]], __sglang_service_environment={"PROBE": variable})
    )
    assert words[-2:] == ["--x", argument]
    assert variables["PROBE"] == variable


@pytest.mark.parametrize("bad", ["a\nb", "a\x00b", "\x1b[0m", "tab\there"])
def test_a_control_character_is_refused(bad):
    for changes in ({"__sglang_service_flags": [["--x", bad]]}, {"__sglang_service_environment": {"X": bad}}):
        with pytest.raises(Exception, match="control character"):
            render(**changes)


def test_a_description_stays_in_its_comment():
    described = {"name": "ep4", "description": "One\n[Service]\nUser=root\\\n"}
    assert service_of(render(__sglang_service_configuration=described)) == service_of(render())


def test_a_path_with_a_space_is_one_word():
    words, _ = process_of(render(__sglang_service_engine_python="/opt/my engine/100%/bin/python"))
    assert words[0] == "/opt/my engine/100%/bin/python"


@pytest.mark.parametrize(
    ("cache", "written"),
    [
        ("/var/cache/shardsweep", "-/var/cache/shardsweep"),
        ("/home/data/100% $cache", '"-/home/data/100%% $cache"'),
    ],
)
def test_a_cache_below_a_home_can_be_written(cache, written):
    service = service_of(render(sglang_service_cache=cache))
    assert (service["ProtectHome"], service["ReadWritePaths"]) == ("read-only", written)


def test_the_hosts_environment_wins_over_the_caches():
    _, variables = process_of(render(__sglang_service_environment={"HOME": "/srv/home"}))
    assert variables["HOME"] == "/srv/home"


def test_what_is_tried_is_not_started_again():
    text = render()
    assert service_of(text)["Restart"] == "no"
    assert "RestartForceExitStatus" not in text
    # A sweep starts as often as it likes.
    assert ("StartLimitIntervalSec", "0") in read_unit(text)["Unit"]


def test_what_is_in_service_comes_back_from_a_crash_and_not_for_ever():
    text = render(sglang_service_restart="on-failure", sglang_service_start_seconds=1200)
    service, unit = service_of(text), dict(read_unit(text)["Unit"])
    # SGLang kills itself when it has drained, and when it crashes: only after a stop is that the end of it.
    assert service["Restart"] == "on-failure"
    assert service["SuccessExitStatus"] == "143 SIGKILL"
    assert service["RestartForceExitStatus"] == "SIGKILL"
    # Four loads of 20 minutes, each with its stop and pause, fit into the interval: 4 * (1200 + 120 + 30).
    assert unit["StartLimitBurst"] == "4"
    assert unit["StartLimitIntervalSec"] == "5400"


def test_a_rank_in_service_is_started_again_however_long_another_one_is_away():
    text = render(sglang_service_restart="on-failure", __sglang_service_hosts=["gpu1", "gpu2"])
    service, unit = service_of(text), dict(read_unit(text)["Unit"])
    assert service["Restart"] == "on-failure"
    assert unit["StartLimitIntervalSec"] == "0"
    assert "StartLimitBurst" not in unit


def test_a_stop_takes_all_and_takes_its_time():
    service = service_of(render(sglang_service_stop_seconds=200))
    assert service["KillMode"] == "control-group"
    assert service["TimeoutStopSec"] == "200"
    assert service["KillSignal"] == "SIGKILL"  # of what the drain has left
    assert service["ExecStop"] == ASK_TO_END


def test_a_stop_asks_the_first_process_alone_and_waits_for_its_end():
    words = read_words(ASK_TO_END.removeprefix("-"), dollars=True)
    # A child that ends at SIGTERM, as the engine's do, and their parent, which finishes what is under way.
    engine = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
def drain(*_):
    time.sleep(1)
    print("child" if child.poll() is None else "no child", flush=True)
    child.kill()
    sys.exit()
signal.signal(signal.SIGTERM, drain)
print("up", flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", engine], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        # systemd reaps the engine; here this thread does.
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        asked = subprocess.run(words, env=os.environ | {"MAINPID": str(process.pid)}, timeout=30, check=False)
        reaper.join()
        assert (asked.returncode, process.returncode) == (0, 0)
        assert process.stdout.read() == "child\n"


def test_a_stop_of_an_engine_that_is_gone_asks_nobody():
    words = read_words(ASK_TO_END.removeprefix("-"), dollars=True)
    without = {name: value for name, value in os.environ.items() if name != "MAINPID"}
    assert subprocess.run(words, env=without, timeout=30, check=False).returncode == 0


def test_a_further_nodes_rank_which_ignores_a_stop_is_not_waited_for():
    assert "ExecStop" not in service_of(render(__sglang_service_node=1, __sglang_service_hosts=["gpu1", "gpu2"]))


def test_limits():
    service = service_of(render())
    assert service["LimitMEMLOCK"] == "infinity"
    assert service["LimitNOFILE"] == "1048576"
    # With an unlimited stack glibc gives threads 2 MB, and NCCL before 2.28 crashes; a host's default may be unlimited.
    assert service["LimitSTACK"] == "8M"


@pytest.mark.parametrize(
    "breaks",
    [
        # No /dev/nvidia*; its devices refused; /proc/driver/nvidia hidden; JIT compilers; caches; NCCL's shared memory.
        *("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "ProcSubset", "ProtectProc"),
        *("MemoryDenyWriteExecute", "PrivateTmp", "PrivateIPC", "DynamicUser"),
        # A seccomp filter: a price on each system call, a high one on kernels before 5.16.
        *("SystemCallFilter", "SystemCallArchitectures", "RestrictAddressFamilies", "RestrictNamespaces"),
        *("RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "ProtectKernelModules"),
        *("ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname"),
    ],
)
def test_hardening_leaves_out_what_breaks_or_slows_the_engine(breaks):
    assert breaks not in service_of(render())


def test_the_device_nodes_are_made_by_root_and_only_where_there_is_a_gpu():
    assert service_of(render())["ExecStartPre"] == "+-/usr/bin/nvidia-modprobe -u -c 0"
    assert "ExecStartPre" not in service_of(render(sglang_service_engine="simulated"))


def test_groups_of_the_user():
    assert "SupplementaryGroups" not in service_of(render())
    assert service_of(render(sglang_service_groups=["video", "render"]))["SupplementaryGroups"] == "video render"


def test_one_drop_in_sets_each_unit_against_all():
    unit = dict(read_unit(render("exclusive.systemd.j2"))["Unit"])
    assert unit == {
        "Conflicts": "sglang-ep4.service sglang-ep8.service",
        "After": "sglang-ep4.service sglang-ep8.service",
    }


def test_the_guard_looks_after_a_reboot_only_where_a_sweep_was_cut_off():
    guard = read_unit(render("tools.systemd.j2"))
    # Either file: with one alone, of a disk that was full, each deployment is told to wait for the guard.
    conditions = [value for key, value in guard["Unit"] if key == "ConditionPathExists"]
    assert conditions == ["|/var/lib/shardsweep/lease.json", "|/var/lib/shardsweep/lease-copy.json"]
    assert guard["Install"] == [("WantedBy", "multi-user.target")]
    (command,) = [value for key, value in guard["Service"] if key == "ExecStart"]
    assert read_words(command, dollars=True) == [
        *["/opt/shardsweep/venv/bin/shardsweep-host", "--settings", "/var/lib/x y/settings.json", "guard"]
    ]
    job = read_unit(
        render("tools.systemd.j2", item={"unit": "shardsweep-job", "verb": "run-job", "what": "x", "at_boot": False})
    )
    assert "Install" not in job


def test_a_title_does_not_overwrite_the_environment_that_tells_whose_a_process_is():
    assert ("Environment", '"SPT_NOENV=1"') in read_unit(render())["Service"]
    assert "\nexport SPT_NOENV=1\n" in render("launch.sh.j2")


def test_a_guard_that_is_killed_is_started_again_and_a_load_generator_is_not():
    job = {"unit": "shardsweep-job", "verb": "run-job", "what": "x", "at_boot": False}
    assert service_of(render("tools.systemd.j2"))["Restart"] == "on-failure"
    assert ("StartLimitIntervalSec", "0") in read_unit(render("tools.systemd.j2"))["Unit"]
    assert service_of(render("tools.systemd.j2", item=job))["Restart"] == "no"
    own = {"sglang_tools_settings": "/var/lib/x/settings.json"}
    assert "autorestart = unexpected\nstartsecs = 1\n" in render("tools.supervisor.j2", **own)
    assert "autorestart = false\nstartsecs = 0\n" in render("tools.supervisor.j2", item=job, **own)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("restart", ["no", "on-failure", "always"])
def test_systemd_itself_finds_nothing_wrong(tmp_path, restart):
    file = tmp_path / "sglang-ep4.service"
    file.write_text(
        render(
            __sglang_service_engine_python=sys.executable,
            sglang_service_restart=restart,
            sglang_service_cache="/home/data/100% $cache",
            __sglang_service_flags=[["--x", value] for value in WILD],
            __sglang_service_environment={f"PROBE_{index}": value for index, value in enumerate(WILD)},
        )
    )
    said = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert (said.returncode, [line for line in said.stderr.splitlines() if "sglang-ep4" in line]) == (0, [])
