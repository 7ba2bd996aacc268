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


def lacking(configuration: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why these hosts cannot run a configuration, or an empty text if they can.

    Args:
        nodes: [{"host", "gpus": [{"name"}]; None: it takes no part in this run}], the host that serves first.
    """
    needed = count(configuration)
    if needed < 2:
        return ""
    if len(nodes) < needed:
        has = f"the group of {nodes[0]['host']} has {len(nodes)}" if len(nodes) > 1 else f"{nodes[0]['host']} is alone"
        return f"It is spread over {needed} nodes, and {has}: name the hosts of its group in sglang_service_nodes."
    first = _names(nodes[0])
    for number, node in enumerate(nodes[:needed]):
        who = f"node {number} ({node['host']})"
        if node.get("gpus") is None:
            return f"{who} takes no part in this run: it cannot be reached, or the run is limited to other hosts."
        if _names(node) != first:
            return f"{who} has other GPUs than node 0 ({nodes[0]['host']}); an engine needs the same on each."
    return ""


def _names(node: Mapping[str, Any]) -> list[str]:
    gpus = node.get("gpus")
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
