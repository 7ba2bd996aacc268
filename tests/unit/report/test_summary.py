"""Rows and rungs: what belongs together, means worked out by hand, and odd values that must not raise."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.campaign.record import Flag
from benchmark.report import page, summary, tables, text
from benchmark.report.summary import Estimate, rows
from tests.data.campaigns import made


def test_starts_of_one_configuration_are_one_row_with_their_mean_and_range():
    first = made.record("ep8", points=[made.point(1, 60.0), made.point(8, 300.0)])
    second = msgspec.structs.replace(
        first, created_at="2026-11-29T15:00:00Z", points=[made.point(1, 66.0), made.point(8, 330.0)]
    )
    (row,) = rows([second, first], {})
    assert row.starts == 2
    assert row.newest is second
    assert row.peak.concurrency == 8
    assert row.peak.throughput == Estimate(315.0, 300.0, 330.0, 2)
    assert row.single_stream == 63.0


def test_another_driver_makes_another_row():
    old = made.record("ep8", fingerprint_of={"driver": "580", "start": 1})
    again = made.record("ep8", fingerprint_of={"driver": "580", "start": 2})
    new = made.record("ep8", fingerprint_of={"driver": "590", "start": 1})
    assert [row.label for row in rows([old, again, new], {})] == ["ep8", "ep8 (2)"]


def test_invalid_points_take_no_part():
    flag = Flag(id="compilation", severity="invalid", message="A kernel was compiled.")
    record = made.record("ep8", points=[made.point(1, 60.0), made.point(8, 900.0, flags=(flag,))])
    (row,) = rows([record], {})
    assert row.peak.concurrency == 1
    assert row.rung(8).throughput is None
    assert row.rung(8).reasons == ["A kernel was compiled."]


def test_the_decision_says_the_peak_and_the_order():
    slow, fast = made.record("slow", scale=0.5), made.record("fast")
    decision = {
        "ranking": [
            {"configuration": "slow", "host": "gpu1", "peak": 123.0, "peak_concurrency": 4, "interval": [120, 126]},
            {"configuration": "fast"},
        ]
    }
    first, second = rows([fast, slow], decision)
    assert (first.configuration, first.peak_value, first.peak.concurrency) == ("slow", 123.0, 4)
    assert first.peak_interval == (120.0, 126.0)
    assert second.configuration == "fast"


def test_what_did_not_run_comes_last_with_its_reason():
    found = rows([made.rejected(), made.failed(), made.record("ep8")], {})
    assert [row.outcome for row in found] == ["measured", "failed", "rejected"]
    assert found[1].reason.startswith("The weights of a GPU (132.9 GiB)")
    assert found[1].advice.startswith("Use all eight GPUs")


def test_headroom_is_what_is_left_after_load_less_pool_and_graphs():
    (row,) = rows([made.record("ep8")], {})
    # 22 GiB were available after the load, 12 went to the pool and 2 to the graphs.
    assert row.headroom_bytes == 8 * made.GIB


def test_changes_are_named_against_the_baseline_on_the_same_host():
    base = made.record("ep8")
    other = made.record("ep4", engine=base.configuration.engine | {"ep_size": 4}, against="ep8")
    changes = {row.configuration: row.changes for row in rows([base, other], {})}
    assert changes == {"ep8": (), "ep4": (("ep_size", 8, 4),)}


def test_energy_comes_from_joules_over_tokens_or_as_told():
    assert summary.joules_per_token(made.point(1, 60.0, telemetry={"energy_joules": 7200.0})) == 2.0
    assert summary.joules_per_token(made.point(1, 60.0, telemetry={"energy_joules_per_token": 1.5})) == 1.5
    assert summary.joules_per_token(made.point(1, 60.0, telemetry={})) is None
    assert summary.joules_per_token(made.point(1, 60.0, telemetry={"energy_joules": "much"})) is None


def test_a_plan_is_read_at_the_concurrency_of_the_measured_peak():
    rung = {"concurrency": 64, "output_tokens_per_second": {"low": 900, "expected": 1000, "high": 1300}}
    nothing = {"concurrency": 128, "output_tokens_per_second": None}
    plan = {"speed": {"ladder": [rung, nothing]}}
    assert summary.planned(plan, 64) == (900.0, 1000.0, 1300.0)
    assert summary.planned(plan, 128) is None
    assert summary.planned(plan) == (900.0, 1000.0, 1300.0)
    assert summary.planned({}) is None


wild = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(wild)
def test_no_value_of_a_decision_or_plan_raises(item):
    value = summary.number(item)
    assert value is None or math.isfinite(value)
    for read in (
        summary.bounds,
        summary.three,
        text.rate,
        text.seconds,
        text.gib,
        text.count,
        text.percent,
        text.value,
    ):
        read(item)
    keys = ("winner", "ranking", "experiments", "notes")
    rows([made.record("ep8")], dict.fromkeys(keys, item))
    rows([made.record("ep8")], {"ranking": [{"configuration": "ep8", "peak": item, "interval": item}]})


@pytest.mark.parametrize(
    ("show", "given_", "shown"),
    [
        (text.rate, 1538.4, "1,538"),
        (text.rate, 65.34, "65.3"),
        (text.rate, 7.7, "7.70"),
        (text.rate, math.nan, "\N{EN DASH}"),
        (text.seconds, 0.0000042, "4 µs"),
        (text.seconds, 0.0031, "3.10 ms"),
        (text.seconds, 0.0182, "18.2 ms"),
        (text.seconds, 0.183, "183 ms"),
        (text.seconds, 1.844, "1.84 s"),
        (text.seconds, 62, "62.0 s"),
        (text.seconds, 200, "3 min 20 s"),
        (text.seconds, 7260, "2 h 1 min"),
        (text.gib, 97_887 * 1024**2, "95.6"),
        (text.percent, 1.07, "+7.0 %"),
        (text.percent, 0.9, "\N{MINUS SIGN}10.0 %"),
        (text.value, None, "not set"),
        (text.value, True, "true"),
        (text.value, {"a": [1]}, '{"a": [1]}'),
        (text.clean, "a\x1b[31m\nb", "a[31m b"),
    ],
)
def test_numbers_read_as_people_write_them(show, given_, shown):
    assert show(given_) == shown


def test_kv_tokens_are_those_of_all_attention_dp_ranks():
    """The log of one of two ranks said 5,146,635 (docs/evidence/several-gpus, dp2)."""
    engine = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}
    start = msgspec.structs.replace(made.record().start, kv_tokens=5_146_635, max_running_requests=128)
    record = made.record("dp2", engine=engine, start=start)
    (row,) = rows([record], {})
    assert row.kv_tokens == record.kv_tokens == 10_293_270
    assert record.running_limit == 256
    assert ",10293270," in tables.csv([record])


def test_a_model_without_a_revision_is_not_another_model():
    """A configuration that was rejected left the host, and its model, alone."""
    measured = made.record("ep8")
    rejected = made.record("tp4", model=msgspec.structs.replace(measured.model, revision=""), points=[])
    assert dict(page.about([measured, rejected], []))["Model"] == "kimi-k2.6 (abc123)"
    assert dict(page.about([rejected], []))["Model"] == "kimi-k2.6"
