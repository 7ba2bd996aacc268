"""A prediction: three numbers, never one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Range:
    """A predicted quantity: it should lie between `low` and `high`; `expected` is the best guess."""

    low: float
    expected: float
    high: float

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def plus(self, other: Range) -> Range:
        """The sum of two quantities whose errors go together."""
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def inverse(self, numerator: float = 1.0) -> Range:
        """numerator / quantity: a range of seconds becomes a range of rates."""
        return Range(numerator / self.high, numerator / self.expected, numerator / self.low)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        """high / low."""
        return self.high / self.low if self.low > 0 else float("inf")


def independent_sum(parts: Iterable[Range]) -> Range:
    """The sum of quantities whose errors are independent: deviations add in squares."""
    ranges = list(parts)
    expected = sum(part.expected for part in ranges)
    below = sqrt(sum((part.expected - part.low) ** 2 for part in ranges))
    above = sqrt(sum((part.high - part.expected) ** 2 for part in ranges))
    return Range(max(expected - below, 0.0), expected, expected + above)
