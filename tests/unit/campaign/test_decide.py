from __future__ import annotations

from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.campaign.decide import decide


def measured(name, *points, against=None, engine=None, limit=None):
    configuration = rec.Configuration(
        name=name, against=against, hypothesis="h" if against else None, engine=engine or {}
    )
    start = rec.Start(started_at="2026-01-01T00:00:00Z", max_running_requests=limit)
    return a_record(configuration=configuration, outcome="measured", points=list(points), start=start)


def test_the_highest_valid_peak_wins():
    invalid = a_point(64, 900.0, flags=[rec.Flag(id="failed", severity="invalid", message="3 requests failed")])
    found = decide([measured("a", a_point(1, 20.0), a_point(64, 100.0)), measured("b", a_point(1, 30.0), invalid)])
    assert found["winner"]["configuration"] == "a"
    assert found["winner"]["value"] == 100.0
    assert found["winners"]["single_stream"]["configuration"] == "b"
    assert [row["configuration"] for row in found["ranking"]] == ["a", "b"]


def test_close_calls_are_not_decided():
    found = decide(
        [measured("a", a_point(64, 100.0)), measured("b", a_point(64, 99.0)), measured("c", a_point(64, 50.0))]
    )
    assert found["winner"]["close"] == ["b"]
    assert "cannot tell apart" in found["winner"]["sentence"]
    sentences = {row["configuration"]: row["sentence"] for row in found["ranking"]}
    assert sentences["c"] == "-50% against the winner's peak."


def test_tuned_against_ep8_has_one_change_and_one_flag_that_nothing_reads():
    ep8 = measured("ep8", a_point(64, 100.0), engine={"max_running_requests": 64})
    tuned = measured(
        "ep8_tuned",
        a_point(256, 160.0),
        against="ep8",
        engine={"max_running_requests": 256, "num_continuous_decode_steps": 8},
    )
    (experiment,) = decide([ep8, tuned])["experiments"]
    assert experiment["changes"] == [("max_running_requests", 64, 256)]
    assert experiment["ignored"] == ["num_continuous_decode_steps"]
    assert experiment["effect"]["peak"]["ratio"] == 1.6
    assert "confounded" not in experiment["sentence"]
    assert "num_continuous_decode_steps differs too, and is read by nothing" in experiment["sentence"]


def test_two_changes_at_once_are_called_confounded():
    a = measured("a", a_point(1, 10.0), engine={"tp_size": 8, "page_size": 1})
    b = measured("b", a_point(1, 20.0), against="a", engine={"tp_size": 4, "page_size": 16})
    (experiment,) = decide([a, b])["experiments"]
    assert "confounded" in experiment["sentence"]
    assert experiment["verdict"] == "undecided"


def test_nothing_measured_has_no_winner():
    failure = rec.Failure(kind="k", stage="weights", sentence="It does not fit.")
    found = decide([a_record(outcome="failed", failure=failure)])
    assert found["winner"] is None
    assert found["ranking"][0]["sentence"] == "It does not fit."
    assert decide([])["winner"] is None
