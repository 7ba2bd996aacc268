from __future__ import annotations

import datetime as dt
import math
import random

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.campaign.decide import decide
from benchmark.campaign.objectives import SINGLE_STREAM, objective
from benchmark.campaign.schedule import Settings, cost, next_turns, planned, skipped
from benchmark.engine.share import baseline_of, gpu_kind, share, shared_plan

LADDER = (1, 16, 64, 256)
PEAKS = {"tp8": 500.0, "ep8": 900.0, "pp8": 400.0, "ep4": 880.0}


def a_plan(peaks=PEAKS, **verdicts):
    return [
        {
            "configuration": {
                "name": name,
                "against": None if name == "tp8" else "tp8",
                "engine": {"tp_size": 8} if name != "pp8" else {"pp_size": 8},
                "environment": {},
            },
            "plan": {
                "verdict": verdicts.get(name, "runs"),
                "sentence": "It does not fit.",
                "speed": {"peak": {"expected": peak}},
            },
        }
        for name, peak in peaks.items()
    ]


def done(name, peak, number=1, outcome="measured"):
    rates = {1: peak / 20, 16: peak / 4, 64: peak / 1.5, 256: peak}
    points = [a_point(c, rate, duration_seconds=120.0) for c, rate in rates.items()] if outcome == "measured" else []
    return a_record(
        configuration=rec.Configuration(name=name, against=None if name == "tp8" else "tp8"),
        fingerprint=name,
        outcome=outcome,
        points=points,
        start_number=number,
        start=rec.Start(started_at="2026-01-01T00:00:00Z", ready_seconds=1200.0),
        created_at=f"2026-01-01T{number:02d}:00:00Z",
    )


def quick(**more):
    return Settings(ladder=LADDER, confidence="quick", **more)


def full(**more):
    return Settings(ladder=LADDER, **more)


def told(turns):
    return [(turn.configuration, turn.start_number) for turn in turns]


def run(settings, truth=PEAKS, plan=None):
    """Take every first turn until there is none; returns the records."""
    records = []
    while turns := next_turns(plan or a_plan(), records, settings):
        turn = turns[0]
        peak = truth.get(turn.configuration)
        outcome = "failed" if peak is None else "measured"
        records.append(done(turn.configuration, peak or 0.0, turn.start_number, outcome))
        assert len(records) < 40
    return records


def test_quick_starts_each_once_the_baseline_first_then_by_the_plan():
    assert told(next_turns(a_plan(), [], quick())) == [("tp8", 1), ("ep8", 1), ("ep4", 1), ("pp8", 1)]
    assert len(run(quick())) == 4


def test_full_brings_the_baseline_first_between_and_last_and_the_finalists_twice():
    records = run(full())
    names = [(r.configuration.name, r.start_number) for r in records]
    assert names[0] == ("tp8", 1)
    assert names[-1] == ("tp8", 3)
    assert names.index(("tp8", 2)) < len(names) - 2
    # ep8 and ep4 are 2 % apart, pp8 is out of reach; the winner has a third start, for quoting.
    assert {name for name in names if name[1] == 2} == {("tp8", 2), ("ep8", 2), ("ep4", 2)}
    assert ("ep8", 3) in names
    assert len(names) == 9


def test_second_starts_measure_the_peak_and_its_neighbour():
    records = [done(name, peak) for name, peak in PEAKS.items()]
    again = next(turn for turn in next_turns(a_plan(), records, full()) if turn.configuration == "ep8")
    assert again.rungs == (64, 256)
    # 20 minutes to start and two points of two minutes.
    assert again.minutes == pytest.approx(24.0)


def again_of(name, records, settings, plan=None):
    return next(turn for turn in next_turns(plan or a_plan(), records, settings) if turn.configuration == name)


def test_second_starts_measure_what_a_hypothesis_speaks_of_on_both_sides():
    plan = a_plan()
    plan[1]["configuration"]["hypothesis"] = "A single stream is faster; the peak is higher."
    records = [done(name, peak) for name, peak in PEAKS.items()]
    assert again_of("ep8", records, full(), plan).rungs == (1, 64, 256)
    assert again_of("tp8", records, full(), plan).rungs == (1, 64, 256)
    # What no point tells is not measured for a hypothesis' sake.
    plan[1]["configuration"]["hypothesis"] = "Goodput is higher; TTFT is lower; it takes less energy a token."
    silent = again_of("ep8", records, full(), plan)
    assert (silent.rungs, silent.after) == ((64, 256), ())
    # Nothing is said of ep4's single stream.
    assert again_of("ep4", records, full(), plan).rungs == (64, 256)


def test_second_starts_measure_the_rung_of_an_objective_that_has_one():
    records = [done(name, peak) for name, peak in PEAKS.items()]
    assert again_of("ep8", records, full(objective=objective("throughput@16"))).rungs == (16,)
    assert again_of("ep8", records, full(objective=SINGLE_STREAM)).rungs == (1,)


def with_what_follows(record):
    """As a start that also measured two points of long prompts and an open loop."""
    long, offered = {"name": "long", "prompt_tokens": 16384}, {"name": "quick_open", "rate": 2.0}
    more = [
        a_point(c, 5.0, workload="long", prompt_tokens_per_second=c * record.points[-1].output_tokens_per_second)
        for c in (1, 4)
    ]
    loop = a_point(256, 50.0, workload="quick_open", goodput_requests_per_second=1.5)
    after = [{"workload": long, "concurrency": c, "repeat": 1} for c in (1, 4)]
    return msgspec.structs.replace(
        record,
        workload={"name": "quick", "prompt_tokens": 64},
        after_ladder=[*after, {"workload": offered, "concurrency": 256, "repeat": 1}],
        points=[*record.points, *more, msgspec.structs.replace(loop, rate=2.0)],
    )


def test_second_starts_measure_what_follows_the_ladder_where_the_objective_is_read_there():
    records = [with_what_follows(done(name, peak)) for name, peak in PEAKS.items()]
    prefill = again_of("ep8", records, full(objective=objective("prefill")))
    # Both points of long prompts, and one rung: an engine start of 20 minutes and three points of two.
    assert (prefill.rungs, prefill.after, prefill.minutes) == ((1,), ("points",), pytest.approx(26.0, abs=0.5))
    goodput = again_of("ep8", records, full(objective=objective("goodput")))
    assert (goodput.rungs, goodput.after) == ((256,), ("rate", "ttft_limit_seconds", "tpot_limit_seconds"))
    assert again_of("ep8", records, full()).after == ()


def test_a_baseline_that_is_a_finalist_is_started_three_times_all_the_same():
    names = [r.configuration.name for r in run(full(), {**PEAKS, "tp8": 905.0})]
    assert names.count("tp8") == 3
    foreseen = told(next_turns(a_plan(), [done(n, 905.0 if n == "tp8" else p) for n, p in PEAKS.items()], full()))
    assert len(foreseen) == len(set(foreseen))


def noisy_run(settings, plan, deviation, seed, failing=0.0):
    """The starts that a sweep makes where each reads its plan's peak but for noise, and some never become ready."""
    rng = random.Random(seed)
    broken = {entry["configuration"]["name"] for entry in plan if rng.random() < failing}
    records, clock = [], 0.0
    while turns := next_turns(plan, records, settings, clock):
        turn = turns[0]
        entry = next(e for e in plan if e["configuration"]["name"] == turn.configuration)
        peak = entry["plan"]["speed"]["peak"]["expected"] * math.exp(rng.gauss(0, deviation))
        outcome = "failed" if turn.configuration in broken else "measured"
        clock += turn.minutes
        record = done(turn.configuration, peak, turn.start_number, outcome)
        at = dt.datetime(2026, 1, 1) + dt.timedelta(minutes=clock)
        records.append(msgspec.structs.replace(record, created_at=f"{at.isoformat()}Z"))
        assert len(records) < 200
    return records


@pytest.mark.parametrize("deviation", [0.0, 0.01, 0.04])
@pytest.mark.parametrize("looks", [1, 4])
@pytest.mark.parametrize("failing", [0.0, 0.3])
def test_no_sweep_makes_more_starts_than_were_foreseen_and_the_baseline_is_the_last(deviation, looks, failing):
    plan = a_plan({"tp8": 700.0, **{f"c{n}": 900.0 + n for n in range(7)}})
    settings = full(looks=looks)
    most = cost(plan, settings).starts
    # Eight once, the baseline twice more, three finalists again and one to be quoted; three more looks at three.
    assert most == 14 + (looks - 1) * 3
    for seed in range(12):
        records = noisy_run(settings, plan, deviation, seed, failing)
        starts = [(r.configuration.name, r.start_number) for r in records]
        assert len(set(starts)) == len(starts) <= most
        measured = {r.configuration.name for r in records if r.outcome == "measured"}
        for root in measured & {"tp8"}:
            # Only starts that settle what is close come behind it.
            assert (root, 3) in starts
            assert looks > 1 or starts[-1] == (root, 3)
        # Whoever leads in the end was started twice, or there were no starts left for it.
        tried = (r.configuration.name for r in records if r.start_number == 1)
        assert sorted(tried) == sorted(e["configuration"]["name"] for e in plan)
        if measured and (decide(records)["ranking"][0]["configuration"], 2) not in starts:
            repeats = [start for start in starts if start[1] > 1 and start[0] != "tp8"]
            assert len(repeats) == 4 + (looks - 1) * 3
        # Asked again, there is nothing left to do.
        assert next_turns(plan, records, settings) == []


def test_no_sweep_within_a_budget_makes_more_starts_than_were_foreseen():
    plan = a_plan({"tp8": 700.0, **{f"c{n}": 900.0 + n for n in range(7)}})
    for minutes in (60.0, 150.0, 250.0, 320.0):
        settings = full(looks=2, budget_minutes=minutes)
        for seed in range(6):
            records = noisy_run(settings, plan, 0.02, seed, 0.2)
            assert len(records) <= cost(plan, settings).starts


def test_what_is_tried_again_after_a_whole_sweep_can_still_become_a_finalist():
    records = run(full(), {**PEAKS, "pp8": None})
    assert next_turns(a_plan(), records, full()) == []
    # pp8's first start is made again a day later, and leads.
    again = msgspec.structs.replace(done("pp8", 1200.0), updated_at="2026-01-02T00:00:00Z")
    records = [again if record.configuration.name == "pp8" else record for record in records]
    assert told(next_turns(a_plan(), records, full())) == [("pp8", 2), ("pp8", 3)]


def test_starts_that_do_not_tell_the_objective_are_no_repeats_of_it():
    # An earlier sweep by peak: second and third starts measured the peak and its neighbour, and no single stream.
    records = [
        record
        if record.start_number == 1
        else msgspec.structs.replace(record, points=[p for p in record.points if p.concurrency >= 64])
        for record in run(full())
    ]
    before = {name: max(n for other, n in starts_of(records) if other == name) for name in PEAKS}
    assert before == {"tp8": 3, "ep8": 3, "ep4": 2, "pp8": 1}
    coming = told(next_turns(a_plan(), records, full(objective=SINGLE_STREAM)))
    # Two further starts of each finalist and of the baseline, under numbers that are free.
    assert ("ep8", 4) in coming and ("ep4", 3) in coming
    assert coming.count(("tp8", 4)) == coming.count(("tp8", 5)) == 1


def starts_of(records):
    return [(record.configuration.name, record.start_number) for record in records]


def test_a_root_that_is_rejected_is_no_baseline_and_the_next_one_has_its_three_starts():
    plan = a_plan({"tp8": 950.0, "ep8": 900.0, "ep4": 880.0, "pp8": 400.0}, tp8="rejected")
    for entry in plan[2:]:
        entry["configuration"]["against"] = "ep8"
    records = run(full(), plan=plan)
    names = [r.configuration.name for r in records]
    assert "tp8" not in names
    assert names[0] == names[-1] == "ep8" and names.count("ep8") == 3
    assert next_turns(plan, [], full())[0].purpose == "baseline"


def test_a_root_that_fails_leaves_its_place_to_the_next():
    plan = a_plan({"tp8": 950.0, "ep8": 900.0, "ep4": 880.0, "pp8": 400.0})
    plan[3]["configuration"]["against"] = "ep4"
    names = [r.configuration.name for r in run(full(), {**PEAKS, "tp8": None}, plan=plan)]
    # ep4 is the root of itself and pp8; ep8 of itself alone.
    assert names[:2] == ["tp8", "ep4"] and names.count("ep4") == 3 and names[-1] == "ep4"


def test_alike_hosts_share_a_baseline_that_can_start():
    plan = [entry | {"name": entry["configuration"]["name"]} for entry in a_plan(tp8="rejected")]
    plan = [entry | {"verdict": entry["plan"]["verdict"]} for entry in plan]
    shares = [shared_plan(plan, ["h1", "h2"], host) for host in ("h1", "h2")]
    mine, theirs = ({e["name"] for e in part if e["verdict"] != "rejected"} for part in shares)
    assert mine | theirs == {"ep8", "pp8", "ep4"}
    assert len(mine & theirs) == 1


def observed(uuid, used, name="NVIDIA H200", driver="580.1"):
    return [
        {"index": i, "name": name, "uuid": f"{uuid}-{i}", "bus_id": f"{uuid}:{i}", "used_bytes": used, "driver": driver}
        for i in range(2)
    ]


def test_hosts_are_alike_by_their_gpus_and_driver_alone():
    one = gpu_kind(observed("a", 0))
    assert gpu_kind(observed("b", 5 << 30)) == one
    assert gpu_kind(observed("b", 0, name="NVIDIA H200 NVL")) != one
    assert gpu_kind(observed("b", 0, driver="570.2")) != one
    assert gpu_kind(observed("b", 0)[:1]) != one
    assert gpu_kind("no GPU") == gpu_kind([])


def test_a_budget_that_is_spent_says_so():
    settings = quick(budget_minutes=60.0)
    records = [done("tp8", 500.0), done("ep8", 900.0)]
    (row, *_) = skipped(a_plan(), records, settings, 67.0)
    assert row["reason"].startswith("Deferred: the budget is spent, a start with its points takes 28")


def test_what_failed_is_not_tried_again():
    truth = {**PEAKS, "ep8": None}
    names = [r.configuration.name for r in run(full(), truth)]
    assert names.count("ep8") == 1


def test_a_failing_baseline_does_not_hold_up_the_rest():
    names = [r.configuration.name for r in run(full(), {**PEAKS, "tp8": None})]
    assert set(names) == set(PEAKS)
    assert names.count("tp8") == 1


def test_a_rejected_one_is_named_and_not_started():
    plan = a_plan(pp8="rejected")
    assert "pp8" not in {r.configuration.name for r in run(quick(), plan=plan)}
    assert skipped(plan, [], quick()) == [
        {"configuration": "pp8", "reason": "It does not fit.", "chance": None, "deferred": False}
    ]


def test_a_budget_defers_and_says_so():
    # A whole start takes 20 + 4 x 2 minutes; 60 hold two of them.
    settings = quick(budget_minutes=60.0)
    assert told(next_turns(a_plan(), [], settings)) == [("tp8", 1), ("ep8", 1)]
    records = [done("tp8", 500.0), done("ep8", 900.0)]
    assert next_turns(a_plan(), records, settings) == []
    left = skipped(a_plan(), records, settings)
    assert [row["configuration"] for row in left] == ["ep4", "pp8"]
    assert left[0]["reason"].startswith("Deferred: 4 minutes are left, a start with its points takes 28")
    assert 0 < left[0]["chance"] < 1


def test_before_anything_is_measured_no_chance_is_told_and_what_takes_the_budget_is():
    plan = a_plan({f"c{n}": 900.0 - n for n in range(8)})
    ladder = (1, 4, 16, 64, 128, 256, 512)
    # A start takes 20 + 7 x 2 minutes: 120 hold three, and leave 18.
    rows = skipped(plan, [], Settings(ladder=ladder, confidence="quick", budget_minutes=120.0))
    assert [row["configuration"] for row in rows] == ["c3", "c4", "c5", "c6", "c7"]
    assert {row["chance"] for row in rows} == {None} and all(row["deferred"] for row in rows)
    assert {row["reason"] for row in rows} == {
        "Deferred: the starts foreseen leave 18 of 120 minutes, a start with its points takes 34."
    }
    # Once there is something to beat, so is the chance.
    (row, *_) = skipped(a_plan(), [done("tp8", 500.0), done("ep8", 900.0)], quick(budget_minutes=60.0))
    assert row["reason"] == (
        "Deferred: 4 minutes are left, a start with its points takes 28; the chance that it beats the best so far by "
        f"more than 2 % is {row['chance']:.0%}."
    )


def test_minutes_that_are_kept_for_second_starts_are_said_to_be():
    plan = a_plan({f"c{n}": 900.0 - n for n in range(8)})
    settings = Settings(ladder=(1, 4, 16, 64, 128, 256, 512), budget_minutes=210.0)
    # Five starts of 34 minutes are foreseen: three to see, two more of the baseline. The other 40 would hold one
    # more, and are for second starts of whoever leads by then.
    assert sum(turn.minutes for turn in next_turns(plan, [], settings)) == pytest.approx(170)
    assert skipped(plan, [], settings)[0]["reason"] == (
        "Deferred: the starts foreseen leave 40 minutes, which are kept for second starts of those that lead."
    )


def test_without_a_budget_nothing_is_left_out():
    assert {r.configuration.name for r in run(full())} == set(PEAKS)
    assert skipped(a_plan(), run(full()), full()) == []


def test_time_is_learnt_from_what_was_measured():
    fast = rec.Start(started_at="x", ready_seconds=60.0)
    record = a_record(name="tp8", outcome="measured", points=[a_point(1, 20.0, duration_seconds=30.0)], start=fast)
    turns = next_turns(a_plan(), [record], quick())
    assert turns[0].minutes == pytest.approx(1 + 4 * 0.5)


def test_further_looks_are_for_those_not_told_apart():
    truth = {**PEAKS, "ep8": 900.0, "ep4": 899.0}

    def noisy(settings):
        records = []
        while turns := next_turns(a_plan(), records, settings):
            turn = turns[0]
            factor = 1 + (0.03 if (turn.start_number + len(turn.configuration)) % 2 else -0.03)
            records.append(done(turn.configuration, truth[turn.configuration] * factor, turn.start_number))
            assert len(records) < 40
        return [r.configuration.name for r in records]

    assert len(noisy(full(looks=4))) > len(noisy(full()))
    assert max(noisy(full(looks=4)).count(name) for name in ("ep8", "ep4")) <= 5


def test_costs_are_counted_in_starts():
    assert cost(a_plan(), quick()).starts == 4
    assert cost(a_plan(), quick()).minutes == pytest.approx(4 * 28)
    whole = cost(a_plan(), full())
    # Four once, the baseline twice more, three finalists again and the winner to be quoted.
    assert whole.starts == 10
    assert "4 to see each once, 2 more of the baseline and up to 4 of finalists" in whole.sentence
    assert cost([], full()).starts == 0


def test_what_hypotheses_speak_of_is_counted_in():
    plan = a_plan({name: 500.0 + n for n, name in enumerate(["tp8", *"abcdefg"])})
    ladder = {"ladder": (1, 4, 16, 64, 128, 256, 512)}
    # 8 x (20 + 7 x 2) and 6 x (20 + 3 x 2) minutes; with a single stream beside, 6 x 2 more.
    assert cost(plan, Settings(**ladder)).minutes == pytest.approx(428)
    # Three points that follow each first ladder: 8 x 3 x 2 more.
    assert cost(plan, Settings(**ladder, further_points=3)).minutes == pytest.approx(476)
    plan[1]["configuration"]["hypothesis"] = "A single stream is faster."
    assert cost(plan, Settings(**ladder)).minutes == pytest.approx(440)


def test_the_baseline_is_the_root_of_most():
    assert baseline_of([{"name": "x", "against": None}, *(e["configuration"] for e in a_plan())]) == "tp8"
    assert baseline_of([{"name": "x", "against": "y"}, {"name": "y", "against": "x"}]) in ("x", "y")
    assert baseline_of([]) is None


def test_alike_hosts_share_the_work_and_each_has_the_baseline():
    assert share(["tp8", "a", "b", "c"], ["h1", "h2"], "tp8") == {"h1": ["tp8", "a", "c"], "h2": ["tp8", "b"]}


def test_the_plan_speaks_of_other_objectives_too():
    ladder = [{"concurrency": 8, "output_tokens_per_second": {"expected": 90.0}, "ttft": {"expected": 0.5}}]
    said = {"speed": {"single_user": {"expected": 20.0}, "peak": {"expected": 100.0}, "ladder": ladder}}
    assert planned(said, SINGLE_STREAM) == 20.0
    assert planned(said, objective("throughput@8")) == 90.0
    assert planned(said, objective("throughput@16")) is None
    assert planned(said, objective("ttft")) == 2.0
    assert planned({"speed": None}, SINGLE_STREAM) is None


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="looks"):
        full(looks=5)
    with pytest.raises(ValueError, match="ladder"):
        Settings(ladder=())


def test_the_pace_holds_what_a_start_takes_beside_the_engine_and_its_points():
    # 20 minutes to be ready and 4 points of 2 make 28; the record took 31.
    first = msgspec.structs.replace(
        done("tp8", 500.0), complete=True, created_at="2026-01-01T00:00:00Z", updated_at="2026-01-01T00:31:00Z"
    )
    (turn, *_) = next_turns(a_plan(), [first], quick())
    assert turn.minutes == pytest.approx(31.0)
    # One that was cut off and went on the next day tells nothing.
    resumed = msgspec.structs.replace(first, earlier_starts=[first.start], updated_at="2026-01-02T00:00:00Z")
    (turn, *_) = next_turns(a_plan(), [resumed], quick())
    assert turn.minutes == pytest.approx(28.0)
