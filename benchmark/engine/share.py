"""Which configuration the others are held against, and how alike hosts share the work. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .nodes import count


def baseline_of(configurations: Iterable[Mapping[str, Any]]) -> str | None:
    """The root that most others are held against, by one step or several; the first if none is."""
    parents = {str(c["name"]): c.get("against") for c in configurations}
    counted: Counter[str] = Counter()
    for name in parents:
        root, walked = name, set()
        while (above := parents.get(root)) in parents and above not in walked:
            walked.add(root)
            root = str(above)
        counted[root] += 1
    return max(counted, key=lambda name: counted[name]) if counted else None


def gpu_kind(gpus: Any) -> dict[str, list[str]]:
    """What of a host's GPUs (as the verb `observe` tells them) another host must have too to be one of its kind.

    Their addresses, their UUIDs and what is in use differ between any two hosts.
    """
    told = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, Sequence) else []
    return {
        "names": sorted(str(gpu.get("name")) for gpu in told),
        "drivers": sorted({str(gpu.get("driver")) for gpu in told}),
    }


def share(
    names: Sequence[str],
    hosts: Sequence[str],
    baseline: str | None,
    needs: Mapping[str, int] | None = None,
    nodes: Mapping[str, int] | None = None,
) -> dict[str, list[str]]:
    """Split configurations over alike hosts: each once, the baseline on every host, in the order given.

    Args:
        needs: nodes that a configuration is spread over, where that is more than one.
        nodes: nodes that a host is the first of, itself included; one that is not there has none but itself.
    """
    shares = {host: [baseline] if baseline in names else [] for host in hosts}
    # What few can run goes first, so that they have no more of the rest than the others.
    for name in sorted((name for name in names if name != baseline), key=lambda name: -(needs or {}).get(name, 1)):
        able = [host for host in hosts if (nodes or {}).get(host, 1) >= (needs or {}).get(name, 1)]
        # What no host can run is told by one of them.
        shares[min(able or hosts, key=lambda host: len(shares[host]))].append(name)
    return {host: sorted(mine, key=[baseline, *names].index) for host, mine in shares.items()}


def shared_plan(
    plan: Sequence[Mapping[str, Any]], hosts: Sequence[str], host: str, nodes: Mapping[str, int] | None = None
) -> list[Mapping[str, Any]]:
    """A host's part of a plan (engine/sweep.py) that alike hosts share; what cannot start is no common baseline."""
    startable = [entry["configuration"] for entry in plan if entry["verdict"] != "rejected"]
    needs = {entry["name"]: count(entry["configuration"]) for entry in plan}
    mine = share([entry["name"] for entry in plan], hosts, baseline_of(startable), needs, nodes)[host]
    return [entry for entry in plan if entry["name"] in mine]
