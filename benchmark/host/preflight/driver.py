"""The driver: new enough for CUDA 13, the open module where the GPU needs it, one version throughout."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..bounded import Answer
from .check import Check
from .smi import Row

CUDA_13_DRIVER = (580, 65)
"""The first driver branch that runs CUDA 13.0 (580.65.06)."""
_BLACKWELL = 10
_MISMATCH = "Driver/library version mismatch"
_NO_DRIVER = "couldn't communicate with the NVIDIA driver"
"""nvidia-smi (exit 9) without the kernel module, with or without a GPU: its packages alone are no GPU."""
_HOLD = "apt-mark hold 'nvidia-*' 'libnvidia-*' (or your distribution's version lock)"

_LOAD_UVM = "nvidia-modprobe -u -c 0"


def answers(query: Answer, on_the_bus: Sequence[str], *, simulated: bool, container: bool = False) -> Check | None:
    """What is wrong with nvidia-smi itself; None where it answered.

    Args:
        on_the_bus: NVIDIA GPUs that the PCI bus shows.
        container: this is one, which may not be shown the bus: that it shows none tells nothing then.
    """
    if query.state == "hung":
        mend = "dmesg | grep Xid; a GPU that is stuck needs a reset or a reboot. Start nothing before."
        return Check("nvidia_smi", "fail", f"{query.error}: the driver is in trouble", mend)
    said = (query.text + query.error).strip()
    first = said.splitlines()[0] if said else "it said nothing"
    if _MISMATCH in said:
        mend = f"Reboot (or unload and load the nvidia modules); then {_HOLD}"
        return Check("nvidia_smi", "fail", f"{_MISMATCH}: packages were upgraded under the loaded module", mend)
    nothing = query.state == "absent" or "No devices were found" in said
    # Where the bus shows no GPU either there is none; a GPU without its driver is the case below.
    nothing = nothing or (_NO_DRIVER in said and not on_the_bus and not container and not simulated)
    if nothing and on_the_bus:
        mend = "Install the driver (apt install nvidia-open) and look at: dmesg | grep NVRM"
        seen = f"{len(on_the_bus)} NVIDIA GPUs on the PCI bus, and " + (
            "no nvidia-smi" if query.state == "absent" else "the driver finds none"
        )
        return Check("nvidia_smi", "fail", seen, mend)
    if nothing and simulated:
        return Check("nvidia_smi", "fail", f"the simulated GPUs do not answer: {first}", "Run sglang_tools again.")
    if nothing:
        mend = "Only the simulated engine can run here: sglang_service_engine: simulated"
        return Check("gpus", "unknown", "no GPU", mend)
    if query.state == "failed":
        return Check("nvidia_smi", "fail", f"exit {query.code}: {first[:200]}", "dmesg | grep NVRM")
    return None


def version(rows: Sequence[Row]) -> Check:
    told = rows[0].text("driver_version") if rows else None
    match = re.match(r"(\d+)\.(\d+)", told or "")
    if not match:
        mend = "By hand: cat /proc/driver/nvidia/version; dmesg | grep NVRM"
        return Check("driver", "unknown", f"the driver's version is not told ({told})", mend)
    if (int(match.group(1)), int(match.group(2))) < CUDA_13_DRIVER:
        mend = "apt install nvidia-open (580 or newer), then reboot"
        return Check("driver", "fail", f"{told}; CUDA 13 needs 580.65 or newer", mend)
    return Check("driver", "ok", f"{told}, new enough for CUDA 13")


def module(text: str | None, rows: Sequence[Row]) -> Check:
    """/proc/driver/nvidia/version: which kernel module is loaded. GPUs from Blackwell on run with the open one only."""
    if text is None:
        mend = "On the machine itself: modinfo -F license nvidia (the open module says Dual MIT/GPL)"
        return Check("kernel_module", "unknown", "/proc/driver/nvidia/version is not there", mend)
    match = re.search(r"Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    loaded = match.group(1) if match else "?"
    told = rows[0].text("driver_version") if rows else None
    if match and told and told != loaded:
        mend = f"Reboot; then {_HOLD}"
        return Check("kernel_module", "fail", f"module {loaded}, libraries {told}: upgraded under way", mend)
    if "Open Kernel Module" in text:
        return Check("kernel_module", "ok", f"open, {loaded}")
    mend = "apt install nvidia-open, remove the proprietary module's packages, reboot"
    newest = max((row.number("compute_cap") or 0 for row in rows), default=0)
    if newest >= _BLACKWELL:
        return Check("kernel_module", "fail", f"proprietary, {loaded}; Blackwell runs with the open one only", mend)
    return Check("kernel_module", "warning", f"proprietary, {loaded}; DMA-BUF needs the open one", mend)


def uvm(present: bool, hmm_disabled: str | None) -> list[Check]:
    """The unified-memory device, without which NCCL 2.23 and newer do not start, and HMM (heterogeneous memory)."""
    device = Check("uvm", "ok", "/dev/nvidia-uvm is there")
    if not present:
        device = Check("uvm", "fail", "/dev/nvidia-uvm is not there; NCCL needs it", _LOAD_UVM)
    told = (hmm_disabled or "").strip().upper()
    if not told:
        mend = f"{_LOAD_UVM}; then: cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm (an old driver has none)"
        return [device, Check("hmm", "unknown", "the module nvidia_uvm does not tell", mend)]
    if told in ("Y", "1"):
        return [device, Check("hmm", "ok", "off")]
    return [device, Check("hmm", "ok", "on; hosts whose P2P hangs often run with it off (see the hints)")]
