"""What lies between the GPUs: links, P2P, ACS and IOMMU (which send P2P around through the CPU), NUMA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..bounded import Answer
from .check import Check, listed
from .smi import Topology

_FAR = ("PHB", "NODE", "SYS")
_P2P_WORDS = {
    "CNS": "chipset not supported (the driver blocks it on this card or board)",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "U": "unknown",
}
_DEVICE = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s", re.IGNORECASE)
_OFF = re.compile(r"\b(?:(?:amd_|intel_)?iommu)=off\b")


def topology(found: Topology | None) -> Check:
    if found is None:
        return Check("topology", "unknown", "nvidia-smi topo -m could not be read", "By hand: nvidia-smi topo -m")
    if len(found.links) == 1:
        return Check("topology", "ok", "one GPU")
    seen = f"links between {len(found.links)} GPUs: {listed(found.kinds)}"
    if any(kind in _FAR for kind in found.kinds):
        seen += "; beyond one switch NCCL uses P2P only with NCCL_P2P_LEVEL=SYS"
    return Check("topology", "ok", seen)


def worst_pair(found: Topology | None, count: int, among: Sequence[int] | None = None) -> tuple[int, int]:
    """The two GPUs that are farthest apart, where P2P fails first; the first and the last without a matrix.

    Args:
        count: GPUs that there are.
        among: those that may be taken, two or more; all without it.
    """
    places = list(range(count)) if among is None else sorted(among)
    order = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
    if found is None or len(found.links) != count:
        return (places[0], places[-1]) if len(places) > 1 else (0, 1)
    pairs = [(a, b) for place, a in enumerate(places) for b in places[place + 1 :]]
    return max(pairs, key=lambda pair: order.get(found.links[pair[0]][pair[1]], 0), default=(0, 1))


def p2p(read: list[list[str]] | None, write: list[list[str]] | None) -> Check:
    """`topo -p2p r` and `w`. OK is what the driver would allow; whether it works, the communication check tells."""
    by_hand = "By hand: nvidia-smi topo -p2p {}. Or let the communication check tell."
    if read is None:
        return Check("p2p", "unknown", "nvidia-smi topo -p2p r could not be read", by_hand.format("r"))
    if len(read) == 1:
        return Check("p2p", "ok", "one GPU")
    refused: dict[str, list[str]] = {}
    for way, matrix in (("read", read), ("write", write or [])):
        for row, cells in enumerate(matrix):
            for column, cell in enumerate(cells):
                if row == column or cell == "OK":
                    continue
                back = matrix[column][row]
                if cell == back and row < column:
                    refused.setdefault(f"{way} {cell}", []).append(f"{row}-{column}")
                elif cell != back:
                    refused.setdefault(f"{way} {cell}", []).append(f"{row} to {column}")
    if not refused and write is None:
        seen = "read is allowed between every two GPUs; nvidia-smi topo -p2p w could not be read"
        return Check("p2p", "unknown", seen, by_hand.format("w"))
    if not refused:
        return Check("p2p", "ok", "allowed between every two GPUs; that it works, the communication check proves")
    parts = []
    for kind, pairs in refused.items():
        meaning = _P2P_WORDS.get(kind.split()[1], kind)
        shown = listed(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        parts.append(f"{kind} ({meaning}) between GPUs {shown}")
    mend = "Expect shared memory instead (slower). Look at BIOS, IOMMU, MIG and a guest's GPU passthrough."
    return Check("p2p", "warning", "; ".join(parts), mend)


def acs_controls(text: str) -> dict[str, str]:
    """{device: its ACSCtl flags} from `lspci -vvv` (or -D, with domains)."""
    found: dict[str, str] = {}
    device = "?"
    for line in text.splitlines():
        if match := _DEVICE.match(line):
            device = _with_domain(match.group(1))
        elif (told := line.strip()).startswith("ACSCtl:"):
            found[device] = told.removeprefix("ACSCtl:").strip()
    return found


def acs_hidden(text: str) -> list[str]:
    """Bridges whose capabilities lspci may not read, and so whose ACS nobody has seen."""
    found: list[str] = []
    device = ""
    for line in text.splitlines():
        if match := _DEVICE.match(line):
            device = _with_domain(match.group(1)) if "bridge" in line.lower() else ""
        elif device and line.strip() == "Capabilities: <access denied>":
            found.append(device)
    return found


def _devices(text: str) -> set[str]:
    return {_with_domain(match.group(1)) for line in text.splitlines() if (match := _DEVICE.match(line))}


def _with_domain(device: str) -> str:
    return device.lower() if device.count(":") == 2 else f"0000:{device.lower()}"


def acs(lspci: Answer, *, root: bool, above: Sequence[str], gpus: int, guest: bool) -> Check:
    """Request or completion redirect on a bridge above the GPUs: P2P reports OK, then NCCL hangs or crawls.

    SrcValid+ alone is harmless (38 of 40 bridges of a healthy host have it).

    Args:
        lspci: what `lspci -D -vvv` answered.
        above: the bridges between the GPUs and their roots, as sysfs tells; all bridges count where it is empty.
        guest: a virtual machine, whose host needs ACS for passthrough, on bridges that the guest does not see.
    """
    if lspci.state == "absent":
        return Check("acs", "unknown", "there is no lspci", "apt install pciutils")
    if not lspci.ok:
        said = lspci.error.strip().splitlines() or ["it said nothing"]
        how = said[0] if lspci.state == "hung" else f"exit {lspci.code}: {said[0][:200]}"
        return Check("acs", "unknown", f"lspci did not tell ({how})", "By hand: lspci -D -vvv | grep ACSCtl; dmesg")
    controls = acs_controls(lspci.text)
    hidden = [bus for bus in acs_hidden(lspci.text) if bus in above or not above]
    if not controls and not root:
        return Check("acs", "unknown", "lspci shows ACS to root only", "Run the playbook with become: true.")
    redirect = [bus for bus, flags in controls.items() if re.search(r"\b(?:ReqRedir|CmpltRedir)\+", flags)]
    between = [bus for bus in redirect if bus in above or not above]
    if not between and hidden:
        seen = f"lspci is denied the capabilities of {len(hidden)} bridges, as root (a container, or a locked kernel)"
        mend = "On the machine itself: lspci -D -vvv | grep ACSCtl. Or let the communication check tell."
        return Check("acs", "unknown", seen, mend)
    shown = _devices(lspci.text)
    unseen = [bus for bus in above if bus not in shown]
    if not between and (unseen or not shown):
        seen = f"lspci does not show {listed(unseen) or 'any bridge'} above the GPUs"
        return Check("acs", "unknown", seen, "On the machine itself: lspci -D -vvv | grep ACSCtl")
    if not between and guest and gpus > 1:
        seen = f"no redirect on the {len(controls)} bridges of this virtual machine; its host's are not to be seen here"
        mend = "On its host: lspci -D -vvv | grep ACSCtl. Or let the communication check tell."
        return Check("acs", "unknown", seen, mend)
    if not between:
        return Check("acs", "ok", f"no redirect on the {len(controls)} bridges that have ACS")
    seen = f"redirect on {listed(between[:6])}" + (f" and {len(between) - 6} more" if len(between) > 6 else "")
    if gpus < 2:
        return Check("acs", "ok", f"{seen}; with one GPU it matters to nobody")
    if guest:
        mend = "A guest needs ACS on its host. Let the communication check tell, or run on the bare host."
        return Check("acs", "warning", f"{seen}; this is a virtual machine", mend)
    each = f"for bus in {' '.join(between)}; do setpci -s $bus ECAP_ACS+0x6.w=0000; done"
    mend = f"at each boot: {each if len(between) > 1 else f'setpci -s {between[0]} ECAP_ACS+0x6.w=0000'}"
    return Check("acs", "fail", f"{seen}: P2P goes through the CPU, and NCCL may hang although P2P says OK", mend)


def iommu(command_line: str, units: Sequence[str], types: Mapping[str, str], *, gpus: int) -> Check:
    """The IOMMU's mode. `units`: /sys/class/iommu; `types`: {GPU's bus id: identity, DMA, DMA-FQ or another}."""
    said = listed(re.findall(r"\S*iommu\S*=\S+", command_line)) or "nothing on the kernel's command line"
    if not units:
        return Check("iommu", "ok", f"off ({said})")
    translated = [bus for bus, kind in types.items() if kind.upper().startswith("DMA")]
    if not types:
        mend = "On the machine itself: cat /sys/bus/pci/devices/*/iommu_group/type"
        return Check("iommu", "unknown", f"on ({said}); the mode of the GPUs is not told", mend)
    others = {kind for bus, kind in types.items() if bus not in translated and kind != "identity"}
    if not translated and others:
        mend = "See which driver has it: lspci -D -k -d 10de:"
        return Check("iommu", "unknown", f"on ({said}); the mode of a GPU is {listed(sorted(others))}", mend)
    if not translated:
        return Check("iommu", "ok", f"passes through, identity ({said}); if NCCL hangs all the same: iommu=off")
    seen = f"translates for {len(translated)} of {len(types)} GPUs ({said}); a known cause of NCCL hangs"
    if gpus < 2:
        return Check("iommu", "ok", f"translates ({said}); with one GPU it matters little")
    return Check(
        "iommu", "warning", seen, "Kernel command line: iommu=pt, or iommu=off where it hangs (see the hints)."
    )


def numa(nodes: Mapping[str, int], online: str, balancing: str | None) -> list[Check]:
    """Where each GPU's memory is near. `nodes`: {bus id: numa_node of sysfs}; -1 is unknown to the firmware."""
    sockets = numbers(online)
    known = {node for node in nodes.values() if node >= 0}
    by_hand = "By hand: nvidia-smi topo -m (its column NUMA Affinity)"
    if not nodes:
        where = Check("numa", "unknown", "sysfs does not tell the GPUs' nodes", by_hand)
    elif not known:
        alone = len(sockets) < 2
        seen = "one node" if alone else f"{len(sockets)} nodes, and the firmware does not say where the GPUs are"
        mend = f"Look at the NUMA settings of the BIOS, for a guest at those of its host. {by_hand}"
        where = Check("numa", "ok", seen) if alone else Check("numa", "unknown", seen, mend)
    else:
        each = [f"node {node}: {sum(value == node for value in nodes.values())}" for node in sorted(known)]
        where = Check("numa", "ok", f"GPUs by node: {listed(each)}")
    if balancing is None or len(sockets) < 2:
        return [where]
    if balancing.strip() != "0":
        seen = "the kernel moves memory between nodes by itself (kernel.numa_balancing)"
        return [where, Check("numa_balancing", "warning", seen, "sysctl -w kernel.numa_balancing=0")]
    return [where, Check("numa_balancing", "ok", "off")]


def numbers(text: str) -> list[int]:
    """`0-2,8` -> [0, 1, 2, 8]; what is no list gives what of it is."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match:
            first, last = int(match.group(1)), int(match.group(2) or match.group(1))
            found += range(first, min(last, first + 65536) + 1)
    return found


def iommu_is_off(command_line: str) -> bool:
    return bool(_OFF.search(command_line))
