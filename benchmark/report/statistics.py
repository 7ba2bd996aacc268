"""What comparing needs of statistics: the tail of Student's t, and Holm's rule for many tests. Pure."""

from __future__ import annotations

import math


def t_tail(t: float, degrees: int) -> float:
    """Chance of a value at least as far from 0 as `t`, both sides together; of the normal law for 0 degrees.

    By the regularised incomplete beta function, I_x(n/2, 1/2) with x = n / (n + t^2) (Abramowitz and Stegun 26.5.27).
    """
    if degrees < 1:
        return math.erfc(abs(t) / math.sqrt(2))
    if not math.isfinite(t):
        return 0.0
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (A. and S. 26.5.8), with Lentz's method."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * fraction


def holm(tails: list[float], error: float) -> list[bool]:
    """Which of several differences are real, so that the chance of naming any false one is at most `error`.

    The smallest chance must be below error / n, the next below error / (n - 1), and so on until one is not.
    """
    real = [False] * len(tails)
    for place, index in enumerate(sorted(range(len(tails)), key=lambda i: tails[i])):
        if tails[index] > error / (len(tails) - place):
            break
        real[index] = True
    return real
