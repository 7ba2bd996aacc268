"""Whole hosts judged, commands with time limits, and what the record of a measurement takes from it."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from benchmark.host import bounded, gpus, preflight, processes
from benchmark.host.bounded import Answer
from benchmark.host.preflight import judge, look
from benchmark.host.preflight.cards import Holder
from benchmark.host.preflight.kernel_log import Log
from benchmark.host.preflight.look import Seen
from benchmark.host.preflight.smi import rows
from benchmark.host.settings import Settings, read_json

CAPTURES = Path(__file__).parents[2] / "captures"
GIB = 1 << 30


def answered(path: str) -> Answer:
    return Answer("ok", (CAPTURES / path).read_text(), "", 0)


def query() -> Answer:
    """The captured host with two H200s, and of each the two fields that the capture did not ask for: no error, idle."""
    header, *lines = answered("two-gpus/query.csv").text.strip().splitlines()
    table = [f"{header}, ecc.errors.uncorrected.volatile.total, clocks_event_reasons.active"]
    return Answer("ok", "\n".join(table + [f"{line}, 0, 0x0000000000000001" for line in lines]), "", 0)


def a_host(**more) -> Seen:
    """The captured host with two H200s, and around it a host in good order."""
    known = {
        "query": query(),
        "topology": answered("two-gpus/topo.txt"),
        "p2p_read": answered("two-gpus/p2p.txt"),
        "p2p_write": answered("two-gpus/p2p.txt"),
        "long": answered("host/nvidia-smi/smi_q.txt"),
        "bus_gpus": ["0000:00:06.0", "0000:00:07.0"],
        "lspci": Answer("ok", "0000:40:01.1 PCI bridge: x\n\t\tACSCtl:\tSrcValid+ ReqRedir- CmpltRedir-\n"),
        "kernel_log": Log(),
        "root": True,
        "files": {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  x",
            "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
            "/proc/cmdline": "ro quiet",
            "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "/sys/devices/system/node/online": "0\n",
            "/sys/devices/system/cpu/online": "0-31\n",
        },
        "numa_nodes": {"0000:00:06.0": 0, "0000:00:07.0": 0},
        "uvm_device": True,
        "shm": (64 * GIB, 63 * GIB),
        "limits": {"stack": 8 << 20},
        "limits_of": "limits of this user",
        "ports": [look.Port(setting="sglang_service_port", number=30001)],
        "cpus_allowed": 32,
    }
    return Seen(**(known | more))


def verdicts(seen: Seen) -> dict[str, str]:
    return {check.id: check.verdict for check in judge.judge(seen, GIB)}


def test_a_host_in_good_order_has_nothing_to_mend():
    found = verdicts(a_host())
    assert set(found.values()) == {"ok"}
    # Every subject of docs/preflight.md is there.
    assert {
        "gpus", "driver", "kernel_module", "link_width", "link_generation", "topology", "p2p", "acs", "iommu", "numa",
        "rebar", "mig", "ecc", "persistence", "power_limit", "memory", "shm", "limits", "port", "xid",
    } <= set(found)  # fmt: skip


def test_checks_have_one_id_each():
    checks = judge.judge(a_host(), GIB)
    assert len({check.id for check in checks}) == len(checks)


def test_what_is_wrong_is_found_wherever_it_is():
    sick = a_host(
        query=Answer("ok", query().text.replace("5, 5, 16, 16, 124", "1, 5, 1, 16, 124")),
        lspci=Answer("ok", "0000:40:01.1 PCI bridge: x\n\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+\n"),
        kernel_log=Log(lines=["NVRM: Xid (PCI:0000:00:07): 119, pid=1, name=x, Timeout"]),
        shm=(64 << 20, 64 << 20),
        ports=[look.Port(setting="sglang_service_port", number=30001, holders=["pid 7 (joe): nginx"])],
    )
    failed = {name for name, verdict in verdicts(sick).items() if verdict == "fail"}
    assert failed == {"link_width", "acs", "xid", "shm", "port"}


def test_what_cannot_be_seen_is_unknown_and_not_ok():
    blind = a_host(
        lspci=Answer("ok", "0000:40:01.1 PCI bridge: x\n\tCapabilities: <access denied>\n"),
        kernel_log=None,
        root=False,
        topology=Answer("failed"),
        p2p_read=Answer("hung"),
        long=Answer("hung"),
        numa_nodes={},
        limits={},
    )
    found = verdicts(blind)
    hidden = {"acs", "xid", "pcie_errors", "topology", "p2p", "recovery", "rebar", "numa", "limits"}
    assert {name for name, verdict in found.items() if verdict == "unknown"} == hidden


def test_gpus_that_no_engine_takes_are_not_judged():
    xorg = Holder(99, "/usr/lib/xorg/Xorg", "0")
    text = query().text.replace("143771 MiB, 0 MiB", "143771 MiB, 4096 MiB", 1).replace("NVIDIA H200", "NVIDIA L4", 1)
    busy = {"query": Answer("ok", text), "holders": [xorg]}
    everywhere = {check.id: check for check in judge.judge(a_host(**busy), GIB)}
    assert (everywhere["memory"].verdict, everywhere["gpus"].verdict) == ("fail", "warning")
    second = {check.id: check for check in judge.judge(a_host(**busy, visible="1"), GIB)}
    assert (second["memory"].verdict, second["gpus"].verdict) == ("ok", "ok")
    assert second["gpus"].seen == "1 x NVIDIA H200, 143771 MiB, of 2 that are there (CUDA_VISIBLE_DEVICES)"
    assert second["all_gpus"].seen == "2 answer, 2 on the PCI bus"
    assert verdicts(a_host(**busy, visible="0"))["memory"] == "fail"
    assert verdicts(a_host(visible="7"))["gpus"] == "fail"


def test_a_host_without_gpus_is_checked_for_the_rest():
    # Without nvidia-smi, or with its packages alone.
    no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    found = verdicts(a_host(query=Answer("absent"), bus_gpus=[]))
    assert verdicts(a_host(query=Answer("failed", no_driver, "", 9), bus_gpus=[])) == found
    assert found["gpus"] == "unknown"
    assert {"shm", "limits", "port"} <= set(found)
    assert "fail" not in found.values()


@pytest.mark.parametrize("silent", [Answer("hung", error="no answer within 30 s"), Answer("failed", "", "x", 15)])
def test_an_nvidia_smi_that_is_silent_leaves_what_the_kernel_and_the_bus_say(silent):
    sick = a_host(
        query=silent,
        lspci=Answer("ok", "0000:40:01.1 PCI bridge: x\n\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+\n"),
        kernel_log=Log(
            lines=["NVRM: Xid (PCI:0000:00:07): 119, pid=1, name=x, Timeout", "AER: Uncorrectable (Fatal) error"]
        ),
        iommu_units=["ivhd0"],
        iommu_types={"0000:00:06.0": "DMA"},
    )
    found = verdicts(sick)
    known = ("nvidia_smi", "xid", "pcie_errors", "kernel_module", "acs", "iommu")
    assert [found[name] for name in known] == ["fail", "fail", "warning", "ok", "fail", "warning"]


def test_without_a_driver_its_module_is_not_missed():
    assert not {"xid", "uvm", "kernel_module"} & set(verdicts(a_host(query=Answer("absent"))))


def test_a_table_that_cannot_be_read():
    assert verdicts(a_host(query=Answer("ok", "what?\n")))["nvidia_smi"] == "fail"


def telling(**changes: str) -> Answer:
    """The table with other cells on every line; a field's dots are written as two underscores."""
    lines = [
        row.cells | {name.replace("__", "."): cell for name, cell in changes.items()} for row in rows(query().text)
    ]
    return Answer("ok", "\n".join(", ".join(line) for line in [list(lines[0]), *(line.values() for line in lines)]))


NOT_A_WORD = Answer("failed", "", "x", 1)
UNTOLD = "[Unknown Error]"
IN_TROUBLE = [
    # nvidia-smi itself.
    {"query": Answer("ok", "what?\n")},
    {"query": Answer("ok", "what?\n"), "simulated": True},
    {"query": Answer("hung", error="no answer within 30 s")},
    {"query": NOT_A_WORD},
    {"query": Answer("failed", "Driver/library version mismatch", "", 18)},
    {"query": Answer("absent")},
    {"query": Answer("absent"), "bus_gpus": []},
    {"query": Answer("absent"), "simulated": True},
    # What cannot be seen.
    {
        "query": telling(
            driver_version=UNTOLD, pcie__link__gen__max=UNTOLD, pcie__link__width__max=UNTOLD, persistence_mode=UNTOLD,
            mig__mode__current=UNTOLD, ecc__mode__current=UNTOLD, power__limit=UNTOLD, utilization__gpu=UNTOLD,
            clocks_event_reasons__active=UNTOLD, memory__used=UNTOLD,
        ),
        "topology": NOT_A_WORD, "p2p_read": NOT_A_WORD, "long": NOT_A_WORD, "lspci": NOT_A_WORD, "kernel_log": None,
        "bus_gpus": [], "files": {}, "iommu_units": ["dmar0"], "numa_nodes": {}, "limits": {}, "shm": None,
    },
    {
        "query": telling(ecc__errors__uncorrected__volatile__total=UNTOLD), "p2p_write": NOT_A_WORD,
        "lspci": Answer("absent"), "kernel_log": Log(begins=None), "iommu_units": ["dmar0"],
        "iommu_types": {"0000:00:06.0": "unmanaged"}, "numa_nodes": {"0000:00:06.0": -1},
        "files": {"/sys/devices/system/node/online": "0-1"},
    },
    {"lspci": Answer("ok", "0000:40:01.1 PCI bridge: x\n\tCapabilities: <access denied>\n")},
    {"lspci": Answer("ok"), "root": False},
    {"lspci": Answer("ok"), "guest": True},
    {"guest": True},
    # What is wrong.
    {
        "query": telling(
            driver_version="550.1", compute_cap="12.0", pcie__link__gen__current="1", pcie__link__width__current="1",
            persistence_mode="Disabled", mig__mode__current="Enabled", power__default_limit="1000 W",
            ecc__errors__uncorrected__volatile__total="3", clocks_event_reasons__active="0x40",
            utilization__gpu="100 %", memory__used="9000 MiB",
        ),
        "p2p_read": Answer("ok", (CAPTURES / "two-gpus/p2p.txt").read_text().replace("OK", "CNS", 1)),
        "long": Answer("ok", "GPU 00000000:00:06.0\n    GPU Recovery Action : Reset\n    FB Memory Usage\n"
                       "        Total : 9 MiB\n    BAR1 Memory Usage\n        Total : 1 MiB\n"),
        "lspci": Answer("ok", "0000:40:01.1 PCI bridge: x\n\t\tACSCtl:\tSrcValid+ ReqRedir+ CmpltRedir+\n"),
        "bus_gpus": ["0000:00:06.0", "0000:00:07.0", "0000:00:08.0"], "uvm_device": False,
        "iommu_units": ["dmar0"], "iommu_types": {"0000:00:06.0": "DMA"}, "shm": (64 << 20, 64 << 20),
        "kernel_log": Log(lines=["NVRM: Xid (PCI:0000:00:07): 119, pid=1, name=x, Timeout", "AER: Uncorrected"]),
        "limits": {"stack": -1}, "nccl_files": {"/etc/nccl.conf": "NCCL_ALGO=Tree"}, "cpus_allowed": 2,
        "ports": [look.Port(setting="sglang_service_port", number=30001, holders=["pid 7 (joe): nginx"])],
        "governors": ["powersave"],
        "files": {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1  x",
            "/sys/devices/system/node/online": "0-1", "/sys/devices/system/cpu/online": "0-31",
            "/proc/sys/kernel/numa_balancing": "1",
        },
    },
    {"query": telling(ecc__mode__current="Disabled"), "visible": "7"},
    {"query": telling(utilization__gpu="100 %", power__draw="60 W", ecc__mode__current="Disabled")},
]  # fmt: skip


def test_whatever_is_not_in_order_says_what_to_do_about_it():
    checks = [check for trouble in IN_TROUBLE for check in judge.judge(a_host(**trouble), GIB) if check.verdict != "ok"]
    assert {check.id for check in checks if not check.mend} == set()
    # All that docs/preflight.md says of failing and of what may not be seen.
    assert {check.id for check in checks if check.verdict == "fail"} == {
        "nvidia_smi", "gpus", "all_gpus", "driver", "kernel_module", "uvm", "memory", "stuck", "recovery", "link_width",
        "acs", "mig", "ecc", "xid", "shm", "port",
    }  # fmt: skip
    assert {check.id for check in checks if check.verdict == "unknown"} == {
        "gpus", "all_gpus", "driver", "kernel_module", "hmm", "stuck", "recovery", "link_width", "link_generation",
        "rebar", "topology", "p2p", "acs", "iommu", "numa", "mig", "ecc", "persistence", "power_limit", "slowed", "xid",
        "pcie_errors", "shm", "limits",
    }  # fmt: skip
    assert {check.id for check in checks if check.verdict == "warning"} >= {
        "link_generation", "rebar", "p2p", "iommu", "numa_balancing", "ecc", "persistence", "power_limit", "slowed",
        "pcie_errors", "limits", "nccl_files", "cpus", "governor",
    }  # fmt: skip


def test_simulated_gpus_are_not_looked_for_in_this_machine():
    found = verdicts(a_host(simulated=True))
    assert not {"acs", "iommu", "xid", "kernel_module", "uvm", "all_gpus"} & set(found)


def test_what_a_record_keeps_of_each_gpu():
    first, second = judge.gpu_facts(a_host())
    assert first == {
        "bus_id": "00000000:00:06.0", "index": 0, "pcie_width": 16, "pcie_width_max": 16, "pcie_generation": 5,
        "pcie_generation_max": 5, "numa_node": 0, "compute_capability": "9.0", "ecc": "Enabled",
    }  # fmt: skip
    assert second["index"] == 1


def test_the_fact_has_nothing_that_moves():
    now, later = (a_host(query=Answer("ok", text)) for text in _two_looks())
    facts = [judge.fact(seen, judge.judge(seen, GIB)) for seen in (now, later)]
    assert facts[0] == facts[1]
    assert facts[0]["driver"] == "580.159.04"


def _two_looks():
    text = (CAPTURES / "two-gpus/query.csv").read_text()
    return text, text.replace("127.11 W", "80.00 W").replace("5, 5, 16, 16, 124", "1, 5, 16, 16, 90").replace(
        "38,", "51,"
    )


# Commands


def test_a_command_that_is_not_there():
    assert bounded.run(["/nowhere/nvidia-smi"]).state == "absent"


def test_a_command_that_fails_is_told_whole():
    answer = bounded.run([sys.executable, "-c", "import sys; print('a'); print('b', file=sys.stderr); sys.exit(18)"])
    assert (answer.state, answer.text, answer.error, answer.code) == ("failed", "a\n", "b\n", 18)


def test_a_command_that_hangs_is_ended_with_its_children():
    began = time.monotonic()
    answer = bounded.run(["sh", "-c", "sleep 30 & sleep 30"], seconds=0.3)
    assert answer.state == "hung"
    assert time.monotonic() - began < 5


# The verb


def settings(tmp_path: Path, script: str) -> Settings:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return Settings(
        state=tmp_path, unit_directory=tmp_path, manager="supervisor", nvidia_smi=[str(command)], engine="simulated"
    )


OLD_DRIVER = """
case "$*" in
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *query-gpu*)
    echo 'index, name, memory.total [MiB], memory.used [MiB], driver_version'
    echo '0, L4, 2 MiB, 1 MiB, 550.1' ;;
  *query-compute*) echo 'pid, process_name, used_gpu_memory [MiB], gpu_uuid' ;;
esac
"""


def test_a_field_that_an_older_driver_lacks_is_left_out(tmp_path):
    found = {check["id"]: check for check in preflight.preflight(settings(tmp_path, OLD_DRIVER), [])["checks"]}
    assert found["gpus"]["seen"] == "1 x L4, 2 MiB"
    assert found["driver"]["verdict"] == "fail"
    silent = ("link_width", "mig", "ecc", "persistence", "power_limit", "slowed", "stuck")
    assert {found[name]["verdict"] for name in silent} == {"unknown"}


TWO_AND_ONE_LISTED = """
case "$*" in
  *query-gpu*)
    echo 'index, uuid, pci.bus_id, memory.used [MiB]'
    echo '0, GPU-a, 00000000:06:00.0, 80100 MiB'
    echo '1, GPU-b, 00000000:07:00.0, 30000 MiB' ;;
  *query-compute*)
    echo 'pid, process_name, used_gpu_memory [MiB], gpu_uuid'
    echo '4194000, python, 80000 MiB, GPU-a' ;;
esac
"""


def test_who_has_a_device_open_is_looked_for_beside_whom_nvidia_smi_lists(tmp_path, monkeypatch):
    # Minors in another order than indices.
    for bus, minor in (("0000:06:00.0", 1), ("0000:07:00.0", 0)):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")
    monkeypatch.setattr(gpus, "_DRIVERS_GPUS", tmp_path / "gpus")
    with (tmp_path / "nvidia0").open("w"):
        monkeypatch.setattr(processes, "_GPU_FILE", re.compile(rf"{tmp_path}/nvidia(\d+)"))
        seen = look.look(settings(tmp_path, TWO_AND_ONE_LISTED), [])
    assert [(holder.pid, holder.index, holder.only_open) for holder in seen.holders] == [
        (4194000, "0", False),
        (os.getpid(), "1", True),
    ]


def test_an_nvidia_smi_that_hangs_fails_the_host_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(look, "SMI_SECONDS", 0.3)
    began = time.monotonic()
    answer = preflight.preflight(settings(tmp_path, "sleep 30"), [])
    assert time.monotonic() - began < 8
    assert answer["checks"][0]["verdict"] == "fail"
    assert answer["checks"][0]["id"] == "nvidia_smi"


def test_what_is_known_of_a_host_reaches_the_record(tmp_path):
    here = settings(tmp_path, "exit 9")
    devices = [{"index": 0, "bus_id": "00000000:00:06.0", "name": "H200"}]
    assert preflight.for_record(here, devices) == {"gpus": devices, "details": {}}
    seen = a_host()
    checks = [preflight.Check("acs", "fail", "redirect"), preflight.Check("mig", "ok", "off")]
    known = {"gpus": judge.gpu_facts(seen), "topology": "matrix", "checks": msgspec.to_builtins(checks)}
    preflight.remember(here, known)
    preflight.remember(here, {"communication": {"runs": []}})
    told = preflight.for_record(here, devices)
    assert told["gpus"][0]["name"] == "H200"
    assert told["gpus"][0]["pcie_width_max"] == 16
    assert told["details"]["topology"] == "matrix"
    assert [check["id"] for check in told["details"]["checks"]] == ["acs"]
    assert read_json(tmp_path / "host.json")["communication"] == {"runs": []}


def test_a_host_file_that_is_broken_is_begun_anew(tmp_path):
    here = settings(tmp_path, "exit 9")
    (tmp_path / "host.json").write_text("[1, 2]")
    assert preflight.for_record(here, []) == {"gpus": [], "details": {}}
    preflight.remember(here, {"topology": "x"})
    assert read_json(tmp_path / "host.json") == {"topology": "x"}


def test_this_machine_can_be_looked_at(tmp_path):
    seen = look.look(settings(tmp_path, "exit 9"), [])
    assert seen.query.state == "failed"
    assert seen.cpus_allowed > 0
    assert "/proc/cmdline" in seen.files


def test_the_engines_own_users_file_of_nccl_is_looked_for(tmp_path, monkeypatch):
    # As NCCL does (getpwuid): neither root's home, who runs the tools, nor the HOME of the unit.
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    accounts = {"sglang": str(tmp_path / "cache")}
    monkeypatch.setattr(look.pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=accounts[name]))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/.nccl.conf").write_text("NCCL_ALGO=Tree\n")
    here = msgspec.structs.replace(settings(tmp_path, "exit 9"), user="sglang", node_port=20000)
    seen = look.look(here, [])
    assert seen.nccl_files[str(tmp_path / "cache/.nccl.conf")] == "NCCL_ALGO=Tree\n"
    assert [port.setting for port in seen.ports] == ["sglang_service_port", "sglang_service_node_port"]
    unknown = look.look(msgspec.structs.replace(here, user="nobody-yet"), [])
    assert set(unknown.nccl_files.values()) <= {None, unknown.nccl_files["/etc/nccl.conf"]}
