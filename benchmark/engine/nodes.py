"""Configurations of several nodes: are the hosts for it there, and which of them is at fault when it fails. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .layout import Layout

CONSEQUENCES = frozenset({"peer_lost", "nodes_missing", "first_node_missing", "nccl", "communication_hang"})
"""Failures that a node may have because another one failed."""


def count(configuration: Mapping[str, Any]) -> int:
    """Nodes that a resolved configuration is spread over.

    Raises:
        ValueError: a width that is not a whole number.
    """
    return Layout.from_engine(configuration.get("engine") or {}).nnodes


def on_node(configurations: Sequence[Mapping[str, Any]], node: int) -> list[str]:
    """Names of the configurations that have a rank on this node of a group, which is not its first."""
    return [str(configuration["name"]) for configuration in configurations if 0 < node < count(configuration)]


def lacking(configuration: Mapping[str, Any], host: str, group: Sequence[str], seen: Mapping[str, Any]) -> str:
    """Why this host cannot run a configuration over the hosts of its group, or an empty text if it can.

    Args:
        group: the hosts, the one that serves first.
        seen: host -> its GPUs ([{"name"}]), of those that take part in this run.
    """
    needed = count(configuration)
    if needed < 2:
        return ""
    if len(group) < needed:
        has = f"the group of {host} has {len(group)}" if len(group) > 1 else f"{host} is alone"
        return f"It is spread over {needed} nodes, and {has}."
    if host != group[0]:
        return f"It is served from {group[0]}, the first host of the group of {host}."
    for number, name in enumerate(group[:needed]):
        if name not in seen:
            return f"node {number} ({name}) takes no part in this run: it cannot be reached, or is not in gpu_servers."
        if _names(seen[name]) != _names(seen[host]):
            return f"node {number} ({name}) has other GPUs than node 0 ({host}); an engine needs the same on each."
    return ""


def _names(gpus: Any) -> list[str]:
    return [str(gpu.get("name")) for gpu in gpus] if isinstance(gpus, (list, tuple)) else []


def cause(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The failure of a configuration, by the node that is at fault.

    Args:
        answers: of each node, in their order: {"host", "answer": of the verb `switch`; empty: it gave none}.

    Returns:
        The failure, its sentence beginning with `node 1 (HOST): `. One of a node's own goes before one that follows
        from another's; a node that gave no answer, or was not even started, before what the others make of that.
    """
    told: list[tuple[int, int, dict[str, Any]]] = []
    for number, said in enumerate(answers):
        answer = said.get("answer") or {}
        failure = dict(answer.get("failure") or {})
        rank = 1 if failure.get("kind") in CONSEQUENCES else 0
        if not failure and number and answer.get("phase") not in ("starting", "ready"):
            why = answer.get("error") or (
                f"it never joined, and waits for {answer['waiting_for']}."
                if answer.get("waiting_for")
                else "it gave no answer."
            )
            failure = {"kind": "node_lost", "stage": "process", "sentence": why, "evidence": [], "may_pass": True}
            failure["advice"] = "See whether the host can be reached, and what is in the way there."
        if failure:
            failure["sentence"] = f"node {number} ({said['host']}): {failure.get('sentence', '')}"
            told.append((rank, number, failure))
    return min(told, key=lambda entry: entry[:2])[2] if told else {}
