"""A stand-in for nvidia-smi that tells of the simulated GPUs, in the formats of the real one (580.159.04).

    python -m benchmark.simulator.nvidia_smi --query-gpu=index,memory.used --format=csv,noheader,nounits

It reads SHARDSWEEP_SIMULATED_HARDWARE and SHARDSWEEP_SIMULATED_GPU. `install_stand_in` puts it on a PATH.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import devices as simulated
from .devices import CUDA, DRIVER, Device
from .settings import Settings

_UNDERLINED, _PLAIN = "\x1b[4m", "\x1b[0m"
_HELP = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n"

Cell = Callable[[Device], str]


def _watts(value: float) -> str:
    return f"{value:.2f} W"


_GPU_FIELDS: dict[str, tuple[str, Cell]] = {
    "index": ("", lambda gpu: str(gpu.index)),
    "count": ("", lambda gpu: str(gpu.index + 1)),
    "name": ("", lambda gpu: gpu.name),
    "uuid": ("", lambda gpu: gpu.uuid),
    "serial": ("", lambda gpu: "0"),
    "vbios_version": ("", lambda gpu: "98.02.2E.00.01"),
    "driver_version": ("", lambda gpu: DRIVER),
    "pci.bus_id": ("", lambda gpu: gpu.bus_id),
    "compute_cap": ("", lambda gpu: ".".join(map(str, gpu.capability))),
    "compute_mode": ("", lambda gpu: "Default"),
    "persistence_mode": ("", lambda gpu: "Enabled"),
    "mig.mode.current": ("", lambda gpu: "[N/A]" if gpu.capability[0] == 12 else "Disabled"),
    "ecc.mode.current": ("", lambda gpu: "Enabled"),
    "ecc.errors.uncorrected.volatile.total": ("", lambda gpu: "0"),
    "memory.total": ("MiB", lambda gpu: f"{gpu.total_mib} MiB"),
    "memory.reserved": ("MiB", lambda gpu: f"{gpu.reserved_mib} MiB"),
    "memory.used": ("MiB", lambda gpu: f"{gpu.used_mib} MiB"),
    "memory.free": ("MiB", lambda gpu: f"{gpu.free_mib} MiB"),
    "utilization.gpu": ("%", lambda gpu: f"{round(100 * gpu.utilization)} %"),
    "utilization.memory": ("%", lambda gpu: f"{round(60 * gpu.utilization)} %"),
    "temperature.gpu": ("", lambda gpu: str(gpu.celsius)),
    "pstate": ("", lambda gpu: "P1" if gpu.holders else "P8"),
    "power.draw": ("W", lambda gpu: _watts(gpu.watts)),
    "power.draw.average": ("W", lambda gpu: _watts(gpu.watts)),
    "power.draw.instant": ("W", lambda gpu: _watts(gpu.watts)),
    "power.limit": ("W", lambda gpu: _watts(gpu.limit_watts)),
    "power.max_limit": ("W", lambda gpu: _watts(gpu.limit_watts)),
    "power.default_limit": ("W", lambda gpu: _watts(gpu.limit_watts)),
    "enforced.power.limit": ("W", lambda gpu: _watts(gpu.limit_watts)),
    "clocks.current.sm": ("MHz", lambda gpu: f"{gpu.sm_mhz} MHz"),
    "clocks.current.graphics": ("MHz", lambda gpu: f"{gpu.sm_mhz} MHz"),
    "clocks.current.memory": ("MHz", lambda gpu: f"{gpu.memory_mhz} MHz"),
    "clocks.max.sm": ("MHz", lambda gpu: f"{gpu.max_sm_mhz} MHz"),
    "clocks_event_reasons.active": ("", lambda gpu: f"0x{reasons(gpu):016x}"),
    "pcie.link.gen.current": ("", lambda gpu: str(gpu.pcie_generation if gpu.holders else 1)),
    "pcie.link.gen.max": ("", lambda gpu: str(gpu.pcie_generation)),
    "pcie.link.width.current": ("", lambda gpu: "16"),
    "pcie.link.width.max": ("", lambda gpu: "16"),
    "timestamp": ("", lambda gpu: time.strftime("%Y/%m/%d %H:%M:%S.000")),
}
_OTHER_NAMES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "clocks.sm": "clocks.current.sm",
    "clocks.gr": "clocks.current.graphics",
    "clocks.mem": "clocks.current.memory",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
}
_APP_FIELDS: dict[str, tuple[str, Callable[[Device, simulated.Holder], str]]] = {
    "pid": ("", lambda gpu, holder: str(holder.pid)),
    "process_name": ("", lambda gpu, holder: holder.name),
    "used_gpu_memory": ("MiB", lambda gpu, holder: f"{holder.bytes >> 20} MiB"),
    "gpu_uuid": ("", lambda gpu, holder: gpu.uuid),
    "gpu_name": ("", lambda gpu, holder: gpu.name),
    "gpu_bus_id": ("", lambda gpu, holder: gpu.bus_id),
    "gpu_serial": ("", lambda gpu, holder: "0"),
    "timestamp": ("", lambda gpu, holder: time.strftime("%Y/%m/%d %H:%M:%S.000")),
}
_OTHER_APP_NAMES = {"name": "process_name", "used_memory": "used_gpu_memory"}


def reasons(gpu: Device) -> int:
    """nvmlClocksEventReasons: bit 0 while the GPU idles."""
    return 0 if gpu.busy else 1


def main(arguments: Sequence[str], settings: Settings) -> tuple[int, str]:
    """(exit status, text) for a command line of nvidia-smi."""
    gpus = simulated.devices(settings)
    options, words = _options(arguments)
    chosen = options.get("id")
    if chosen is not None:
        gpus = [gpu for gpu in gpus if chosen in (str(gpu.index), gpu.uuid, gpu.bus_id)]
        if not gpus:
            return 6, "No devices were found\n"
    if words[:1] == ["topo"]:
        return _topology(words[1:], settings, gpus)
    if "query-gpu" in options:
        rows = {name: (unit, [cell(gpu) for gpu in gpus]) for name, (unit, cell) in _GPU_FIELDS.items()}
        return _table(options["query-gpu"], options.get("format"), rows, _OTHER_NAMES)
    for query in ("query-compute-apps", "query-accounted-apps"):
        if query in options:
            pairs = [(gpu, holder) for gpu in gpus for holder in gpu.holders]
            rows = {name: (unit, [cell(*pair) for pair in pairs]) for name, (unit, cell) in _APP_FIELDS.items()}
            return _table(options[query], options.get("format"), rows, _OTHER_APP_NAMES)
    if "list-gpus" in options:
        return 0, "".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})\n" for gpu in gpus)
    if "query" in options:
        return 0, _long(gpus)
    if "unknown" in options or words:
        return 1, _HELP
    return 0, _overview(gpus)


_SHORT = {"-i": "id", "-q": "query", "-L": "list-gpus", "-d": "display"}
_WITH_VALUE = {"id", "query-gpu", "query-compute-apps", "query-accounted-apps", "format", "display"}
_LONG = _WITH_VALUE | {"query", "list-gpus"}


def _options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if words or not argument.startswith("-"):
            words.append(argument)
            continue
        name, equals, value = argument.partition("=")
        key = _SHORT.get(name) or name.removeprefix("--")
        if key not in _LONG:
            options["unknown"] = argument
            continue
        if key in _WITH_VALUE and not equals:
            value = rest.pop(0) if rest else ""
        options[key] = value
    return options, words


def _table(
    wanted: str, layout: str | None, rows: dict[str, tuple[str, list[str]]], other_names: dict[str, str]
) -> tuple[int, str]:
    formats = [part.strip() for part in (layout or "").split(",")]
    if "csv" not in formats:
        return 1, '"--format=" switch is missing. It is required with "--query-*" switches.\n'
    columns = []
    for field in (part.strip() for part in wanted.split(",")):
        name = other_names.get(field, field)
        if name not in rows:
            return 2, f'Field "{field}" is not a valid field to query.\n\n'
        unit, cells = rows[name]
        columns.append((f"{field} [{unit}]" if unit else field, unit, cells))
    lines = [] if "noheader" in formats else [", ".join(title for title, _, _ in columns)]
    count = len(columns[0][2])
    for number in range(count):
        cells = [(unit, values[number]) for _, unit, values in columns]
        bare = "nounits" in formats
        lines.append(", ".join(cell.removesuffix(f" {unit}") if bare and unit else cell for unit, cell in cells))
    return 0, "".join(line + "\n" for line in lines)


_TOPOLOGY_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
_P2P_LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""


def _topology(words: Sequence[str], settings: Settings, gpus: Sequence[Device]) -> tuple[int, str]:
    host = simulated.simulated_host(settings)
    names = "\t".join(f"GPU{gpu.index}" for gpu in gpus)
    if list(words[:1]) in (["-m"], ["--matrix"]):
        affinity = {0: "0-63", 1: "64-127"}
        text = f"\t{_UNDERLINED}{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID{_PLAIN}\n"
        for gpu in gpus:
            links = [simulated.link(host, gpu.index, other.index) for other in gpus]
            cells = "\t".join(" X " if cell == "X" else cell for cell in links)
            text += f"GPU{gpu.index}\t{cells}\t{affinity[gpu.numa]}\t{gpu.numa}\t\tN/A\n"
        return 0, text + _TOPOLOGY_LEGEND
    if list(words[:1]) in (["-p2p"], ["--p2pstatus"]) and words[1:2] and words[1] in tuple("rwnap"):
        status = {"n": "OK" if host.nvlink else "NS", "a": "OK" if host.nvlink else "NS"}.get(words[1], "OK")
        text = f" \t{_UNDERLINED}{names}\t{_PLAIN}\n"
        for gpu in gpus:
            cells = "\t".join("X" if other is gpu else status for other in gpus)
            text += f" GPU{gpu.index}\t{cells}\t\n"
        return 0, text + _P2P_LEGEND
    return 1, _HELP


def _overview(gpus: Sequence[Device]) -> str:
    bar = "+-----------------------------------------+------------------------+----------------------+"
    wide = "+" + "-" * (len(bar) - 2) + "+"
    version = f"NVIDIA-SMI {DRIVER}             Driver Version: {DRIVER}     CUDA Version: {CUDA}"
    lines = [
        time.strftime("%a %b %d %H:%M:%S %Y").ljust(31),
        wide,
        f"| {version:<87} |",
        bar,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|" + bar[1:-1].replace("-", "=") + "|",
    ]
    for gpu in gpus:
        power = f"{gpu.watts:.0f}W / {gpu.limit_watts:4.0f}W"
        memory = f"{gpu.used_mib}MiB / {gpu.total_mib}MiB"
        lines += [
            f"| {gpu.index:3d}  {gpu.name[:25]:<25}      On  |   {gpu.bus_id} Off |                    0 |",
            f"| N/A {gpu.celsius:4d}C    P{1 if gpu.holders else 8}     {power:>19} | {memory:>22} | "
            f"{round(100 * gpu.utilization):6d}%      Default |",
            "|                                         |                        |                  N/A |",
            bar,
        ]
    lines += ["", wide, f"| {'Processes:':<87} |"]
    lines += [
        f"| {' GPU   GI   CI              PID   Type   Process name                        GPU Memory':<87} |",
        f"| {'       ID   ID                                                               Usage':<87} |",
        "|" + "=" * (len(bar) - 2) + "|",
    ]
    processes = [(gpu, holder) for gpu in gpus for holder in gpu.holders]
    if not processes:
        lines.append(f"| {' No running processes found':<87} |")
    for gpu, holder in processes:
        text = (
            f" {gpu.index:3d}   N/A  N/A  {holder.pid:15d}      C   {holder.name[:34]:<34} {holder.bytes >> 20:7d}MiB"
        )
        lines.append(f"| {text:<87} |")
    return "\n".join([*lines, wide]) + "\n"


def _long(gpus: Sequence[Device]) -> str:
    """The parts of `nvidia-smi -q` that anything here reads."""

    def line(depth: int, name: str, value: str | None = None) -> str:
        title = "    " * depth + name
        return f"{title}\n" if value is None else f"{title:<55}: {value}\n"

    text = "\n==============NVSMI LOG==============\n\n"
    text += line(0, "Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))
    text += line(0, "Driver Version", DRIVER) + line(0, "CUDA Version", CUDA) + "\n"
    text += line(0, "Attached GPUs", str(len(gpus)))
    for gpu in gpus:
        text += f"GPU {gpu.bus_id}\n" + line(1, "Product Name", gpu.name) + line(1, "GPU UUID", gpu.uuid)
        text += line(1, "PCI") + line(2, "Bus Id", gpu.bus_id) + line(2, "GPU Link Info") + line(3, "PCIe Generation")
        text += line(4, "Max", str(gpu.pcie_generation)) + line(4, "Current", str(gpu.pcie_generation))
        text += line(3, "Link Width") + line(4, "Max", "16x") + line(4, "Current", "16x")
        text += line(1, "FB Memory Usage") + line(2, "Total", f"{gpu.total_mib} MiB")
        text += line(2, "Reserved", f"{gpu.reserved_mib} MiB") + line(2, "Used", f"{gpu.used_mib} MiB")
        text += line(2, "Free", f"{gpu.free_mib} MiB")
        text += line(1, "Utilization") + line(2, "GPU", f"{round(100 * gpu.utilization)} %")
        text += line(1, "Temperature") + line(2, "GPU Current Temp", f"{gpu.celsius} C")
        text += line(1, "GPU Power Readings") + line(2, "Average Power Draw", _watts(gpu.watts))
        text += line(2, "Current Power Limit", _watts(gpu.limit_watts))
        text += line(1, "Processes", None if gpu.holders else "None")
        for holder in gpu.holders:
            text += line(2, "Process ID", str(holder.pid)) + line(3, "Type", "C") + line(3, "Name", holder.name)
            text += line(3, "Used GPU Memory", f"{holder.bytes >> 20} MiB")
        text += "\n"
    return text


def install_stand_in(
    directory: Path | str, python: Path | str | None = None, package: Path | str | None = None
) -> Path:
    """Writes an executable `nvidia-smi` into a folder that runs this module, and returns its path.

    Args:
        python: the interpreter; this one unless given.
        package: the folder that holds the package `benchmark`, where the interpreter does not find it by itself.
    """
    target = Path(directory) / "nvidia-smi"
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"env PYTHONPATH={shlex.quote(str(package))} " if package else ""
    command = f"{shlex.quote(str(python or sys.executable))} -m benchmark.simulator.nvidia_smi"
    target.write_text(f'#!/bin/sh\nexec {prefix}{command} "$@"\n', encoding="utf-8")
    target.chmod(0o755)
    return target


if __name__ == "__main__":
    code, output = main(sys.argv[1:], Settings.from_environment(os.environ))
    sys.stdout.write(output)
    sys.exit(code)
