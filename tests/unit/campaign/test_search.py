from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.campaign.ladder import next_rung, reach
from benchmark.campaign.search import Candidate, family_of, outlook


def candidate(name, expected, family="f", verdict="runs"):
    return Candidate(name, (family,), expected, verdict)


def names(found):
    return [o.name for o in found]


def test_before_anything_is_measured_the_plan_orders():
    found = outlook([candidate("a", 100.0), candidate("b", 300.0), candidate("c", None)], {})
    assert names(found) == ["b", "c", "a"]
    # c is taken at the plan's middle.
    assert found[1].mean == pytest.approx((math.log(100) + math.log(300)) / 2)


def test_a_doubtful_one_waits_behind_one_as_good():
    assert names(outlook([candidate("a", 100.0, verdict="doubtful"), candidate("b", 100.0)], {})) == ["b", "a"]


def test_a_family_that_does_better_than_planned_comes_forward():
    candidates = [
        candidate("pp_a", 100.0, "pp"),
        candidate("pp_b", 101.0, "pp"),
        candidate("tp_a", 120.0, "tp"),
        candidate("tp_b", 118.0, "tp"),
    ]
    assert names(outlook(candidates, {}))[0] == "tp_a"
    found = outlook(candidates, {"tp_a": 100.0, "pp_a": 170.0})
    assert names(found) == ["pp_b", "tp_b"]
    assert found[0].chance > found[1].chance


def test_a_plan_upside_down_is_noticed():
    planned = [100.0 * 1.2**k for k in range(10)]
    candidates = [candidate(f"c{k}", value, f"f{k}") for k, value in enumerate(planned)]
    # The truth is the reverse: what was planned best is worst.
    seen = {f"c{k}": planned[9 - k] for k in (9, 8, 7, 6, 5)}
    assert names(outlook(candidates, seen))[0] == "c0"


def test_everything_measured_leaves_nothing():
    assert outlook([candidate("a", 1.0)], {"a": 2.0}) == []
    assert outlook([], {}) == []


@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=6), st.floats(1e-3, 1e6))
def test_any_numbers_give_chances(expected, measured):
    candidates = [candidate(f"c{k}", value, f"f{k % 2}") for k, value in enumerate(expected)]
    found = outlook(candidates, {"c0": measured})
    assert len(found) == len(expected) - 1
    for o in found:
        assert 0 <= o.chance <= 1 + 1e-9
        assert o.gain >= -1e-12


def test_families_follow_what_makes_the_plan_err():
    plain = {"engine": {"tp_size": 8}, "environment": {}}
    deep = {"engine": {"tp_size": 4, "pp_size": 2}, "environment": {}}
    assert family_of(plain) == family_of({"engine": {"tp_size": 8, "pp_size": 1, "max_running_requests": 64}})
    assert family_of(plain) != family_of(deep)
    replicas = [{"engine": {"attn_dp_size": 8}}, {"engine": {"dp_size": 8, "enable_dp_attention": True}}]
    assert family_of(replicas[0]) == family_of(replicas[1]) == ("attention replicas",)
    assert family_of(plain | {"environment": {"NCCL_P2P_LEVEL": "SYS"}}) != family_of(plain)


def test_throughput_grows_at_most_with_the_concurrency():
    # 40 at 4 allow 640 at 64; 100 at 16 allow 400 at 64.
    assert reach({4: 40.0}, [64]) == 640.0
    assert reach({4: 40.0, 16: 100.0}, [64]) == 400.0
    assert reach({4: 40.0}, [1]) == math.inf
    assert reach({4: 40.0}, [4]) == 40.0


@given(st.dictionaries(st.integers(1, 512), st.floats(0.1, 1e4), min_size=1), st.integers(1, 1024))
def test_the_bound_holds_for_every_curve_whose_users_do_not_speed_up(curve, rung):
    slowest = math.inf
    lawful = {}
    for c in sorted(curve):
        slowest = min(slowest, curve[c])
        lawful[c] = slowest * c
    below = {c: value for c, value in lawful.items() if c <= rung}
    if below:
        assert reach(below, [rung]) >= max(lawful[c] for c in below if c == rung or c == max(below)) * 0.999


def test_the_ladder_is_climbed_until_nothing_can_be_won():
    ladder = [1, 16, 64, 256]
    assert next_rung(ladder, {}) == (1, "")
    assert next_rung(ladder, {1: 20.0}, best=900.0) == (16, "")
    rung, why = next_rung(ladder, {1: 20.0, 16: 40.0}, best=900.0)
    assert rung is None
    assert why == ("40 tokens a second at concurrency 16 allow at most 640 at 256, below the 900 that another reached.")
    # Another objective needs the rung all the same.
    assert next_rung(ladder, {1: 20.0, 16: 40.0}, best=900.0, needed=[64]) == (64, "")
    assert next_rung(ladder, {1: 20.0, 16: 40.0, 64: 90.0, 256: 91.0}) == (None, "")


def test_a_low_rung_never_ends_what_may_win_high():
    # A pipeline: slow alone, and in reach of the best at the top.
    assert next_rung([1, 64, 256], {1: 8.0}, best=1500.0) == (64, "")


def test_above_a_rung_that_failed_nothing_is_tried():
    assert next_rung([1, 16, 64], {1: 20.0}, failed=[16]) == (
        None,
        "Concurrency 16 failed, so concurrency 64 would too.",
    )
    assert next_rung([1, 16, 64], {}, failed=[64])[0] == 1


def test_the_truth_of_the_measurement_comes_from_outside_the_project():
    source = Path(__file__).parents[3] / "measurements/landscapes.py"
    imported = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    assert {name.split(".")[0] for name in imported} == {"__future__", "collections", "dataclasses", "pathlib",
                                                         "typing", "numpy", "yaml"}  # fmt: skip
