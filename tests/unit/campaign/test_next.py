"""The controller's call between two starts: what is next, and a report that is not old."""

from __future__ import annotations

import datetime as dt
import io
import json
import os

import pytest
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec
from benchmark.campaign import turns
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
