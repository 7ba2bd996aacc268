"""Comparing two campaigns: verdicts worked out by hand, refusals with their reasons, statistics against tables."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from benchmark.campaign import record as rec
from benchmark.campaign.statistics import holm_levels, t_tail
from benchmark.report import reported
from benchmark.report.compare import SideError, compare, read_side
from benchmark.report.tables import comparison_text
from tests.data.campaigns import made


def starts(name, *rates, ttft=0.1, **others):
    """One record a rate: starts of one configuration, measured at one concurrency."""
    return [
        made.record(
            name,
            created_at=f"2026-11-29T{10 + i}:00:00Z",
            points=[made.point(8, rate, ttft_seconds=made.spread(ttft))],
            **others,
        )
        for i, rate in enumerate(rates)
    ]


def throughput(comparison):
    return {d.configuration: d for d in comparison.differences if d.metric == "output tokens/s"}


@pytest.mark.parametrize(
    ("t", "degrees", "chance"),
    [(12.706, 1, 0.05), (2.776, 4, 0.05), (2.228, 10, 0.05), (2.750, 30, 0.01), (1.96, 0, 0.05), (0.0, 7, 1.0)],
)
def test_the_tail_of_t_agrees_with_the_tables(t, degrees, chance):
    assert t_tail(t, degrees) == pytest.approx(chance, rel=0.002)
    assert t_tail(-t, degrees) == pytest.approx(chance, rel=0.002)


def test_the_tail_of_t_with_one_degree_is_cauchys():
    assert t_tail(1.0, 1) == pytest.approx(0.5)
    assert t_tail(math.sqrt(3), 1) == pytest.approx(1 / 3)
    assert t_tail(math.inf, 3) == 0.0


def test_holm_stops_at_the_first_that_fails():
    # 0.01 < 0.05/3; 0.03 > 0.05/2, so neither it nor 0.04 is real, and both are judged at 0.05/2.
    assert holm_levels([0.04, 0.01, 0.03], [0.05] * 3) == [0.05 / 2, 0.05 / 3, 0.05 / 2]
    assert holm_levels([0.01, 0.02, 0.04], [0.05] * 3) == [0.05 / 3, 0.05 / 2, 0.05]
    assert holm_levels([], []) == []


def test_one_start_each_is_judged_by_the_assumed_noise():
    # 4 % a start, as in a campaign: a difference has 5.66 %. Of two, the larger is judged at 2.5 % (2.2414 deviations,
    # +-12.7 %) and the other at 5 %: 15 % is beyond noise, 4 % is not.
    before = starts("a", 100.0) + starts("b", 100.0)
    after = starts("a", 115.0) + starts("b", 104.0)
    found = throughput(compare(before, after))
    assert found["a"].verdict == "better"
    assert found["a"].ratio == pytest.approx(1.15)
    assert found["a"].low == pytest.approx(1.15 * math.exp(-2.2414 * 0.04 * math.sqrt(2)), rel=1e-4)
    assert found["b"].verdict == "undecided"
    assert throughput(compare(starts("a", 100.0), starts("a", 110.0)))["a"].verdict == "undecided"


def test_one_start_each_gives_no_verdict_about_latency():
    found = compare(starts("a", 100.0, ttft=0.1), starts("a", 100.0, ttft=0.5))
    (ttft,) = [d for d in found.differences if d.metric.startswith("TTFT")]
    assert (ttft.verdict, ttft.low, ttft.starts) == ("undecided", None, (1, 1))
    assert any("its noise is not known" in note for note in found.notes)


def test_lower_latency_is_better_once_its_noise_is_known():
    before = starts("a", 100.0, ttft=0.100) + starts("a", 100.0, ttft=0.101)
    after = starts("a", 100.0, ttft=0.050) + starts("a", 100.0, ttft=0.051)
    verdicts = {d.metric: d.verdict for d in compare(before, after).differences}
    assert verdicts == {"output tokens/s": "tie", "TTFT p50, seconds": "better"}


def test_noise_is_pooled_from_repeated_starts():
    # Logarithms of 98 and 102 differ by 0.04: two pairs of them give a standard deviation of 0.0283, 2 degrees.
    before, after = starts("a", 98.0, 102.0), starts("a", 147.0, 153.0)
    found = throughput(compare(before, after))["a"]
    spread = math.log(102 / 98) / math.sqrt(2)
    assert found.ratio == pytest.approx(1.5)
    # The standard error of a difference of two means of two is the spread itself. TTFT is judged too, so the larger of
    # both has 2.5 %: t for 2 degrees is 6.205.
    assert math.log(found.high / found.ratio) == pytest.approx(6.205 * spread, rel=0.001)
    assert found.verdict == "better"


def test_a_tie_is_an_interval_inside_two_percent():
    before, after = starts("a", 100.0, 100.2, 100.1, 99.9), starts("a", 100.1, 100.0, 99.9, 100.1)
    assert throughput(compare(before, after))["a"].verdict == "tie"


def test_what_changed_is_listed_with_both_values():
    old = made.record("ep8")
    new = msgspec.structs.replace(
        made.record("ep8", engine=old.configuration.engine | {"max_running_requests": 256}),
        host=msgspec.structs.replace(old.host, driver="590.10"),
    )
    found = compare([old], [new])
    assert ("driver", "580.95.05", "590.10") in found.changed
    assert ("ep8: max_running_requests", "64", "256") in found.changed
    assert any("2 things changed at once" in note for note in found.notes)


def test_other_hosts_are_paired_only_where_that_is_clear():
    here, there = made.record("ep8", host=made.host("a")), made.record("ep8", host=made.host("b"))
    assert compare([here], [there]).differences
    more = made.record("ep8", host=made.host("c"))
    found = compare([here], [there, more])
    assert not found.differences
    assert found.refused == (("ep8", "It ran on several hosts, and on none of them in both campaigns."),)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: made.simulated(r), "One side was simulated"),
        (lambda r: msgspec.structs.replace(r, model=rec.Model(name="other")), "Different models"),
        (
            lambda r: msgspec.structs.replace(r, workload=r.workload | {"output_tokens": 1024}),
            "Different workloads (output_tokens 256 → 1024)",
        ),
        # F1.19: 3,525 against 2,377 tok/s on one server, since one side's answers ended where the model ends them.
        (
            lambda r: msgspec.structs.replace(r, workload=r.workload | {"ignore_eos": False}),
            "Different workloads (ignore_eos",
        ),
    ],
)
def test_what_is_not_comparable_is_refused_as_a_whole(change, why):
    record = made.record("ep8")
    found = compare([record], [change(record)])
    assert not found.comparable
    ((what, reason),) = found.refused
    assert what == "*"
    assert reason.startswith(why)
    assert "everything" in comparison_text(found)


def test_another_seed_is_a_change_and_no_refusal():
    record = made.record("ep8")
    found = compare([record], [msgspec.structs.replace(record, workload=record.workload | {"seed": 2})])
    assert found.changed == (("workload seed", "1", "2"),)
    assert found.comparable


def test_what_failed_or_is_missing_is_named():
    found = compare(
        [made.record("ep8"), made.failed("tp4")], [made.record("ep8"), made.record("tp4"), made.record("x")]
    )
    refused = dict(found.refused)
    assert refused["tp4"].startswith("No number in the first campaign (failed): The weights")
    assert refused["x"] == "Only in the second campaign."
    assert ("tp4: outcome", "failed", "measured") in found.changed


def test_rungs_of_one_side_alone_are_not_compared():
    found = compare(
        [made.record("a", points=[made.point(8, 100.0)])], [made.record("a", points=[made.point(16, 200.0)])]
    )
    assert dict(found.refused) == {"a": "No concurrency is valid in both campaigns."}


def test_a_reported_campaign_stands_beside_without_verdicts():
    told = reported.load("kimi-k2.6-8x-rtx-pro-6000")
    found = compare(told, made.small()[0])
    assert not found.differences
    assert found.comparable
    text = comparison_text(found)
    assert "reported, not measured here" in text
    assert "ep8: C=1 65.3 reported, 60.0 here; peak 961 reported, 1,791 here" in text
    assert dict(compare(told, told).refused) == {"*": "Both are reported, so neither has a record to compare."}


def test_a_side_is_a_folder_or_a_shipped_name(tmp_path):
    record = made.record("ep8")
    place = tmp_path / "gpu1" / "ep8" / record.fingerprint
    place.mkdir(parents=True)
    (place / "record.json").write_bytes(rec.dump(record))
    assert read_side(tmp_path) == [record]
    assert read_side("kimi-k2.6-8x-rtx-pro-6000").matches["gpus"] == 8
    with pytest.raises(SideError, match="is no campaign folder; shipped"):
        read_side("nonsense")
    with pytest.raises(SideError, match="holds no record"):
        read_side(place)
    newer = json.loads(rec.dump(record)) | {"schema_version": 99}
    (place / "record.json").write_text(json.dumps(newer))
    with pytest.raises(SideError, match="schema version 99"):
        read_side(tmp_path)


def test_the_text_fits_its_width():
    many, _ = made.many(20, 2)
    for pair in ((made.hostile()[0], made.hostile()[0]), (many, many[:5])):
        told = comparison_text(compare(*pair))
        assert max(map(len, told.splitlines())) <= 100
        assert "\x1b" not in told
