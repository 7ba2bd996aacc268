"""What was seen -> the checks, and what the record of a measurement keeps of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import gpus
from . import cards, driver, kernel_log, pcie, smi, system
from .check import Check
from .look import Seen


def judge(seen: Seen, free_memory_bytes: int) -> list[Check]:
    """Every check, in the order in which one would look. A host without GPUs is told so and still checked for the rest.

    Args:
        free_memory_bytes: a GPU that holds less counts as free.
    """
    wrong = driver.answers(seen.query, seen.bus_gpus, simulated=seen.simulated, container=seen.container)
    rows = smi.rows(seen.query.text) if wrong is None else []
    if wrong is None and not rows:
        mend = "Run sglang_tools again." if seen.simulated else "By hand: nvidia-smi --query-gpu=name --format=csv"
        wrong = Check("nvidia_smi", "fail", "nvidia-smi answered a table that cannot be read", mend)
    if wrong is not None:
        # Above all then: the kernel's log and the bus say why nvidia-smi is silent.
        there = seen.query.state != "absent" and wrong.id == "nvidia_smi" and not seen.simulated
        return [wrong, *(_kernel(seen, []) + _bus(seen, len(seen.bus_gpus)) if there else []), *_host(seen)]
    checks = [*_cards(seen, rows, free_memory_bytes), *_between(seen, rows)]
    if not seen.simulated:
        checks += _kernel(seen, rows)
    return [*checks, *_host(seen)]


def _cards(seen: Seen, rows: Sequence[smi.Row], free_memory_bytes: int) -> list[Check]:
    taken = gpus.visible(seen.visible, len(rows), [row.cells.get("uuid", "") for row in rows])
    there, told = len(rows), smi.details(seen.long.text)
    if len(taken) < there:
        # What no engine takes stops none: another's memory on it, its link, its mode.
        rows = [rows[place] for place in taken]
        told = {bus: fields for bus, fields in told.items() if bus in {row.bus for row in rows}}
    found = [cards.alike(rows, there)]
    if not rows:
        return found
    found += [
        driver.version(rows),
        cards.memory(rows, seen.holders, free_memory_bytes),
        cards.stuck(rows, seen.holders),
        cards.link_width(rows),
        cards.link_generation(rows),
        cards.mig(rows),
        cards.ecc(rows),
        cards.persistence(rows),
        cards.power(rows),
        cards.slowed(rows),
    ]
    # The stand-in's -q has neither.
    return found if seen.simulated else [*found, cards.recovery(told), cards.rebar(told)]


def _between(seen: Seen, rows: Sequence[smi.Row]) -> list[Check]:
    found = [pcie.topology(smi.topology(seen.topology.text)), pcie.p2p(*map(_matrix, (seen.p2p_read, seen.p2p_write)))]
    if seen.simulated:
        return found
    return [
        *found,
        cards.all_there(rows, seen.bus_gpus, container=seen.container),
        *_bus(seen, len(rows)),
    ]


def _bus(seen: Seen, gpus: int) -> list[Check]:
    return [
        pcie.acs(seen.lspci, root=seen.root, above=seen.bridges, gpus=gpus, guest=seen.guest),
        pcie.iommu(seen.files.get("/proc/cmdline", ""), seen.iommu_units, seen.iommu_types, gpus=gpus),
        *pcie.numa(
            seen.numa_nodes,
            seen.files.get("/sys/devices/system/node/online", ""),
            seen.files.get("/proc/sys/kernel/numa_balancing"),
        ),
    ]


def _matrix(answer: Any) -> list[list[str]] | None:
    return smi.peers(answer.text)


def _kernel(seen: Seen, rows: Sequence[smi.Row]) -> list[Check]:
    return [
        driver.module(seen.files.get("/proc/driver/nvidia/version"), rows),
        *driver.uvm(seen.uvm_device, seen.files.get("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")),
        kernel_log.xids(seen.kernel_log),
        kernel_log.links(seen.kernel_log),
    ]


def _host(seen: Seen) -> list[Check]:
    span = seen.files.get("/proc/sys/net/ipv4/ip_local_port_range", "").split()
    ephemeral = (int(span[0]), int(span[1])) if len(span) == 2 and all(word.isdigit() for word in span) else None
    return [
        system.shared_memory(*(seen.shm or (None, None))),
        system.limits(seen.limits_of, seen.limits, unit_sets=seen.unit_sets_limits),
        *(system.port(port.setting, port.number, port.holders, port.ours, ephemeral) for port in seen.ports),
        system.nccl_files(seen.nccl_files),
        *system.processors(seen.cpus_allowed, seen.files.get("/sys/devices/system/cpu/online", ""), seen.governors),
    ]


def gpu_facts(seen: Seen) -> list[dict[str, Any]]:
    """Each GPU as a record keeps it: what nvidia-smi tells of its link, power and place."""
    found = []
    for row in smi.rows(seen.query.text) if seen.query.ok else []:
        numbers = {
            "index": row.number("index"),
            "pcie_width": row.number("pcie.link.width.current"),
            "pcie_width_max": row.number("pcie.link.width.max"),
            "pcie_generation": row.number("pcie.link.gen.current"),
            "pcie_generation_max": row.number("pcie.link.gen.max"),
            "numa_node": seen.numa_nodes.get(row.bus),
        }
        words = {"compute_capability": row.text("compute_cap"), "ecc": row.text("ecc.mode.current")}
        known: Mapping[str, Any] = {
            **{name: int(number) for name, number in numbers.items() if number is not None},
            **{name: word for name, word in words.items() if word is not None},
        }
        found.append({"bus_id": row.cells.get("pci.bus_id"), **known})
    return found


_MOVES = ("pcie_generation", "pcie_width")


def fact(seen: Seen, checks: Sequence[Check]) -> dict[str, Any]:
    """A host fact that a second look leaves as it is: verdicts and what is built in, without anything that moves."""
    rows = smi.rows(seen.query.text) if seen.query.ok else []
    gpus = [{name: value for name, value in gpu.items() if name not in _MOVES} for gpu in gpu_facts(seen)]
    for gpu, row in zip(gpus, rows, strict=True):
        gpu["name"] = row.text("name")
    return {
        "simulated": seen.simulated,
        "driver": rows[0].text("driver_version") if rows else None,
        "gpus": gpus,
        "verdicts": {check.id: check.verdict for check in checks},
    }
