"""Configurations of several nodes: which ranks a node runs, what they weigh and send, and who is at fault.

Expected values are worked out by hand from SGLang's _calculate_rank_ranges and Kimi K2.6's sizes.
"""

from __future__ import annotations

import pytest

from benchmark.engine import nodes
from benchmark.engine.communication import NETWORK_BANDWIDTH, collectives, seconds
from benchmark.engine.flags import launch_arguments
from benchmark.engine.hardware import AllReduce, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.memory import plan_memory
from benchmark.engine.models import load_model
from benchmark.engine.plan import plan_configuration
from benchmark.engine.share import share
from benchmark.engine.sweep import plan

KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")
ENGINE = {"mem_fraction_static": 0.88, "context_length": 32768, "trust_remote_code": True}
GPUS = [{"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}] * 8


@pytest.mark.parametrize(
    ("layout", "node", "stages", "ranks"),
    [
        (Layout(tp=16, nnodes=2), 0, range(1), range(8)),
        (Layout(tp=16, nnodes=2), 1, range(1), range(8, 16)),
        (Layout(tp=8, pp=4, nnodes=2), 1, range(2, 4), range(8)),
        # Two nodes a stage: nodes 2 and 3 are the second stage's halves.
        (Layout(tp=8, pp=2, nnodes=4), 3, range(1, 2), range(4, 8)),
        (Layout(tp=8), 0, range(1), range(8)),
    ],
)
def test_ranks_of_a_node(layout, node, stages, ranks):
    assert layout.node_ranks(node) == (stages, ranks)


def test_sixteen_ranks_hold_a_sixteenth_of_the_experts_each():
    """Experts 531.56 GiB: 66.45 GiB a rank at tp 8, 33.22 at tp 16 over two nodes; what is replicated stays."""
    host = find_host("8x RTX PRO 6000 Blackwell", nodes=2)
    one = plan_memory(KIMI, Layout(tp=8), ENGINE, RTX, "0.5.23").weights_bytes
    two = plan_memory(KIMI, Layout(tp=16, nnodes=2), ENGINE | {"nnodes": 2}, host, "0.5.23").weights_bytes
    # Replicated on each rank: the latent projections 1.72 GiB, router 0.31, a vision tower's small part.
    assert 33.2 * 2**30 < one - two < 36.5 * 2**30
    assert two < 40 * 2**30


def test_a_group_over_two_nodes_goes_over_the_network():
    """tp 8 as four GPUs of each of two nodes: the widths of tp 8 and the links of a network."""
    within = collectives(KIMI, Layout(tp=8), {}, 8192)
    over = collectives(KIMI, Layout(tp=8, nnodes=2), {}, 8192)
    assert [(call.bytes, call.count, call.group) for call in within] == [
        (call.bytes, call.count, call.group) for call in over
    ]
    assert {call.nodes for call in within} == {1}
    assert {call.nodes for call in over} == {2}
    output = next(call for call in over if call.name == "attention output")
    cost = seconds(output, RTX).scaled(1 / output.count)
    moved = 2 * 7 / 8 * 8192 * 14336
    assert cost.low == pytest.approx(moved / NETWORK_BANDWIDTH.high, rel=0.1)
    assert cost.high == pytest.approx(moved / NETWORK_BANDWIDTH.low, rel=0.1)


def test_what_a_host_measured_is_not_taken_for_a_networks():
    measured = find_host("8x RTX PRO 6000 Blackwell", allreduce=(AllReduce(8, 1000, 1e-6), AllReduce(8, 10**9, 1e-5)))
    over = next(c for c in collectives(KIMI, Layout(tp=8, nnodes=2), {}, 8192) if c.name == "attention output")
    assert seconds(over, measured) == seconds(over, RTX)


def test_attention_groups_and_stages_inside_a_node_stay_there():
    calls = collectives(KIMI, Layout(tp=16, attention_dp=2, nnodes=2), {}, 64)
    # Attention groups of eight are one node's; the experts' sixteen ranks are both nodes'.
    assert {call.name: call.nodes for call in calls}["attention output"] == 1
    assert {call.name: call.nodes for call in calls}["gather before experts"] == 2
    stages = collectives(KIMI, Layout(tp=4, pp=4, nnodes=2), {}, 64)
    hops = {call.name: (call.count, call.nodes) for call in stages if call.kind == "send"}
    assert hops == {"pipeline hop": (2, 1), "pipeline hop between nodes": (1, 2)}
    assert {call.nodes for call in stages if call.kind != "send"} == {1}


def test_the_plan_counts_the_gpus_of_all_nodes():
    configuration = {"name": "tp16", "engine": ENGINE | {"tp_size": 16, "nnodes": 2}, "environment": {}}
    planned = plan_configuration(configuration, KIMI, RTX, "0.5.23", {"prompt_tokens": 512, "output_tokens": 128}, [1])
    assert (planned["gpus_used"], planned["gpus_there"]) == (16, 16)
    assert planned["sentence"].startswith("Uses 16 of 16 GPUs")
    # A network that nobody has measured: the range says so.
    assert planned["speed"]["peak"]["high"] > 1.5 * planned["speed"]["peak"]["low"]


def test_only_a_configuration_of_several_nodes_is_told_its_node():
    own = {"model_path": "m", "node": {"node_rank": 1, "dist_init_addr": "10.0.0.1:20000"}}
    alone = launch_arguments({"tp_size": 8}, "0.5.11", own)
    assert alone == ["--model-path", "m", "--tp-size", "8"]
    assert launch_arguments({"tp_size": 16, "nnodes": 2}, "0.5.11", own) == [
        "--model-path", "m", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:20000",
        "--tp-size", "16", "--nnodes", "2",
    ]  # fmt: skip


def configuration(**engine):
    return {"name": "two", "engine": engine, "environment": {}}


@pytest.mark.parametrize(
    ("host", "group", "seen", "told"),
    [
        ("a", ["a"], {"a": GPUS}, "a is alone"),
        ("a", ["a", "b"], {"a": GPUS}, "node 1 (b) takes no part"),
        ("a", ["a", "b"], {"a": GPUS, "b": GPUS[:4]}, "node 1 (b) has other GPUs than node 0 (a)"),
        ("b", ["a", "b"], {"a": GPUS, "b": GPUS}, "It is served from a"),
        ("a", ["a", "b"], {"a": GPUS, "b": GPUS}, ""),
        # A third that the configuration does not need may be away.
        ("a", ["a", "b", "c"], {"a": GPUS, "b": GPUS}, ""),
    ],
)
def test_hosts_that_cannot_run_it_are_named(host, group, seen, told):
    said = nodes.lacking(configuration(tp_size=16, nnodes=2), host, group, seen)
    assert told in said and bool(said) == bool(told)
    assert nodes.lacking(configuration(tp_size=8), host, group, seen) == ""


def test_a_node_has_ranks_of_what_reaches_it():
    two, four = {"name": "two", "engine": {"nnodes": 2}}, {"name": "four", "engine": {"nnodes": 4}}
    one = {"name": "one", "engine": {"tp_size": 8}}
    assert nodes.on_node([one, two, four], 0) == []
    assert nodes.on_node([one, two, four], 1) == ["two", "four"]
    assert nodes.on_node([one, two, four], 2) == ["four"]


def test_a_sweeps_plan_rejects_what_its_hosts_cannot_run():
    catalogue = {"tp8": {"engine": ENGINE | {"tp_size": 8}}, "tp16": {"engine": ENGINE | {"tp_size": 16, "nnodes": 2}}}
    setting = {
        "release": "0.5.23",
        "model": "kimi-k2.6",
        "gpus": GPUS,
        "host": "a",
        "group": ["a"],
        "seen": {"a": GPUS},
    }
    entries = {entry["name"]: entry for entry in plan("", catalogue, None, setting | {"plan": "off"})}
    assert entries["tp8"]["verdict"] != "rejected"
    assert entries["tp16"]["verdict"] == "rejected"
    assert "sglang_service_nodes" in entries["tp16"]["sentence"]
    assert entries["tp16"]["plan"]["rules"][0]["rule"] == "nodes-there"
    group = {"group": ["a", "b"], "seen": {"a": GPUS, "b": GPUS}}
    assert {entry["verdict"] for entry in plan("", catalogue, None, setting | group)} <= {"runs", "doubtful"}


def test_alike_hosts_leave_several_nodes_to_the_one_that_has_them():
    shares = share(["base", "x", "two", "y", "z"], ["a", "b", "c"], "base", {"two": 2}, {"c": 2})
    assert shares == {"a": ["base", "x", "z"], "b": ["base", "y"], "c": ["base", "two"]}
    # The one that can has no other share than its own, wherever that stands in the order.
    assert share(["base", "x", "y", "two"], ["a", "b", "c"], "base", {"two": 2}, {"a": 2}) == {
        "a": ["base", "two"], "b": ["base", "x"], "c": ["base", "y"],
    }  # fmt: skip
    # What nobody can run is told once.
    assert sum("two" in names for names in share(["two", "x"], ["a", "b"], None, {"two": 2}).values()) == 1


def failed(kind, sentence="It broke."):
    return {"phase": "failed", "failure": {"kind": kind, "sentence": sentence, "advice": "", "may_pass": False}}


def test_the_node_at_fault_is_named():
    lost, own = failed("peer_lost"), failed("out_of_memory_weights", "The weights do not fit.")
    assert nodes.cause([{"host": "a", "answer": lost}, {"host": "b", "answer": own}])["sentence"] == (
        "node 1 (b): The weights do not fit."
    )
    assert nodes.cause([{"host": "a", "answer": own}, {"host": "b", "answer": lost}])["sentence"] == (
        "node 0 (a): The weights do not fit."
    )
    silent = nodes.cause([{"host": "a", "answer": failed("nodes_missing")}, {"host": "b", "answer": {}}])
    assert (silent["kind"], silent["sentence"]) == ("node_lost", "node 1 (b): it gave no answer.")
    waits = {"phase": "stopping", "waiting_for": "memory of GPU 0 80.0 GiB", "failure": None}
    assert nodes.cause([{"host": "a", "answer": lost}, {"host": "b", "answer": waits}])["sentence"] == (
        "node 1 (b): it never joined, and waits for memory of GPU 0 80.0 GiB."
    )
    assert nodes.cause([{"host": "a", "answer": {"phase": "ready"}}, {"host": "b", "answer": {"phase": "ready"}}]) == {}
