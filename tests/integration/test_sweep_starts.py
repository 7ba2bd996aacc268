"""Several starts of each configuration, a budget, a ladder left early: as records, report and terminal tell it."""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json

import pytest
from conftest import recap, said

from benchmark.campaign.store import Campaign

pytestmark = pytest.mark.slow


def campaign_of(site) -> Campaign:
    return Campaign(site.folder / "campaigns", "kimi-k2.6-quick")


def decision_of(site) -> dict:
    return json.loads((campaign_of(site).folder / "decision.json").read_text())


@pytest.mark.long
def test_a_full_sweep_starts_the_baseline_three_times_and_finalists_twice(site):
    site.variables["sglang_report_confidence"] = "full"
    done = site.play("sweep.yml", configs="tp8,ep8", concurrencies="4")
    assert done.returncode == 0, said(done)
    assert "at most" in said(done)
    records = campaign_of(site).records()
    numbers = {}
    for record in records:
        assert record.complete
        assert record.outcome == "measured"
        numbers.setdefault(record.configuration.name, []).append(record.start_number)
    assert numbers["tp8"] == [1, 2, 3]
    # A finalist has a second start, and the best of those that are not the baseline a third, to be quoted.
    assert numbers["ep8"][:2] == [1, 2]
    # Each record is of an engine start of its own, and each point says which.
    starts = [record.start.started_at for record in records]
    assert len(set(starts)) == len(starts)
    assert all(point.engine_started_at == record.start.started_at for record in records for point in record.points)
    by_start = sorted(records, key=lambda record: record.start.started_at)
    assert by_start[0].configuration.name == "tp8"
    assert by_start[-1].configuration.name == "tp8"

    decision = decision_of(site)
    assert decision["noise"]["peak"]["assumed"] is False
    (experiment,) = decision["experiments"]
    assert experiment["starts"] == [len(numbers["ep8"]), 3]
    assert experiment["effect"]["peak"]["low"] < experiment["effect"]["peak"]["high"]
    (drift,) = decision["drift"]
    assert drift["configuration"] == "tp8"
    page = (campaign_of(site).folder / "report.html").read_text()
    assert "No number is corrected for it" in page
    assert "Whiskers are intervals of 95 %" in page
    with (campaign_of(site).folder / "results.csv").open(newline="") as rows:
        assert len({row["start_number"] for row in csv.DictReader(rows)}) == 3
    fact = json.loads((site.folder / "facts.d/sglang_tp8.fact").read_text())
    assert fact["starts"] == 3

    again = site.play("sweep.yml", configs="tp8,ep8", concurrencies="4")
    assert again.returncode == 0, said(again)
    assert recap(again)["changed"] == 0
    assert "nothing is left to measure" in said(again)


def test_further_starts_measure_what_the_objective_is_read_from(site):
    site.variables["sglang_report_confidence"] = "full"
    site.variables["sglang_benchmark_further"] = [{"workload": "quick_long", "concurrency": 1}]
    asked = {"configs": "ep8", "concurrencies": "1,4", "objective": "goodput"}
    refused = site.play("sweep.yml", **asked)
    assert refused.returncode != 0
    assert "The objective goodput is read from an open loop, and none is measured" in said(refused)

    done = site.play("sweep.yml", **asked, rate=4, ttft_limit=30)
    assert done.returncode == 0, said(done)
    points = {r.start_number: {(p.workload, p.concurrency) for p in r.points} for r in campaign_of(site).records()}
    assert points == {
        1: {("quick", 1), ("quick", 4), ("quick_long", 1), ("quick_open", 4)},
        2: {("quick", 4), ("quick_open", 4)},
        3: {("quick", 4), ("quick_open", 4)},
    }
    assert_each_was_kept_before_the_next_began(site)
    decision = decision_of(site)
    assert (decision["winner"]["objective"], decision["winner"]["starts"]) == ("goodput", 3)
    assert decision["noise"]["goodput"]["assumed"] is False


def assert_each_was_kept_before_the_next_began(site):
    """Those after the ladder too: a controller that is killed in a start's last point has lost none before it."""
    campaign = campaign_of(site)
    for record in campaign.records():
        points = sorted(record.points, key=lambda point: point.started_at)
        for point, after in itertools.pairwise(points):
            kept = campaign.raw_file(record, point.raw).stat().st_mtime
            # A record's times are whole seconds.
            assert kept < dt.datetime.fromisoformat(after.started_at).timestamp() + 1


def test_a_rung_that_cannot_win_is_left_out_with_the_reason(site):
    site.variables["sglang_site_configs"] = {
        "one_at_a_time": {"extends": "ep8", "against": "ep8", "engine": {"max_running_requests": 1}}
    }
    done = site.play("sweep.yml", configs="ep8,one_at_a_time", concurrencies="1,8,16")
    assert done.returncode == 0, said(done)
    found = {record.configuration.name: record for record in campaign_of(site).records()}
    assert [point.concurrency for point in found["ep8"].points] == [1, 8, 16]
    loser = found["one_at_a_time"]
    assert [point.concurrency for point in loser.points] == [1, 8]
    assert loser.complete
    assert loser.left.rungs == [16]
    assert "below the" in loser.left.reason
    decision = decision_of(site)
    assert [row["configuration"] for row in decision["skipped"]] == ["one_at_a_time"]
    row = next(row for row in decision["ranking"] if row["configuration"] == "one_at_a_time")
    assert row["sentence"].startswith("Left early: ")
    assert "What was not measured" in (campaign_of(site).folder / "report.html").read_text()


def test_what_a_budget_leaves_out_is_named(site):
    # A start and its point take about three and two and a half seconds: half a minute holds some, not three.
    site.variables["sglang_report_start_minutes"] = 0.2
    done = site.play("sweep.yml", configs="tp8,ep8,pp8", concurrencies="1", budget="0.5")
    assert done.returncode == 0, said(done)
    measured = {record.configuration.name for record in campaign_of(site).records()}
    assert "tp8" in measured
    assert "pp8" not in measured
    skipped = {row["configuration"]: row["reason"] for row in decision_of(site)["skipped"]}
    assert skipped["pp8"].startswith("Deferred: ")
    assert "pp8" in (campaign_of(site).folder / "report.md").read_text()


@pytest.mark.long
def test_only_what_may_pass_is_tried_again_unless_asked(site):
    first = site.play("sweep.yml", configs="ep8,tp4ep2", concurrencies="1", plan="off")
    assert first.returncode == 0, said(first)
    before = {record.configuration.name: record for record in campaign_of(site).records()}
    assert before["tp4ep2"].outcome == "failed"

    again = site.play("sweep.yml", configs="ep8,tp4ep2", concurrencies="1", plan="off")
    assert "tp4ep2: failed before; -e retry=failed tries it again" in said(again)
    assert campaign_of(site).records() == list(before.values())

    asked = site.play("sweep.yml", configs="ep8,tp4ep2", concurrencies="1", plan="off", retry="failed")
    assert asked.returncode == 0, said(asked)
    after = {record.configuration.name: record for record in campaign_of(site).records()}
    assert after["ep8"] == before["ep8"]
    assert after["tp4ep2"].updated_at > before["tp4ep2"].updated_at


def test_settings_that_make_no_sense_stop_nothing(served):
    for wrong, why in ({"objective": "peek"}, "did you mean"), ({"confidence": "sure"}, "confidence"):
        refused = served.play("sweep.yml", configs="ep8", interrupt=True, **wrong)
        assert refused.returncode != 0
        assert why in said(refused)
    assert served.serving() == ["sglang-ep4"]


def test_check_mode_says_the_plan_and_touches_nothing(site):
    done = site.play("sweep.yml", "--check", configs="tp8,ep8")
    assert done.returncode == 0, said(done)
    assert "2 engine starts foreseen" in said(done)
    assert not (site.folder / "campaigns").exists() or campaign_of(site).records() == []
