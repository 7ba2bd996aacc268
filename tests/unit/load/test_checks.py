"""What makes a point invalid, or worth a word."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmark.load import checks
from benchmark.load.metrics import About, figures
from benchmark.load.observe import log
from benchmark.load.rows import read_all
from benchmark.load.summary import reanalyse, summarise

from .made import about, row
from .replay import CAPTURES

ROOT = Path(__file__).parents[3]
GOOD = [row(i, 100 * i, range(100 * i + 50, 100 * i + 950, 100)) for i in range(20)]


def flags(rows, **more):
    return {flag.id: flag for flag in summarise(rows, about(0, 2000, **more)).flags}


def severities(rows, **more):
    # A few requests by hand, from an idle engine on: neither is told about here.
    short = ("uncertain", "still_changing")
    return {name: flag.severity for name, flag in flags(rows, **more).items() if name not in short}


def test_a_good_point_has_no_flag():
    assert severities(GOOD) == {}


def test_few_failures_warn_many_are_invalid():
    failed = row(99, 0, error="HTTP 503: busy")
    many = [row(i, 0, (100, 200)) for i in range(120)]
    assert severities([*many, failed]) == {"failed_requests": "warning"}
    found = flags([*GOOD, failed])["failed_requests"]
    assert found.severity == "invalid"
    assert "1 of 21" in found.message
    assert "HTTP 503: busy" in found.message


def test_given_up():
    assert severities([row(0, 0, error="gone")], given_up=True) == {"aborted": "invalid"}


def test_short_answers():
    short = [row(i, 100 * i, range(100 * i + 50, 100 * i + 950, 100), output_asked=10) for i in range(20)]
    assert severities(short) == {"short_answers": "invalid"}
    assert severities(short, workload={"ignore_eos": False}) == {"ends_early": "note"}


# F1.14: the label is what the server counted, not what was meant.
def test_prompt_lengths():
    rows = [row(i, 0, (100, 200), prompt_asked=128_000, prompt_tokens=82_800) for i in range(3)]
    assert "82800" in flags(rows)["prompt_lengths"].message
    near = [row(i, 0, (100, 200), prompt_asked=1000, prompt_tokens=1019) for i in range(3)]
    assert severities(near) == {}


# F1.16: cached prompts.
@pytest.mark.parametrize(("cached", "severity"), [(0, None), (1, None), (5, "warning"), (50, "invalid")])
def test_cached_prompts(cached, severity):
    rows = [row(i, 0, (100, 200), prompt_asked=100, prompt_tokens=100, cached_tokens=cached) for i in range(3)]
    assert severities(rows).get("cached_prompts") == severity
    assert severities(rows, workload={"kind": "shared_prefix"}) == {}


@pytest.mark.parametrize(("configuration", "rung", "flagged"), [("frac50", 64, True), ("frac50", 8, False)])
def test_an_engine_that_fell_into_step_inside_the_window(configuration, rung, flagged):
    """On a real H200, 64 requests of equal length: 4,000 tok/s while spread, 11,000 once in step."""
    folder = ROOT / "docs/evidence/h200-one-gpu/campaigns/mini-moe-short/h200" / configuration
    (path,) = folder.glob(f"*/requests-short-c{rung:03d}.jsonl.zst")
    found = [flag for flag in reanalyse(path).flags if flag.id == "still_changing"]
    assert [flag.severity for flag in found] == ["warning"] * flagged


# F1.7: vLLM's peak of 734 counted events, its mean of 1490.31 counted tokens.
@pytest.mark.parametrize(
    ("peak", "mean", "flagged"), [(734.0, 1490.31, True), (4951.0, 2962.79, False), (1.0, 3.0, False)]
)
def test_peak_below_mean(peak, mean, flagged):
    found = dataclasses.replace(
        figures(GOOD, about(0, 2000)), peak_tokens_per_second=peak, window_tokens=mean * 2, half_width=0.0, halves=None
    )
    assert [flag.id for flag in checks.flags(GOOD, about(0, 2000), found)] == ["peak_below_mean"] * flagged


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ({"cpu_share": 0.5, "offered_share": 0.999}, {}),
        ({"cpu_share": 0.97, "offered_share": 0.999}, {"client_limit": "invalid"}),
        ({"cpu_share": 0.5, "offered_share": 0.98}, {"client_late": "warning"}),
        ({"cpu_share": 0.5, "offered_share": 0.90}, {"client_limit": "invalid"}),
        ({"shared_events_share": 0.4, "loop_lag_p99_seconds": 0.08}, {"client_limit": "invalid"}),
        ({"shared_events_share": 0.05, "loop_lag_p99_seconds": 0.08}, {"client_late": "warning"}),
        # Many events a read and a loop that is in time: the server sends them so.
        ({"shared_events_share": 0.4, "loop_lag_p99_seconds": 0.002}, {}),
        ({"clock": "loop"}, {"loop_clock": "note"}),
        ({"clock": "kernel", "clock_drift_seconds": 0.5}, {"clock_stepped": "invalid"}),
    ],
)
def test_client(client, expected):
    assert severities(GOOD, client=client) == expected


@pytest.mark.parametrize(
    ("late", "expected"), [(0, {}), (2, {"client_late": "warning"}), (900, {"client_limit": "invalid"})]
)
def test_an_open_loop_whose_requests_leave_late(late, expected):
    """TTFT is 50 ms after sending: 2 ms late are 4 % of the 52 then told, 900 ms are 95 % of 950."""
    rows = [
        row(i, 10 * i + late, [10 * i + late + 50 + 10 * k for k in range(5)], intended_us=10_000 * i)
        for i in range(1, 101)
    ]
    assert severities(rows, workload={"rate": 100.0}) == expected
    assert summarise(rows, about(0, 2000, workload={"rate": 100.0})).client["send_late_p99_seconds"] == late / 1000


# F1.17: KV 478,992 tokens, 32 x 16k wanted: the engine runs 29 and queues the rest.
def test_concurrency_not_reached():
    server = {"running_mean": 26.0, "waiting_mean": 6.0, "capacity_tokens": 478992, "max_running": 256}
    found = flags(GOOD, concurrency=32, server=server)["concurrency_not_reached"]
    assert found.severity == "warning"
    assert "ran 26 and queued 6" in found.message
    assert "KV tokens 478992" in found.message
    assert severities(GOOD, concurrency=32, server={"running_mean": 31.0, "waiting_mean": 0.5}) == {}
    assert severities(GOOD, concurrency=32, server={"running_mean": 30.0, "waiting_mean": 0.5}) == {}


def test_counters():
    made = sum(item.output_tokens for item in GOOD)
    assert severities(GOOD, server={"generation_tokens": made}) == {}
    assert severities(GOOD, server={"generation_tokens": made + 1}) == {"counters_differ": "warning"}
    assert severities(GOOD, server={"generation_tokens": 2 * made}) == {"other_traffic": "invalid"}


def test_a_warm_up_whose_passes_did_not_agree():
    assert severities(GOOD, server={"warmed_up": True}) == {}
    assert severities(GOOD, server={"warmed_up": False}) == {"not_warm": "warning"}


@pytest.mark.parametrize(
    ("kind", "done", "seen", "expected"),
    [
        ("sglang", True, True, {}),
        ("sglang", True, False, {"flush_not_seen": "note"}),
        ("sglang", False, True, {"not_flushed": "warning"}),
        ("openai", False, False, {}),
    ],
)
def test_flush(kind, done, seen, expected):
    assert severities(GOOD, server={"kind": kind, "flush": {"done": done, "seen": seen, "detail": "why"}}) == expected


def test_restart():
    assert severities(GOOD, server={"restarted": True}) == {"server_restarted": "invalid"}


def test_compile_lines():
    found = flags(GOOD, server=log.summary("[2026-11-29 11:44:51] nvcc -O3 kernel.cu\n"))
    assert found["compiled"].severity == "invalid"
    assert "nvcc" in found["compiled"].message


def captured_log(first, last):
    """Lines of the log between two times (seconds since the launch, which start most lines)."""
    lines = re.findall(r"^ *(\d+\.\d+) (.*)$", (CAPTURES / "bench_serving" / "mini.log").read_text(), re.MULTILINE)
    return "\n".join(text for at, text in lines if first <= float(at) <= last)


# Concurrency: between which seconds of the captured log bench_serving ran; median of the log's lines that ran all
# requests and have no prefill before them, by hand (64: 20,708.63, 20,243.19, 20,623.15, 20,172.43, 23,635.60 and
# 22,773.24 tok/s; 256: 41,889.98, 44,850.16 and 44,549.22), milliseconds; whether the front end was the limit.
CAPTURED_LIMITS = {1: (114.9, 116.1, 1.61, False), 8: (142.0, 144.0, 2.07, False), 64: (165.5, 171.2, 3.097, True),
                   256: (190.5, 202.2, 5.746, True)}  # fmt: skip


@pytest.mark.parametrize("concurrency", CAPTURED_LIMITS)
def test_front_end_limit_on_the_capture(concurrency):
    """The client's median gap beside the engine's steps: at 64 and at 256 the GPU waited."""
    first, last, step, limited = CAPTURED_LIMITS[concurrency]
    found = log.summary(captured_log(first, last), concurrency)
    assert found["decode_alone_step_median_seconds"] * 1000 == pytest.approx(step, rel=0.005)
    reports = [json.loads(line) for line in (CAPTURES / "bench_serving" / "mini_bench.jsonl").open()]
    (report,) = [each for each in reports if each["max_concurrency"] == concurrency]
    gap = report["median_itl_ms"]
    rows = [row(i, 0, [100 + gap * k for k in range(80)]) for i in range(20)]
    flagged = flags(rows, server=found, concurrency=concurrency).get("front_end_limit")
    assert (flagged is not None) == limited
    if flagged:
        assert flagged.severity == "warning"
        (seen,) = re.findall(r"gap without a prefill is ([\d.]+) ms", flagged.message)
        assert float(seen) == pytest.approx(gap, abs=0.02)
        assert f"steps of {step:.2f} ms" in flagged.message


EVIDENCE = ROOT / "docs/evidence/h200-one-gpu/second"


@pytest.mark.parametrize(
    ("file", "gap", "limited"),
    [
        # K2's slice at 256: two requests end a step, most gaps hold a prefill (median ITL 64.9 ms), the GPU is busy.
        ("campaigns/slice/k2-slice-short/slice/k2_085/*/requests-short-c256.jsonl.zst", 27.1, False),
        ("campaigns/slice/k2-slice-short/slice/k2_085/*/requests-short-c008.jsonl.zst", 5.61, False),
        # A small model whose steps of 6 ms one front end does not pass on.
        ("compare/requests-c256-r2.jsonl.zst", 20.1, True),
    ],
)
def test_prefills_of_others_are_not_held_against_the_front_end(file, gap, limited):
    (path,) = EVIDENCE.glob(file)
    about, kept = read_all(path)
    # Its log had a line for 10 steps, and two such lines at 256: taken for enough here.
    about["server"]["decode_log_interval"] = 60
    found = figures(kept, About.from_mapping(about))
    assert found.decode_gap * 1000 == pytest.approx(gap, rel=0.005)
    flagged = summarise(kept, About.from_mapping(about)).flags
    assert any(flag.id == "front_end_limit" for flag in flagged) == limited


def test_front_end_limit_on_average():
    """The log's mean step beside the mean TPOT, prefills in both."""
    slow = [row(i, 0, [100 + 4.4 * k for k in range(100)]) for i in range(20)]
    found = flags(slow, server={"decode_step_mean_seconds": 0.0031})["front_end_limit"]
    assert found.severity == "warning"
    assert "TPOT is 4.40 ms" in found.message
    fine = [row(i, 0, [100 + 3.15 * k for k in range(100)]) for i in range(20)]
    assert severities(fine, server={"decode_step_mean_seconds": 0.0031}) == {}


def test_several_tokens_an_event_are_not_held_against_single_steps():
    """Steps of 10 ms that bring two tokens each: gaps of 10 ms between events, 5 ms a token by the log."""
    rows = [row(i, 0, range(100, 1100, 10), counts=list(range(2, 202, 2)), source="interpolated") for i in range(20)]
    server = {"decode_alone_step_median_seconds": 0.005, "decode_alone_lines": 9}
    assert "front_end_limit" not in flags(rows, server=server)
    single = [row(i, 0, range(100, 1100, 10)) for i in range(20)]
    assert "front_end_limit" in flags(single, server=server)
    assert "front_end_limit" not in flags(single, server=server | {"decode_alone_lines": 2})
    assert "front_end_limit" not in flags(single, server=server | {"decode_log_interval": 10})


def test_a_log_between_waves_does_not_blame_the_front_end():
    """An H200 at 256 in flight: lines fell where 164 ran, so 18.45 ms a step by the log beside a TPOT of 26.60."""
    slow = [row(i, 0, [100 + 26.6 * k for k in range(70)]) for i in range(20)]
    server = {"decode_step_mean_seconds": 0.01845, "log_running_mean": 163.8, "max_running": 256}
    assert "front_end_limit" not in flags(slow, server=server, concurrency=256)
    assert "front_end_limit" in flags(slow, server=server | {"log_running_mean": 255.0}, concurrency=256)


def test_interpolated_is_noted():
    rows = [row(i, 0, range(100, 600, 100), counts=[1, 2, 4, 5, 6], source="interpolated") for i in range(3)]
    assert severities(rows) == {"interpolated": "note"}


# F1.8 (sglang PR#36272): 6,400 tokens whose text came in 32 events; and more events than tokens.
def test_events_and_tokens_that_differ():
    held = [row(i, 0, range(100, 420, 10), counts=list(range(200, 6401, 200)), source="reported") for i in range(3)]
    found = flags(held)["events_differ"]
    assert found.severity == "note"
    assert "200.0 tokens on average" in found.message
    assert summarise(held, about(0, 2000)).client["tokens_per_event"] == 200
    assert "events_differ" not in flags(held, server={"speculative_algorithm": "EAGLE"})
    assert "events_differ" not in flags(held, server={"stream_interval": 200})
    few = [row(i, 0, range(100, 600, 100), output_tokens=3, source="reported") for i in range(3)]
    assert flags(few)["events_differ"].severity == "warning"


def test_throttling_and_waiting_gpus():
    telemetry = {"throttled_share": {"hardware_thermal": 0.4, "power_cap": 0.9, "power_brake": 0.01}}
    assert severities(GOOD, telemetry=telemetry) == {
        "throttled_hardware_thermal": "warning",
        "throttled_power_cap": "note",
    }
    # F2.32: 100 % utilization at 140 W of 600 W.
    waiting = {"utilization_mean": 100.0, "power_share_of_limit": 140 / 600}
    assert severities(GOOD, telemetry=waiting) == {"waiting_gpus": "note"}
    assert severities(GOOD, telemetry={"utilization_mean": 100.0, "power_share_of_limit": 0.7}) == {}
