"""The GPUs themselves: are they all there and alike, is each in order, and does anybody hold their memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from .check import Check, listed
from .smi import Row, megabytes

BUSY_PERCENT = 20.0
"""From this utilization on a link must run at its full generation; below, power saving lowers it."""
_STUCK_PERCENT, _STUCK_SHARE = 95.0, 0.4
_LOW_POWER = 0.8
_HAS_NO_MODE = ("[N/A]", "N/A", "[Not Supported]")
"""Of a card that cannot be cut into MIG instances; anything else that is no word is a card that does not tell."""
# nvmlClocksEventReasons: SW thermal, HW slowdown, HW thermal, HW power brake.
_SLOWED = {0x20: "hot", 0x08: "hardware slowdown", 0x40: "hot (hardware)", 0x80: "power brake"}

_LINKS = "As root: lspci -vv -d 10de: | grep -E 'LnkCap:|LnkSta:'"


class Holder(msgspec.Struct, frozen=True):
    """A process on a GPU. `index` is the GPU's, None where only the device file tells of it."""

    pid: int
    command: str
    index: str | None = None
    ours: bool = False
    """Of an engine of ours, or of a unit that makes room."""
    only_open: bool = False
    """nvidia-smi shows other processes and not this one, which has a GPU's device file open; a monitor has, too."""


def alike(rows: Sequence[Row], there: int | None = None) -> Check:
    """One kind of GPU with the same memory: an engine takes the smallest for all.

    Args:
        rows: those that an engine may take.
        there: how many the host has, where that is more.
    """
    if not rows:
        mend = "Set CUDA_VISIBLE_DEVICES in sglang_service_environment to indices of GPUs of this host."
        return Check("gpus", "fail", f"CUDA_VISIBLE_DEVICES leaves none of {there} GPUs", mend)
    left = f", of {there} that are there (CUDA_VISIBLE_DEVICES)" if there and there > len(rows) else ""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(f"{row.text('name')}, {row.text('memory.total')}", []).append(row.index)
    if len(kinds) == 1:
        return Check("gpus", "ok", f"{len(rows)} x {next(iter(kinds))}{left}")
    told = "; ".join(f"{kind}: GPU {listed(places)}" for kind, places in kinds.items())
    mend = "Set CUDA_VISIBLE_DEVICES in sglang_service_environment to GPUs of one kind."
    return Check("gpus", "warning", f"unlike GPUs: {told}{left}", mend)


def all_there(rows: Sequence[Row], on_the_bus: Sequence[str], *, container: bool) -> Check:
    """Every NVIDIA GPU of the PCI bus answers. `on_the_bus`: those not given away to a guest (vfio-pci)."""
    missing = sorted(set(on_the_bus) - {row.bus for row in rows})
    seen = f"{len(rows)} answer, {len(on_the_bus)} on the PCI bus"
    if not on_the_bus:
        hidden = "the PCI bus shows no NVIDIA GPU (a container or a guest may not see it)"
        return Check("all_gpus", "unknown", hidden, "On the machine itself: lspci -d 10de:")
    if not missing:
        return Check("all_gpus", "ok", seen)
    if container:
        return Check("all_gpus", "ok", f"{seen}; this is a container, which may be given fewer")
    mend = "dmesg | grep -E 'NVRM|Xid'; a GPU that is lost comes back with a reboot, or needs to be seated again"
    return Check("all_gpus", "fail", f"{seen}; silent: {listed(missing)}", mend)


def link_width(rows: Sequence[Row]) -> Check:
    """Lanes now against the most that this slot and card have; a link that retrained from x8 to x1 costs 5 times."""
    narrow, untold = [], []
    for row in rows:
        now, most = row.number("pcie.link.width.current"), row.number("pcie.link.width.max")
        if now is None or most is None:
            untold.append(row.index)
        elif now < most:
            narrow.append(f"GPU {row.index} x{now:.0f} of x{most:.0f}")
    mend = "Reboot to train the links again; if it stays, seat the card or its riser anew and look at BIOS bifurcation."
    if narrow:
        return Check("link_width", "fail", "; ".join(narrow), mend)
    if untold:
        return Check("link_width", "unknown", f"not told for GPU {listed(untold)}", _LINKS)
    widths = dict.fromkeys(f"x{row.number('pcie.link.width.current'):.0f}" for row in rows)
    return Check("link_width", "ok", f"{listed(widths)} on every GPU, as wide as they go")


def link_generation(rows: Sequence[Row]) -> Check:
    """Judged under load only: an idle GPU in perfect health shows generation 1 of 5."""
    slow, untold = [], []
    idle: dict[str, list[str]] = {}
    for row in rows:
        now, most = row.number("pcie.link.gen.current"), row.number("pcie.link.gen.max")
        if now is None or most is None:
            untold.append(row.index)
        elif now < most:
            if (row.number("utilization.gpu") or 0) >= BUSY_PERCENT:
                slow.append(f"GPU {row.index} {now:.0f} of {most:.0f}")
            else:
                idle.setdefault(f"{now:.0f} of {most:.0f}", []).append(row.index)
    if slow:
        mend = "Reboot; then BIOS: set the slots' PCIe speed to the card's, and try without riser cables."
        return Check("link_generation", "warning", f"slower than it could be under load: {'; '.join(slow)}", mend)
    if untold:
        return Check("link_generation", "unknown", f"not told for GPU {listed(untold)}", _LINKS)
    if idle:
        told = "; ".join(f"{kind} on GPU {listed(places)}" for kind, places in idle.items())
        return Check("link_generation", "ok", f"{told}: idle, so this is power saving")
    most = dict.fromkeys(f"{row.number('pcie.link.gen.max'):.0f}" for row in rows)
    return Check("link_generation", "ok", f"PCIe {listed(most)} on every GPU")


def mig(rows: Sequence[Row]) -> Check:
    cut = [row.index for row in rows if (row.text("mig.mode.current") or "").lower() == "enabled"]
    if cut:
        mend = f"nvidia-smi -i {','.join(cut)} -mig 0"
        return Check("mig", "fail", f"GPU {listed(cut)} is cut into MIG instances; the mode outlives a reboot", mend)
    able = [row for row in rows if row.cells.get("mig.mode.current") not in _HAS_NO_MODE]
    return _untold("mig", able, "mig.mode.current") or Check("mig", "ok", "off")


def _untold(check: str, rows: Sequence[Row], field: str) -> Check | None:
    """`unknown` where a GPU does not tell: a driver in trouble, or one without that field."""
    silent = [row.index for row in rows if row.text(field) is None]
    return Check(check, "unknown", f"not told for GPU {listed(silent)}", _ask(silent)) if silent else None


def _ask(indices: Sequence[str]) -> str:
    return f"By hand: nvidia-smi -q -i {','.join(indices)}; dmesg | grep NVRM"


def ecc(rows: Sequence[Row]) -> Check:
    counter = "ecc.errors.uncorrected.volatile.total"
    errors = [row.index for row in rows if row.number(counter)]
    if errors:
        mend = f"nvidia-smi --gpu-reset -i {','.join(errors)}; if errors come back, the card is to be replaced"
        return Check("ecc", "fail", f"uncorrected memory errors on GPU {listed(errors)} since the driver started", mend)
    modes: dict[str, list[str]] = {}
    for row in rows:
        modes.setdefault((row.text("ecc.mode.current") or "not told").lower(), []).append(row.index)
    if set(modes) - {"enabled", "not told"}:
        told = "; ".join(f"GPU {listed(places)} {mode}" for mode, places in modes.items())
        mend = "nvidia-smi -e 1, then reboot: without ECC a flipped bit changes answers and nobody is told"
        return Check("ecc", "warning", told, mend)
    if silent := _untold("ecc", rows, "ecc.mode.current"):
        return silent
    uncounted = [row.index for row in rows if row.number(counter) is None]
    if uncounted:
        return Check("ecc", "unknown", f"on, and GPU {listed(uncounted)} does not tell its errors", _ask(uncounted))
    return Check("ecc", "ok", "on, no uncorrected error")


def persistence(rows: Sequence[Row]) -> Check:
    off = [row.index for row in rows if (row.text("persistence_mode") or "").lower() == "disabled"]
    if off:
        mend = "systemctl enable --now nvidia-persistenced && nvidia-smi -pm 1 (or -e gpu_host_persistence=true)"
        return Check("persistence", "warning", f"off on GPU {listed(off)}: every start loads the driver anew", mend)
    return _untold("persistence", rows, "persistence_mode") or Check("persistence", "ok", "on")


def power(rows: Sequence[Row]) -> Check:
    limits: dict[str, list[str]] = {}
    low = []
    for row in rows:
        limit, usual = row.number("power.limit"), row.number("power.default_limit")
        if limit is None:
            continue
        limits.setdefault(f"{limit:.0f} W", []).append(row.index)
        if usual and limit < _LOW_POWER * usual:
            low.append(f"GPU {row.index} {limit:.0f} of {usual:.0f} W")
    if low:
        mend = "nvidia-smi -pl WATTS: half the power costs up to 30 % of the throughput of many users"
        return Check("power_limit", "warning", "; ".join(low), mend)
    if len(limits) > 1:
        told = "; ".join(f"{limit}: GPU {listed(places)}" for limit, places in limits.items())
        return Check(
            "power_limit", "warning", f"unequal, and the slowest sets the pace: {told}", "nvidia-smi -pl WATTS"
        )
    return _untold("power_limit", rows, "power.limit") or Check(
        "power_limit", "ok", f"{next(iter(limits))} on every GPU"
    )


def slowed(rows: Sequence[Row]) -> Check:
    """Clocks held down by heat or by the power supply at this moment."""
    held, untold = [], []
    for row in rows:
        told = row.text("clocks_event_reasons.active") or ""
        if not re.fullmatch(r"0[xX][0-9a-fA-F]+", told):
            untold.append(row.index)
            continue
        words = [word for bit, word in _SLOWED.items() if int(told, 16) & bit]
        if words:
            held.append(f"GPU {row.index}: {', '.join(words)}")
    if held:
        return Check("slowed", "warning", "; ".join(held), "Look at fans, inlet temperature and power cables.")
    if untold:
        return Check("slowed", "unknown", f"not told for GPU {listed(untold)}", _ask(untold))
    return Check("slowed", "ok", "no GPU is held down by heat or power")


def memory(rows: Sequence[Row], holders: Sequence[Holder], free_bytes: int) -> Check:
    """Memory held by others than our engines; a start waits for it in vain."""
    unread = [row.index for row in rows if row.number("memory.used") is None]
    if unread:
        told = rows[[row.index for row in rows].index(unread[0])].cells.get("memory.used", "")
        mend = f"nvidia-smi --gpu-reset -i {','.join(unread)}, or reboot"
        return Check("memory", "fail", f"GPU {listed(unread)} does not tell its memory ({told or 'no answer'})", mend)
    held = [row for row in rows if (row.number("memory.used") or 0) * (1 << 20) > free_bytes]
    if not held:
        return Check("memory", "ok", "free on every GPU")
    foreign, opened, silent, ours = [], [], [], []
    others: dict[int, str] = {}
    openers: dict[int, str] = {}
    for row in held:
        there = _on(row, holders)
        strangers = [holder for holder in there if not holder.ours]
        others.update(_named(strangers))
        unlisted = [] if there else [holder for holder in holders if holder.only_open and _may_be_on(row, holder)]
        openers.update(_named(unlisted))
        (foreign if strangers else ours if there else opened if unlisted else silent).append(row)
    seen, mend = [], []
    if foreign:
        seen.append(f"{_amounts(foreign)}, held by {listed(others.values())}")
        mend.append(f"kill {' '.join(map(str, others))}, or name its unit in sglang_service_yields")
    if opened:
        seen.append(f"{_amounts(opened)}, of which nvidia-smi lists no process; open to {listed(openers.values())}")
        pids = " ".join(map(str, openers))
        mend.append(f"kill {pids} (a monitor holds none and may stay), or name its unit in sglang_service_yields")
    if silent:
        places = ",".join(row.index for row in silent)
        seen.append(f"{_amounts(silent)}, and no process shows it")
        mend.append(f"fuser -v /dev/nvidia*; when nobody is there: nvidia-smi --gpu-reset -i {places}, or reboot")
    if seen:
        return Check("memory", "fail", "; ".join(seen), "; ".join(mend))
    return Check("memory", "ok", f"{_amounts(ours)}, held by our engine")


def _on(row: Row, holders: Sequence[Holder]) -> list[Holder]:
    """Who is on this GPU."""
    return [holder for holder in holders if not holder.only_open and _may_be_on(row, holder)]


def _may_be_on(row: Row, holder: Holder) -> bool:
    """A holder of which nobody tells the GPU may be on any."""
    return holder.index in (row.index, None)


def _named(holders: Sequence[Holder]) -> dict[int, str]:
    return {holder.pid: f"pid {holder.pid} ({holder.command[:80]})" for holder in holders}


def _amounts(rows: Sequence[Row]) -> str:
    return listed(f"GPU {row.index} {(row.number('memory.used') or 0) / 1024:.1f} GiB" for row in rows)


def stuck(rows: Sequence[Row], holders: Sequence[Holder]) -> Check:
    """After a hung collective a GPU spins: full utilization at little power, and no process to be seen."""
    spinning, untold = [], []
    for row in rows:
        if _on(row, holders):
            continue
        busy, watts, limit = (row.number(f) for f in ("utilization.gpu", "power.draw", "power.limit"))
        if busy is not None and busy < _STUCK_PERCENT:
            continue
        if busy is None or watts is None or not limit:
            untold.append(row.index)
        elif watts < _STUCK_SHARE * limit:
            spinning.append(row.index)
    if spinning:
        mend = f"nvidia-smi --gpu-reset -i {','.join(spinning)}, or reboot"
        return Check("stuck", "fail", f"GPU {listed(spinning)} spins at little power and no process shows it", mend)
    if untold:
        return Check("stuck", "unknown", f"GPU {listed(untold)} does not tell its utilization and power", _ask(untold))
    return Check("stuck", "ok", "no GPU spins by itself")


def recovery(told: Mapping[str, Mapping[str, str]]) -> Check:
    """The driver's own word (`nvidia-smi -q`, GPU Recovery Action) on what a GPU needs."""
    actions = {bus: fields["GPU Recovery Action"] for bus, fields in told.items() if "GPU Recovery Action" in fields}
    if not actions:
        mend = "By hand: nvidia-smi -q | grep 'Recovery Action' (an old driver has none)"
        return Check("recovery", "unknown", "this driver does not say", mend)
    needed = {bus: action for bus, action in actions.items() if action.lower() not in ("none", "n/a")}
    if not needed:
        return Check("recovery", "ok", "the driver asks for none")
    asked = "; ".join(f"{bus}: {action}" for bus, action in needed.items())
    reboot = any("reboot" in action.lower() for action in needed.values())
    mend = "Reboot the host." if reboot else f"nvidia-smi --gpu-reset -i {','.join(needed)}"
    return Check("recovery", "fail", f"the driver asks for {asked}", mend)


def rebar(told: Mapping[str, Mapping[str, str]]) -> Check:
    """Resizable BAR: other GPUs can reach all of a GPU's memory when BAR1 is as large as it."""
    small, sizes = [], []
    for bus, fields in told.items():
        window, whole = (megabytes(fields.get(f"{name} Memory Usage/Total")) for name in ("BAR1", "FB"))
        if window is None or whole is None:
            continue
        sizes.append(window)
        if window < whole:
            small.append(f"{bus} {window} MiB of {whole}")
    if small:
        mend = "BIOS: enable Above 4G Decoding and Resizable BAR."
        return Check("rebar", "warning", f"off, others see only a window: {'; '.join(small)}", mend)
    if not sizes:
        mend = "As root: lspci -vv -d 10de: | grep Region (where it is on, one is as large as the GPU's memory)"
        return Check("rebar", "unknown", "nvidia-smi -q has no BAR1", mend)
    return Check("rebar", "ok", f"on: BAR1 {listed(dict.fromkeys(f'{size} MiB' for size in sizes))}")
