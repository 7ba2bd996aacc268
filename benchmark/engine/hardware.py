"""GPUs by name and hosts: memory, bandwidth, rates and links, with the source of each figure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .nccl import normalise_environment

MIB = 1024**2
GIB = 1024**3
MOST_ALLREDUCE_SECONDS = 60.0


class UnknownHardware(ValueError):  # noqa: N818  (the name is the interface)
    """A GPU or host that is not in the table; the text lists what is."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Rates are dense (no sparsity) tensor-core rates with 32-bit accumulation."""

    name: str
    memory_mib: int
    """nvidia-smi's memory.total."""
    reserved_mib: int
    """What the driver keeps back: memory.total less the capacity that PyTorch sees."""
    bandwidth: float
    """Bytes a second of device memory."""
    bf16_flops: float
    fp8_flops: float
    fp4_flops: float
    compute_capability: tuple[int, int]
    nvlink: float = 0.0
    """Bytes a second and direction over NVLink; 0 without."""
    pcie_generation: int = 5

    @property
    def usable_bytes(self) -> int:
        """The capacity that PyTorch reports."""
        return (self.memory_mib - self.reserved_mib) * MIB


@dataclass(frozen=True)
class AllReduce:
    """One measured all-reduce: of `bytes` over `group` GPUs, inside a CUDA graph."""

    group: int
    bytes: int
    seconds: float
    environment: tuple[tuple[str, str], ...] | None = None
    """NCCL's variables that it ran with (`nccl_variables`); None where that is not told."""


@dataclass(frozen=True)
class Host:
    """GPUs of one kind in one machine (or `nodes` equal machines) and what joins them."""

    gpu: Gpu
    count: int
    nodes: int = 1
    nvlink: bool = False
    pcie_generation: int = 5
    pcie_switches: bool = False
    """GPUs sit behind PCIe switches, not each on its own root port."""
    name: str = ""
    allreduce: tuple[AllReduce, ...] = ()
    """What the host's check measured; empty if nothing was."""
    environment: tuple[tuple[str, str], ...] = ()
    """NCCL's variables that every engine of this host has, unless its configuration says otherwise."""

    @property
    def link(self) -> str:
        return "NVLink" if self.nvlink else f"PCIe {self.pcie_generation}"

    def under(self, environment: Mapping[str, Any]) -> Host:
        """The host as a configuration with this environment sees it: with the all-reduces of no other one.

        A switch of transport can move them fivefold, so what another environment measured is no guess at them.
        """
        if not self.allreduce:
            return self
        asked = nccl_variables({**dict(self.environment), **environment})
        return replace(self, allreduce=tuple(row for row in self.allreduce if row.environment in (None, asked)))


def _gpu(
    name: str,
    memory: int,
    reserved: int,
    bandwidth: float,
    flops: tuple[float, float, float],
    capability: tuple[int, int],
    nvlink: float = 0.0,
    pcie: int = 5,
) -> Gpu:
    tera = 1e12
    rates = (flops[0] * tera, flops[1] * tera, flops[2] * tera)
    return Gpu(name, memory, reserved, bandwidth * 1e9, *rates, capability, nvlink * 1e9, pcie)


# name, memory.total MiB, reserved MiB, GB/s, (bf16, fp8, fp4) TFLOPS dense, compute capability, NVLink GB/s, PCIe.
# Rates and bandwidths: the makers' data sheets and, for GeForce cards, whitepapers (half of the "with sparsity"
# figures, bf16 with 32-bit accumulation). NVIDIA publishes none of H20, H20-3e, L20 and RTX 6000D; theirs are of third
# parties. memory.total: nvidia-smi logs.
# Reserved: RTX PRO 6000 636 MiB (nvidia-smi -q of a public log); H200 616 MiB (143,771 MiB less the 139.80 GiB
# that PyTorch tells in tests/captures/failures/graph_oom.log); others near these, by the same ratio.
# A rate of 0 in fp8 or fp4 of older GPUs is the bf16 rate: weights are widened, then multiplied.
GPUS = (
    _gpu("RTX PRO 6000 Blackwell", 97887, 636, 1597, (503.8, 1007.6, 2015.2), (12, 0)),
    _gpu("RTX PRO 6000 Blackwell Workstation", 97887, 636, 1792, (503.8, 1007.6, 2015.2), (12, 0)),
    _gpu("RTX PRO 6000 Blackwell Max-Q", 97887, 636, 1792, (438.9, 877.9, 1755.7), (12, 0)),
    _gpu("RTX 6000D", 85651, 600, 1568, (300.0, 600.0, 1200.0), (12, 0)),
    _gpu("RTX 5090", 32607, 500, 1792, (209.5, 419.0, 1676.0), (12, 0)),
    _gpu("RTX 4090", 24564, 480, 1008, (165.2, 330.3, 330.3), (8, 9), pcie=4),
    _gpu("RTX 3090", 24576, 480, 936, (71.2, 71.2, 71.2), (8, 6), pcie=4),
    _gpu("RTX A6000", 49140, 500, 768, (154.8, 154.8, 154.8), (8, 6), pcie=4),
    _gpu("RTX 6000 Ada", 49140, 500, 960, (364.2, 728.5, 728.5), (8, 9), pcie=4),
    _gpu("L4", 23034, 480, 300, (121.0, 242.5, 242.5), (8, 9), pcie=4),
    _gpu("L40S", 46068, 500, 864, (362.1, 733.0, 733.0), (8, 9), pcie=4),
    _gpu("L20", 46068, 500, 864, (119.5, 239.0, 239.0), (8, 9), pcie=4),
    _gpu("A100 40GB PCIe", 40960, 500, 1555, (312.0, 312.0, 312.0), (8, 0), pcie=4),
    _gpu("A100 40GB", 40960, 500, 1555, (312.0, 312.0, 312.0), (8, 0), 300, pcie=4),
    _gpu("A100 80GB PCIe", 81920, 600, 1935, (312.0, 312.0, 312.0), (8, 0), pcie=4),
    _gpu("A100 80GB", 81920, 600, 2039, (312.0, 312.0, 312.0), (8, 0), 300, pcie=4),
    _gpu("A800 80GB PCIe", 81920, 600, 1935, (312.0, 312.0, 312.0), (8, 0), pcie=4),
    _gpu("A800 80GB", 81920, 600, 2039, (312.0, 312.0, 312.0), (8, 0), 200, pcie=4),
    _gpu("H20", 97871, 600, 4000, (148.0, 296.0, 296.0), (9, 0), 450),
    _gpu("H20-3e", 143771, 616, 4800, (148.0, 296.0, 296.0), (9, 0), 450),
    _gpu("H800", 81559, 580, 3352, (989.4, 1978.9, 1978.9), (9, 0), 200),
    _gpu("H100 PCIe", 81559, 580, 2039, (756.0, 1513.0, 1513.0), (9, 0)),
    _gpu("H100 NVL", 95830, 600, 3938, (835.0, 1671.0, 1671.0), (9, 0), 300),
    _gpu("H100 80GB", 81559, 580, 3352, (989.4, 1978.9, 1978.9), (9, 0), 450),
    _gpu("H200 NVL", 143771, 616, 4800, (835.5, 1671.0, 1671.0), (9, 0), 450),
    _gpu("H200", 143771, 616, 4800, (989.4, 1978.9, 1978.9), (9, 0), 450),
    _gpu("B200", 183359, 730, 8000, (2250.0, 4500.0, 9000.0), (10, 0), 900),
    _gpu("GB200", 189471, 750, 8000, (2500.0, 5000.0, 10000.0), (10, 0), 900),
    _gpu("B300", 275040, 1000, 8000, (2250.0, 4500.0, 13500.0), (10, 3), 900),
    _gpu("MI300X", 196592, 0, 5300, (1307.4, 2614.9, 2614.9), (9, 4), 448),
    _gpu("MI355X", 294896, 0, 8000, (2500.0, 5000.0, 10000.0), (9, 5), 537),
)

# Words of a name that do not tell GPUs apart.
_NOISE = re.compile(
    r"nvidia|amd|geforce|instinct|server edition|generation|workstation edition|\bedition\b|hbm3e?|-?sxm\d?-?"
)
_ALIASES = {
    "rtx pro 6000": "rtx pro 6000 blackwell",
    "rtx pro 6000 se": "rtx pro 6000 blackwell",
    "rtx pro 6000 blackwell ws": "rtx pro 6000 blackwell workstation",
    "rtx pro 6000 blackwell max-q workstation": "rtx pro 6000 blackwell max-q",
    "rtx pro 6000 max-q": "rtx pro 6000 blackwell max-q",
    "h100": "h100 80gb",
    "h100 80gb pcie": "h100 pcie",
    "a100": "a100 80gb",
    "a100-pcie-40gb": "a100 40gb pcie",
    "a100 40gb pcie": "a100 40gb pcie",
    "a100-40gb": "a100 40gb",
    "a6000": "rtx a6000",
    "a800": "a800 80gb",
    "b300 ac": "b300",
    "a100 80gb sxm": "a100 80gb",
    "a100-80gb": "a100 80gb",
    "a100-pcie-80gb": "a100 80gb pcie",
    "a100-sxm4-80gb": "a100 80gb",
    "h200 141gb": "h200",
    "rtx pro 6000d": "rtx 6000d",
    "rtx pro 6000d blackwell": "rtx 6000d",
}


def find_gpu(name: str) -> Gpu:
    """A GPU by the name that people or nvidia-smi give it.

    Raises:
        UnknownHardware: not in the table.
    """
    text = name.lower()
    if "workstation edition" in text and "max-q" not in text:
        text = text.replace("workstation edition", "workstation ")
        text = text.replace("workstation", "ws")
    text = " ".join(_NOISE.sub(" ", text).split())
    text = _ALIASES.get(text, text)
    for gpu in GPUS:
        if gpu.name.lower() == text:
            return gpu
    known = ", ".join(gpu.name for gpu in GPUS)
    raise UnknownHardware(f"GPU '{name}' is not in the table, so nothing is predicted for it. Known: {known}.")


def find_host(text: str, nodes: int = 1, **changes: Any) -> Host:
    """`8x RTX PRO 6000 Blackwell` -> a host. A GPU with NVLink is taken to have it; the rest is PCIe.

    `changes` are fields of Host that are known better: pcie_generation, pcie_switches, nvlink, allreduce.

    Raises:
        UnknownHardware: no count in front, or a GPU that is not in the table.
    """
    match = re.fullmatch(r"\s*(\d+)\s*[x×*]?\s*(.+?)\s*", text)  # noqa: RUF001  (people write the sign)
    if not match or int(match.group(1)) < 1:
        raise UnknownHardware(f"'{text}' is not a host. Write a count and a GPU, such as '8x RTX PRO 6000 Blackwell'.")
    count, gpu = int(match.group(1)), find_gpu(match.group(2))
    host = Host(gpu, count, nodes, nvlink=gpu.nvlink > 0 and count > 1, pcie_generation=gpu.pcie_generation)
    host = replace(host, name=f"{count}x {gpu.name}")
    return replace(host, **changes) if changes else host


def nccl_variables(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """NCCL's variables of an environment as NCCL reads them, in order of their names; those that only make it talk
    are left out.
    """
    own = {name: value for name, value in environment.items() if str(name).startswith("NCCL_")}
    rendered, _ = normalise_environment(own)
    return tuple(sorted((name, value) for name, value in rendered.items() if not name.startswith("NCCL_DEBUG")))


def allreduce_rows(rows: Any) -> tuple[AllReduce, ...]:
    """What a host's communication check kept -> its all-reduces; what is no such row is left out.

    Args:
        rows: [{"group", "bytes", "seconds", "environment": NCCL's variables}], the last absent in older records.
    """
    found = []
    for row in rows if isinstance(rows, (list, tuple)) else ():
        try:
            told = row.get("environment")
            environment = None if told is None else nccl_variables(told)
            measured = AllReduce(int(row["group"]), int(row["bytes"]), float(row["seconds"]), environment)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        if measured.group > 1 and measured.bytes > 0 and 0 < measured.seconds < MOST_ALLREDUCE_SECONDS:
            found.append(measured)
    return tuple(found)


def from_nvidia_smi(csv_text: str, **changes: Any) -> Host:
    """What `nvidia-smi --query-gpu=...,name,memory.total,... --format=csv` printed -> a host.

    The first line names the columns; units in it and in the cells are understood. The memory of the GPU with
    least is taken, as the engine does.

    Raises:
        UnknownHardware: no header, no GPU, unlike GPUs, or one that is not in the table.
    """
    try:
        rows = list(csv.reader(io.StringIO(csv_text.strip()), skipinitialspace=True))
    except csv.Error as error:
        raise UnknownHardware(f"What nvidia-smi printed is not CSV: {error}.") from error
    header = [re.sub(r"\s*\[.*\]", "", cell).strip() for cell in rows[0]] if rows else []
    if "name" not in header or len(rows) < 2:
        raise UnknownHardware("nvidia-smi told no GPU: expected a header with `name` and one line for each GPU.")
    gpus = [dict(zip(header, (cell.strip() for cell in row), strict=False)) for row in rows[1:] if row]
    names = {row.get("name", "") for row in gpus}
    if len(names) > 1:
        raise UnknownHardware(f"The host has unlike GPUs ({', '.join(sorted(names))}); a plan needs GPUs of one kind.")
    host = find_host(f"{len(gpus)}x {names.pop()}")
    memory = [number for row in gpus if (number := _number(row.get("memory.total")))]
    generation = [number for row in gpus if (number := _number(row.get("pcie.link.gen.max")))]
    gpu = replace(host.gpu, memory_mib=min(memory)) if memory else host.gpu
    host = replace(host, gpu=gpu, pcie_generation=min(generation) if generation else host.pcie_generation)
    return replace(host, **changes) if changes else host


def _number(cell: str | None) -> int:
    """`97887 MiB` -> 97887; `[N/A]` -> 0."""
    match = re.match(r"\d+", cell or "")
    return int(match.group()) if match else 0
