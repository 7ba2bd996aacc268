"""What makes a point invalid, or worth a word. Pure: rows and what was observed beside them in, flags out.

`invalid`: the figures do not say what they claim to; the point is a gap in pictures and never wins.
`warning`: they do, but under other conditions than asked for. `note`: how to read them.
"""

from __future__ import annotations

import numpy as np

from ..campaign.record import Flag
from .metrics import About, Figures, tokens_per_event
from .rows import RequestRow

FAILED_SHARE = 0.01
SHORT_SHARE = 0.01
CACHED_SHARE = 0.01
PROMPT_SHARE = 0.02
REACHED_SHARE = 0.95
CPU_SHARE = 0.95
WAITING_SHARE = 0.05
OFFERED_WARNING, OFFERED_INVALID = 0.99, 0.95
LATE_WARNING, LATE_INVALID = 0.01, 0.10
SHARED_WARNING, SHARED_INVALID = 0.01, 0.10
COUNTER_SHARE = 0.01
STEP_SHARE = 0.03
ALONE_STEPS_NEEDED = 120
LINE_STEPS = 40
"""A line of the log for so many decode steps, unless the server says otherwise."""
CHANGED_SHARE = 0.10
FEW_TOKENS_A_SECOND = 10
ONE_TOKEN = (0.8, 1.25)
"""Tokens an event that pass for one. No text is tokenized again; its events stand for that."""
CLOCK_STEP_SECONDS = 0.002


def flags(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    """All flags of a point, in the order in which they are looked for."""
    checks = (
        _failed, _warmed_up, _flushed, _drain_cut, _no_usage, _short, _window, _half_width, _changing,
        _prompt_lengths, _cached, _peak, _counts, _events_and_tokens, _client, _clock, _reached, _counters, _restart,
        _compile, _front_end, _telemetry,
    )  # fmt: skip
    return [flag for check in checks for flag in check(rows, about, found)]


def _flag(identifier: str, severity: str, message: str) -> list[Flag]:
    return [Flag(id=identifier, severity=severity, message=message)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _failed(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if about.ended_by == "failures":
        why = found.failed[-1].error if found.failed else "no reason"
        return _flag("aborted", "invalid", f"Given up after {len(found.failed)} failed requests; the last one: {why}")
    if not found.failed:
        return [] if found.done else _flag("no_requests", "invalid", "No request was completed.")
    total = len(found.failed) + len(found.done)
    share = len(found.failed) / total
    why = found.failed[0].error
    text = f"{len(found.failed)} of {total} requests failed ({_percent(share)}), the first one: {why}"
    return _flag("failed_requests", "invalid" if share > FAILED_SHARE else "warning", text)


def _warmed_up(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if about.server.get("warmed_up") is not False:
        return []
    text = "The last two passes of the warm-up did not agree: the engine may still have been compiling or settling."
    return _flag("not_warm", "warning", text)


def _flushed(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    flush = about.server.get("flush") or {}
    if about.server.get("kind") != "sglang" or not flush or (flush["done"] and flush["seen"]):
        return []
    if flush["done"]:
        return _flag(
            "flush_not_seen", "note", f"The cache was flushed; whether it is empty is not known: {flush['detail']}."
        )
    return _flag("not_flushed", "warning", f"The prefix cache was not flushed before the point: {flush['detail']}.")


def _drain_cut(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if not found.cut:
        return []
    text = (
        f"{found.cut} requests of the window had not ended when the load generator gave them up: their tokens are "
        "missing, and the slowest answers from every latency. Offer less, or measure with a lower concurrency."
    )
    return _flag("drain_cut", "invalid", text)


def _no_usage(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    missing = sum(row.output_tokens is None for row in found.done)
    if not missing:
        return []
    text = f"The server told no usage for {missing} of {len(found.done)} answers, so their tokens are not known."
    return _flag("no_usage", "invalid", text)


def _short(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    asked = sum(row.output_asked for row in found.done)
    made = sum(row.counted_tokens for row in found.done)
    if not asked or made >= asked or any(row.output_tokens is None for row in found.done):
        return []
    share = 1 - made / asked
    if about.workload.get("ignore_eos", True) is False:
        return _flag("ends_early", "note", f"Answers end where the model ends them: {_percent(share)} below the limit.")
    text = f"Answers hold {_percent(share)} fewer tokens than asked: the server ignores ignore_eos or cut them."
    return _flag("short_answers", "invalid" if share > SHORT_SHARE else "warning", text)


def _window(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if found.steady or about.ended_by == "failures":
        return []
    text = "The engine did not reach a steady state in the time given: ramp and drain are inside these figures."
    return _flag("not_steady", "invalid", text)


def _half_width(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    wanted = about.workload.get("half_width")
    if not found.steady or about.rate is not None or not wanted or found.half_width <= 2 * wanted:
        return []
    known = "no better than 100 %" if found.half_width > 1 else f"+-{_percent(found.half_width)}"
    text = f"Throughput is known to {known} (95 %) after {found.window_seconds:.1f} s; a longer window would tell more."
    return _flag("uncertain", "note", text)


def _changing(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if not found.steady or about.rate is not None or found.halves is None or not all(found.halves):
        return []
    before, after = found.halves
    if abs(after / before - 1) <= CHANGED_SHARE:
        return []
    text = (
        f"Throughput went from {before:,.0f} tok/s in the first half of the window to {after:,.0f} in the second: the "
        "engine had not settled (requests of equal length fall into step after a while); measure with a longer window."
    )
    return _flag("still_changing", "warning", text)


def _prompt_lengths(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    both = [row for row in found.done if row.prompt_tokens and row.prompt_asked]
    asked = sum(row.prompt_asked for row in both)
    if not asked:
        return []
    real = sum(row.prompt_tokens for row in both)
    if abs(real / asked - 1) <= PROMPT_SHARE:
        return []
    text = f"Prompts were {real / len(both):.0f} tokens long on average where {asked / len(both):.0f} were meant."
    return _flag("prompt_lengths", "warning", text)


def _cached(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    told = [row for row in found.done if row.cached_tokens is not None and row.prompt_tokens]
    total = sum(row.prompt_tokens for row in told)
    if not total or about.workload.get("kind") == "shared_prefix":
        return []
    share = sum(row.cached_tokens for row in told) / total
    if share <= CACHED_SHARE:
        return []
    text = f"{_percent(share)} of the prompt tokens came from the prefix cache: TTFT is not that of a new prompt."
    return _flag("cached_prompts", "invalid" if share > 0.1 else "warning", text)


def _peak(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    mean, peak = found.output_tokens_per_second, found.peak_tokens_per_second
    # A few tokens a second fall into one second or the next.
    if mean is None or peak is None or mean < FEW_TOKENS_A_SECOND or peak >= mean * 0.9:
        return []
    text = f"The busiest second had {peak:.0f} tokens, fewer than the mean of {mean:.0f}: the units do not match."
    return _flag("peak_below_mean", "invalid", text)


def _counts(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    spread = sum(row.count_source == "interpolated" for row in found.done)
    if not spread:
        return []
    text = (
        f"In {spread} of {len(found.done)} answers events and tokens differ in number: tokens inside the window are "
        "interpolated between events, and ITL is the gap between events."
    )
    return _flag("interpolated", "note", text)


def _events_and_tokens(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    """Text of a few events for many tokens, where neither speculation nor the server's settings account for it."""
    ratio, server = tokens_per_event(found.done), about.server
    if ratio is None or ONE_TOKEN[0] <= ratio <= ONE_TOKEN[1]:
        return []
    if ratio < ONE_TOKEN[0]:
        text = f"The server told {ratio:.2f} tokens for each event that brought text: its usage is too low to be true."
        return _flag("events_differ", "warning", text)
    if server.get("speculative_algorithm") or (server.get("stream_interval") or 1) > 1:
        return []
    text = (
        f"An event brought {ratio:.1f} tokens on average: a parser held text back, or the server speculates or streams "
        "in intervals. Throughput is from usage and stands; ITL, and TTFT if the first text was held, are the stream's."
    )
    return _flag("events_differ", "note", text)


def _client(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    client = about.client
    cpu, offered = client.get("cpu_share") or 0.0, client.get("offered_share")
    shared = client.get("shared_events_share") or 0.0
    lag, gap = client.get("loop_lag_p99_seconds") or 0.0, float(np.mean(found.itl)) if found.itl.size else 0.0
    if cpu > CPU_SHARE:
        text = f"The load generator used {_percent(cpu)} of a core: it was the limit, not the engine."
        return _flag("client_limit", "invalid", text)
    if offered is not None and offered < OFFERED_INVALID:
        text = (
            f"The load generator kept only {_percent(offered)} of the requests in flight; it was late to send the next."
        )
        return _flag("client_limit", "invalid", text)
    if shared > SHARED_WARNING and lag > gap / 2:
        # A server may send several events at once; late reads are the client's only if its loop was late as well.
        text = (
            f"{_percent(shared)} of the token events were read together with a later one of their stream, and so count "
            f"as late (the event loop was up to {lag * 1000:.1f} ms behind): the load generator was too slow."
        )
        severe = shared > SHARED_INVALID
        return _flag("client_limit" if severe else "client_late", "invalid" if severe else "warning", text)
    if found.late.size and found.ttft.size:
        late, ttft = float(np.percentile(found.late, 99)), float(np.median(found.ttft))
        if late > LATE_WARNING * ttft:
            severe = late > LATE_INVALID * ttft
            text = (
                f"Requests left up to {late * 1000:.1f} ms after the time they were meant for (p99), which is "
                f"{_percent(late / ttft)} of the median TTFT and inside it: the load generator was late."
            )
            return _flag("client_limit" if severe else "client_late", "invalid" if severe else "warning", text)
    if offered is not None and offered < OFFERED_WARNING:
        text = f"The load generator kept {_percent(offered)} of the requests in flight; it was late to send the next."
        return _flag("client_late", "warning", text)
    return []


def _clock(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    drift = about.client.get("clock_drift_seconds")
    if about.client.get("clock") == "loop":
        text = "Arrival times are the load generator's own, not the kernel's; they are late when it is busy."
        return _flag("loop_clock", "note", text)
    if drift is not None and abs(drift) > CLOCK_STEP_SECONDS:
        text = (
            f"The host's clock was stepped by {drift * 1000:.1f} ms during the point; times of arrival are off by it."
        )
        return _flag("clock_stepped", "invalid", text)
    return []


def _reached(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    server = about.server
    running, asked = server.get("running_mean"), about.concurrency
    if about.rate is not None or running is None or asked < 2 or running >= REACHED_SHARE * asked:
        return []
    waiting = server.get("waiting_mean") or 0.0
    if waiting < WAITING_SHARE * asked:
        # A few wait for their prefill at any moment; that is no limit.
        return []
    limits = [
        f"{name} {server[key]:.0f}"
        for name, key in (("max-running-requests", "max_running"), ("KV tokens", "capacity_tokens"))
        if server.get(key)
    ]
    text = (
        f"Of {asked} requests in flight the engine ran {running:.0f} and queued {waiting:.0f}"
        + (f" ({', '.join(limits)})" if limits else "")
        + ": more concurrency does not reach the GPUs."
    )
    return _flag("concurrency_not_reached", "warning", text)


def _counters(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    counted = about.server.get("generation_tokens")
    if counted is None or about.server.get("restarted"):
        return []
    mine = sum(row.output_tokens or 0 for row in rows)
    if any(not row.ok for row in rows) or mine == counted:
        return []
    if counted > mine * (1 + COUNTER_SHARE):
        text = f"The engine made {counted:.0f} tokens and the load generator got {mine}: others use this engine."
        return _flag("other_traffic", "invalid", text)
    text = f"The engine's own counter says {counted:.0f} output tokens, the load generator got {mine}."
    return _flag("counters_differ", "warning", text)


def _restart(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    if not about.server.get("restarted"):
        return []
    return _flag("server_restarted", "invalid", "The engine was restarted during the point: its counters began anew.")


def _compile(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    lines = about.server.get("compile_lines") or []
    if not lines:
        return []
    text = f"The engine compiled inside the window ({lines[0][:160]}): warm up longer and measure again."
    return _flag("compiled", "invalid", text)


def _front_end(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    for name, seen, step in (_while_decoding(about, found), _on_average(about, found)):
        # Below the step is no contradiction: the log's throughput has pauses between requests in it.
        if step and seen > step * (1 + STEP_SHARE):
            text = (
                f"HTTP front end or client limited: {name} is {seen * 1000:.2f} ms where the engine's log has decode "
                f"steps of {step * 1000:.2f} ms, so the GPUs waited."
            )
            return _flag("front_end_limit", "warning", text)
    return []


_Compared = tuple[str, float, float | None]
"""(what the client saw, its seconds, seconds of the engine's steps or None where the two cannot be compared)."""


def _while_decoding(about: About, found: Figures) -> _Compared:
    """Medians of both without any prefill in them: gaps in which nobody's first token came, and log lines likewise."""
    step = about.server.get("decode_alone_step_median_seconds")
    steps = about.server.get("decode_alone_lines", 0) * (about.server.get("decode_log_interval") or LINE_STEPS)
    # Where an event brings several tokens a gap is not one step.
    each = all(row.count_source != "interpolated" and not row.token_counts for row in found.done)
    if not (steps >= ALONE_STEPS_NEEDED and each and found.decode_gap is not None):
        return "the median gap without a prefill", 0.0, None
    return "the median gap without a prefill", found.decode_gap, step


def _on_average(about: About, found: Figures) -> _Compared:
    """Means of both with the prefills in them, if the log's lines fell where as many ran as on average.

    Where they fall behind a wave of ends, fewer run, and the quotient is shorter than a step.
    """
    step = about.server.get("decode_step_mean_seconds")
    full = min(about.concurrency, about.server.get("max_running") or about.concurrency)
    stands = about.server.get("log_running_mean", full) >= (1 - STEP_SHARE) * full
    if not (stands and found.tpot.size):
        return "TPOT", 0.0, None
    return "TPOT", float(found.tpot.mean()), step


def _telemetry(rows: list[RequestRow], about: About, found: Figures) -> list[Flag]:
    seen = about.telemetry
    flags: list[Flag] = []
    throttled = seen.get("throttled_share") or {}
    for reason, share in throttled.items():
        if share > 0.05:
            severity = "note" if reason == "power_cap" else "warning"
            text = f"Clocks were held down {_percent(share)} of the window: {reason.replace('_', ' ')}."
            flags += _flag(f"throttled_{reason}", severity, text)
    util, power = seen.get("utilization_mean"), seen.get("power_share_of_limit")
    if util is not None and power is not None and util >= 95 and power < 0.3:
        text = (
            f"GPUs report {util:.0f} % utilization at {_percent(power)} of their power limit: they wait for each other "
            "(communication) more than they compute."
        )
        flags += _flag("waiting_gpus", "note", text)
    return flags
