"""The rest of the host: shared memory, limits, ports, NCCL's own files, processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .check import Check, listed
from .pcie import numbers

GIB = 1 << 30
_SHM_LEAST, _SHM_ENOUGH = 1 * GIB, 8 * GIB
_FILES, _LOCKED = 65536, 64 << 20
UNLIMITED = -1


def shared_memory(size: int | None, free: int | None) -> Check:
    """/dev/shm in bytes. A container starts with 64 MiB, and NCCL then fails: 'failed to extend /dev/shm/nccl-...'."""
    if size is None or free is None:
        return Check("shm", "unknown", "/dev/shm is not there", "mount -t tmpfs -o size=16G tmpfs /dev/shm")
    seen = f"/dev/shm {size / GIB:.1f} GiB, {free / GIB:.1f} free"
    mend = "mount -o remount,size=16G /dev/shm (a container: --shm-size 16g or --ipc host)"
    if free < _SHM_LEAST:
        return Check("shm", "fail", seen, mend if size < _SHM_ENOUGH else "rm what is left over: ls -l /dev/shm/nccl-*")
    if size < _SHM_ENOUGH:
        return Check("shm", "warning", f"{seen}; NCCL may need 8 or more", mend)
    return Check("shm", "ok", seen)


def limits(whose: str, found: Mapping[str, int | None], *, unit_sets: bool) -> Check:
    """Limits that the engine starts with: {"stack", "files", "locked": bytes or number, -1 without limit}.

    Args:
        whose: where they come from, for the reader.
        unit_sets: the engine's unit sets all three itself (systemd; templates/limits.j2 of the role sglang_service).
    """
    if unit_sets:
        return Check("limits", "ok", "the engine's unit sets stack, open files and locked memory itself")
    wrong, mend = [], []
    stack, files, locked = found.get("stack"), found.get("files"), found.get("locked")
    if stack == UNLIMITED:
        wrong.append("unlimited stack: glibc then gives threads 2 MB, and NCCL before 2.28 crashes")
        mend.append("ulimit -s 8192")
    if files is not None and files != UNLIMITED and files < _FILES:
        wrong.append(f"{files} open files")
        mend.append("ulimit -n 1048576")
    if locked is not None and locked != UNLIMITED and locked < _LOCKED:
        wrong.append(f"{locked >> 10} KiB of locked memory")
        mend.append("ulimit -l unlimited")
    if wrong:
        return Check("limits", "warning", f"{whose}: {'; '.join(wrong)}", "; ".join(mend))
    if stack is None:
        return Check("limits", "unknown", f"{whose} are not told", "By hand: ulimit -a")
    return Check("limits", "ok", f"{whose}: stack, open files and locked memory are right")


def port(
    setting: str, number: int, holders: Sequence[str] | None, ours: bool, ephemeral: tuple[int, int] | None
) -> Check:
    """A port of the engine: free, or held by our engine; `holders` None: by somebody whom we may not see."""
    name = setting.removeprefix("sglang_service_")
    mend = f"Stop it, name its unit in sglang_service_yields, or set {setting}."
    if holders is None or (holders and not ours):
        who = listed(holders) if holders else "a process of another user"
        return Check(name, "fail", f"port {number} is taken by {who}", mend)
    if ephemeral and ephemeral[0] <= number <= ephemeral[1]:
        seen = f"port {number} lies in {ephemeral[0]} to {ephemeral[1]}, from which outgoing connections take theirs"
        free = 30001 if ephemeral[0] > 30001 else max(1024, ephemeral[0] - 1)
        return Check(name, "warning", seen, f"{setting}: {free}, or narrow net.ipv4.ip_local_port_range")
    return Check(name, "ok", f"port {number} {'serves our engine' if holders else 'is free'}")


def nccl_files(found: Mapping[str, str | None]) -> Check:
    """NCCL's configuration files ({path: content}), which add variables to every engine without a word."""
    variables = {
        path: [line.strip() for line in (content or "").splitlines() if line.strip() and line.strip()[0] != "#"]
        for path, content in found.items()
    }
    told = [f"{path}: {', '.join(lines)[:200]}" for path, lines in variables.items() if lines]
    if told:
        mend = "Move them into sglang_service_environment, where the record shows them, and delete the file."
        return Check("nccl_files", "warning", f"variables that no record would show: {'; '.join(told)}", mend)
    return Check("nccl_files", "ok", f"no variables in {' or '.join(found)}")


def processors(allowed: int, online: str, governors: Sequence[str]) -> list[Check]:
    """CPUs that this session may use against those there are, and their frequency governor."""
    there = len(numbers(online))
    if there and allowed < there:
        seen = f"{allowed} of {there} CPUs may be used here; engine and NUMA binding see the same"
        cpus = Check("cpus", "warning", seen, "Take CPUAffinity or the container's cpuset away.")
    else:
        cpus = Check("cpus", "ok", f"all {there or allowed} may be used")
    slow = [governor for governor in governors if governor != "performance"]
    if slow:
        return [cpus, Check("governor", "warning", f"{listed(slow)}", "cpupower frequency-set -g performance")]
    if governors:
        return [cpus, Check("governor", "ok", "performance")]
    return [cpus]
