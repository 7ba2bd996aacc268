"""Looking at a host: commands with time limits, all at once, and files of /proc and /sys. Nothing is changed."""

from __future__ import annotations

import os
import pwd
import re
import resource
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from .. import processes
from ..bounded import ABSENT, Answer, run
from ..gpus import buses_by_minor
from ..managers import manager_for
from ..serving import serving_units
from ..settings import HostError, Settings
from . import kernel_log as kernel
from . import smi
from .cards import Holder
from .hints import GRUB, MODPROBE

SMI_SECONDS = 30.0
"""For each call of nvidia-smi. Without persistence a call loads the driver anew, a second or two for each GPU, and six
calls at once do so side by side: on eight healthy cards that can take longer than the 8 s of other commands."""
_NVIDIA = "0x10de"
_FIELDS_TO_DROP = 4
_STAMP = re.compile(r"^(?:\S+ \S+ kernel: |\[[ \d.]+\] )")


class Port(msgspec.Struct, frozen=True, kw_only=True):
    setting: str
    """Which setting of the inventory says its number."""
    number: int
    holders: list[str] | None = []
    """Who listens there; None: somebody whom we may not see."""
    ours: bool = False


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the checks judge, as text and plain data; a check's test makes one by hand."""

    simulated: bool = False
    visible: str = ""
    """CUDA_VISIBLE_DEVICES of every engine here."""
    query: Answer = ABSENT
    topology: Answer = ABSENT
    p2p_read: Answer = ABSENT
    p2p_write: Answer = ABSENT
    long: Answer = ABSENT
    """nvidia-smi -q."""
    holders: list[Holder] = []
    bus_gpus: list[str] = []
    """NVIDIA GPUs of the PCI bus that are not given away to a guest."""
    bridges: list[str] = []
    """Those between the GPUs and their roots."""
    lspci: Answer = ABSENT
    kernel_log: kernel.Log | None = None
    root: bool = False
    container: bool = False
    guest: bool = False
    files: dict[str, str] = {}
    """Content of the files of _FILES that exist."""
    nccl_files: dict[str, str | None] = {}
    """NCCL's configuration files by path, the engine's user's own among them; None for one that is not there."""
    iommu_units: list[str] = []
    iommu_types: dict[str, str] = {}
    numa_nodes: dict[str, int] = {}
    uvm_device: bool = False
    shm: tuple[int, int] | None = None
    """/dev/shm: size and free bytes."""
    limits: dict[str, int | None] = {}
    limits_of: str = ""
    unit_sets_limits: bool = False
    ports: list[Port] = []
    cpus_allowed: int = 0
    governors: list[str] = []


_FILES = (
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    "/proc/cmdline",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/sys/devices/system/node/online",
    "/sys/devices/system/cpu/online",
    GRUB,
    MODPROBE,
)


def look(settings: Settings, yields: list[str], visible: str = "") -> Seen:
    """Look at everything. Bounded: nvidia-smi has 30 s, other commands 8 s, and they run side by side."""
    simulated = settings.engine == "simulated"
    with ThreadPoolExecutor(10) as pool:
        query = pool.submit(_query, settings)
        asked = {
            name: pool.submit(_nvidia_smi, settings, *arguments)
            for name, arguments in {
                "topology": ("topo", "-m"),
                "p2p_read": ("topo", "-p2p", "r"),
                "p2p_write": ("topo", "-p2p", "w"),
                "long": ("-q",),
            }.items()
        }
        apps = pool.submit(
            _nvidia_smi, settings, "--query-compute-apps=pid,process_name,used_gpu_memory,gpu_uuid", "--format=csv"
        )
        lspci = None if simulated else pool.submit(run, ["lspci", "-D", "-vvv"])
        log = None if simulated else pool.submit(kernel_log)
        ours = pool.submit(_our_pids, settings, yields)
        answered = query.result()
        more = {name: future.result() for name, future in asked.items()}
        return Seen(
            simulated=simulated,
            visible=visible,
            query=answered,
            **more,
            holders=_holders(answered, apps.result(), ours.result()),
            lspci=lspci.result() if lspci else ABSENT,
            kernel_log=log.result() if log else None,
            **_machine(settings, ours.result()),
            **({} if simulated else _bus()),
        )


def _nvidia_smi(settings: Settings, *arguments: str) -> Answer:
    return run([*settings.nvidia_smi, *arguments], environment=settings.environment, seconds=SMI_SECONDS)


def _query(settings: Settings) -> Answer:
    """The query's table; a field that this nvidia-smi does not have is left out and it is asked again."""
    fields = list(smi.QUERY)
    answer = ABSENT
    for _ in range(_FIELDS_TO_DROP + 1):
        answer = _nvidia_smi(settings, f"--query-gpu={','.join(fields)}", "--format=csv")
        unknown = smi.unknown_field(answer.text + answer.error) if answer.state == "failed" else None
        if unknown not in fields:
            break
        fields.remove(unknown)
    return answer


def kernel_log() -> kernel.Log | None:
    """The driver's and the links' lines since boot; None where neither journal nor ring buffer may be read."""
    wanted = ("NVRM", "AER", "SDES", "Surprise")
    asking = ["journalctl", "-k", "-b", "-q", "--no-pager"]
    journal = run([*asking, "-o", "short-iso", f"--grep={'|'.join(wanted)}"])
    if journal.state == "failed" and journal.error.strip():
        # It does not search (systemd may be built without that), which is not the same as finding nothing.
        journal = run([*asking, "-o", "short-iso"])
    # Nothing that matches looks like nothing that may be read: so any line at all is asked for too.
    silent = journal.state in ("ok", "failed") and not (journal.text + journal.error).strip()
    any_line = run([*asking, "-n", "1"]) if silent else journal
    kept = any_line.ok and bool(any_line.text.strip())
    ring = run(["dmesg"])
    if not ring.ok and not kept:
        return None
    told = [text.splitlines() for text in (journal.text, ring.text)]
    lines = merged(*([line for line in lines if any(word in line for word in wanted)] for lines in told))
    return kernel.Log(lines=lines, begins=0.0 if kept else first_stamp(ring.text))


def first_stamp(ring: str) -> float | None:
    """Seconds after boot of a ring buffer's first line (it forgets its oldest); None where lines have no stamp."""
    match = re.match(r"\s*\[\s*(\d+\.\d+)\]", ring)
    return float(match.group(1)) if match else None


def merged(journal: Sequence[str], ring: Sequence[str]) -> list[str]:
    """The lines of both, which tell the same with another time in front: each as often as the one with more of it."""
    counts = [Counter(map(_message, lines)) for lines in (journal, ring)]
    first = {_message(line): line for line in reversed([*journal, *ring])}
    return [first[message] for message, count in (counts[0] | counts[1]).items() for _ in range(count)]


def _message(line: str) -> str:
    """`2026-11-30T00:04:56+0000 gpu1 kernel: NVRM: ...` and `[  912.1] NVRM: ...` -> `NVRM: ...`."""
    return _STAMP.sub("", line)


def _our_pids(settings: Settings, yields: list[str]) -> set[int]:
    """Processes of our engines and of the units that make room."""
    found = {process.pid for members in processes.marked(settings.state).values() for process in members}
    try:
        manager = manager_for(settings)
        for unit in serving_units(settings, manager, yields):
            found |= {process.pid for process in manager.processes(unit)}
    except HostError:
        pass  # without its service manager nothing of ours can run here
    return found


def _holders(query: Answer, apps: Answer, ours: set[int]) -> list[Holder]:
    """Processes that nvidia-smi lists, and those that have a GPU's device file open: it lists none in most containers,
    and elsewhere none that draws or that is in another namespace."""
    by_uuid = {row.cells.get("uuid", ""): row.index for row in smi.rows(query.text)} if query.ok else {}
    listed = []
    for row in smi.rows(apps.text) if apps.ok else []:
        pid = row.number("pid")
        if pid is not None:
            process = processes.describe(int(pid))
            told = process.command if process else row.cells.get("process_name", "")
            listed.append(Holder(int(pid), told, by_uuid.get(row.cells.get("gpu_uuid", "")), int(pid) in ours))
    opened = processes.gpu_openers().minors
    if not listed:
        return [Holder(process.pid, process.command, None, process.pid in ours) for process in opened]
    indices = _indices(query)
    known = ours | {holder.pid for holder in listed}
    # Of our own only the listed count: the launcher has each GPU open, and says nothing of what was leaked on one.
    return listed + [
        Holder(process.pid, process.command, indices.get(minor), only_open=True)
        for process, minors in opened.items()
        if process.pid not in known
        for minor in sorted(minors)
    ]


def _indices(query: Answer) -> dict[int, str]:
    """{minor number of a device file: index of nvidia-smi}, by the bus."""
    by_bus = {row.bus: row.index for row in smi.rows(query.text)}
    return {minor: by_bus[bus] for minor, bus in buses_by_minor().items() if bus in by_bus}


def _machine(settings: Settings, ours: set[int]) -> dict[str, object]:
    numbers = {"sglang_service_port": settings.port, "sglang_service_node_port": settings.node_port}
    found, whose = _limits(settings)
    return {
        "root": os.geteuid() == 0,
        "container": _in_container(),
        "guest": " hypervisor" in (text_of("/proc/cpuinfo") or ""),
        "files": {name: text for name in _FILES if (text := text_of(name)) is not None},
        "nccl_files": {str(path): text_of(path) for path in (Path("/etc/nccl.conf"), _home(settings) / ".nccl.conf")},
        "uvm_device": Path("/dev/nvidia-uvm").exists(),
        "shm": _shared_memory(),
        "limits": found,
        "limits_of": whose,
        "unit_sets_limits": settings.manager == "systemd" or settings.engine == "simulated",
        "ports": [_port(setting, number, ours) for setting, number in numbers.items() if number],
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "governors": sorted({text for file in _governors() if (text := (text_of(file) or "").strip())}),
    }


def _port(setting: str, number: int, ours: set[int]) -> Port:
    holders = processes.port_holders(number)
    return Port(
        setting=setting,
        number=number,
        holders=None if holders is None else [str(holder) for holder in holders],
        ours=bool(holders) and all(holder.pid in ours for holder in holders or []),
    )


def _home(settings: Settings) -> Path:
    """Of the engine's user, by the accounts and not by HOME: so NCCL looks for it (getpwuid, src/misc/param.cc)."""
    try:
        account = pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(os.geteuid())
    except KeyError:
        return Path("~")  # no such user yet: nothing is there
    return Path(account.pw_dir)


def text_of(name: str | Path) -> str | None:
    try:
        return Path(name).read_text(errors="replace")
    except OSError:
        return None


def _governors() -> list[Path]:
    return list(Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor"))


def _in_container() -> bool:
    marks = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    return any(Path(mark).exists() for mark in marks) or "container=" in (text_of("/proc/1/environ") or "")


def _shared_memory() -> tuple[int, int] | None:
    try:
        told = os.statvfs("/dev/shm")
    except OSError:
        return None
    return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize


def _limits(settings: Settings) -> tuple[dict[str, int | None], str]:
    """What an engine inherits from us, or from supervisor; a systemd unit sets them itself."""
    if settings.manager == "systemd":
        return {}, "systemd's unit"
    kinds = {"stack": resource.RLIMIT_STACK, "files": resource.RLIMIT_NOFILE, "locked": resource.RLIMIT_MEMLOCK}
    # RLIM_INFINITY is -1 for Python; the hard limit of files is what an engine raises itself to.
    found: dict[str, int | None] = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    found["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return found, "limits of this user"


def _bus() -> dict[str, object]:
    """The GPUs as sysfs knows them: address, bridges above, IOMMU mode, NUMA node."""
    gpus = [device for device in Path("/sys/bus/pci/devices").glob("*") if _is_gpu(device)]
    types = {gpu.name: (text_of(gpu / "iommu_group" / "type") or "").strip() for gpu in gpus}
    nodes = {gpu.name: (text_of(gpu / "numa_node") or "").strip() for gpu in gpus}
    units = Path("/sys/class/iommu")
    return {
        "bus_gpus": sorted(gpu.name for gpu in gpus),
        "bridges": sorted({part for gpu in gpus for part in gpu.resolve().parts[:-1] if part.count(":") == 2}),
        "iommu_units": sorted(unit.name for unit in units.iterdir()) if units.is_dir() else [],
        "iommu_types": {bus: kind for bus, kind in types.items() if kind},
        "numa_nodes": {bus: int(node) for bus, node in nodes.items() if node.lstrip("-").isdigit()},
    }


def _is_gpu(device: Path) -> bool:
    kind = (text_of(device / "class") or "").strip()
    given_away = (device / "driver").resolve().name == "vfio-pci"
    return (text_of(device / "vendor") or "").strip() == _NVIDIA and kind.startswith("0x03") and not given_away


def vendor(cpuinfo: str) -> str:
    return "amd" if "AuthenticAMD" in cpuinfo else "intel" if "GenuineIntel" in cpuinfo else ""
