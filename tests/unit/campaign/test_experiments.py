from __future__ import annotations

import msgspec
import pytest
from builders import a_point, a_record
from hypothesis import given
from hypothesis import strategies as st

from benchmark.campaign import record as rec
from benchmark.campaign.experiments import Claim, causes, claims, experiments
from benchmark.campaign.objectives import PEAK, SINGLE_STREAM, group, objective


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        # The catalogue's own.
        (
            "Without all-reduces over PCIe a single stream is faster; the total is lower, because a stage waits.",
            [Claim("single_stream", True), Claim("peak", False)],
        ),
        (
            "Whole experts keep their matrices wide, so each stream is faster and the peak is higher.",
            [Claim("single_stream", True), Claim("peak", True)],
        ),
        (
            "More requests at once and fewer returns to the scheduler raise the peak by half.",
            [Claim("peak", True)],
        ),
        ("Balanced experts shorten the slowest GPU's step and raise the peak.", [Claim("peak", True)]),
        (
            "Fewer expert groups cost less balance and no more traffic; the peak rises by a few percent.",
            [Claim("peak", True)],
        ),
        ("Smaller groups talk less; each stream is faster.", [Claim("single_stream", True)]),
        (
            "Attention split two ways needs the fewest all-reduces, so each stream is faster.",
            [Claim("single_stream", True)],
        ),
        # Of a time and of energy less is better, whatever the words.
        ("The first token comes faster.", [Claim("ttft", True)]),
        ("The first token comes slower.", [Claim("ttft", False)]),
        ("TTFT is worse.", [Claim("ttft", False)]),
        ("TTFT is higher.", [Claim("ttft", False)]),
        ("TTFT is longer; prefill suffers.", [Claim("ttft", False), Claim("prefill", False)]),
        ("TTFT improves.", [Claim("ttft", True)]),
        ("Better TTFT.", [Claim("ttft", True)]),
        ("Quicker first token.", [Claim("ttft", True)]),
        ("TTFT is lower; a token takes less energy.", [Claim("ttft", True), Claim("tokens_per_joule", True)]),
        ("It takes less energy a token.", [Claim("tokens_per_joule", True)]),
        ("Power is lower.", [Claim("tokens_per_joule", True)]),
        ("It draws more power.", [Claim("tokens_per_joule", False)]),
        ("Fewer joules a token.", [Claim("tokens_per_joule", True)]),
        ("More tokens a joule.", [Claim("tokens_per_joule", True)]),
        ("Energy efficiency is higher.", [Claim("tokens_per_joule", True)]),
        ("Reduces throughput.", [Claim("peak", False)]),
        ("Halves throughput.", [Claim("peak", False)]),
        ("It hurts the peak.", [Claim("peak", False)]),
        ("The all-reduces cost throughput.", [Claim("peak", False)]),
        ("Without all-reduces throughput is higher.", [Claim("peak", True)]),
        ("More tokens a second.", [Claim("peak", True)]),
        # Many streams are not one.
        ("With 256 streams throughput is higher.", [Claim("peak", True)]),
        ("Holds more streams.", []),
        ("Streams get slower.", [Claim("single_stream", False)]),
        ("Single-stream throughput is higher.", [Claim("single_stream", True)]),
        # What is denied leaves room for a tie, and for more.
        ("No slower than a.", [Claim("peak", False, denied=True)]),
        (
            "A single stream is no slower; the peak does not rise.",
            [Claim("single_stream", False, denied=True), Claim("peak", True, denied=True)],
        ),
        ("TTFT is not higher.", [Claim("ttft", False, denied=True)]),
        ("The peak is neither higher nor lower.", [Claim("peak", None)]),
        ("The peak stays the same; TTFT is lower.", [Claim("peak", None), Claim("ttft", True)]),
        # Nothing that can be read is no claim.
        ("Attention split two ways costs the fewest all-reduces.", []),
        ("Wider shards pay off.", []),
        (None, []),
        # Of a campaign on a real engine: what is slower and names nothing is the total.
        (
            "Batches of 256 launch every kernel by hand and are slower; smaller ones stay as they are.",
            [Claim("peak", False)],
        ),
        ("Fewer events unburden the front end; the total at 64 and 256 rises.", [Claim("peak", True)]),
        ("Prompts share nothing, so nothing changes.", [Claim("peak", None)]),
        ("14 GiB less KV cache change no speed here.", [Claim("peak", None)]),
    ],
)
def test_what_a_hypothesis_claims(hypothesis, expected):
    assert claims(hypothesis) == expected


_WORDS = st.sampled_from(
    [
        "no",
        "not",
        "ttft",
        "energy",
        "peak",
        "total",
        "stream",
        "faster",
        "slower",
        "higher",
        "more",
        "tokens",
        "and",
        ";",
    ]
)


@given(st.text() | st.lists(_WORDS).map(" ".join))
def test_any_text_can_be_read_and_claims_one_thing_of_an_objective(text):
    found = claims(text)
    assert len({claim.objective for claim in found}) == len(found)


def test_a_split_changes_two_keys_and_is_one_cause():
    changes = [("max_running_requests", 64, 32), ("pp_size", None, 8), ("tp_size", 8, None)]
    assert causes(changes) == ["max_running_requests", "the split (tp_size and pp_size)"]
    # Not the same number of GPUs: two causes.
    assert causes([("pp_size", None, 2), ("tp_size", 8, None)]) == ["pp_size", "tp_size"]
    assert causes([("tp_size", 8, "x")]) == ["tp_size"]
    replicas = [("dp_size", None, 8), ("enable_dp_attention", None, True)]
    assert causes(replicas) == ["attention replicas (enable_dp_attention and dp_size)"]


def starts(name, *rates, engine=None, against=None, hypothesis="The peak is higher.", **more):
    configuration = rec.Configuration(name=name, against=against, hypothesis=hypothesis, engine=engine or {})
    return [
        a_record(configuration=configuration, outcome="measured", points=[a_point(8, rate)], start_number=n, **more)
        for n, rate in enumerate(rates, 1)
    ]


def one(records):
    (found,) = experiments(group(records), [PEAK, SINGLE_STREAM])
    return found


def test_what_was_said_to_be_slower_and_is_slower_supports_it():
    # On a real engine: 29 % slower, which was called "refuted".
    said = "Batches of 256 launch every kernel by hand and are slower; smaller ones stay as they are."
    base = starts("mini", 9427.0, 9400.0)
    found = one(
        base + starts("graphs64", 6731.0, 6700.0, against="mini", engine={"cuda_graph_max_bs": 64}, hypothesis=said)
    )
    assert found["verdict"] == "supported"
    assert "The hypothesis is supported." in found["sentence"]


def test_that_nothing_changes_is_supported_by_a_tie_and_refuted_by_a_difference():
    base = starts("a", 100.0, 100.1, 99.9, 100.0)
    change = {"engine": {"schedule_policy": "lpm"}, "against": "a", "hypothesis": "Nothing changes."}
    assert one(base + starts("b", 100.1, 99.9, 100.0, 100.1, **change))["verdict"] == "supported"
    assert one(base + starts("b", 120.0, 120.1, 119.9, 120.0, **change))["verdict"] == "refuted"
    # One start each: 4 % are assumed, and an interval of +-14 % decides nothing.
    assert one(starts("a", 100.0) + starts("b", 100.1, **change))["verdict"] == "undecided"


def test_a_ladder_that_was_left_early_tells_no_peak():
    left = rec.Left(
        rungs=[64], reason="60 tokens a second at concurrency 8 allow at most 480 at 64, below the 900 of another."
    )
    change = {"engine": {"ep_size": 8}, "against": "a"}
    found = one(starts("a", 100.0, 101.0) + starts("b", 60.0, 61.0, **change, left=left))
    assert "peak" not in found["effect"]
    assert found["verdict"] == "undecided"
    assert "The ladder of b was left early: 60 tokens a second" in found["sentence"]
    # A rung that failed is no such case: the best of those below it is the peak.
    ended = rec.Left(rungs=[64], reason="Concurrency 16 failed, so concurrency 64 would too.", may_be_best=False)
    assert one(starts("a", 100.0, 101.0) + starts("b", 60.0, 61.0, **change, left=ended))["verdict"] == "refuted"


def test_what_follows_a_ladder_that_was_left_early_is_compared_all_the_same():
    """pp8 reads long prompts in a quarter of the time, which its hypothesis says, and was left at 8 streams."""

    def start(name, number, seconds, against=None, left=None):
        spread = rec.Distribution(
            count=4, mean=seconds, p50=seconds, p90=seconds, p95=seconds, p99=None, min=seconds, max=seconds
        )
        long = a_point(1, 20.0, workload="long", ttft_seconds=spread, prompt_tokens_per_second=16384 / seconds)
        loop = msgspec.structs.replace(
            a_point(8, 20.0, workload="quick_open", goodput_requests_per_second=1 / seconds), rate=2.0
        )
        energy = a_point(8, 60.0, telemetry={"energy_joules_per_token": 1.0})
        return a_record(
            configuration=rec.Configuration(
                name=name, against=against, engine={"pp_size": 8} if against else {}, hypothesis="TTFT is lower."
            ),
            outcome="measured",
            points=[energy, long, loop],
            workload={"name": "quick", "prompt_tokens": 64},
            after_ladder=[{"workload": {"name": "long", "prompt_tokens": 16384}, "concurrency": 1, "repeat": 1}],
            start_number=number,
            left=left,
        )

    left = rec.Left(rungs=[64], reason="60 tokens a second at concurrency 8 allow at most 480 at 64.")
    records = [start("tp8", n, 4.0) for n in (1, 2)] + [start("pp8", n, 1.0, "tp8", left) for n in (1, 2)]
    (found,) = experiments(group(records), [PEAK, *map(objective, ("ttft", "prefill", "goodput", "tokens_per_joule"))])
    assert found["verdict"] == "supported"
    assert found["effect"]["ttft"]["ratio"] == pytest.approx(0.25)
    # Read at the best rung of the ladder itself: not known.
    assert set(found["effect"]) == {"ttft", "prefill", "goodput"}


@pytest.mark.parametrize(
    ("interval_of", "verdict"),
    [
        ((100.0, 100.1, 99.9, 100.0), "supported"),  # as fast
        ((130.0, 130.1, 129.9, 130.0), "supported"),  # faster
        ((99.0, 99.1, 98.9, 99.0), "supported"),  # 1 % behind: within what is called a tie
        ((90.0, 90.1, 89.9, 90.0), "refuted"),
        ((98.0, 98.1, 97.9, 98.0), "undecided"),  # the interval lies across -2 %
    ],
)
def test_no_slower_leaves_room_for_a_tie(interval_of, verdict):
    base = starts("a", 100.0, 100.1, 99.9, 100.0)
    said = {"hypothesis": "No slower than a.", "engine": {"schedule_policy": "lpm"}, "against": "a"}
    assert one(base + starts("b", *interval_of, **said))["verdict"] == verdict


@pytest.mark.parametrize(("loss", "wanted"), [(0.015, 8), (0.02, None)])
def test_no_lower_needs_as_many_starts_as_leave_no_room_for_a_loss_of_two_percent(loss, wanted):
    """Noise is 0.5 % of four degrees of freedom. At -1.5 % (log 0.01511) the interval has to stay within log(1.02) =
    0.01980: t x 0.5 % x sqrt(2/n) at most 0.469 %. Ten starts of each, 18 degrees: 2.101 x 0.5 x 0.447 = 0.470; eleven,
    20 degrees: 2.086 x 0.5 x 0.426 = 0.445. (That it leaves out 1 takes one more start, and says nothing of this.)
    """
    shape = (0.995, 1.0, 1.005)
    said = {"hypothesis": "The throughput is no lower.", "engine": {"schedule_policy": "lpm"}, "against": "a"}
    base = starts("a", *(100.0 * n for n in shape))
    found = one(base + starts("b", *(100.0 * (1 - loss) * n for n in shape), **said))
    assert (found["verdict"], found["more_starts"]) == ("undecided", wanted)


def test_only_what_was_measured_on_one_start_is_said_to_rest_on_an_assumption():
    """Three starts of each, and long prompts on the first alone; there is no hypothesis."""

    def start(name, number, rate, against=None):
        long = a_point(1, 20.0, workload="long", prompt_tokens_per_second=1000.0) if number == 1 else None
        return a_record(
            configuration=rec.Configuration(name=name, against=against, engine={"page_size": 16} if against else {}),
            outcome="measured",
            points=[a_point(8, rate), *([long] if long else [])],
            workload={"name": "quick", "prompt_tokens": 64},
            after_ladder=[{"workload": {"name": "long", "prompt_tokens": 16384}, "concurrency": 1, "repeat": 1}],
            start_number=number,
        )

    records = [start("a", n, 100.0 + n) for n in (1, 2, 3)] + [start("b", n, 120.0 + n, "a") for n in (1, 2, 3)]
    (found,) = experiments(group(records), [PEAK, objective("prefill")])
    assert found["sentence"].endswith(
        "From 3 and 3 starts. The interval of prefill assumes 4 % between starts, from one start each."
    )


def test_a_hypothesis_that_names_no_objective_is_undecided_and_says_so():
    said = {"hypothesis": "Wider shards pay off.", "engine": {"ep_size": 8}, "against": "a"}
    found = one(starts("a", 100.0, 100.1) + starts("b", 130.0, 130.1, **said))
    assert found["verdict"] == "undecided"
    assert found["effect"]["peak"]["verdict"] == "better"
    assert "Undecided: the hypothesis names no objective that it makes better or worse." in found["sentence"]
    without = one(starts("a", 100.0, 100.1) + starts("b", 130.0, 130.1, **(said | {"hypothesis": None})))
    assert without["verdict"] == "undecided"
    assert "There is no hypothesis to judge." in without["sentence"]


def test_a_clear_gain_supports_and_a_clear_loss_refutes():
    base = starts("a", 100.0, 101.0, 99.0)
    change = {"engine": {"ep_size": 8}, "against": "a"}
    up = one(base + starts("b", 120.0, 121.0, **change))
    assert up["verdict"] == "supported"
    assert up["starts"] == [2, 3]
    assert up["due_to"] == "ep_size"
    assert up["effect"]["peak"]["low"] > 1.1
    assert "From 2 and 3 starts" in up["sentence"]
    down = one(base + starts("b", 80.0, 81.0, **change))
    assert down["verdict"] == "refuted"
    slower = one(base + starts("b", 80.0, 81.0, **change, hypothesis="The total is lower."))
    assert slower["verdict"] == "supported"


def test_a_close_call_says_how_many_more_starts_it_needs():
    found = one(starts("a", 100.0, 102.0, 98.0) + starts("b", 103.0, 101.0, engine={"ep_size": 8}, against="a"))
    assert found["verdict"] == "undecided"
    effect = found["effect"]["peak"]
    assert effect["low"] < 1 < effect["high"]
    assert effect["more_starts"] == found["more_starts"]
    assert "would have been seen" in found["sentence"]


def test_a_tie_refutes_that_it_is_faster():
    same = (100.0, 100.1, 99.9, 100.0)
    found = one(starts("a", *same) + starts("b", *same, engine={"ep_size": 8}, against="a"))
    assert found["effect"]["peak"]["verdict"] == "tie"
    assert found["verdict"] == "refuted"


def of_release(version, engine, arguments=(), name="a", against=None):
    configuration = rec.Configuration(
        name=name, against=against, hypothesis="The peak is higher.", engine=engine, arguments=list(arguments)
    )
    release = rec.Engine(name="sglang", version=version)
    return a_record(configuration=configuration, engine=release, outcome="measured", points=[a_point(8, 100.0)])


def test_a_default_that_is_spelled_out_is_no_change():
    # SGLang's parser takes pp_size 1 and schedule_policy fcfs where nothing is said; mem_fraction_static it chooses.
    a = of_release("0.5.11", {"tp_size": 8})
    spelled = {"tp_size": 8, "pp_size": 1, "schedule_policy": "fcfs", "enable_eplb": False}
    b = of_release("0.5.11", spelled | {"mem_fraction_static": 0.9}, name="b", against="a")
    found = one([a, b])
    assert found["changes"] == [("mem_fraction_static", None, 0.9)]
    assert found["due_to"] == "mem_fraction_static"
    # The other way round too.
    assert (
        one([of_release("0.5.11", spelled), of_release("0.5.11", {"tp_size": 8}, name="b", against="a")])["changes"]
        == []
    )
    # A host that sets another policy for all makes it a change.
    host_sets = of_release("0.5.11", {"tp_size": 8}, ["--schedule-policy", "lpm"])
    fcfs = of_release("0.5.11", {"tp_size": 8, "schedule_policy": "fcfs"}, name="b", against="a")
    assert [change[0] for change in one([host_sets, fcfs])["changes"]] == ["schedule_policy"]


def test_another_release_is_a_change_too():
    old, new = rec.Engine(name="sglang", version="0.5.11"), rec.Engine(name="sglang", version="0.5.23")
    configuration = rec.Configuration(name="b", against="a", hypothesis="h", engine={"ep_size": 8})
    records = [
        a_record(name="a", outcome="measured", points=[a_point(8, 10.0)], engine=old),
        a_record(configuration=configuration, outcome="measured", points=[a_point(8, 20.0)], engine=new),
    ]
    found = one(records)
    assert found["confounded_by"] == ["ep_size", "engine version"]
    assert found["verdict"] == "undecided"


def test_an_unknown_release_has_no_unread_flags():
    engine = rec.Engine(name="other", version="what")
    configuration = rec.Configuration(name="b", against="a", engine={"num_continuous_decode_steps": 8})
    records = [
        a_record(name="a", outcome="measured", points=[a_point(8, 10.0)], engine=engine),
        a_record(configuration=configuration, outcome="measured", points=[a_point(8, 20.0)], engine=engine),
    ]
    assert one(records)["ignored"] == []


def test_sides_without_numbers_are_said():
    failed = a_record(configuration=rec.Configuration(name="b", against="a"), outcome="failed")
    assert "b failed, so there is no effect" in one([*starts("a", 10.0), failed])["sentence"]
    assert "a was not measured" in one([failed])["sentence"]
