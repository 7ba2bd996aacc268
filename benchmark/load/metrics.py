"""From the rows of a point to its summary. Pure: the same rows give the same point, now and years later.

Formulae (docs/measuring.md has them with reasons), for a window (a, b] and completed requests only:

    output tokens a second   tokens whose event arrived in the window / (b - a)
    TTFT                     first token event - sent (open loop: - intended); first token inside the window
    ITL                      gap between two token events of a stream, both inside the window; if the later one
                             carried k tokens, k times gap / k
    TPOT                     (last - first token event) / (tokens - tokens of the first event); ended in the window
    E2E                      end of the answer - sent (open loop: - intended); ended inside the window

Requests of a closed loop's first wave are in the throughput and ITL, not in TTFT, TPOT and E2E: they started together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..campaign.record import Point
from .rows import CANCELLED, RequestRow
from .statistics import batch_edges, half_width


class First(msgspec.Struct, frozen=True, kw_only=True):
    """What a point was when it was measured first on a start."""

    concurrency: int
    output_tokens_per_second: float
    output_tokens_per_second_half_width: float | None = None


def first_of(point: Point) -> First | None:
    """None if the point is invalid, or has no rate."""
    if not point.valid or not point.output_tokens_per_second:
        return None
    return First(
        concurrency=point.concurrency,
        output_tokens_per_second=point.output_tokens_per_second,
        output_tokens_per_second_half_width=point.output_tokens_per_second_half_width,
    )


class About(msgspec.Struct, kw_only=True):
    """What a summary needs beside the rows; the first line of a file of requests."""

    workload: dict[str, Any]
    concurrency: int
    repeat: int = 1
    started_at: str = ""
    route: str = ""
    window_start_us: int | None = None
    window_end_us: int | None = None
    ended_by: str | None = None
    """What ended the window: half_width, requests, time, failures."""
    client: dict[str, Any] = {}
    server: dict[str, Any] = {}
    telemetry: dict[str, Any] = {}
    first: First | None = None
    """Of a point that is measured again at the end of a start."""

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> About:
        return msgspec.convert(values, cls)

    def to_mapping(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    @property
    def rate(self) -> float | None:
        return self.workload.get("rate")


@dataclass(frozen=True)
class Figures:
    """What the rows say; seconds, tokens, per second. Checks look at these."""

    window: tuple[int, int]
    """Microseconds."""
    steady: bool
    """Whether there was a window; if not, all of the point's time stands in for it."""
    done: list[RequestRow]
    """Completed, at any time."""
    failed: list[RequestRow]
    late: np.ndarray
    """Open loop: seconds from the time at which each request was meant to leave until it left. Closed loop: empty."""
    cut: int
    """Requests that ran inside the window and were given up before they ended: their tokens are in no figure."""
    ttft: np.ndarray
    first_content: np.ndarray
    itl: np.ndarray
    itl_requests: int
    """Requests that those gaps are of."""
    decode_gap: float | None
    """Median gap between events in which nobody's first token came: a decode step alone; None if there is none."""
    tpot: np.ndarray
    e2e: np.ndarray
    window_tokens: float
    peak_tokens_per_second: float | None
    """In the busiest second of the window."""
    half_width: float
    halves: tuple[float, float] | None
    """Tokens a second in the first and in the second half of the window's turnovers; None below two of them."""
    prompt_tokens_in_window: int
    requests_in_window: int
    good_requests: int | None
    """Inside the stated limits, by their intended start; None in a closed loop or without limits."""

    @property
    def window_seconds(self) -> float:
        return (self.window[1] - self.window[0]) / 1e6

    @property
    def output_tokens_per_second(self) -> float | None:
        known = self.done and all(row.output_tokens is not None for row in self.done)
        return self.window_tokens / self.window_seconds if known and self.window_seconds > 0 else None


def figures(rows: list[RequestRow], about: About) -> Figures:
    """Everything that is derived from rows."""
    kept = [row for row in rows if row.error is None or CANCELLED not in row.error]
    done = [row for row in kept if row.ok]
    given_up = [row for row in rows if row.error is not None and CANCELLED in row.error]
    steady = about.window_start_us is not None and about.window_end_us is not None
    window = (about.window_start_us, about.window_end_us) if steady else whole_us(kept)
    a, b = window
    open_loop = about.rate is not None
    itl, itl_requests = _gaps(done, a, b)
    tokens, peak, width, halves = _throughput(done, a, b, 1 if open_loop else about.concurrency)
    counted = [row for row in done if not (row.first_wave and steady)]
    if open_loop:
        begun = ended = [row for row in counted if a < row.intended_us <= b]
    else:
        begun = [row for row in counted if row.token_us and a < row.token_us[0] <= b]
        ended = [row for row in counted if a < row.done_us <= b]
    begun = [row for row in begun if row.token_us]
    content = [row for row in begun if row.first_content_us is not None]
    return Figures(
        window=window,
        steady=steady,
        done=done,
        failed=[row for row in kept if not row.ok],
        late=np.array([row.sent_us - row.intended_us for row in ended] if open_loop else []) / 1e6,
        cut=sum(row.intended_us <= b for row in given_up) if steady else len(given_up),
        ttft=np.array([row.token_us[0] - row.intended_us for row in begun]) / 1e6,
        first_content=np.array([row.first_content_us - row.intended_us for row in content]) / 1e6,
        itl=itl,
        itl_requests=itl_requests,
        decode_gap=_decode_gap(kept, a, b),
        tpot=np.array([value for row in ended if (value := tpot_seconds(row)) is not None]),
        e2e=np.array([row.done_us - row.intended_us for row in ended]) / 1e6,
        window_tokens=tokens,
        peak_tokens_per_second=peak,
        half_width=width,
        halves=halves,
        prompt_tokens_in_window=sum(
            row.prompt_tokens or 0 for row in done if row.token_us and a < row.token_us[0] <= b
        ),
        requests_in_window=sum(1 for row in done if a < row.done_us <= b),
        good_requests=_good(ended, about) if open_loop else None,
    )


def tpot_seconds(row: RequestRow) -> float | None:
    """Seconds a token after the first event; None for fewer than two events or an unknown number of tokens."""
    counts = row.counts
    if len(counts) < 2:
        return None
    tokens = int(counts[-1] - counts[0])
    return (row.token_us[-1] - row.token_us[0]) / 1e6 / tokens if tokens > 0 else None


def tokens_per_event(done: list[RequestRow]) -> float | None:
    """Output tokens over token events of the answers that had both; None if none had."""
    known = [row for row in done if row.output_tokens and row.token_us]
    return sum(row.output_tokens for row in known) / sum(len(row.token_us) for row in known) if known else None


def whole_us(rows: list[RequestRow]) -> tuple[int, int]:
    """From the first request sent to the last answer complete, microseconds."""
    if not rows:
        return 0, 0
    return min(row.sent_us for row in rows), max(row.done_us for row in rows)


GRID_US = 100_000
"""The busiest second is looked for in steps of a tenth."""


def _by(row: RequestRow, moments: np.ndarray) -> np.ndarray:
    """Output tokens of a request that had come by each moment (microseconds, increasing)."""
    counts = row.counts
    if not len(counts):
        # Tokens without any token event (half a UTF-8 character, say) came with the end of the answer.
        return np.where(moments >= row.done_us, row.output_tokens or 0, 0)
    return np.concatenate(([0], counts))[np.searchsorted(row.times, moments, side="right")]


_Throughput = tuple[float, float | None, float, tuple[float, float] | None]


def _throughput(done: list[RequestRow], a: int, b: int, concurrency: int) -> _Throughput:
    """Tokens inside (a, b], the most in a second of it, the relative half-width of the rate, its halves' rates."""
    ends = np.array([a, *sorted(edge for row in done if a < (edge := _edge_us(row)) <= b)])
    batches = ends[batch_edges(len(ends), concurrency)]
    grid = np.arange(a, b + 1, GRID_US)
    turnovers = (len(ends) - 1) // max(1, concurrency)
    middle = ends[[0, concurrency * (turnovers // 2), concurrency * 2 * (turnovers // 2)]] if turnovers > 1 else []
    moments = np.concatenate(([a, b], batches, middle, grid))
    order = np.argsort(moments, kind="stable")
    totals = np.zeros(len(moments), dtype=np.int64)
    for row in done:
        totals[order] += _by(row, moments[order])
    at_batches, at_middle, at_grid = np.split(totals[2:], np.cumsum([len(batches), len(middle)]))
    steps = 1_000_000 // GRID_US
    peak = float((at_grid[steps:] - at_grid[:-steps]).max()) if len(at_grid) > steps else None
    halves = None
    if len(middle) and np.all(np.diff(middle) > 0):
        halves = tuple(float(rate) for rate in np.diff(at_middle) / np.diff(middle) * 1e6)
    return float(totals[1] - totals[0]), peak, half_width(batches, at_batches), halves


def _edge_us(row: RequestRow) -> int:
    """Half a gap after the answer's end: between two steps (see drive.between_steps_ns)."""
    times = row.token_us
    return row.done_us + (max(0, times[-1] - times[-2]) // 2 if len(times) > 1 else 0)


def _gaps(done: list[RequestRow], a: int, b: int) -> tuple[np.ndarray, int]:
    """Inter-token latencies in seconds, and of how many requests they are.

    Where tokens per event are not known for sure, the gaps between events.
    """
    parts = []
    for row in done:
        times = row.times
        first, last = np.searchsorted(times, (a, b), side="right")
        if last - first < 2:
            continue
        # Whole microseconds up to half a second are exact in 32 bits, and there are millions of gaps.
        gaps = np.diff(times[first:last]).astype(np.float32)
        if row.count_source == "reported" and row.token_counts:
            brought = np.diff(row.counts[first:last])
            gaps = np.repeat(gaps / brought.astype(np.float32), brought)
        parts.append(gaps)
    if not parts:
        return np.array([], dtype=np.float32), 0
    found = np.concatenate(parts)
    found /= 1e6
    return found, len(parts)


def _decode_gap(kept: list[RequestRow], a: int, b: int) -> float | None:
    """Seconds; see `Figures.decode_gap`. Where users are many and answers short, most gaps have a prefill in them."""
    first = np.sort([row.token_us[0] for row in kept if row.token_us])
    parts = []
    for row in kept:
        times = row.times
        times = times[slice(*np.searchsorted(times, (a, b), side="right"))]
        alone = np.searchsorted(first, times[1:], side="right") == np.searchsorted(first, times[:-1], side="right")
        parts.append(np.diff(times)[alone])
    gaps = np.concatenate(parts) if parts else np.array([])
    return float(np.median(gaps)) / 1e6 if gaps.size else None


def _good(ended: list[RequestRow], about: About) -> int | None:
    ttft_limit, tpot_limit = about.workload.get("ttft_limit_seconds"), about.workload.get("tpot_limit_seconds")
    if ttft_limit is None and tpot_limit is None:
        return None
    good = 0
    for row in ended:
        if not row.token_us:
            continue
        tpot = tpot_seconds(row)
        in_time = ttft_limit is None or (row.token_us[0] - row.intended_us) / 1e6 <= ttft_limit
        quick = tpot_limit is None or tpot is None or tpot <= tpot_limit
        good += in_time and quick
    return good
