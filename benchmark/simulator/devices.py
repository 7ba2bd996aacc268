"""The simulated GPUs of a host as its tools see them: fixed facts from the hardware table, the rest from the ledger."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass

from benchmark.engine.hardware import MIB, Host, find_host

from .ledger import Holder, Ledger
from .settings import Settings

DRIVER = "580.159.04"
CUDA = "13.0"
_FULL_NAMES = {
    "RTX PRO 6000 Blackwell": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "RTX PRO 6000 Blackwell Workstation": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "RTX PRO 6000 Blackwell Max-Q": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "H100 80GB": "NVIDIA H100 80GB HBM3",
    "A100 80GB": "NVIDIA A100-SXM4-80GB",
}
_BUSES = (0x01, 0x25, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)
# name part, power limit in W, highest SM clock in MHz, memory clock in MHz. From data sheets; the first match counts.
_LIMITS = (
    ("Max-Q", 300, 2280, 12481),
    ("RTX PRO 6000", 600, 2430, 12481),
    ("L40S", 350, 2520, 9001),
    ("H100 PCIe", 350, 1755, 1593),
    ("H200 NVL", 600, 1785, 3201),
    ("H", 700, 1980, 3201),
)
_OTHER_LIMITS = (400, 2100, 8001)
_IDLE_SHARE = 0.11
"""Power of an idle GPU that holds a context, as a share of its limit (H200: 80 of 700 W)."""


@dataclass(frozen=True)
class Device:
    """One GPU at one moment."""

    index: int
    name: str
    uuid: str
    bus_id: str
    total_mib: int
    reserved_mib: int
    used_mib: int
    utilization: float
    """0 to 1."""
    watts: float
    limit_watts: float
    celsius: int
    sm_mhz: int
    max_sm_mhz: int
    memory_mhz: int
    capability: tuple[int, int]
    pcie_generation: int
    numa: int
    holders: tuple[Holder, ...]
    """Processes on it; what is leaked has none and is only in `used_mib`."""

    @property
    def free_mib(self) -> int:
        return max(0, self.total_mib - self.reserved_mib - self.used_mib)

    @property
    def busy(self) -> bool:
        return self.utilization > 0.005


def simulated_host(settings: Settings) -> Host:
    """The host that the environment names.

    Raises:
        UnknownHardware: it is not in the table.
    """
    return find_host(settings.hardware)


def devices(settings: Settings | None = None) -> list[Device]:
    """Every GPU as it is now."""
    settings = settings or Settings.from_environment(os.environ)
    host = simulated_host(settings)
    ledger = Ledger(settings.ledger) if settings.ledger else None
    holders = ledger.holders() if ledger else []
    activities = ledger.activities() if ledger else {}
    return [
        _device(host, index, [holder for holder in holders if holder.gpu == index], activities.get(index, (0.0, 0.0)))
        for index in range(host.count)
    ]


def _device(host: Host, index: int, holders: list[Holder], activity: tuple[float, float]) -> Device:
    gpu = host.gpu
    utilization, power = activity
    used = sum(holder.bytes for holder in holders) // MIB
    limit, top, memory_clock = next((row[1:] for row in _LIMITS if row[0] in gpu.name), _OTHER_LIMITS)
    awake = bool(holders) or utilization > 0
    watts = limit * max(_IDLE_SHARE if awake else _IDLE_SHARE / 2, power)
    return Device(
        index=index,
        name=full_name(gpu.name),
        uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'simulated {gpu.name} {index}')}",
        bus_id=f"00000000:{_BUSES[index % 8] + 8 * (index // 8):02X}:00.0",
        total_mib=gpu.memory_mib,
        reserved_mib=gpu.reserved_mib,
        used_mib=min(used, gpu.memory_mib - gpu.reserved_mib),
        utilization=utilization,
        watts=round(watts, 2),
        limit_watts=float(limit),
        celsius=round(31 + 38 * watts / limit),
        sm_mhz=top if awake else 345,
        max_sm_mhz=top,
        memory_mhz=memory_clock if awake else 405,
        capability=gpu.compute_capability,
        pcie_generation=host.pcie_generation,
        numa=0 if index < (host.count + 1) // 2 else 1,
        holders=tuple(holder for holder in holders if not holder.leaked),
    )


def full_name(name: str) -> str:
    """A GPU's name as nvidia-smi writes it."""
    return _FULL_NAMES.get(name, f"NVIDIA {name}")


def link(host: Host, first: int, second: int) -> str:
    """What joins two GPUs, in the words of `nvidia-smi topo -m`."""
    if first == second:
        return "X"
    if host.nvlink:
        return "NV18"
    half = (host.count + 1) // 2
    if (first < half) != (second < half):
        return "SYS"
    return "PXB" if host.pcie_switches else "NODE"
