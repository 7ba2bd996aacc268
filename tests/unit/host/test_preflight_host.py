"""Checks of what is around the GPUs: driver, PCIe, kernel log, memory, limits. Public cases are named beside each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.host import bounded
from benchmark.host.bounded import ABSENT, Answer
from benchmark.host.preflight import driver, kernel_log, look, pcie, smi, system
from benchmark.host.preflight.check import Check, counted, lines, listed
from benchmark.host.preflight.hints import GRUB, MODPROBE, hints
from benchmark.host.preflight.kernel_log import Log

GIB = 1 << 30
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed Sep 10 03:00:55 UTC 2025\n"


def rows(driver_version="580.95.05", capability="12.0"):
    return [smi.Row({"index": "0", "driver_version": driver_version, "compute_cap": capability})]


# The driver


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("580.159.04", "ok"), ("595.58.03", "ok"), ("580.65.06", "ok"), ("575.57.08", "fail"), ("[N/A]", "unknown")],
)
def test_driver_against_cuda_13(version, verdict):
    assert driver.version(rows(version)).verdict == verdict


def test_kernel_module():
    assert driver.module(OPEN, rows()) == Check("kernel_module", "ok", "open, 580.95.05")
    assert driver.module(CLOSED, rows()).verdict == "fail"  # Blackwell
    assert driver.module(CLOSED, rows(capability="9.0")).verdict == "warning"  # Hopper
    assert driver.module(None, rows()).verdict == "unknown"


def test_libraries_upgraded_under_the_module():
    # F3.51: unattended upgrade.
    check = driver.module(OPEN, rows("580.105.08"))
    assert (check.verdict, check.seen) == ("fail", "module 580.95.05, libraries 580.105.08: upgraded under way")


def test_nvidia_smi_that_cannot_speak_to_the_module():
    said = Answer("failed", "Failed to initialize NVML: Driver/library version mismatch\n", "", 18)
    check = driver.answers(said, ["0000:06:00.0"], simulated=False)
    assert check.verdict == "fail"
    assert check.mend.startswith("Reboot")


def test_nvidia_smi_that_hangs():
    # F3.47: Xid 119.
    check = driver.answers(Answer("hung", error="no answer within 8 s"), [], simulated=False)
    assert (check.id, check.verdict) == ("nvidia_smi", "fail")
    assert "Xid" in check.mend


def test_a_host_without_gpus_is_told_so_and_goes_on():
    check = driver.answers(ABSENT, [], simulated=False)
    assert (check.verdict, check.seen) == ("unknown", "no GPU")
    assert "simulated" in check.mend
    nothing = driver.answers(Answer("failed", "No devices were found\n", "", 6), [], simulated=False)
    assert nothing.seen == "no GPU"


NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def test_an_nvidia_smi_without_a_gpu_is_no_gpu():
    said = Answer("failed", NO_DRIVER, "", 9)
    assert driver.answers(said, [], simulated=False) == driver.answers(ABSENT, [], simulated=False)
    # A GPU whose driver is not loaded, and a container that may not be shown the bus.
    for told in (
        driver.answers(said, ["0000:06:00.0"], simulated=False),
        driver.answers(said, [], simulated=False, container=True),
    ):
        assert (told.id, told.verdict, told.mend) == ("nvidia_smi", "fail", "dmesg | grep NVRM")


def test_gpus_without_a_driver():
    check = driver.answers(ABSENT, ["0000:06:00.0"] * 8, simulated=False)
    assert (check.verdict, check.seen) == ("fail", "8 NVIDIA GPUs on the PCI bus, and no nvidia-smi")


def test_nvidia_smi_that_answers():
    assert driver.answers(Answer("ok", "index\n0\n", "", 0), [], simulated=False) is None
    assert driver.answers(Answer("failed", "", "boom", 9), [], simulated=False).seen == "exit 9: boom"


def test_uvm_and_hmm():
    assert [check.verdict for check in driver.uvm(True, "Y\n")] == ["ok", "ok"]
    assert driver.uvm(True, "N\n")[1].seen.startswith("on")
    device, hmm = driver.uvm(False, None)
    assert (device.verdict, device.mend, hmm.verdict) == ("fail", "nvidia-modprobe -u -c 0", "unknown")


# Between the GPUs

HEALTHY_ACS = """\
0000:40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab (rev 01) (prog-if 00 [Normal decode])
\tCapabilities: [2a0 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-
0000:41:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
"""
REDIRECT = HEALTHY_ACS.replace("SrcValid- TransBlk- ReqRedir- CmpltRedir-", "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+")


def acs(text, **more):
    lspci = text if isinstance(text, Answer) else Answer("ok", text)
    return pcie.acs(lspci, **({"root": True, "above": [], "gpus": 8, "guest": False} | more))


def test_source_validation_alone_is_harmless():
    # F3.45: SrcValid+ on 38 of 40 bridges of a healthy host. ACSCap says what a bridge could do, not what it does.
    assert acs(HEALTHY_ACS) == Check("acs", "ok", "no redirect on the 2 bridges that have ACS")


def test_redirect_is_not():
    # F3.34, nccl#2079, vllm#51513.
    check = acs(REDIRECT)
    assert check.verdict == "fail"
    assert check.mend == "at each boot: setpci -s 0000:41:00.0 ECAP_ACS+0x6.w=0000"
    assert acs(REDIRECT, above=["0000:41:00.0"]).verdict == "fail"


def test_redirect_where_no_gpu_is_behind_it():
    assert acs(REDIRECT, above=["0000:40:01.1"]).verdict == "ok"
    assert acs(REDIRECT, gpus=1).verdict == "ok"
    assert acs(REDIRECT, guest=True).verdict == "warning"


def test_acs_that_is_not_shown_is_unknown():
    without = "0000:41:00.0 PCI bridge: Broadcom / LSI PEX890xx\n\tCapabilities: <access denied>\n"
    assert acs(without, root=False).verdict == "unknown"
    # A rented container: root there, and denied all the same.
    denied = acs(without, root=True)
    assert (denied.verdict, "denied the capabilities of 1 bridges" in denied.seen) == ("unknown", True)
    assert acs(without, root=True, above=["0000:41:00.0"]).verdict == "unknown"
    # What is denied of a bridge that is above no GPU, or of another kind of device, hides nothing.
    assert acs(without + HEALTHY_ACS, root=True, above=["0000:40:01.1"]).verdict == "ok"
    card = "0000:42:00.0 VGA compatible controller: NVIDIA\n\tCapabilities: <access denied>\n"
    assert acs(HEALTHY_ACS + card, root=True).verdict == "ok"


def test_a_bridge_that_lspci_does_not_show_is_unknown():
    above = ["0000:40:01.1", "0000:43:00.0"]
    check = acs(HEALTHY_ACS, above=above)
    assert (check.verdict, check.seen) == ("unknown", "lspci does not show 0000:43:00.0 above the GPUs")
    assert acs("", above=above).verdict == acs("").verdict == "unknown"
    assert acs(REDIRECT, above=["0000:41:00.0", "0000:43:00.0"]).verdict == "fail"


def test_a_guest_does_not_see_its_hosts_bridges():
    gpus = "".join(f"0000:00:0{slot}.0 3D controller: NVIDIA Corporation GH100 [H200]\n" for slot in (6, 7))
    assert acs(gpus, guest=True, gpus=2).verdict == acs(HEALTHY_ACS, guest=True).verdict == "unknown"
    assert acs(gpus, guest=True, gpus=1).verdict == acs(gpus, gpus=2).verdict == "ok"


def test_redirect_that_is_seen_counts_whatever_else_is_denied():
    without = "0000:50:00.0 PCI bridge: x\n\tCapabilities: <access denied>\n"
    assert acs(REDIRECT + without).verdict == "fail"


def test_an_lspci_that_is_not_there_or_does_not_answer():
    assert acs(ABSENT) == Check("acs", "unknown", "there is no lspci", "apt install pciutils")
    hung = acs(Answer("hung", error="no answer within 8 s"))
    assert (hung.verdict, hung.seen) == ("unknown", "lspci did not tell (no answer within 8 s)")
    failed = acs(Answer("failed", "", "lspci: Cannot open /proc/bus/pci\n", 1))
    assert failed.seen == "lspci did not tell (exit 1: lspci: Cannot open /proc/bus/pci)"
    assert "pciutils" not in hung.mend + failed.mend


def test_each_bridge_with_redirect_is_mended():
    bridges = [f"0000:{number:02x}:00.0" for number in range(40)]
    text = "".join(f"{bus} PCI bridge: x\n\t\tACSCtl:\tReqRedir+ CmpltRedir-\n" for bus in bridges)
    mend = acs(text).mend
    assert mend.startswith("at each boot: for bus in 0000:00:00.0 0000:01:00.0 ")
    assert all(bus in mend for bus in bridges)


def test_lspci_without_domains():
    assert list(pcie.acs_controls("41:00.0 PCI bridge: x\n\t\tACSCtl:\tSrcValid+\n")) == ["0000:41:00.0"]


def test_iommu():
    off = pcie.iommu("BOOT_IMAGE=/vmlinuz ro iommu=off amd_iommu=off", [], {}, gpus=8)
    assert (off.verdict, off.seen) == ("ok", "off (iommu=off and amd_iommu=off)")
    through = pcie.iommu("iommu=pt", ["ivhd0"], {"0000:06:00.0": "identity"}, gpus=8)
    assert through.verdict == "ok"
    # vllm#33041, nccl#1999: a translating IOMMU hangs NCCL.
    for kind in ("DMA", "DMA-FQ"):
        translated = pcie.iommu("quiet", ["ivhd0"], {"0000:06:00.0": kind}, gpus=8)
        assert translated.verdict == "warning"
        assert "1 of 1 GPUs" in translated.seen
    assert pcie.iommu("quiet", ["dmar0"], {}, gpus=8).verdict == "unknown"
    # Domains that are neither: drivers/iommu/iommu.c, iommu_group_show_type.
    for kind in ("blocked", "unmanaged", "unknown"):
        check = pcie.iommu("quiet", ["dmar0"], {"0000:06:00.0": "identity", "0000:07:00.0": kind}, gpus=8)
        assert (check.verdict, kind in check.seen) == ("unknown", True)
    assert pcie.iommu("quiet", ["dmar0"], {"0000:06:00.0": "DMA"}, gpus=1).verdict == "ok"


def test_p2p():
    fine = [["X", "OK"], ["OK", "X"]]
    assert pcie.p2p(fine, fine).verdict == "ok"
    assert pcie.p2p([["X"]], None).verdict == "ok"
    assert pcie.p2p(None, None).verdict == "unknown"
    # A8: GeForce peers report CNS.
    blocked = pcie.p2p([["X", "CNS"], ["CNS", "X"]], fine)
    assert blocked.verdict == "warning"
    assert "read CNS (chipset not supported" in blocked.seen
    assert blocked.seen.endswith("between GPUs 0-1")


def test_p2p_is_ok_only_where_all_of_it_was_seen():
    fine = [["X", "OK"], ["OK", "X"]]
    # The query of writing hung: nobody knows.
    half = pcie.p2p(fine, None)
    assert (half.verdict, "topo -p2p w could not be read" in half.seen) == ("unknown", True)
    # What is refused counts whether or not the rest was seen.
    assert pcie.p2p([["X", "CNS"], ["CNS", "X"]], None).verdict == "warning"
    # One way only, either way.
    for matrix, seen in (([["X", "OK"], ["CNS", "X"]], "1 to 0"), ([["X", "TNS"], ["OK", "X"]], "0 to 1")):
        assert pcie.p2p(matrix, fine).verdict == pcie.p2p(fine, matrix).verdict == "warning"
        assert pcie.p2p(matrix, fine).seen.endswith(f"between GPUs {seen}")
    both = pcie.p2p([["X", "CNS"], ["TNS", "X"]], fine)
    assert ("read CNS" in both.seen, "read TNS" in both.seen) == (True, True)


def test_topology_and_the_pair_to_try_first():
    near, far = [["X", "PIX"], ["PIX", "X"]], [["X", "PIX", "SYS"], ["PIX", "X", "NODE"], ["SYS", "NODE", "X"]]
    assert "NCCL_P2P_LEVEL" not in pcie.topology(smi.Topology(near, [], [])).seen
    assert pcie.topology(smi.Topology(far, [], [])).seen.startswith("links between 3 GPUs: PIX, SYS and NODE; beyond")
    assert pcie.topology(None).verdict == "unknown"
    assert pcie.worst_pair(smi.Topology(far, [], []), 3) == (0, 2)
    assert pcie.worst_pair(None, 8) == (0, 7)


def test_numa():
    two = {"a": 0, "b": 0, "c": 1, "d": 1}
    where, balancing = pcie.numa(two, "0-1", "1\n")
    assert (where.verdict, where.seen) == ("ok", "GPUs by node: node 0: 2 and node 1: 2")
    assert (balancing.verdict, balancing.mend) == ("warning", "sysctl -w kernel.numa_balancing=0")
    assert pcie.numa({"a": -1}, "0", "0")[0].verdict == "ok"
    assert pcie.numa({"a": -1}, "0-1", None)[0].verdict == "unknown"
    assert pcie.numa({}, "0", None)[0].verdict == "unknown"


@given(st.text(max_size=60))
def test_wild_lists_of_numbers(text):
    assert all(number >= 0 for number in pcie.numbers(text))


def test_lists_of_numbers():
    assert pcie.numbers("0-2,8\n") == [0, 1, 2, 8]
    assert len(pcie.numbers("0-63,128-191")) == 128


# The kernel log

GSP = "[ 912.1] NVRM: Xid (PCI:0000:c1:00): 119, pid=2671, name=sglang::schedul, Timeout after 45s of waiting for RPC"
LOST = "kernel: NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        (GSP, "fail", "Xid 119 (the GPU's firmware (GSP) does not answer) at 0000:c1:00"),
        (LOST, "fail", "Xid 79"),
        ("NVRM: Xid (PCI:0000:06:00): 62, 2a3b", "fail", "Xid 62"),
        ("NVRM: Xid (PCI:0000:06:00): 31, pid=99, name=python, MMU Fault", "ok", "Xid 31"),
        ("NVRM: Xid (PCI:0000:06:00): 999, something new", "warning", "not in our table"),
        # NVSentinel#155: lost without an Xid, over three lines.
        ("               NVRM: fallen off the bus and is not responding to commands.", "fail", "fallen off the bus"),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01", "ok", "none since boot"),
    ],
)
def test_xid_lines(line, verdict, said):
    check = kernel_log.xids(Log(lines=[line]))
    assert (check.verdict, said in check.seen) == (verdict, True)


def test_a_log_that_may_not_be_read_is_unknown():
    assert kernel_log.xids(None).verdict == "unknown"
    assert kernel_log.links(None).verdict == "unknown"


def test_nothing_found_in_half_a_log_is_unknown():
    half = Log(begins=302400.0)
    for check in (kernel_log.xids(half), kernel_log.links(half)):
        assert check.verdict == "unknown"
        assert "the journal did not answer, and what is left in dmesg begins 3.5 days after boot" in check.seen
    assert kernel_log.xids(Log(begins=None)).verdict == "unknown"
    own = "NVRM: Xid (PCI:0000:06:00): 31, pid=99, name=python, MMU Fault"
    assert kernel_log.xids(Log(lines=[own], begins=302400.0)).verdict == "unknown"
    # What is found counts, whatever is missing.
    assert kernel_log.xids(Log(lines=[GSP], begins=302400.0)).verdict == "fail"
    assert kernel_log.links(Log(lines=["pcieport: AER: [ 5] SDES (First)"], begins=302400.0)).verdict == "warning"


BOOT = "[    0.000000] Linux version 6.8.0"
LATE = "[ 7203.500000] usb 1-1: new device"


@pytest.mark.parametrize(
    ("journal", "ring", "begins"),
    [
        # Nothing matches, and journalctl says so by its status; but it has lines.
        ("case $* in *--grep*) exit 1;; *) echo 'gpu1 kernel: anything';; esac", f"echo '{LATE}'", 0.0),
        # A ring buffer that holds all since boot needs no journal.
        ("exit 1", f"echo '{BOOT}'", 0.0),
        ("sleep 60", f"echo '{BOOT}'", 0.0),
        # One that has turned over tells only its span: a journal that hangs, may not be read, or is not there.
        ("sleep 60", f"echo '{LATE}'", 7203.5),
        ("exit 0", f"echo '{LATE}'", 7203.5),
        (None, f"echo '{LATE}'", 7203.5),
        (None, "echo 'no stamps here'", None),
    ],
)
def test_how_far_back_the_kernel_log_goes(tmp_path, monkeypatch, journal, ring, begins):
    stand_in(tmp_path, monkeypatch, journal, ring)
    assert look.kernel_log() == Log(begins=begins)


def stand_in(folder, monkeypatch, journal, ring):
    for name, script in (("journalctl", journal), ("dmesg", ring)):
        if script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    (folder / "sleep").symlink_to("/bin/sleep")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(look, "run", lambda command: bounded.run(command, seconds=0.3))


# systemd may be built without pcre2.
NO_PATTERNS = "*--grep*) echo 'Compiled without pattern matching support' >&2; exit 1;;"


@pytest.mark.parametrize(
    ("journal", "seen"),
    [
        (f"case $* in {NO_PATTERNS} *) echo 'x'; echo '{GSP}';; esac", Log(lines=[GSP])),
        # Its last line tells that there is a journal, not that anybody has looked through it.
        (f"case $* in {NO_PATTERNS} *'-n 1'*) echo x;; *) echo torn >&2; exit 1;; esac", Log(begins=7203.5)),
    ],
)
def test_a_journal_that_does_not_search_is_read(tmp_path, monkeypatch, journal, seen):
    stand_in(tmp_path, monkeypatch, journal, f"echo '{LATE}'")
    assert look.kernel_log() == seen


def test_a_kernel_log_that_nobody_tells(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look.kernel_log() is None


def test_the_same_xid_many_times():
    assert kernel_log.xids(Log(lines=[GSP] * 3)).seen.endswith("at 0000:c1:00, 3 times")


def test_journal_and_ring_buffer_tell_the_same_lines():
    stamp = "2026-11-30T00:04:56+0000 gpu1 kernel: "
    xid = "NVRM: Xid (PCI:0000:06:00): 31, pid=99, name=python"
    aer = "pcieport 0000:40:01.1: AER: Uncorrectable (Fatal) error message received"
    journal = [stamp + xid, stamp.replace("56", "57") + xid, stamp + aer]
    ring = [f"[  912.1] {aer}", f"[  912.2] {xid}", "[  913.0] NVRM: only here"]
    found = look.merged(journal, ring)
    assert found == [stamp + xid] * 2 + [stamp + aer, "[  913.0] NVRM: only here"]
    assert kernel_log.xids(Log(lines=found)).seen.endswith("at 0000:06:00, 2 times: the programs' own")
    assert kernel_log.links(Log(lines=found)).seen.startswith("1 since boot")
    # A ring buffer that has turned over has lost some, one that the journal dropped lines of has more.
    assert len(look.merged([], [f"[ 1.0] {xid}", f"[ 2.0] {xid}"])) == 2


def test_links_that_went_down():
    # B15: surprise link down is bit 5 of the AER status.
    line = "pcieport 0000:40:01.1: AER:    [ 5] SDES                   (First)"
    check = kernel_log.links(Log(lines=[line]))
    assert (check.verdict, "pcie_aspm=off" in check.mend) == ("warning", True)
    assert kernel_log.links(Log(lines=["pcieport 0000:40:01.1: AER: enabled with IRQ 31"])).verdict == "ok"


# The rest of the host


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [(64 << 20, 64 << 20, "fail"), (4 * GIB, 4 * GIB, "warning"), (16 * GIB, 15 * GIB, "ok"), (16 * GIB, 0, "fail")],
)
def test_shared_memory(size, free, verdict):
    # F3.42: a container has 64 MiB, and NCCL says "failed to extend /dev/shm/nccl-03v824 to 4194660 bytes".
    assert system.shared_memory(size, free).verdict == verdict


def test_no_shared_memory():
    assert system.shared_memory(None, None).verdict == "unknown"


def test_limits():
    # F3.40: an unlimited stack crashed NCCL before 2.28.
    good = {"stack": 8 << 20, "files": 1048576, "locked": -1}
    assert system.limits("us", good, unit_sets=False).verdict == "ok"
    assert system.limits("us", good | {"stack": -1}, unit_sets=False).verdict == "warning"
    small = system.limits("us", {"stack": 8 << 20, "files": 1024, "locked": 65536}, unit_sets=False)
    assert small.mend == "ulimit -n 1048576; ulimit -l unlimited"
    assert system.limits("us", {"stack": None}, unit_sets=False).verdict == "unknown"
    # A unit has LimitSTACK=8M and the other two, whatever the host's defaults.
    assert system.limits("systemd's unit", {}, unit_sets=True).verdict == "ok"


def test_the_port():
    span, own = (32768, 60999), "sglang_service_port"
    assert system.port(own, 30001, [], False, span) == Check("port", "ok", "port 30001 is free")
    assert system.port(own, 30001, ["pid 7 (root): sglang"], True, span).verdict == "ok"
    taken = system.port(own, 30001, ["pid 7 (joe): nginx"], False, span)
    assert (taken.verdict, "pid 7 (joe): nginx" in taken.seen) == ("fail", True)
    assert system.port(own, 30001, None, False, span).verdict == "fail"
    # F2.27: a port from which outgoing connections take theirs.
    assert system.port(own, 40000, [], False, span).verdict == "warning"


def test_the_port_where_nodes_meet():
    taken = system.port("sglang_service_node_port", 20000, ["pid 7 (joe): ray"], False, None)
    assert (taken.id, taken.verdict, "set sglang_service_node_port" in taken.mend) == ("node_port", "fail", True)


def test_configuration_files_of_nccl():
    home = "/var/cache/shardsweep/.nccl.conf"
    none = system.nccl_files({"/etc/nccl.conf": "# nothing\n\n", home: None})
    assert (none.verdict, none.seen) == ("ok", f"no variables in /etc/nccl.conf or {home}")
    check = system.nccl_files({"/etc/nccl.conf": None, home: "NCCL_P2P_DISABLE=1\n"})
    assert (check.verdict, f"{home}: NCCL_P2P_DISABLE=1" in check.seen) == ("warning", True)


def test_processors():
    # F3.53: an affinity that is already narrow.
    assert [c.verdict for c in system.processors(128, "0-127", ["performance"])] == ["ok", "ok"]
    narrow, slow = system.processors(64, "0-127", ["powersave"])
    assert (narrow.verdict, slow.verdict) == ("warning", "warning")
    assert len(system.processors(2, "0-1", [])) == 1  # a virtual machine has no governor


# Hints

_GRUB = 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"\nGRUB_CMDLINE_LINUX=""\n'


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt" # ours', '"quiet iommu=off amd_iommu=off" # ours'),
        ("GRUB_CMDLINE_LINUX_DEFAULT='quiet'  # it's \"ours\"", "'quiet iommu=off amd_iommu=off'  # it's \"ours\""),
        ("GRUB_CMDLINE_LINUX_DEFAULT=quiet", '"quiet iommu=off amd_iommu=off"'),
        ("GRUB_CMDLINE_LINUX_DEFAULT=", '"iommu=off amd_iommu=off"'),
    ],
)
def test_a_hint_changes_the_line_that_is_there(line, hint):
    found = hints([Check("iommu", "warning", "")], {GRUB: f"{line}\n"}, "quiet", "amd")
    # One assignment and not two: the last one would win.
    assert [text for text in found if text.startswith(("-G", "+G"))] == [
        f"-{line}",
        f"+GRUB_CMDLINE_LINUX_DEFAULT={hint}",
    ]


def test_hints_are_a_diff():
    checks = [Check("iommu", "warning", "translates"), Check("hmm", "ok", "on; ...")]
    found = hints(checks, {GRUB: _GRUB}, "quiet iommu=pt", "amd")
    assert '-GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt"' in found
    assert '+GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=off amd_iommu=off"' in found
    assert "+options nvidia_uvm uvm_disable_hmm=1" in found
    assert f"+++ {MODPROBE}\thint" in found
    assert "reboot when it suits you" in found[-1]


def test_no_hints_for_a_host_in_good_order():
    fine = [Check("iommu", "ok", "off"), Check("acs", "ok", ""), Check("hmm", "ok", "on; ...")]
    assert hints(fine, {GRUB: _GRUB}, "quiet", "intel") == []
    assert hints([Check("iommu", "warning", "")], {}, "iommu=off", "intel") == []


def test_hints_for_a_host_without_grub():
    found = hints([Check("acs", "fail", "redirect")], {}, "quiet", "intel")
    assert '+GRUB_CMDLINE_LINUX_DEFAULT="iommu=off intel_iommu=off"' in found


# The table


def test_the_table_shows_what_is_wrong_first():
    checks = [
        Check("gpus", "ok", "8 x L40S", "never shown"),
        Check("acs", "fail", "redirect", "setpci"),
        Check("xid", "unknown", "no log"),
    ]
    assert lines(checks) == [
        "fail     acs   redirect",
        "               mend: setpci",
        "unknown  xid   no log",
        "ok       gpus  8 x L40S",
        "1 fail, 1 unknown, 1 ok",
    ]
    assert counted(checks) == {"fail": 1, "warning": 0, "unknown": 1, "ok": 1}
    assert lines([]) == ["nothing was checked"]


def test_lists_in_words():
    assert [listed([]), listed([0]), listed([0, 3]), listed([0, 1, 2])] == ["", "0", "0 and 3", "0, 1 and 2"]
