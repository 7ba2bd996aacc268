"""The host's GPUs as nvidia-smi tells them. The same code reads the simulated GPU's stand-in."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from . import bounded
from .settings import HostError, Settings

QUERY_SECONDS = bounded.SECONDS
"""A driver in trouble (Xid 119) lets nvidia-smi hang; the host is then failed, not waited for."""

_FIELDS = ("index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used", "driver_version", "power.limit")
_DRIVERS_GPUS = Path("/proc/driver/nvidia/gpus")
_MIB = 1 << 20
_BUSY_PERCENT, _LOW_POWER = 99.0, 0.45
"""A GPU that computes draws more than this share of its limit; one that waits for a peer does not."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    uuid: str
    bus_id: str
    memory_bytes: int
    used_bytes: int
    driver: str
    power_limit_watts: float | None = None


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds GPU memory."""

    pid: int
    command: str
    bytes: int | None
    uuid: str


def run_nvidia_smi(settings: Settings, *arguments: str) -> str | None:
    """nvidia-smi's answer; None where the host has no nvidia-smi.

    Raises:
        HostError: it hangs, or fails (driver and library do not match, a GPU needs a reset).
    """
    answer = bounded.run([*settings.nvidia_smi, *arguments], environment=settings.environment, seconds=QUERY_SECONDS)
    if answer.state == "absent" or "No devices were found" in answer.text:
        return None
    if answer.state == "hung":
        raise HostError(
            f"nvidia-smi did not answer within {QUERY_SECONDS:g} s. Look for Xid lines in the kernel log "
            "(dmesg | grep Xid); a GPU that is stuck needs a reset or a reboot."
        )
    if not answer.ok:
        said = (answer.text + answer.error).strip().splitlines()
        raise HostError(f"nvidia-smi failed (exit {answer.code}): {said[0] if said else 'it said nothing'}.")
    return answer.text


def gpus(settings: Settings) -> list[Gpu]:
    """The GPUs of this host, by index; [] where there is none.

    Raises:
        HostError: as run_nvidia_smi.
    """
    text = run_nvidia_smi(settings, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    return parse_gpus(text or "")


def parse_gpus(text: str) -> list[Gpu]:
    """Lines of `--query-gpu=... --format=csv,noheader,nounits` with the fields of this module, as GPUs.

    Raises:
        HostError: a line is not of that form, or a GPU's memory cannot be read (it needs a reset).
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if not row:
            continue
        cells = dict(zip(_FIELDS, (cell.strip() for cell in row), strict=False))
        total, used = _number(cells.get("memory.total")), _number(cells.get("memory.used"))
        if len(row) != len(_FIELDS) or not cells["index"].isdigit() or total is None or used is None:
            raise HostError(f"nvidia-smi answered a line that cannot be read: '{','.join(row)[:200]}'.")
        found.append(
            Gpu(
                index=int(cells["index"]),
                name=cells["name"],
                uuid=cells["uuid"],
                bus_id=cells["pci.bus_id"],
                memory_bytes=int(total * _MIB),
                used_bytes=int(used * _MIB),
                driver=cells["driver_version"],
                power_limit_watts=_number(cells["power.limit"]),
            )
        )
    return sorted(found, key=lambda gpu: gpu.index)


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does at this moment."""

    index: int
    used_bytes: int
    utilization_percent: float | None
    power_watts: float | None
    power_limit_watts: float | None

    @property
    def polls(self) -> bool:
        """Fully busy at low power: a kernel that waits for a peer, not one that computes."""
        if self.utilization_percent is None or not self.power_watts or not self.power_limit_watts:
            return False
        return self.utilization_percent >= _BUSY_PERCENT and self.power_watts < _LOW_POWER * self.power_limit_watts

    @property
    def computes(self) -> bool:
        return bool(self.utilization_percent) and not self.polls


def activity(settings: Settings) -> list[Busy]:
    """What each GPU does, as far as it says so."""
    text = run_nvidia_smi(
        settings,
        "--query-gpu=index,memory.used,utilization.gpu,power.draw,power.limit",
        "--format=csv,noheader,nounits",
    )
    return parse_activity(text or "")


def parse_activity(text: str) -> list[Busy]:
    """Lines of `activity`'s query; one that cannot be read is left out."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        used = _number(row[1]) if len(row) == 5 else None
        if used is None or not row[0].strip().isdecimal():
            continue
        found.append(
            Busy(
                index=int(row[0]),
                used_bytes=int(used * _MIB),
                utilization_percent=_number(row[2]),
                power_watts=_number(row[3]),
                power_limit_watts=_number(row[4]),
            )
        )
    return found


_Placed = TypeVar("_Placed", Gpu, Busy)


def among(found: list[_Placed], places: list[int] | None) -> list[_Placed]:
    """Those of these indices; all where none are said."""
    return found if places is None else [gpu for gpu in found if gpu.index in places]


def visible(named: object, count: int, uuids: Sequence[str] = ()) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all where it says nothing.

    As CUDA reads it (CUDA C++ Programming Guide, environment variables): indices, or UUIDs by their first characters;
    it ends at the first that does not exist.

    Args:
        named: the variable's value.
        count: GPUs that there are.
        uuids: theirs, by index, as far as they are known.
    """
    text = "" if named is None else str(named).strip()
    if not text:
        return list(range(count))
    found: list[int] = []
    for part in map(str.strip, text.split(",")):
        places = [place for place, uuid in enumerate(uuids) if part.startswith("GPU-") and uuid.startswith(part)]
        place = int(part) if part.isdecimal() else places[0] if len(places) == 1 else count
        if place >= count or place in found:
            break
        found.append(place)
    return found


def holders(settings: Settings) -> list[Holder]:
    """The processes that hold memory of a GPU, as far as nvidia-smi sees them."""
    text = run_nvidia_smi(
        settings, "--query-compute-apps=pid,process_name,used_gpu_memory,gpu_uuid", "--format=csv,noheader,nounits"
    )
    found = []
    for row in csv.reader((text or "").splitlines(), skipinitialspace=True):
        if len(row) == 4 and row[0].strip().isdigit():
            used = _number(row[2])
            size = None if used is None else int(used * _MIB)
            found.append(Holder(pid=int(row[0]), command=row[1].strip(), bytes=size, uuid=row[3].strip()))
    return found


def bus_id(told: str) -> str:
    """As sysfs writes it: `00000000:C1:00.0` -> `0000:c1:00.0`."""
    domain, colon, rest = told.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}" if colon and rest.count(":") == 1 else told.strip().lower()


def buses_by_minor() -> dict[int, str]:
    """{minor number of a device file: bus id}, as far as the driver tells: minors need not be in the indices' order."""
    found = {}
    for folder in _DRIVERS_GPUS.glob("*"):
        try:
            told = (folder / "information").read_text(errors="replace")
        except OSError:
            continue
        if minor := re.search(r"^Device Minor:\s*(\d+)", told, re.MULTILINE):
            found[int(minor.group(1))] = bus_id(folder.name)
    return found


def _number(cell: str | None) -> float | None:
    """A cell's number; None for `[N/A]`, `[Not Supported]`, `[GPU requires reset]` and the like."""
    match = re.match(r"-?\d+(?:\.\d+)?", cell or "")
    return float(match.group()) if match else None


def summary(found: list[Gpu]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(gpu) for gpu in found]
