from __future__ import annotations

import json
import math

import msgspec
import pytest
from builders import a_point, a_record
from hypothesis import given
from hypothesis import strategies as st

from benchmark.campaign import record as rec
from benchmark.campaign.decide import decide
from benchmark.campaign.judged import winner_on
from benchmark.campaign.objectives import ObjectiveError


def measured(name, *points, against=None, engine=None, limit=None, number=1, engine_of=None, **more):
    configuration = rec.Configuration(
        name=name, against=against, hypothesis="The peak is higher." if against else None, engine=engine or {}
    )
    start = rec.Start(started_at="2026-01-01T00:00:00Z", max_running_requests=limit)
    fields = {"start": start, "start_number": number, "created_at": f"2026-01-01T{number:02d}:00:00Z"}
    fields |= {"engine": engine_of} if engine_of else {}
    return a_record(configuration=configuration, outcome="measured", points=list(points), **(fields | more))


def starts(name, *rates, **more):
    return [measured(name, a_point(64, rate), number=n, **more) for n, rate in enumerate(rates, 1)]


def sentences(found):
    return {row["configuration"]: row["sentence"] for row in found["ranking"]}


def test_the_highest_valid_peak_wins():
    invalid = a_point(64, 900.0, flags=[rec.Flag(id="failed", severity="invalid", message="3 requests failed")])
    found = decide([measured("a", a_point(1, 20.0), a_point(64, 100.0)), measured("b", a_point(1, 30.0), invalid)])
    assert found["winner"]["configuration"] == "a"
    assert found["winner"]["value"] == 100.0
    assert found["winner"]["verdict"] == "sure"
    # 30 against 20 on one start each.
    assert "if starts differ by 4 %) against a, the next." in found["winners"]["single_stream"]["sentence"]
    assert found["winners"]["single_stream"]["configuration"] == "b"
    assert [row["configuration"] for row in found["ranking"]] == ["a", "b"]
    assert found["ranking"][0]["interval"] is None


def test_close_calls_are_not_decided():
    found = decide(
        [measured("a", a_point(64, 100.0)), measured("b", a_point(64, 92.0)), measured("c", a_point(64, 50.0))]
    )
    assert found["winner"]["verdict"] == "undecided"
    assert found["winner"]["close"] == ["b"]
    assert "one start cannot tell" in found["winner"]["sentence"]
    assert sentences(found)["c"] == "-50% against the winner's peak."
    assert [wanted["configuration"] for wanted in found["more_starts"]] == ["a", "b"]


def test_tuned_against_ep8_has_one_change_and_one_flag_that_nothing_reads():
    ep8 = measured("ep8", a_point(64, 100.0), engine={"max_running_requests": 64}, limit=64)
    tuned = measured(
        "ep8_tuned",
        a_point(256, 160.0),
        against="ep8",
        engine={"max_running_requests": 256, "num_continuous_decode_steps": 8},
        limit=256,
    )
    found = decide([ep8, tuned])
    (experiment,) = found["experiments"]
    assert experiment["changes"] == [("max_running_requests", 64, 256)]
    assert experiment["ignored"] == ["num_continuous_decode_steps"]
    assert experiment["due_to"] == "max_running_requests"
    assert experiment["effect"]["peak"]["ratio"] == pytest.approx(1.6)
    assert experiment["sentence"].startswith(
        "Two keys differ from ep8: max_running_requests 64 to 256; num_continuous_decode_steps, which the engine does "
        "not read. The effect is due to max_running_requests: peak +60.0%"
    )
    assert "confounded" not in experiment["sentence"]
    assert experiment["verdict"] == "supported"
    assert sentences(found)["ep8"] == (
        "-38% against the winner's peak. It runs at most 64 requests at once; the winner's peak has 256."
    )


def test_attention_dp_runs_as_many_as_its_ranks_together():
    """The log of a rank said 128 where 256 requests ran (docs/evidence/several-gpus/fourth, dp2)."""
    wide = measured("tp2", a_point(256, 100.0), engine={"tp_size": 2}, limit=256)
    ranks = {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}
    found = decide([wide, measured("dp2", a_point(256, 50.0), engine=ranks, limit=128)])
    assert "requests at once" not in sentences(found)["dp2"]
    found = decide([wide, measured("dp2", a_point(256, 50.0), engine=ranks, limit=64)])
    assert "It runs at most 128 requests at once" in sentences(found)["dp2"]


def test_two_changes_at_once_are_called_confounded():
    a = measured("a", a_point(1, 10.0), engine={"tp_size": 8, "page_size": 1})
    b = measured("b", a_point(1, 20.0), against="a", engine={"tp_size": 4, "page_size": 16})
    (experiment,) = decide([a, b])["experiments"]
    assert "confounded by page_size and tp_size" in experiment["sentence"]
    assert experiment["confounded_by"] == ["page_size", "tp_size"]
    assert experiment["verdict"] == "undecided"


def test_nothing_measured_has_no_winner():
    failure = rec.Failure(kind="k", stage="weights", sentence="It does not fit.")
    found = decide([a_record(outcome="failed", failure=failure)])
    assert found["winner"] is None
    assert found["ranking"][0]["sentence"] == "It does not fit."
    assert decide([])["winner"] is None


def test_several_starts_give_intervals_and_a_sure_winner():
    records = starts("a", 100.0, 101.0, 99.0) + starts("b", 130.0, 131.0, 129.0, against="a", engine={"ep_size": 8})
    found = decide(records)
    winner = found["winner"]
    assert (winner["configuration"], winner["verdict"], winner["starts"]) == ("b", "sure", 3)
    # The third start is the first that did not choose it.
    assert winner["value"] == 129.0
    low, high = winner["interval"]
    assert low < 129.0 < high
    assert "on 1 fresh start" in winner["sentence"]
    assert found["more_starts"] == []
    assert found["noise"]["peak"]["degrees"] == 4
    assert len(found["ranking"]) == 2


def test_ties_prefer_the_configuration_with_fewer_settings():
    rates = (100.0, 100.1, 99.9, 100.0)
    base = starts("a", 50.0, 50.05, 49.95)
    plain = starts("b", *rates, against="a", engine={"ep_size": 8})
    fancy = starts("c", *(rate * 1.001 for rate in rates), against="b", engine={"ep_size": 8, "page_size": 16})
    winner = decide([*base, *fancy, *plain])["winner"]
    assert (winner["configuration"], winner["verdict"]) == ("b", "tie")
    assert winner["close"] == ["c"]
    assert "differs least from the baseline" in winner["sentence"]


def test_what_the_engine_does_not_read_makes_nothing_more_complex():
    rates = (100.0, 100.1, 99.9, 100.0)
    base = starts("a", 50.0, 50.05, 49.95)
    dead = starts("b", *(rate * 1.001 for rate in rates), against="a",
                  engine={"ep_size": 8, "num_continuous_decode_steps": 8})  # fmt: skip
    plain = starts("c", *rates, against="a", engine={"ep_size": 8})
    assert decide([*base, *dead, *plain])["winner"]["configuration"] == "b"


def test_the_winners_row_is_first_and_the_pareto_set_has_both_ends():
    fast = measured("fast", a_point(1, 20.0), a_point(64, 200.0))
    quick = measured("quick", a_point(1, 60.0), a_point(64, 100.0))
    worse = measured("worse", a_point(1, 19.0), a_point(64, 90.0))
    found = decide([worse, quick, fast])
    assert found["ranking"][0]["configuration"] == "fast"
    assert {row["configuration"] for row in found["pareto"]} == {"fast", "quick"}
    assert decide([worse, quick, fast], "single_stream")["winner"]["configuration"] == "quick"
    with pytest.raises(ObjectiveError):
        decide([], "speed")


def test_throughput_at_a_concurrency_is_an_objective():
    a = measured("a", a_point(8, 50.0), a_point(64, 200.0))
    b = measured("b", a_point(8, 80.0), a_point(64, 100.0))
    found = decide([a, b], objectives=["throughput@8"])
    assert found["winners"]["throughput@8"]["configuration"] == "b"
    assert found["winner"]["configuration"] == "a"


def test_losers_are_told_where_they_fell_behind():
    won = measured("w", a_point(1, 60.0), a_point(64, 900.0), a_point(256, 1500.0))
    late = measured("late", a_point(1, 60.0), a_point(64, 600.0), a_point(256, 700.0))
    slow = measured("slow", a_point(1, 20.0), a_point(64, 300.0), a_point(256, 500.0))
    told = sentences(decide([won, late, slow]))
    assert told["late"] == "-53% against the winner's peak. As fast with one stream, behind from 64 on (-53% at 256)."
    assert told["slow"] == "-67% against the winner's peak. Behind at every concurrency, already -67% with one stream."


def test_a_small_kv_cache_and_another_transport_are_reasons():
    work = {"prompt_tokens": 1000, "output_tokens": 500}
    roomy = rec.Start(started_at="x", kv_tokens=450_000, transports={"P2P/CUMEM": 16})
    tight = rec.Start(started_at="x", kv_tokens=48_000, transports={"SHM": 16})
    won = measured("w", a_point(256, 1500.0), start=roomy, workload=work)
    lost = measured("l", a_point(32, 500.0), start=tight, workload=work)
    told = sentences(decide([won, lost]))["l"]
    assert "Its KV cache holds about 32 requests; the winner's peak has 256." in told
    assert "talk over SHM, the winner's over P2P/CUMEM" in told


def test_drift_of_the_baseline_is_shown_and_corrects_nothing():
    records = starts("a", 100.0, 95.0, 90.0) + starts("b", 120.0, 120.5, against="a", engine={"ep_size": 8})
    found = decide(records)
    (drift,) = found["drift"]
    assert drift["configuration"] == "a"
    assert "-10.0% over 2.0 h" in drift["sentence"]
    assert drift["sentence"] in found["notes"]
    # Effect: mean of b's logarithms over that of a's, drift and all: sqrt(120 x 120.5) / (100 x 95 x 90)^(1/3).
    ratio = (120 * 120.5) ** 0.5 / (100 * 95 * 90) ** (1 / 3)
    assert found["experiments"][0]["effect"]["peak"]["ratio"] == pytest.approx(ratio)


def test_alike_hosts_are_corrected_by_their_common_baseline():
    first, second = "h1", "h2"
    base = [measured("a", a_point(64, rate), host=host) for rate, host in ((100.0, first), (80.0, second))]
    # On the slower host b is 1.5 times its baseline, on the faster c is 1.3 times.
    b = measured("b", a_point(64, 120.0), host=second, against="a")
    c = measured("c", a_point(64, 130.0), host=first, against="a")
    found = decide([*base, b, c])
    assert found["winner"]["configuration"] == "b"
    assert found["winners_by_host"] == {}
    assert [e["effect"]["peak"]["ratio"] for e in found["experiments"]] == [pytest.approx(1.5), pytest.approx(1.3)]


def on(name, gpu, **more):
    """A host's name and its eight GPUs, as a record has them."""
    return rec.Host(name=name, gpus=[{"name": gpu}] * 8, **more)


@pytest.mark.parametrize(
    ("pcie", "nvlink"),
    [
        (on("pcie", "NVIDIA H100 PCIe"), on("nvlink", "NVIDIA H100 80GB HBM3")),
        (on("pcie", "NVIDIA H100 PCIe", driver="570.1"), on("nvlink", "NVIDIA H100 PCIe", driver="580.2")),
    ],
)
def test_unlike_hosts_have_a_winner_each_though_they_measured_the_same(pcie, nvlink):
    records = [
        measured(name, a_point(64, rate), host=host)
        for host, rates in ((pcie, {"a": 100.0, "b": 150.0}), (nvlink, {"a": 300.0, "b": 200.0}))
        for name, rate in rates.items()
    ]
    found = decide(records)
    assert {host: won["configuration"] for host, won in found["winners_by_host"].items()} == {
        "pcie": "b",
        "nvlink": "a",
    }
    assert winner_on(found, "pcie")["configuration"] == "b"
    assert winner_on(found, "nvlink")["configuration"] == "a"
    # 100 against 150, and 200 against 300: each against the winner of its own host.
    told = {(row["host"], row["configuration"]): row["sentence"] for row in found["ranking"]}
    assert told["pcie", "a"].startswith("-33% against")
    assert told["nvlink", "b"].startswith("-33% against")
    assert told["pcie", "b"] == "The highest peak."
    assert {(row["host"], row["configuration"]) for row in found["pareto"]} == {("pcie", "b"), ("nvlink", "a")}


def test_another_release_on_another_host_is_not_compared():
    old, new = (rec.Engine(name="sglang", version=version) for version in ("0.5.11", "0.5.23"))
    records = [
        measured("a", a_point(64, 100.0), host=on("h1", "X"), engine_of=old),
        measured("a", a_point(64, 200.0), host=on("h2", "X"), engine_of=new),
    ]
    assert set(decide(records)["winners_by_host"]) == {"h1", "h2"}


def test_alike_hosts_that_share_a_sweep_hold_a_configuration_against_what_the_other_measured():
    # tp8 on both: h1 is a quarter faster. ep8 is 1.2 times tp8 on h1, ep8_tuned 1.5 times tp8 on h2.
    base = [measured("tp8", a_point(64, rate), host=on(host, "X")) for rate, host in ((100.0, "h1"), (80.0, "h2"))]
    ep8 = measured("ep8", a_point(64, 120.0), host=on("h1", "X"), against="tp8")
    tuned = measured(
        "ep8_tuned", a_point(64, 120.0), host=on("h2", "X"), against="ep8", engine={"max_running_requests": 256}
    )
    found = {e["configuration"]: e for e in decide([*base, ep8, tuned])["experiments"]}
    assert found["ep8_tuned"]["against_host"] == "h1"
    assert found["ep8_tuned"]["effect"]["peak"]["ratio"] == pytest.approx(1.25)
    assert found["ep8_tuned"]["due_to"] == "max_running_requests"
    assert "ep8 was measured on h1; what both hosts measured corrects the difference." in found["ep8_tuned"]["sentence"]


def test_hosts_that_have_a_third_in_common_are_compared_by_way_of_it():
    # h2 is half as fast as h1 (by a), h3 half as fast as h2 (by b): c reads 40 on h3, which is 160 on h1.
    rates = [("h1", "a", 100.0), ("h2", "a", 50.0), ("h2", "b", 60.0), ("h3", "b", 30.0), ("h3", "c", 40.0)]
    found = decide([measured(name, a_point(64, rate), host=on(host, "X")) for host, name, rate in rates])
    assert found["winners_by_host"] == {}
    assert found["winner"]["configuration"] == "c"


def test_the_order_the_reasons_and_the_pareto_set_are_corrected_for_hosts():
    def both(name, one, many, host):
        return measured(name, a_point(1, one), a_point(64, many), host=on(host, "X"))

    found = decide(
        [
            both("a", 10.0, 100.0, "h1"),
            both("a", 8.0, 80.0, "h2"),
            both("b", 12.0, 120.0, "h2"),  # 1.5 times a
            both("d", 11.2, 112.0, "h2"),  # 1.4 times
            both("c", 13.0, 130.0, "h1"),  # 1.3 times, and the highest reading
        ]
    )
    assert [row["configuration"] for row in found["ranking"]] == ["b", "d", "c", "a", "a"]
    # 1.3 / 1.5 - 1
    assert sentences(found)["c"].startswith("-13.3% against the winner")
    assert [row["configuration"] for row in found["pareto"]] == ["b"]


def test_a_small_difference_that_is_certain_is_a_tie_and_the_simpler_is_preferred():
    noise = (0.999, 1.001, 0.999, 1.001)
    records = [
        *starts("root", *(100.0 * n for n in noise)),
        *starts("more", *(101.0 * n for n in noise), against="root", engine={"page_size": 16}),
    ]
    found = decide(records)
    assert found["experiments"][0]["effect"]["peak"]["low"] > 1
    assert (found["winner"]["configuration"], found["winner"]["verdict"]) == ("root", "tie")
    # That it is higher is not so: less than 2 % is no difference.
    assert found["experiments"][0]["verdict"] == "refuted"


def test_when_a_tie_goes_to_the_simpler_one_every_sentence_is_about_that_one():
    """`big` read 0.7 % more than `simple`, which has fewer settings."""
    shape = (0.997, 1.003, 1.0)
    simple = starts("simple", *(994.0 * n for n in shape), against="root", engine={"ep_size": 8})
    big = starts("big", *(1001.0 * n for n in shape), against="root", engine={"ep_size": 8, "page_size": 16})
    root = starts("root", *(700.0 * n for n in shape))
    found = decide([*root, *big, *simple])
    winner = found["winner"]
    assert (winner["configuration"], winner["verdict"]) == ("simple", "tie")
    assert (winner["ties"], winner["close"], winner["ahead"]) == (["big"], ["big"], "big")
    assert "big is within 2 %, and this one differs least from the baseline" in winner["sentence"]
    assert sentences(found)["big"] == "Within 2 % of the winner: a tie."
    # A third at 0.9 % behind the winner, and within 2 % of it, though not within 2 % of `big`: it is no loser.
    third = starts("third", *(985.0 * n for n in shape), against="root", engine={"ep_size": 8, "page_size": 32})
    found = decide([*root, *big, *simple, *third])
    assert (found["winner"]["configuration"], found["winner"]["ties"]) == ("simple", ["big", "third"])
    assert sentences(found)["third"] == "Within 2 % of the winner: a tie."
    # One that is not told apart from it leaves the call open; what is said of `big` stays as it was.
    third = starts("third", 980.0, against="root", engine={"ep_size": 8, "page_size": 32})
    wide = starts("wide", *(500.0 * n for n in (0.99, 1.01, 1.0)), against="root", engine={"ep_size": 4})
    found = decide([*root, *big, *simple, *third, *wide])
    winner = found["winner"]
    assert (winner["configuration"], winner["verdict"], winner["ties"]) == ("simple", "undecided", ["big"])
    assert (
        "big is within 2 %, and this one differs least from the baseline; third came so close that one start"
        in (winner["sentence"])
    )
    assert sentences(found)["simple"] == "Within 2 % of big, with fewer settings; close calls are not decided."
    assert sentences(found)["big"] == "Within 2 % of the winner: a tie."
    assert sentences(found)["third"].endswith("against the winner, which one start cannot tell apart from noise.")


def test_a_simpler_one_that_ties_is_not_chosen_where_a_third_is_ahead_of_it_for_sure():
    """Noise is 0.3 %, the least, six degrees of freedom. `simple` is 1.20 +- 0.73 % behind `big` (t(0.025, 6) x 0.3 x
    sqrt(2/3)): a tie. It is 1.19 +- 0.85 % behind `third` (t(0.05, 6) x 0.3 x sqrt(1 + 1/3)): up to 2.04 %, no tie.
    """
    shape = (0.999, 1.001, 1.0)
    more = {"against": "root", "engine": {"ep_size": 8, "page_size": 16}}
    records = [
        *starts("root", *(700.0 * n for n in shape)),
        *starts("simple", *(1000.0 * n for n in shape), against="root", engine={"ep_size": 8}),
        *starts("big", *(1000.0 * math.exp(0.012) * n for n in shape), **more),
    ]
    assert decide(records)["winner"]["configuration"] == "simple"
    third = starts("third", 1000.0 * math.exp(0.0119), **more)
    winner = decide([*records, *third])["winner"]
    assert (winner["configuration"], winner["ahead"]) == ("big", None)


def test_one_look_has_the_whole_error_and_four_share_it():
    # Noise sqrt(0.0016 / 3) = 0.0231, error 0.0231 x sqrt(1/3 + 1/2) = 0.0211; t(0.05, 3) = 3.182 makes 6.7 %, and the
    # 2.5 % of the first of four looks t = 4.177, 8.8 %. b is ahead by 8 %.
    base = [100.0 * f for f in (0.98, 1.02, 1.0)]
    records = [*starts("a", *base), *starts("b", *(108.0 * f for f in (0.98, 1.02)), against="a")]
    assert decide(records, looks=1)["winner"]["verdict"] == "sure"
    assert decide(records, looks=4)["winner"]["verdict"] == "undecided"


def test_starts_beyond_the_last_look_are_quoted_and_name_nothing_new():
    """Whoever goes on starting until something shows would find something: 9.5 % of equals after six starts each."""
    few = [*starts("a", 100.0, 103.0, 97.0), *starts("b", 104.0, 101.0, against="a", engine={"page_size": 2})]
    assert decide(few)["winner"]["verdict"] == "undecided"
    # Eight further starts of each tell them apart for sure, in a campaign that was asked for so many looks.
    more = [
        *starts("a", 100.0, 103.0, 97.0, *[100.0] * 8),
        *starts("b", 104.0, 101.0, 105.0, *[110.0] * 8, against="a", engine={"page_size": 2}),
    ]
    found = decide(more)
    assert found["winner"]["verdict"] == "undecided"
    assert found["experiments"][0]["verdict"] == "undecided"
    assert found["more_starts"] == []
    # A third start is one that a campaign of one look makes: 105 counts, 110 does not. exp of the mean logarithms'
    # difference, ln(104 x 101 x 105 / (100 x 103 x 97)) / 3 = 3.35 %.
    assert found["experiments"][0]["effect"]["peak"]["ratio"] == pytest.approx(1.0335, abs=1e-4)
    # What is quoted rests on all nine fresh starts: (105 x 110^8)^(1/9).
    assert found["winner"]["value"] == pytest.approx(109.43, abs=0.01)
    assert "spent, and further starts of this campaign name nothing new" in found["spent"]
    assert found["spent"] in found["notes"]
    # With looks left, a further start of both is asked for, and nothing is spent.
    left = decide(few, looks=4)
    assert [row["configuration"] for row in left["more_starts"]] == ["b", "a"] and left["spent"] is None


LEFT = rec.Left(
    rungs=[64], reason="40 tokens a second at concurrency 8 allow at most 320 at 64, below the 900 another reached."
)


def powered(name, number, *rungs, left=None, against="a"):
    """A start of (concurrency, tokens a second, joules a token)."""
    points = [a_point(c, rate, telemetry={"energy_joules_per_token": joules}) for c, rate, joules in rungs]
    return measured(name, *points, number=number, against=against, left=left)


def test_a_ladder_that_was_left_early_does_not_lose_by_energy_for_sure():
    """pp8 gave 1 token a joule at 8 streams, where it was left; with 64 it might give more than ep8's 1.6."""
    records = [
        start
        for n, shift in enumerate((0.0, 0.001, -0.001), 1)
        for start in (
            powered("a", n, (8, 90.0, 2.0 + shift), (64, 500.0, 1.0 + shift), against=None),
            powered("ep8", n, (8, 80.0, 1.5 + shift), (64, 900.0, 0.625 + shift)),
            powered("pp8", n, (8, 40.0, 1.0 + shift), left=LEFT),
        )
    ]
    found = decide(records)
    energy = found["winners"]["tokens_per_joule"]
    assert (energy["configuration"], energy["verdict"], energy["close"]) == ("ep8", "undecided", ["pp8"])
    assert (
        "against a, the next. The ladder of pp8 was left early, so what it would reach is not known."
        in (energy["sentence"])
    )
    # By throughput it was left because it cannot win: ep8 is sure.
    assert found["winner"]["verdict"] == "sure"
    by_energy = decide(records, "tokens_per_joule")
    assert sentences(by_energy)["pp8"] == (
        f"Its ladder was left early, so what it would reach is not known: {LEFT.reason}"
    )
    assert "pp8" not in {row["configuration"] for row in by_energy["pareto"]}
    # No further start would tell: it is asked for none, and nothing is said to be spent.
    assert (by_energy["more_starts"], by_energy["spent"]) == ([], None)


@pytest.mark.parametrize(
    ("rates", "looks", "said"),
    [
        # Noise sqrt(0.000248 / 3) = 0.9 %; b is 2.5 % ahead. With three and four starts t(0.05, 5) = 2.57 makes 1.8 %.
        ((103.0, 102.0), 4, "; 1 more start of each should settle it. "),
        ((103.0, 102.0), 1, "; 1 more start of each should settle it, in a campaign of its own with looks=2. "),
        # 1.2 % ahead: four looks compare five starts of each at most.
        ((101.7, 100.7), 4, " would settle it, more than any campaign compares: take them as equal. "),
    ],
)
def test_an_undecided_experiment_says_how_many_starts_it_needs_and_in_which_campaign(rates, looks, said):
    records = [*starts("a", 100.0, 101.0, 99.0), *starts("b", *rates, against="a", engine={"page_size": 2})]
    (experiment,) = decide(records, looks=looks)["experiments"]
    assert experiment["verdict"] == "undecided" and said in experiment["sentence"]


def test_what_further_starts_show_to_be_better_for_sure_is_the_winner():
    # a read best on its first start alone; eleven others of three starts each tell the noise: 24 degrees of freedom,
    # a deviation of sqrt(0.00886 / 24) = 1.9 %.
    records = [
        *starts("root", *[50.0] * 3),
        *(record for n in range(10) for record in starts(f"c{n}", *[50.0] * 3, against="root")),
        *starts("a", 101.0, 90.0, 90.0, 90.0, against="root"),
        *starts("b", 100.0, against="root"),
    ]
    winner = decide(records)["winner"]
    assert (winner["configuration"], winner["verdict"], winner["close"]) == ("b", "sure", [])


def test_a_loser_by_another_objective_is_told_why():
    few = measured("few", a_point(8, 100.0), a_point(64, 200.0), limit=16)
    many = measured("many", a_point(8, 90.0), a_point(64, 600.0), limit=256)
    assert sentences(decide([few, many], "throughput@64"))["few"] == (
        "-67% against the winner. It runs at most 16 requests at once; the winner was read at 64. "
        "+11% with 8 streams, behind from 64 on (-67% at 64)."
    )


def spread_of(seconds):
    """Of requests that all took as long."""
    return rec.Distribution(count=100, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "min", "max"), seconds))


def a_long_point(seconds, rate):
    spread = spread_of(seconds)
    return a_point(1, 20.0, workload="long", ttft_seconds=spread, prompt_tokens_per_second=rate)


def test_a_loser_at_long_prompts_is_told_how_fast_it_reads_them():
    long = {"workload": {"name": "long", "prompt_tokens": 8192}}
    slow, fast = (
        measured("slow", a_long_point(4.0, 2000.0), **long),
        measured("fast", a_long_point(1.0, 8000.0), **long),
    )
    assert sentences(decide([slow, fast], "ttft"))["slow"] == (
        "+300% against the winner. Prompts are read 0.25 times as fast."
    )


def offered(goodput, ttft):
    told = {"goodput_requests_per_second": goodput, "ttft_seconds": spread_of(ttft)}
    return msgspec.structs.replace(a_point(64, 100.0, **told), rate=2.0)


def test_a_goodput_of_none_is_told_as_what_it_is():
    found = decide(
        [measured("a", offered(1.5, 0.5)), measured("b", offered(0.0, 5.0)), measured("c", offered(0.5, 2.0))],
        "goodput",
    )
    assert sentences(found)["b"] == "No request met the limits at 2 requests a second (median TTFT 5 s)."
    assert sentences(found)["c"] == "-67% against the winner. A first token takes 4.00 times as long."


def test_hosts_without_anything_in_common_have_a_winner_each():
    a = measured("a", a_point(64, 100.0), host="h1")
    b = measured("b", a_point(64, 200.0), host="h2")
    found = decide([a, b])
    assert {host: won["configuration"] for host, won in found["winners_by_host"].items()} == {"h1": "a", "h2": "b"}


def test_a_start_that_failed_among_others_is_noted():
    failure = rec.Failure(kind="k", stage="weights", sentence="It does not fit.")
    failed = measured("a", number=2)
    failed = msgspec.structs.replace(failed, outcome="failed", failure=failure)
    found = decide([*starts("a", 100.0), failed])
    assert found["winner"]["configuration"] == "a"
    assert "a failed on 1 of 2 starts: It does not fit." in found["notes"]


_RATE = st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-9, 1e9) | st.none()
_WILD = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([None, "a", "b", "zz"]), st.integers(1, 5),
              st.lists(st.tuples(st.sampled_from([1, 8, 64]), _RATE), max_size=4)),
    max_size=8,
)  # fmt: skip


@given(_WILD)
def test_any_records_get_a_decision_that_is_json(wild):
    records = [
        measured(name, *(a_point(c, rate) for c, rate in points), against=against, number=number)
        for name, against, number, points in wild
    ]
    found = decide(records)
    json.dumps(found, allow_nan=False)
    assert len(found["ranking"]) == len({record.configuration.name for record in records})
