"""What the kernel has said about the GPUs since boot: Xid lines of the driver, errors of the PCIe links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from .check import Check, listed

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)")
_LOST = re.compile(r"(?:GPU has|NVRM:) fallen off the bus")
_LINK = re.compile(r"\bSDES\b|Surprise (?:Link )?Down|AER: .*(?:Uncorrect|Fatal\b)", re.IGNORECASE)

# Xid -> what it means. Source: NVIDIA's Xid catalogue; 62 and 119 as the public reports of stuck hosts tell.
_FATAL = {
    48: "double-bit memory error",
    62: "internal microcontroller halt",
    64: "memory page or row could not be retired",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "the GPU's firmware (GSP) does not answer",
    120: "the GPU's firmware (GSP) failed",
    140: "unrecovered memory error",
    154: "the driver asks for a recovery action",
}
# A program's own mistake or its end: the GPU goes on.
_PROGRAM = {13: "exception of a program", 31: "illegal address of a program", 43: "a program was stopped",
            45: "a program was ended"}  # fmt: skip


_AT_BOOT_SECONDS = 1.0
"""A ring buffer that has forgotten nothing begins with the kernel's first line, at 0."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the kernel's log."""

    lines: list[str] = []
    """Those of the driver and of the links."""
    begins: float | None = 0.0
    """Seconds after boot from which nothing is missing; None where that is not told."""

    @property
    def whole(self) -> bool:
        return self.begins is not None and self.begins <= _AT_BOOT_SECONDS

    @property
    def missing(self) -> str:
        """What was not seen, for a check that found nothing."""
        since = "nobody knows when" if self.begins is None else f"{_span(self.begins)} after boot"
        return f"the journal did not answer, and what is left in dmesg begins {since}"


def _span(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `9.1 days`."""
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


_LOOK = "By hand: journalctl -k -b | grep -E 'NVRM|AER'"


def xids(log: Log | None) -> Check:
    """Xid lines; None: the log may not be read."""
    if log is None:
        mend = "Run the playbook with become: true."
        return Check("xid", "unknown", "the kernel log may not be read", mend)
    lines = log.lines
    seen: dict[tuple[str, int], int] = {}
    for line in lines:
        if match := _XID.search(line):
            key = (match.group(1).lower(), int(match.group(2)))
            seen[key] = seen.get(key, 0) + 1
    lost = any(_LOST.search(line) for line in lines) and not any(number == 79 for _, number in seen)
    if not seen and not lost:
        if not log.whole:
            return Check("xid", "unknown", f"none seen; {log.missing}", _LOOK)
        return Check("xid", "ok", "none since boot")
    told = [f"Xid {number} ({_meaning(number)}) at {bus}" + _times(count) for (bus, number), count in seen.items()]
    told += ["a GPU has fallen off the bus"] if lost else []
    if lost or any(number in _FATAL for _, number in seen):
        mend = "nvidia-smi --gpu-reset -i GPU, or reboot; lines from before a reset stay until the reboot"
        return Check("xid", "fail", listed(told[:6]), mend)
    if all(number in _PROGRAM for _, number in seen):
        if not log.whole:
            return Check("xid", "unknown", f"{listed(told[:6])}: the programs' own; {log.missing}", _LOOK)
        return Check("xid", "ok", f"{listed(told[:6])}: the programs' own")
    return Check("xid", "warning", listed(told[:6]), "Look it up in NVIDIA's Xid catalogue.")


@dataclass(frozen=True)
class Fault:
    """A GPU that does not go on after this."""

    line: str
    bus: str
    """`0000:41:00`, as the driver names it; empty where the line does not."""
    told: str


def faults(lines: Sequence[str]) -> list[Fault]:
    """Xids after which a GPU does not go on, as opposed to those of a program's own mistake."""
    found = []
    for line in lines:
        if match := _XID.search(line):
            bus, number = match.group(1).lower(), int(match.group(2))
            if number in _FATAL:
                found.append(Fault(line.strip(), bus, f"Xid {number} ({_meaning(number)}) at {bus}"))
        elif _LOST.search(line):
            found.append(Fault(line.strip(), "", "it has fallen off the bus"))
    return found


def _meaning(number: int) -> str:
    return _FATAL.get(number) or _PROGRAM.get(number) or "not in our table"


def _times(count: int) -> str:
    return f", {count} times" if count > 1 else ""


def links(log: Log | None) -> Check:
    """Links that went down by surprise, and errors that PCIe could not correct."""
    if log is None:
        return Check("pcie_errors", "unknown", "the kernel log may not be read", "Run the playbook with become: true.")
    found = [line.strip() for line in log.lines if _LINK.search(line)]
    if found:
        mend = "Kernel command line: pcie_aspm=off pcie_port_pm=off; look at risers and slots"
        return Check("pcie_errors", "warning", f"{len(found)} since boot; the first: {found[0][:160]}", mend)
    if not log.whole:
        return Check("pcie_errors", "unknown", f"none seen; {log.missing}", _LOOK)
    return Check("pcie_errors", "ok", "none uncorrected since boot")
