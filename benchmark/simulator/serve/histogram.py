"""Latencies in buckets, as Prometheus wants them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

BUCKETS_SECONDS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0)


class Histogram:
    """Counts of seconds, cumulative by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        """One more observation."""
        self.counts[bisect.bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(upper bound, observations up to it), the last being `+Inf`."""
        total = 0
        for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total
