"""What came of the groups -> checks, in the words of the preflight."""

from __future__ import annotations

from collections.abc import Sequence

from ..preflight.check import Check
from .group import Result

HANG_ADVICE = (
    "PCIe's ACS or the IOMMU sends peer traffic around, although P2P reports OK. Look at the checks acs and iommu; "
    "clear ACS at each boot (setpci -s BRIDGE ECAP_ACS+0x6.w=0000), boot with iommu=off. "
    "NCCL_P2P_DISABLE=1 in the environment runs without P2P, slower."
)
_OUTPUT = "The ranks' output lies in the state folder below communication/."
_MIB, _GB = 1 << 20, 1e9


def judge(name: str, results: Sequence[Result]) -> list[Check]:
    """The checks of one NCCL environment: one for each group, and one for the transports that NCCL chose.

    Args:
        name: of the configurations that have this environment.
    """
    checks = [_group(name, result) for result in results]
    done = [result for result in results if result.outcome == "ok" and result.backend == "nccl"]
    return [*checks, *([_transports(name, done[-1])] if done else [])]


def _group(name: str, result: Result) -> Check:
    which = f"communication_{result.ranks}"
    what = f"{name}: {result.ranks} ranks" + (f" on GPU {', '.join(map(str, result.gpus))}" if result.gpus else "")
    if result.outcome == "ok":
        return Check(which, "ok", f"{what}, {result.backend}: {_speed(result)}")
    if result.outcome in ("no python", "no torch"):
        missing = result.error if result.outcome == "no python" else "the engine's Python has no torch"
        return Check(which, "unknown", f"{what}: {missing}", "Run playbooks/install.yml first.")
    if result.outcome == "wrong":
        seen = f"{what}: the sum of an all-reduce was wrong; data is corrupted on its way"
        return Check(which, "fail", seen, f"Do not serve. {HANG_ADVICE}")
    if result.outcome == "hang":
        return _hang(which, what, result)
    mend = _OUTPUT
    if any("/dev/shm" in text for text in [result.error, *result.warnings]):
        mend = "mount -o remount,size=16G /dev/shm (a container: --shm-size 16g); no RemoveIPC for the engine's user"
    return Check(which, "fail", f"{what}: failed {_where(result)}: {result.error}", mend)


def _hang(which: str, what: str, result: Result) -> Check:
    seen = f"{what}: communication hang, {result.seconds:.0f} s and no end {_where(result)}"
    if result.stage in ("", "import"):
        mend = "torch itself does not come up: look at the disk of the engine's venv, and at dmesg."
        return Check(which, "fail", f"{what}: no rank came up within {result.seconds:.0f} s (importing torch)", mend)
    return Check(which, "fail", seen, HANG_ADVICE)


def _where(result: Result) -> str:
    places = {
        "": "before it began",
        "import": "while importing torch",
        "group": "while the group was made",
        "first all-reduce": "in the first all-reduce",
        "sizes": "in the all-reduces by size",
        "steps": "in the all-reduces of a step",
    }
    return places.get(result.stage, f"at {result.stage}")


def _speed(result: Result) -> str:
    if not result.sizes:
        return "the sum is right"
    small = min(result.sizes, key=lambda size: size["bytes"])
    large = max(result.sizes, key=lambda size: size["bytes"])
    told = f"{small['seconds'] * 1e6:.0f} us at {_amount(small['bytes'])}"
    told += f", {large['bus_bandwidth_bytes_per_second'] / _GB:.1f} GB/s a link at {_amount(large['bytes'])}"
    if result.steps:
        step = result.steps[0]
        how = "in one CUDA graph" if step["graph"] else "in a row"
        told += f", {step['all_reduces']} of {step['tokens']} token {how} {step['seconds'] * 1e3:.2f} ms"
    return told


def _amount(size: int) -> str:
    return f"{size / _MIB:g} MiB" if size >= _MIB else f"{size / 1024:g} KiB"


def _transports(name: str, result: Result) -> Check:
    chosen = result.transports
    told = f"{name}: " + (", ".join(f"{kind} {count} channels" for kind, count in sorted(chosen.items())) or "not told")
    if not chosen:
        return Check("transport", "unknown", told, _OUTPUT)
    if "NET" in chosen:
        mend = "Take NCCL_SHM_DISABLE away, and look at /dev/shm: inside one host there is no reason for sockets."
        return Check("transport", "fail", f"{told}; network sockets inside one host", mend)
    if "SHM" in chosen:
        mend = "NCCL_P2P_LEVEL: SYS in the configuration's environment (and no NCCL_P2P_DISABLE), if P2P works here."
        return Check("transport", "warning", f"{told}; through host memory, not from GPU to GPU", mend)
    return Check("transport", "ok", told)
