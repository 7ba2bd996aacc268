"""Percentiles, intervals and batch means. Formulae and their sources stand in docs/measuring.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..campaign.record import Distribution

REQUESTS_FOR_P99 = 1000
"""A 99th percentile of fewer requests rests on fewer than ten of them, so none is given. The gaps of one request are
no samples of their own: a pause is in all streams at once, or in most gaps of one."""

# Two-sided 95 % points of Student's t, by degrees of freedom (Abramowitz and Stegun, table 26.10).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
        2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
        2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


def distribution(values: Sequence[float] | np.ndarray, requests: int | None = None) -> Distribution | None:
    """A sample in numbers; None if it is empty. Percentiles are of type 7; p99 needs REQUESTS_FOR_P99 requests.

    `requests`: that the values are of; None: one value each.
    """
    array = np.asarray(values)
    array = array if array.dtype.kind == "f" else array.astype(float)
    if not array.size:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, (50, 90, 95, 99), method="linear"))
    return Distribution(
        count=int(array.size),
        mean=float(array.mean(dtype=float)),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99 if (array.size if requests is None else requests) >= REQUESTS_FOR_P99 else None,
        min=float(array.min()),
        max=float(array.max()),
    )


def t95(degrees: int) -> float:
    """The two-sided 95 % point of Student's t."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = 1.959964  # Cornish-Fisher expansion (A. and S. 26.7.5): within 0.001 from 30 degrees on.
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and 95 % half-width of independent values (repeats); the half-width of one value is infinite."""
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return float(array.mean()) if array.size else math.nan, math.inf
    return float(array.mean()), t95(array.size - 1) * float(array.std(ddof=1)) / math.sqrt(array.size)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], float] = lambda sample: float(np.median(sample)),
    *,
    draws: int = 2000,
    seed: int = 1,
) -> tuple[float, float]:
    """95 % percentile interval of a statistic (Efron and Tibshirani 1993, chapter 13); the same for the same seed."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    found = [statistic(array[random.integers(0, array.size, array.size)]) for _ in range(draws)]
    low, high = np.percentile(found, (2.5, 97.5))
    return float(low), float(high)


WHOLE_TURNOVERS = 4
"""From so many turnovers on they are the batches; fewer would leave too few degrees of freedom."""


def batch_edges(completions: int, concurrency: int = 1, batches: int = 10) -> np.ndarray:
    """Which of so many completions (the first one opens the window) part it into runs of equally many.

    Requests in flight turn over once with each `concurrency` completions. Where they march in step (equal lengths,
    prefills first), prefill and decode come by turns, and a run that holds a part of a turnover has a rate of its own;
    so runs are whole turnovers where there are enough of them.
    """
    if completions < 2:
        return np.arange(completions)
    turnovers = (completions - 1) // max(1, concurrency)
    if concurrency > 1 and turnovers >= WHOLE_TURNOVERS:
        return concurrency * np.unique(np.linspace(0, turnovers, min(batches, turnovers) + 1).astype(int))
    return np.unique(np.linspace(0, completions - 1, min(batches, completions - 1) + 1).astype(int))


def half_width(times: np.ndarray, totals: np.ndarray) -> float:
    """Relative 95 % half-width of a rate, by batch means between completions.

    Each batch is a time and a number of tokens. With R the overall rate, the variance of R is that of a ratio
    estimator (Cochran 1977, 2.11): sum (tokens - R time)^2 / (n (n - 1) mean time^2). Edges on completions keep a
    batch from cutting steps or requests in two.

    Args:
        times: of the batches' edges, increasing.
        totals: tokens by then.

    Returns:
        Half-width over rate; infinite for fewer than four batches with a duration.
    """
    seconds, tokens = np.diff(times).astype(float), np.diff(totals).astype(float)
    kept = seconds > 0
    count = int(kept.sum())
    if count < WHOLE_TURNOVERS or tokens.sum() <= 0:
        return math.inf
    if not kept.all():
        # Requests that end together: what came in no time belongs to the run before.
        groups = np.maximum(np.cumsum(kept) - 1, 0)
        tokens = np.bincount(groups, weights=tokens)
        seconds = np.bincount(groups, weights=seconds)
    rate = tokens.sum() / seconds.sum()
    error = math.sqrt(float(((tokens - rate * seconds) ** 2).sum()) / (count * (count - 1))) / float(seconds.mean())
    return t95(count - 1) * error / float(rate)
