"""A sweep as the controller runs it: what counts, what goes on, what is tried again, and what is told of a turn."""

from __future__ import annotations

import datetime as dt
import json
import re

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.campaign import turns
from benchmark.campaign.foreseen import foreseen_lines
from benchmark.campaign.store import Campaign

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
PEAKS = {"tp8": 500.0, "ep8": 900.0, "ep4": 880.0}


def a_sweep(names=PEAKS, verdicts=None, work=None, further=(), **asked):
    plan = [
        {
            "name": name,
            "verdict": (verdicts or {}).get(name, "runs"),
            "sentence": "It does not fit.",
            "configuration": {
                "name": name,
                "against": None if name == "tp8" else "tp8",
                "engine": {"tp_size": 8},
                "environment": {},
            },
            "plan": {"verdict": "runs", "sentence": "It does not fit.", "speed": {"peak": {"expected": PEAKS[name]}}},
        }
        for name in names
    ]
    known = {name: {"fingerprint": name, "of": {"driver": "580", "engine": {"name": "sglang"}}} for name in names}
    for found in known.values():
        found["of"] |= {"workload": work} if work else {}
        found["further"] = list(further)
    asked = {"ladder": [1, 16, 64], "confidence": "quick", **asked}
    said = {"host": "h1", "plan": plan, "fingerprints": known, "asked": asked}
    return turns.asked_for(json.dumps(said).encode())


def done(name, number=1, rungs=(1, 16, 64), ladder=(1, 16, 64), **more):
    fields = {
        "configuration": rec.Configuration(name=name, against=None if name == "tp8" else "tp8"),
        "fingerprint": name,
        "start_number": number,
        "outcome": "measured",
        "complete": True,
        "ladder": list(ladder),
        "points": [a_point(c, PEAKS[name] * c / 64) for c in rungs],
    }
    return a_record(**(fields | more))


def failed(name, *, may_pass):
    failure = rec.Failure(kind="killed", stage="ready", sentence="It was killed.", may_pass=may_pass)
    return done(name, outcome="failed", points=[], failure=failure)


def coming(sweep, records, at=NOON):
    return [(turn.configuration, turn.start_number) for turn in turns.look(sweep, records, at).turns]


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("throughput@8", "is read at concurrency 8, which is not on the ladder: say -e concurrencies=4,8,16."),
        ("single_stream", "is read at concurrency 1, which is not on the ladder: say -e concurrencies=1,4,16."),
        ("goodput", "is read from an open loop, and none is measured: say at how many requests a second"),
        ("ttft", "is read from prompts of 4,096 tokens and more, and none is measured"),
        ("prefill", "is read from prompts of 4,096 tokens and more, and none is measured"),
    ],
)
def test_an_objective_that_no_point_tells_is_refused(objective, said):
    with pytest.raises(turns.SweepError, match=re.escape(f"The objective {objective} {said}")):
        a_sweep(ladder=[4, 16], objective=objective, work={"name": "chat", "prompt_tokens": 1024})


def test_what_an_earlier_version_began_can_still_be_read():
    kept = msgspec.json.encode(a_sweep())
    kept = kept.replace(b'"objective":"peak"', b'"objective":"throughput@8"')
    assert turns.kept_sweep(kept).asked.objective == "throughput@8"
    with pytest.raises(turns.SweepError):
        turns.asked_for(kept)


@pytest.mark.parametrize(
    ("objective", "work", "further"),
    [
        ("peak", {"name": "chat", "prompt_tokens": 1024}, []),
        ("throughput@16", {"name": "chat", "prompt_tokens": 1024}, []),
        ("goodput", {"name": "chat", "prompt_tokens": 1024}, [["chat_open", 16, 1]]),
        ("ttft", {"name": "chat", "prompt_tokens": 1024}, [["long_prompt", 1, 1]]),
        ("prefill", {"name": "long_prompt", "prompt_tokens": 16384}, []),
        # One of the user's own, whose length is not known here.
        ("prefill", {"name": "chat", "prompt_tokens": 1024}, [["mine", 1, 1]]),
    ],
)
def test_an_objective_that_a_point_tells_is_taken(objective, work, further):
    assert a_sweep(ladder=[4, 16], objective=objective, work=work, further=further).asked.objective == objective


def test_what_an_earlier_sweep_completed_is_not_repeated():
    sweep = turns.opened(a_sweep(), [], NOON)
    assert coming(sweep, []) == [("tp8", 1), ("ep8", 1), ("ep4", 1)]
    assert coming(sweep, [done("tp8"), done("ep8")]) == [("ep4", 1)]
    assert [row["why"] for row in turns.kept(sweep, [done("tp8")])] == ["measured before, kept"]


def test_a_start_that_was_cut_off_goes_on():
    sweep = turns.opened(a_sweep(), [], NOON)
    assert ("ep8", 1) in coming(sweep, [done("tp8"), done("ep8", rungs=(1, 16), complete=False)])


def test_one_that_is_whole_and_was_never_closed_has_a_turn_to_be_closed():
    whole = done("tp8")
    assert ("tp8", 1) not in coming(turns.opened(a_sweep(), [whole], NOON), [whole])
    left = msgspec.structs.replace(whole, complete=False)
    assert ("tp8", 1) in coming(turns.opened(a_sweep(), [left], NOON), [left])


def test_a_longer_ladder_needs_the_new_rungs_only_of_first_starts():
    sweep = turns.opened(a_sweep(["tp8"], ladder=[1, 16, 64, 256], confidence="full"), [], NOON)
    records = [done("tp8"), done("tp8", 2, rungs=(64,), ladder=(64,))]
    assert coming(sweep, records)[0] == ("tp8", 1)
    # What was left out on purpose is not asked for again.
    left = rec.Left(rungs=[256], reason="It could not win.")
    assert ("tp8", 1) not in coming(sweep, [done("tp8", left=left)])


def test_points_after_the_ladder_that_are_asked_for_later_are_measured():
    sweep = turns.opened(a_sweep(["tp8"]), [], NOON)
    assert coming(sweep, [done("tp8")]) == []
    known = {"tp8": turns.Known(fingerprint="tp8", further=[("quick", 1, 2)])}
    assert coming(msgspec.structs.replace(sweep, fingerprints=known), [done("tp8")]) == [("tp8", 1)]


@pytest.mark.parametrize(
    ("retry", "again"),
    [
        ("may_pass", [("ep4", 1)]),
        ("failed", [("ep8", 1), ("ep4", 1)]),
        ("none", []),
        ("all", [("tp8", 2), ("ep8", 2), ("ep4", 2)]),
    ],
)
def test_what_is_tried_again_is_the_callers_to_say(retry, again):
    records = [done("tp8"), failed("ep8", may_pass=False), failed("ep4", may_pass=True)]
    sweep = turns.opened(a_sweep(retry=retry), records, NOON)
    assert coming(sweep, records) == again


def test_starting_everything_once_more_goes_on_where_it_was():
    records = [done("tp8"), done("ep8"), done("ep4")]
    sweep = turns.opened(a_sweep(retry="all"), records, NOON)
    sweep = turns.taken(sweep, turns.look(sweep, records, NOON))
    assert sweep.taken == [turns.Taken("tp8", 2)]
    records.append(done("tp8", 2))
    assert coming(sweep, records) == [("ep8", 2), ("ep4", 2)]


def test_starting_everything_once_more_makes_no_start_twice_however_often_it_is_killed():
    records, last, made, hour = [done("tp8"), done("ep8"), done("ep4")], None, [], NOON
    while last is None or not last.through:
        sweep = turns.opened(a_sweep(retry="all"), records, hour, last)
        found = turns.look(sweep, records, hour)
        last, hour = turns.taken(sweep, found), hour + dt.timedelta(hours=1)
        # Each second time it is killed before the start that it was given is there.
        if found.turns and hour.hour % 2:
            made.append((found.turns[0].configuration, found.turns[0].start_number))
            records.append(done(*made[-1]))
    assert made == [("tp8", 2), ("ep8", 2), ("ep4", 2)]
    # It got to its end, so the same command asks for everything again.
    assert coming(turns.opened(a_sweep(retry="all"), records, NOON, last), records) == [
        *(("tp8", 3), ("ep8", 3), ("ep4", 3))
    ]


def test_a_failure_of_a_sweep_that_was_killed_is_not_tried_again_unless_it_may_pass():
    records = [done("tp8"), done("ep8"), done("ep4")]
    cut_off = turns.taken(turns.opened(a_sweep(retry="all"), records, NOON), turns.look(a_sweep(), [], NOON))
    again = [msgspec.structs.replace(failed(name, may_pass=name == "ep8"), start_number=2) for name in ("tp8", "ep8")]
    assert coming(turns.opened(a_sweep(retry="all"), records + again, NOON, cut_off), records + again) == [
        *(("ep8", 2), ("ep4", 2))
    ]


@pytest.mark.parametrize("asked", [{"ladder": [1, 16]}, {"names": ["tp8", "ep8"]}])
def test_another_sweep_does_not_go_on_with_one_that_was_killed(asked):
    records = [done("tp8", 2), done("ep8"), done("ep4")]
    cut_off = msgspec.structs.replace(turns.opened(a_sweep(retry="all"), [], NOON), before={"tp8": 1})
    sweep = turns.opened(a_sweep(retry="all", **asked), records, NOON, cut_off)
    assert sweep.before["tp8"] == 2


def test_a_turn_is_handed_out_once_even_if_it_leaves_nothing_behind():
    sweep = turns.opened(a_sweep(), [], NOON)
    for name in ("tp8", "ep8", "ep4"):
        found = turns.look(sweep, [], NOON)
        assert found.turns[0].configuration == name
        sweep = turns.taken(sweep, found)
    found = turns.look(sweep, [], NOON)
    assert found.turns == []
    # It was tried, so it was not skipped.
    assert found.skipped == []


def test_other_inputs_do_not_count_and_it_says_what_changed():
    old = done("ep8", fingerprint="old", fingerprint_of={"driver": "570", "engine": {"name": "sglang"}})
    sweep = turns.opened(a_sweep(), [old], NOON)
    assert ("ep8", 1) in coming(sweep, [old])
    assert turns.measured_otherwise(sweep, [old]) == [{"configuration": "ep8", "changed": "driver 570 to 580"}]
    lines = foreseen_lines(sweep, [old], turns.look(sweep, [old], NOON))
    assert "  ep8: measured before otherwise (driver 570 to 580), so it is measured again." in lines


LISTENS = ["--model-path", "/m", "--host", "127.0.0.1", "--port", "30000", "--ep-size", "4"]
EARLIER = {
    "driver": "580",
    "engine": {"name": "sglang", "version": "0.5.23"},
    "arguments": LISTENS,
    "model": {"name": "k2", "path": "/m", "revision": "abc"},
}
"""The inputs as earlier versions of the tools kept them."""


@pytest.mark.parametrize(
    ("engine", "changed"),
    [
        ({"environment": "venv-0.5.23-aaaaaaaa"}, "engine environment (none) to venv-0.5.23-aaaaaaaa"),
        ({}, "by tools that counted other inputs"),
    ],
)
def test_records_of_earlier_tools_are_measured_again_and_it_says_why(engine, changed):
    now = {"driver": "580", "engine": EARLIER["engine"] | engine}
    now |= {"arguments": ["--ep-size", "4"], "model": {"revision": "abc"}}
    known = {"ep8": turns.Known(fingerprint="new", of=now)}
    old = done("ep8", fingerprint="old", fingerprint_of=EARLIER)
    sweep = msgspec.structs.replace(a_sweep(), fingerprints=a_sweep().fingerprints | known)
    assert turns.measured_otherwise(sweep, [old]) == [{"configuration": "ep8", "changed": changed}]


def test_records_of_another_host_do_not_count():
    elsewhere = msgspec.structs.replace(done("ep8"), host=rec.Host(name="h2"))
    assert ("ep8", 1) in coming(turns.opened(a_sweep(), [], NOON), [elsewhere])


def test_the_budget_is_of_the_clock_and_what_it_leaves_out_is_named():
    # A start takes 20 minutes, three points 6: 60 minutes hold two.
    sweep = turns.opened(a_sweep(budget_minutes=60), [], NOON)
    assert coming(sweep, []) == [("tp8", 1), ("ep8", 1)]
    later = NOON + dt.timedelta(minutes=40)
    found = turns.look(sweep, [done("tp8")], later)
    assert [turn.configuration for turn in found.turns] == []
    assert [row["configuration"] for row in found.skipped] == ["ep8", "ep4"]
    assert found.skipped[0]["reason"].startswith("Deferred: 20 minutes are left")


BESIDE = [("long", 1, 1), ("long", 4, 1), ("quick", 1, 2)]


def timed(name, began):
    """A first start of 20 minutes, with three rungs and three points beside them of 2 minutes each: 32 minutes."""
    points = [a_point(c, PEAKS[name] * c / 64, duration_seconds=120.0) for c in (1, 16, 64)]
    points += [a_point(c, 5.0, workload=w, repeat=n, duration_seconds=120.0) for w, c, n in BESIDE]
    return done(
        name,
        points=points,
        start=rec.Start(started_at=began.isoformat(), ready_seconds=1200.0),
        created_at=began.isoformat(),
        updated_at=(began + dt.timedelta(minutes=32)).isoformat(),
        workload={"name": "quick"},
    )


@pytest.mark.parametrize(("budget", "starts"), [(None, 3), (95, 2), (96, 3)])
def test_points_after_the_ladder_are_foreseen_and_a_budget_holds_them(budget, starts):
    sweep = turns.opened(a_sweep(further=BESIDE, budget_minutes=budget), [], NOON)
    foreseen = turns.look(sweep, [], NOON)
    assert (len(foreseen.turns), foreseen.minutes_left) == (starts, 32 * starts)
    records, clock = [], NOON
    while coming := turns.look(sweep, records, clock).turns:
        records.append(timed(coming[0].configuration, clock))
        clock += dt.timedelta(minutes=32)
    # Neither more nor less than was foreseen, before the first start and after each.
    assert (clock - NOON) == dt.timedelta(minutes=foreseen.minutes_left)


def test_what_the_plan_rejects_is_tried_where_the_caller_says_so():
    assert coming(turns.opened(a_sweep(verdicts={"ep8": "rejected"}), [], NOON), []) == [("tp8", 1), ("ep4", 1)]
    sweep = a_sweep()
    odd = [entry | {"plan": entry["plan"] | {"verdict": "rejected"}} for entry in sweep.plan]
    assert len(coming(turns.opened(msgspec.structs.replace(sweep, plan=odd), [], NOON), [])) == 3


def test_only_a_first_start_may_leave_its_ladder():
    sweep = turns.opened(a_sweep(confidence="full"), [], NOON)
    baseline = turns.look(sweep, [], NOON).turns[0]
    assert turns.told(sweep, [], baseline)["best"] is None
    records = [done("tp8"), done("ep8")]
    explore = next(turn for turn in turns.look(sweep, records, NOON).turns if turn.purpose == "explore")
    told = turns.told(sweep, records, explore)
    assert told["best"] == pytest.approx(900)
    assert told["needed"] == [1]
    again = next(turn for turn in turns.look(sweep, records, NOON).turns if turn.purpose == "confirm")
    assert turns.told(sweep, records, again)["best"] is None


def test_another_objective_keeps_its_rungs():
    sweep = turns.opened(a_sweep(objective="throughput@16"), [], NOON)
    records = [done("tp8")]
    turn = turns.look(sweep, records, NOON).turns[0]
    assert turns.told(sweep, records, turn)["needed"] == [1, 16]
    energy = turns.opened(a_sweep(objective="tokens_per_joule"), [], NOON)
    assert turns.told(energy, records, turn)["needed"] == [1, 16, 64]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"confidence": "certain"}, "confidence"),
        ({"objective": "peek"}, "did you mean 'peak'"),
        ({"retry": "some"}, "retry"),
        ({"budget_minutes": -5}, "A budget of -5 minutes holds nothing"),
        ({"ladder": []}, "ladder is empty"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_with_a_reason(asked, why):
    with pytest.raises(turns.SweepError, match=why):
        a_sweep(**asked)


def test_the_plan_on_the_terminal_says_what_in_which_order_and_how_long():
    sweep = turns.opened(a_sweep(verdicts={"ep4": "rejected"}), [], NOON)
    assert foreseen_lines(sweep, [], turns.look(sweep, [], NOON)) == [
        "h1: 2 engine starts foreseen, about 52 minutes. Close calls are not decided (confidence=quick).",
        "  1. tp8: 26 minutes. The baseline, first.",
        "  2. ep8: 26 minutes. In the plan's order.",
        "  ep4: not tried. It does not fit.",
    ]
    full = turns.opened(a_sweep(confidence="full"), [], NOON)
    lines = foreseen_lines(full, [], turns.look(full, [], NOON))
    # Five times 26 minutes; at most each of three once, the baseline twice more, three finalists again, and the quote.
    assert lines[0] == "h1: 5 engine starts foreseen, about 2.2 hours; 9 engine starts at most."
    assert "  5. tp8, start 3: 26 minutes. The baseline again: drift and noise." in lines


def test_a_sweep_is_kept_beside_its_records(tmp_path):
    campaign = Campaign(tmp_path, "c")
    sweep = turns.opened(a_sweep(), [], NOON)
    campaign.keep_sweep(sweep)
    assert campaign.sweep("h1") == sweep
    assert campaign.sweeps() == [sweep]
    assert campaign.records() == []


@pytest.mark.parametrize(("looks", "starts"), [(1, 2), (2, 3), (4, 5)])
def test_close_finalists_are_started_as_often_as_one_is_willing_to_look(looks, starts):
    # The true difference of these two is far below what a few starts tell apart.
    sweep = turns.opened(a_sweep(("tp8", "ep8", "ep4"), confidence="full", looks=looks), [], NOON)
    rates = {"tp8": 500.0, "ep8": 900.0, "ep4": 898.0}
    records, made = [], []
    while found := turns.look(sweep, records, NOON).turns:
        turn = found[0]
        sweep = turns.taken(sweep, turns.look(sweep, records, NOON))
        noise = 1 + 0.02 * (-1) ** turn.start_number
        points = [a_point(c, rates[turn.configuration] * noise * c / 64) for c in turn.rungs]
        records.append(done(turn.configuration, turn.start_number, points=points))
        made.append(turn.configuration)
    # (The better one once more in any case, before it is quoted.)
    assert made.count("ep4") == starts


def test_more_looks_than_the_errors_are_shared_among_are_refused():
    with pytest.raises(turns.SweepError, match="looks is 5; it must be 1 to 4"):
        a_sweep(looks=5)


def tried(sweep, records):
    """The sweep with its next turn handed out, and that turn."""
    found = turns.look(sweep, records, NOON)
    return turns.taken(sweep, found), (found.turns[0].configuration if found.turns else None)


def test_what_failed_in_a_way_that_may_pass_has_one_more_turn_in_the_same_sweep():
    """A process that was killed once costs a configuration minutes, not the night."""
    sweep, first = tried(turns.opened(a_sweep(), [], NOON), [])
    assert first == "tp8"
    records = [failed("tp8", may_pass=True)]
    sweep, again = tried(sweep, records)
    assert again == "tp8"
    assert "tp8" not in [name for name, _ in coming(sweep, records)]
    # It failed twice: the others have their turns, and it is not tried a third time.
    for expected in ("ep8", "ep4", None):
        sweep, name = tried(sweep, records)
        assert name == expected
        records += [done(name)] if name else []
    # It passed: it is done.
    once = turns.opened(a_sweep(), [], NOON)
    once, _ = tried(once, [])
    once, _ = tried(once, [failed("tp8", may_pass=True)])
    assert ("tp8", 1) not in coming(once, [done("tp8")])


@pytest.mark.parametrize(("may_pass", "retry"), [(False, "may_pass"), (False, "failed"), (True, "none")])
def test_what_would_fail_again_or_is_not_to_be_tried_again_has_none(may_pass, retry):
    sweep, _ = tried(turns.opened(a_sweep(retry=retry), [], NOON), [])
    assert "tp8" not in [name for name, _ in coming(sweep, [failed("tp8", may_pass=may_pass)])]


def test_a_sweep_has_room_for_each_start_twice():
    assert turns.most_turns(a_sweep()) == 2 * turns.most_turns(a_sweep(retry="none"))
