import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.communication import allreduce_seconds, collectives, seconds
from benchmark.engine.hardware import AllReduce, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.models import load_model
from benchmark.engine.ranges import Range, independent_sum

KIMI = load_model("kimi-k2.6")
RTX = find_host("8x RTX PRO 6000 Blackwell")


def _count(calls, kind):
    return sum(call.count for call in calls if call.kind == kind)


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_123_all_reduces_whatever_ep_is(ep):
    """1 embedding, 61 attention outputs, 1 dense MLP, 60 mixtures; 7168 x 2 bytes a token each."""
    calls = collectives(KIMI, Layout(tp=8, ep=ep), {}, tokens=64)
    assert _count(calls, "all_reduce") == 123
    assert {call.bytes for call in calls if call.kind == "all_reduce"} == {64 * 14336}
    assert _count(calls, "all_gather") == 1


def test_pipeline_stages_of_one_gpu_only_pass_on():
    calls = collectives(KIMI, Layout(pp=8), {}, tokens=4)
    # Seven hops, hidden state and residual.
    assert [(call.kind, call.count, call.bytes) for call in calls] == [("send", 7, 4 * 2 * 14336)]


def test_logits_are_gathered_for_sampled_tokens_only():
    calls = collectives(KIMI, Layout(tp=8), {}, tokens=8192, sampled=1)
    gather = next(call for call in calls if call.name == "logits")
    assert gather.bytes == 163840 // 8 * 2


def test_attention_dp_gathers_before_and_scatters_after_the_experts():
    calls = collectives(KIMI, Layout(tp=8, ep=8, attention_dp=8), {}, tokens=64)
    assert not [call for call in calls if call.name == "attention output"]
    assert _count(calls, "reduce_scatter") == 60
    partly = collectives(KIMI, Layout(tp=8, ep=8, attention_dp=4), {}, tokens=64)
    assert next(call.group for call in partly if call.name == "attention output") == 2


def test_an_all_to_all_backend_replaces_the_experts_all_reduce():
    calls = collectives(KIMI, Layout(tp=8, ep=8), {"moe_a2a_backend": "deepep"}, tokens=64)
    assert _count(calls, "all_to_all") == 120
    assert not [call for call in calls if call.name == "expert output"]


def test_one_gpu_sends_nothing():
    assert collectives(KIMI, Layout(), {}, tokens=64) == ()


def test_small_all_reduces_without_a_table_span_what_was_reported():
    """4 to 32 KB on such hosts: 26 to 205 us, 3 to 25 ms for the 123 of a token."""
    cost = allreduce_seconds(RTX, 8, 14336)
    assert cost.low == pytest.approx(26e-6, rel=0.1)
    assert cost.high == pytest.approx(205e-6, rel=0.1)
    assert 26e-6 < cost.expected < 60e-6


def test_a_large_all_reduce_is_bandwidth():
    """117 MB over eight: 2 x 7/8 x 117 MB at 15 to 41 GB/s of bus bandwidth."""
    cost = allreduce_seconds(RTX, 8, 8192 * 14336)
    assert cost.low == pytest.approx(2 * 7 / 8 * 8192 * 14336 / 41e9, rel=0.05)
    assert cost.high == pytest.approx(2 * 7 / 8 * 8192 * 14336 / 15e9, rel=0.05)


def test_the_hosts_own_table_is_used_where_it_has_the_group():
    table = (AllReduce(8, 10_000, 50e-6), AllReduce(8, 1_000_000, 5000e-6))
    host = find_host("8x RTX PRO 6000 Blackwell", allreduce=table)
    # Half way in logarithms: 100 kB at 500 us. Below the table the smallest, above it by bandwidth.
    assert allreduce_seconds(host, 8, 100_000).expected == pytest.approx(500e-6)
    assert allreduce_seconds(host, 8, 100).expected == 50e-6
    assert allreduce_seconds(host, 8, 2_000_000).expected == pytest.approx(10e-3)
    assert allreduce_seconds(host, 8, 100_000).width < 1.4
    assert allreduce_seconds(host, 4, 100_000) == allreduce_seconds(RTX, 4, 100_000)


def test_nvlink_is_faster_than_pcie_and_a_network_slower():
    assert allreduce_seconds(find_host("8x H200"), 8, 14336).high < allreduce_seconds(RTX, 8, 14336).low
    two_nodes = find_host("8x H200", nodes=2)
    assert allreduce_seconds(two_nodes, 16, 10**6).low > allreduce_seconds(two_nodes, 8, 10**6).high


@given(st.sampled_from([2, 4, 8]), st.integers(1, 10**9), st.integers(1, 10**9))
def test_more_bytes_never_take_less(group, one, other):
    small, large = sorted((one, other))
    first, second = allreduce_seconds(RTX, group, small), allreduce_seconds(RTX, group, large)
    assert first.expected <= second.expected
    assert first.low <= first.expected <= first.high


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 512))
def test_every_collective_has_a_cost(tp, pp, tokens):
    for call in collectives(KIMI, Layout(tp=tp, pp=pp), {}, tokens):
        cost = seconds(call, RTX)
        assert 0 < cost.low <= cost.expected <= cost.high


def test_independent_errors_add_in_squares():
    total = independent_sum([Range(7, 10, 14), Range(6, 10, 13)])
    assert (total.low, total.expected, total.high) == (15, 20, 25)
    assert total.contains(24)
    assert Range(1, 2, 4).inverse(8) == Range(2, 4, 8)
