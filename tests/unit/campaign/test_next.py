"""The controller's call between two starts: what is next, and a report that is not old."""

from __future__ import annotations

import datetime as dt
import io
import json
import os

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec
from benchmark.campaign import turns
from benchmark.campaign.judged import decided
from benchmark.campaign.store import Campaign


@pytest.fixture
def campaign(tmp_path):
    """A sweep of one host with two configurations, opened."""
    plan = [
        {
            "name": name,
            "verdict": "runs",
            "sentence": "",
            "configuration": {"name": name, "against": against, "engine": {"tp_size": 8}, "environment": {}},
            "plan": {"verdict": "runs"},
        }
        for name, against in (("tp8", None), ("ep8", "tp8"))
    ]
    known = {name: {"fingerprint": name * 8} for name in ("tp8", "ep8")}
    asked = {"ladder": [1], "confidence": "quick"}
    said = json.dumps({"host": "h1", "plan": plan, "fingerprints": known, "asked": asked})
    campaign = Campaign(tmp_path, "c")
    campaign.open({"host": "h1", "configurations": ["tp8", "ep8"]})
    campaign.keep_sweep(turns.opened(turns.asked_for(said.encode()), [], dt.datetime.now(dt.UTC)))
    return campaign


def asks(campaign, monkeypatch, capsys, record=None) -> dict:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" if record is None else rec.dump(record).decode()))
    assert verbs.main(["--campaigns", str(campaign.folder.parent), "--campaign", "c", "next", "--host", "h1"]) == 0
    return json.loads(capsys.readouterr().out)


def a_full_sweep(campaign, monkeypatch, capsys, verb="open", names=("tp8", "ep8"), **asked):
    """Ask for a sweep of these configurations: what is foreseen."""
    entries = [
        {
            "name": name,
            "verdict": "runs",
            "sentence": "",
            "configuration": {"name": name, "against": against, "engine": {"tp_size": 8}, "environment": {}},
            "plan": {"verdict": "runs"},
        }
        for name, against in (("tp8", None), ("ep8", "tp8"))
        if name in names
    ]
    known = {name: {"fingerprint": name * 8} for name in names}
    said = {"host": "h1", "plan": entries, "fingerprints": known, "asked": {"ladder": [1], **asked}, "about": {}}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(said)))
    assert verbs.main(["--campaigns", str(campaign.folder.parent), "--campaign", "c", verb, "--host", "h1"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_looks_of_a_campaign_are_not_lowered_and_none_is_added_once_one_was_taken(tmp_path, monkeypatch, capsys):
    campaign = Campaign(tmp_path, "c")

    def asked(**more):
        told = a_full_sweep(campaign, monkeypatch, capsys, **more)
        decision = decided(campaign)
        return told, (decision["confidence"], decision["looks"], campaign.sweep("h1").asked.looks)

    assert asked(confidence="quick")[1] == ("quick", 1, 1)
    # Nothing was compared so far: the whole error is there to be shared among four.
    assert asked(confidence="full", looks=4)[1] == ("full", 4, 4)
    # A later sweep that says nothing of it judges by no other measure.
    told, kept = asked(confidence="quick")
    assert kept == ("full", 4, 4)
    assert "  looks=4, as this campaign was asked for before: its error is shared among so many." in told["lines"]

    other = Campaign(tmp_path / "other", "c")
    a_full_sweep(other, monkeypatch, capsys, confidence="full")
    for name in ("tp8", "ep8"):
        other.put(measured(name))
        other.put(msgspec.structs.replace(measured(name), start_number=2))
    # Both were compared on two starts each with the whole error: a second look would have none.
    for verb in ("foresee", "open"):
        told = a_full_sweep(other, monkeypatch, capsys, verb, confidence="full", looks=4)
        assert any(
            line.startswith("  looks=1, not 4: the campaign's error was shared among 1") for line in told["lines"]
        )
    assert decided(other)["looks"] == 1


def test_what_a_budget_deferred_is_still_named_after_a_sweep_that_does_not_speak_of_it(tmp_path, monkeypatch, capsys):
    campaign = Campaign(tmp_path, "c")

    def deferred():
        return [(row["configuration"], row["host"]) for row in decided(campaign)["skipped"]]

    # A start takes 20 minutes and its point 2: 30 hold one.
    a_full_sweep(campaign, monkeypatch, capsys, confidence="full", budget_minutes=30)
    assert asks(campaign, monkeypatch, capsys)["turn"]["configuration"] == "tp8"
    asks(campaign, monkeypatch, capsys, measured("tp8"))
    assert deferred() == [("ep8", "h1")]
    # What is offered next names the winner alone, and is quick.
    for _ in range(2):
        a_full_sweep(campaign, monkeypatch, capsys, names=("tp8",), confidence="quick", retry="all")
        asks(campaign, monkeypatch, capsys)
        assert deferred() == [("ep8", "h1")]
        assert decided(campaign)["confidence"] == "full"
    # Once it is measured it is no longer left out.
    a_full_sweep(campaign, monkeypatch, capsys, confidence="quick")
    asks(campaign, monkeypatch, capsys, measured("ep8"))
    assert deferred() == []


def measured(name):
    configuration = rec.Configuration(name=name, against=None if name == "tp8" else "tp8")
    points = [a_point(1, 90.0)]
    return a_record(configuration=configuration, fingerprint=name * 8, points=points, ladder=[1], outcome="measured")


def test_a_start_is_handed_out_once_and_the_last_answer_has_none(campaign, monkeypatch, capsys):
    first = asks(campaign, monkeypatch, capsys)
    assert first["turn"]["configuration"] == "tp8" and first["winner"] is None
    second = asks(campaign, monkeypatch, capsys, measured("tp8"))
    assert second["turn"]["configuration"] == "ep8" and second["winner"] == "tp8"
    assert asks(campaign, monkeypatch, capsys, measured("ep8"))["turn"] == {}


def test_a_sweep_of_further_starts_that_is_opened_again_goes_on(tmp_path, monkeypatch, capsys):
    campaign = Campaign(tmp_path, "c")
    for name in ("tp8", "ep8"):
        campaign.put(msgspec.structs.replace(measured(name), complete=True))

    def order(verb):
        told = a_full_sweep(campaign, monkeypatch, capsys, verb, confidence="quick", retry="all")
        return [(turn["configuration"], turn["start_number"]) for turn in told["order"]]

    assert order("open") == [("tp8", 2), ("ep8", 2)]
    asks(campaign, monkeypatch, capsys)
    campaign.put(msgspec.structs.replace(measured("tp8"), start_number=2, complete=True))
    # Killed here.
    assert order("foresee") == order("open") == [("ep8", 2)]
    asks(campaign, monkeypatch, capsys)
    asks(campaign, monkeypatch, capsys, msgspec.structs.replace(measured("ep8"), start_number=2, complete=True))
    assert order("foresee") == [("tp8", 3), ("ep8", 3)]


def test_what_is_rejected_has_a_record_of_the_engine_it_was_rejected_for(tmp_path, monkeypatch, capsys):
    entry = {"name": "tp3", "verdict": "rejected", "sentence": "It does not divide.", "plan": {}}
    entry["configuration"] = {"name": "tp3", "description": "Three", "engine": {"tp_size": 3}, "environment": {}}
    engine = {"name": "sglang", "version": "0.5.23", "environment": "venv-0.5.23-aaaaaaaa"}
    about = {"engine": engine, "model": {"name": "m"}, "workload": "quick"}
    said = {"host": "h1", "plan": [entry], "fingerprints": {}, "asked": {"ladder": [1]}, "about": about}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(said)))
    assert verbs.main(["--campaigns", str(tmp_path), "--campaign", "c", "open", "--host", "h1"]) == 0
    (record,) = Campaign(tmp_path, "c").records()
    assert record.engine == rec.Engine(name="sglang", version="0.5.23")
    assert record.fingerprint_of["engine"] == engine


def test_the_report_is_written_when_it_is_old_and_at_the_end(campaign, monkeypatch, capsys):
    page, decision = campaign.folder / "report.html", campaign.folder / "decision.json"
    asks(campaign, monkeypatch, capsys)
    before = page.read_text()
    told = asks(campaign, monkeypatch, capsys, measured("tp8"))
    assert told["turn"] and page.read_text() == before
    assert "tp8" in decision.read_text()  # the decision is of now in any case
    told = asks(campaign, monkeypatch, capsys, measured("ep8"))
    assert told["turn"] == {} and "ep8" in page.read_text()


def test_an_old_report_is_written_between_two_starts(campaign, monkeypatch, capsys):
    asks(campaign, monkeypatch, capsys)
    page = campaign.folder / "report.html"
    an_hour_ago = page.stat().st_mtime - 3600
    os.utime(page, (an_hour_ago, an_hour_ago))
    assert asks(campaign, monkeypatch, capsys, measured("tp8"))["turn"]["configuration"] == "ep8"
    assert page.stat().st_mtime > an_hour_ago + 3000
