"""Whole points against the reference server, whose schedule is known."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import msgspec
import pytest

from benchmark.load import measure, warmup
from benchmark.load.drive import Limits
from benchmark.load.reference_server import ReferenceServer, Schedule
from benchmark.load.rows import read_requests
from benchmark.load.summary import reanalyse, summarise
from benchmark.load.target import Abilities, Target, TargetError, detect, load_of, wait_idle
from benchmark.load.workload import Workload

WORK = Workload(
    name="w",
    prompt_tokens=20,
    output_tokens=10,
    window_seconds=0.4,
    minimum_window_seconds=0.1,
    minimum_requests=4,
    ramp_turnover=0.25,
    half_width=0.5,
)


@contextmanager
def reference(**schedule):
    server = ReferenceServer(Schedule(**{"tick_seconds": 0.005, "ttft_seconds": 0.01, **schedule}))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.port}"
    finally:
        server.stop = True
        thread.join(10)


def point(url, concurrency=4, work=WORK, route="auto", **more):
    more.setdefault("telemetry", False)
    target = Target(url, route=route)
    return measure.run(measure.measure_point(target, work, concurrency, **more))


def flags(result):
    return {flag.id for flag in result.point.flags if flag.severity != "note"}


@pytest.mark.parametrize("route", ["generate", "completions", "chat"])
def test_a_point_on_each_route(route):
    with reference() as (server, url):
        got = point(url, route=route)
    assert got.point.requests_failed == 0
    assert got.point.requests_completed == len(got.requests) > 4
    assert all(row.output_tokens == row.output_asked for row in got.requests)
    assert all(len(row.token_us) == row.output_tokens for row in got.requests)
    assert got.about.route == route
    assert got.about.client["clock"] == "kernel"
    assert got.about.client["shared_reads"] <= got.about.client["reads"]
    assert got.about.server["abilities"]["token_ids"] == (route != "chat")
    # The engine's counter from idle to idle is exactly what the client got.
    assert got.point.server["generation_tokens"] == got.point.output_tokens
    assert got.point.server["flush"]["done"]
    assert server.streams[-1].sends


def test_times_are_those_of_the_server():
    """Rows against what was sent, one request at a time; the first stream is the one that `detect` asked for."""
    with reference() as (server, url):
        got = point(url, concurrency=1, route="completions", flush=False)
        streams = server.streams[1:]
    zero = got.about.client["started_monotonic_ns"]
    assert len(streams) == len(got.requests)
    for row, stream in zip(got.requests, streams, strict=True):
        late = [zero + 1000 * at - sent for at, sent in zip(row.token_us, stream.sends, strict=True)]
        # The kernel stamps inside the send, so it is never before the server's own time (but for rounding).
        assert all(-2_000 <= ns < 1_000_000_000 for ns in late)
        assert stream.arrived_ns >= zero + 1000 * row.sent_us - 2_000


def test_the_file_gives_the_same_point(tmp_path):
    with reference() as (_, url):
        got = point(url)
    path = tmp_path / "requests-w-c004.jsonl.zst"
    got.write(path)
    again = reanalyse(path)
    assert again.output_tokens_per_second == got.point.output_tokens_per_second
    assert again.ttft_seconds == got.point.ttft_seconds
    assert again.itl_seconds == got.point.itl_seconds
    assert again.flags == got.point.flags
    assert summarise(read_requests(path), got.about) == got.point


def test_speculative_decoding_on_generate():
    """Three tokens an event: ten tokens come in four events, and the counts say how many each time."""
    with reference(tokens_per_event=3) as (_, url):
        got = point(url, route="generate")
    full = [row for row in got.requests if row.output_tokens == 10]
    assert full
    assert all(row.counts.tolist() == [3, 6, 9, 10] for row in full)
    assert got.point.output_tokens == sum(row.output_tokens for row in got.requests)


def test_speculative_decoding_on_completions_asks_for_usage_with_each_event():
    with reference(tokens_per_event=3) as (_, url):
        target = measure.run(detect(Target(url, route="completions")))
        got = point(url, route="completions")
    assert target.abilities.usage_each_event
    assert {row.count_source for row in got.requests if row.output_tokens == 10} == {"reported"}


def test_a_server_that_is_not_sglang():
    with reference(kind="openai") as (_, url):
        got = point(url)
    assert got.about.server["kind"] == "openai"
    assert got.about.route == "completions"
    assert got.about.server["flush"]["done"] is False
    assert got.point.requests_failed == 0


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("error", "error inside a 200: reference fault"),
        ("cut", "the connection closed before the answer was whole"),
        ("refuse", "HTTP 503: reference fault"),
    ],
)
def test_one_failed_request_is_told_and_the_rest_goes_on(fault, text):
    with reference(faults={6: fault}) as (_, url):
        got = point(url, flush=False)
    assert got.point.errors == {text: 1}
    assert got.point.requests_completed > 4
    assert "failed_requests" in flags(got)


def test_short_answers_are_seen():
    with reference(faults=dict.fromkeys(range(1, 500), "short")) as (_, url):
        got = point(url, flush=False)
    assert "short_answers" in flags(got)


def test_a_silent_request_is_given_up():
    with reference(faults={3: "silent"}) as (_, url):
        got = point(url, flush=False, limits=Limits(silence_seconds=0.3))
    assert got.point.errors == {"no byte came for 0.3 s": 1}


def test_a_server_that_always_fails_ends_the_point():
    with reference(faults=dict.fromkeys(range(1, 5000), "refuse")) as (server, url):
        got = point(url, flush=False)
        asked = len(server.streams)
    assert {flag.id for flag in got.point.flags if flag.severity == "invalid"} >= {"aborted"}
    assert asked < 40


def test_an_engine_that_runs_fewer_than_asked():
    with reference(max_running=2) as (_, url):
        got = point(
            url,
            concurrency=6,
            work=Workload(**{**WORK.to_mapping(), "window_seconds": 2.5, "minimum_window_seconds": 2.0}),
        )
    assert "concurrency_not_reached" in flags(got)
    assert got.point.server["running_mean"] <= 2


def test_nobody_listens():
    with pytest.raises(TargetError, match=r"does not answer: no connection to 127\.0\.0\.1:9"):
        point("http://127.0.0.1:9")
    with pytest.raises(TargetError, match="does not answer"):
        point("http://no-such-host.invalid:80")


def test_concurrency_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        point("http://127.0.0.1:9", concurrency=0)


def test_open_loop():
    work = Workload(
        name="w", prompt_tokens=20, output_tokens=10, rate=60.0, window_seconds=1.5, minimum_window_seconds=0.5,
        ttft_limit_seconds=1.0,
    )  # fmt: skip
    with reference() as (_, url):
        got = point(url, work=work, flush=False)
    gaps = [b.intended_us - a.intended_us for a, b in zip(got.requests, got.requests[1:], strict=False)]
    assert all(gap >= 0 for gap in gaps)
    assert all(row.sent_us >= row.intended_us for row in got.requests)
    assert not any(row.first_wave for row in got.requests)
    # 60 a second for 1.5 s: 90 expected, standard deviation 9.5.
    assert 50 < got.point.ttft_seconds.count < 140
    assert got.point.goodput_requests_per_second > 30
    assert got.point.rate == 60.0


SLOW = {"tick_seconds": 0.1, "ttft_seconds": 0.1}


def test_a_closed_loop_waits_for_all_that_ran_in_its_window():
    """Answers take a second, the drain is over after none."""
    with reference(**SLOW) as (_, url):
        got = point(url, flush=False, limits=Limits(drain_seconds=0.0))
    assert all(row.ok for row in got.requests)
    assert got.point.output_tokens == sum(row.output_asked for row in got.requests)


def test_an_open_loop_opens_its_connections_ahead_of_time():
    """Forty a second for a second each: forty connections, four of them open at the start."""
    work = Workload(
        name="w", prompt_tokens=20, output_tokens=10, rate=40.0, window_seconds=1.5, minimum_window_seconds=0.5
    )
    with reference(**SLOW) as (_, url):
        got = point(url, concurrency=1, work=work, flush=False)
    assert max(sum(a.sent_us <= b.sent_us < a.done_us for a in got.requests) for b in got.requests) > 20
    # On a machine that stands still for a moment, more than four may be due at once.
    assert got.about.client["reconnects"] <= 5


def test_an_open_loop_that_gives_up_requests_of_its_window_says_so():
    work = Workload(
        name="w", prompt_tokens=20, output_tokens=10, rate=20.0, window_seconds=0.8, minimum_window_seconds=0.5
    )
    with reference(**SLOW) as (_, url):
        got = point(url, work=work, flush=False, limits=Limits(drain_seconds=0.0))
    assert "drain_cut" in flags(got)


def test_progress_is_told():
    seen = []
    with reference() as (_, url):
        point(
            url,
            on_progress=seen.append,
            work=Workload(**{**WORK.to_mapping(), "window_seconds": 1.5, "minimum_window_seconds": 1.2}),
        )
    assert "window" in {progress.phase for progress in seen}
    assert all(progress.failed == 0 and progress.concurrency == 4 for progress in seen)


def test_probe_and_warm_up():
    with reference() as (_, url):
        target = Target(url)
        found = measure.run(warmup.probe(target, WORK))
        assert (found.prompt_tokens, found.output_tokens) == (20, 10)
        # TTFT of 10 ms on a grid of 5 ms, and a busy machine.
        assert 0.009 < found.ttft_seconds < 1
        passes = []
        warm = measure.run(warmup.warm_up(target, WORK, (1, 4), max_passes=3, on_pass=lambda *a: passes.append(a)))
    assert warm.requests == 1 + 5 * len(warm.passes)
    assert len(passes) == len(warm.passes) == len(warm.bursts) >= 2
    # Eight tokens, one each 5 ms after a TTFT of 10 ms: the rest of an answer takes 35 ms.
    assert [burst.concurrency for burst in warm.bursts[-1]] == [1, 4]
    assert all(burst.decode_seconds > 0.03 for burst in warm.bursts[-1])
    assert warm.to_mapping()["probe"]["prompt_tokens"] == 20


def test_a_warm_up_makes_two_whole_passes_however_long_they_take():
    """A kernel that is compiled for minutes uses up the time inside the first pass; the second covers every rung."""
    with reference() as (_, url):
        warm = measure.run(warmup.warm_up(Target(url), WORK, (1, 4), seconds=0.0))
    assert len(warm.passes) == 2
    assert [[burst.concurrency for burst in each] for each in warm.bursts] == [[1, 4], [1, 4]]


def test_the_longest_request_of_a_start_comes_first():
    """Of the workloads beside the ladder the longest that fits; what the engine cannot hold is left out."""
    long, huge = (Workload(name=f"w{n}", prompt_tokens=n, output_tokens=3) for n in (200, 20_000_000))
    with reference() as (server, url):
        warm = measure.run(warmup.warm_up(Target(url), WORK, (1,), beside=[WORK, long, huge]))
        # The first stream is the one that `detect` asked for.
        asked = [(stream.prompt, stream.tokens) for stream in server.streams[1:3]]
    assert asked == [(200, 3), (20, 10)]
    assert (warm.longest["workload"], warm.longest["prompt_tokens"]) == ("w200", 200)
    assert warm.to_mapping()["longest"] == warm.longest


def test_a_longest_request_that_is_refused_leaves_the_ladder_alone():
    long = Workload(name="long", prompt_tokens=200, output_tokens=3)
    with reference(faults={1: "refuse"}) as (_, url):
        warm = measure.run(warmup.warm_up(Target(url), WORK, (1,), beside=[long]))
    assert "HTTP 503: reference fault" in warm.longest["error"]
    assert warm.probe.output_tokens == 10


def test_a_point_measured_again_is_held_against_the_first_also_from_its_file(tmp_path):
    """Ten times as fast at the beginning: drifted, and the file of the requests says so too."""
    with reference() as (_, url):
        first = point(url).point
        fast = msgspec.structs.replace(
            first, output_tokens_per_second=10 * first.output_tokens_per_second, flags=[],
            output_tokens_per_second_half_width=0.001,
        )  # fmt: skip
        got = point(url, repeat=2, first=fast)
    got.write(tmp_path / "requests.jsonl.zst")
    again = reanalyse(tmp_path / "requests.jsonl.zst")
    drift = [flag for flag in again.flags if flag.id == "drifted"]
    # A busy machine may have made the point invalid, and such a point shows no drift.
    assert len(drift) == got.point.valid or not drift
    assert again.flags == got.point.flags
    valid = summarise([row for row in got.requests if row.ok], got.about)
    assert ("drifted" in {flag.id for flag in valid.flags}) == valid.valid


def test_a_probe_that_fails_says_why():
    with (
        reference(faults=dict.fromkeys(range(1, 99), "error")) as (_, url),
        pytest.raises(TargetError, match="reference fault"),
    ):
        measure.run(warmup.probe(Target(url), WORK))


def test_flush_is_seen():
    with reference() as (_, url):
        found = measure.run(warmup.flush_cache(Target(url)))
    assert (found.done, found.seen) == (True, True)


def test_load_and_idle():
    with reference() as (_, url):
        target = Target(url)
        assert measure.run(wait_idle(target, 1))
        assert measure.run(load_of(target))["running"] == 0


def test_detection():
    with reference() as (_, url):
        found = measure.run(detect(Target(url)))
    assert (found.kind, found.route, found.model, found.abilities) == ("sglang", "generate", "reference", Abilities())
    assert found.info_path == "/server_info"
    assert measure.run(detect(found)) is found


def test_it_runs_on_the_loop_of_the_standard_library_too():
    with reference() as (_, url):
        got = asyncio.run(measure.measure_point(Target(url), WORK, 2, telemetry=False))
    assert got.point.requests_failed == 0
