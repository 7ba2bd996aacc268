"""Comparing engine starts: pooled noise, effects as log ratios, many comparisons, repeated looks, drift. Pure.

The replicate is an engine start. Values enter as natural logarithms, one a start, so an effect of 0.05 is about 5 %.
`docs/deciding.md` tells the same in words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

ERROR = 0.05
"""Chance that any difference is named which is none, over all contenders and all looks."""
LOOKS = 4
"""How often the same contenders may be compared as starts are added."""
POWER = 0.8
TIE = 0.02
"""A difference whose whole interval lies inside so much is a tie."""
USUAL_NOISE = 0.02
"""Standard deviation of log throughput between starts, as a rule; nothing is concluded from it."""
ASSUMED_NOISE = 0.04
"""What is assumed where nothing was started twice: twice the usual, because one host may be worse than most. (Public
logs show one configuration re-measured 16 % apart.)"""
LEAST_NOISE = 0.003
"""Two runs are not told apart below this, however alike the repeats were."""


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


@functools.lru_cache(maxsize=4096)
def t_point(tail: float, degrees: int) -> float:
    """The value that Student's t exceeds, on both sides together, with chance `tail`; the normal law for 0 degrees.

    By Newton's method from the normal point, which lies below: the tail is convex, so no step goes too far.
    """
    if not 0 < tail < 1:
        raise ValueError(f"A chance lies between 0 and 1, not {tail}.")
    t = NormalDist().inv_cdf(1 - tail / 2)
    if degrees < 1:
        return t
    n = degrees
    scale = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
    for _ in range(200):
        step = (t_tail(t, n) - tail) / (2 * scale * (1 + t * t / n) ** (-(n + 1) / 2))
        t += step
        if abs(step) < 1e-10 * (1 + t):
            break
    return t


@dataclass(frozen=True)
class Noise:
    """Standard deviation of a logarithm between starts, and the degrees of freedom it rests on (0: assumed)."""

    deviation: float
    degrees: int

    @property
    def assumed(self) -> bool:
        return self.degrees == 0


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise:
    """Noise between starts, pooled over configurations: each group holds the logarithms of one configuration's starts.

    Pooling takes the noise to be alike for all of them; with two or three starts each there is no other way.
    """
    squares, degrees = 0.0, 0
    for logs in groups:
        if len(logs) > 1:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((x - mean) ** 2 for x in logs)
            degrees += len(logs) - 1
    if degrees == 0:
        return Noise(ASSUMED_NOISE, 0)
    return Noise(max(math.sqrt(squares / degrees), LEAST_NOISE), degrees)


@dataclass(frozen=True)
class Effect:
    """The log ratio of two configurations, its standard error, and how many starts each side had."""

    log: float
    error: float
    degrees: int
    starts: tuple[int, int]

    @property
    def ratio(self) -> float:
        return math.exp(self.log)

    @property
    def tail(self) -> float:
        """Chance of an effect at least this large if there were none, both sides."""
        return t_tail(self.log / self.error, self.degrees)

    def interval(self, level: float) -> tuple[float, float]:
        """Low and high of the ratio; misses the true one with chance `level`."""
        half = t_point(level, self.degrees) * self.error
        return bounded_exp(self.log - half), bounded_exp(self.log + half)

    def detectable(self, level: float) -> float:
        """The relative difference that these starts would have shown with a chance of 80 % (POWER).

        Source: the usual sum of two quantiles, (t_level + t_power) x standard error.
        """
        reach = t_point(level, self.degrees) + t_point(2 * (1 - POWER), self.degrees)
        return bounded_exp(reach * self.error) - 1


def bounded_exp(log: float) -> float:
    """exp, kept finite: an interval that wide says nothing anyway, and JSON knows no infinity."""
    return math.exp(min(max(log, -100.0), 100.0))


def effect(ours: Sequence[float], theirs: Sequence[float], noise: Noise, more: float = 0.0) -> Effect:
    """Ours over theirs, from the logarithms of each start. `more` is added to the sum of 1/n of both sides."""
    log = math.fsum(ours) / len(ours) - math.fsum(theirs) / len(theirs)
    error = noise.deviation * math.sqrt(1 / len(ours) + 1 / len(theirs) + more)
    return Effect(log, error, noise.degrees, (len(ours), len(theirs)))


def look_of(starts: int, looks: int) -> int:
    """Which of so many looks a contender is at: the second start brings the first real one."""
    return max(1, min(looks, starts - 1))


def look_error(look: int, looks: int) -> float:
    """The part of ERROR that one of so many looks may spend: ERROR x (sqrt(k/n) - sqrt((k-1)/n)); all of it, if one.

    Half of four goes to the first, where most campaigns end. Source: the power family of spending functions (Kim and
    DeMets, 1987) with exponent 1/2; looks are treated as separate tests (Bonferroni), which is never too bold.
    """
    return ERROR * (math.sqrt(look / looks) - math.sqrt((look - 1) / looks))


def holm_levels(tails: Sequence[float], errors: Sequence[float], contenders: int | None = None) -> list[float]:
    """The level at which each difference is to be judged, so that the chance of naming any false one stays bounded.

    Holm (1979): the smallest chance is held against error / n, the next against error / (n - 1), until one is above;
    the rest share that one's divisor. A difference is real if its chance is at most its level. `errors` may differ:
    a difference at a later look has less to spend, and its chance counts as that much larger.
    `contenders` is n where more were looked at than are compared.
    """
    count = max(contenders or 0, len(tails))
    order = sorted(range(len(tails)), key=lambda i: tails[i] / errors[i])
    levels = [0.0] * len(tails)
    stopped = 0
    for place, index in enumerate(order):
        divisor = stopped or count - place
        levels[index] = errors[index] / divisor
        if not stopped and tails[index] > levels[index]:
            stopped = divisor
    return levels


def verdict(low: float, high: float, *, more_is_better: bool = True) -> str:
    """`better`, `worse`, `tie` or `undecided`, from the interval of a ratio.

    What lies inside +-2 % is a tie, also where it leaves out 1: so small a difference is no reason to prefer anything.
    """
    if low >= 1 - TIE and high <= 1 + TIE:
        return "tie"
    if low > 1 or high < 1:
        return "better" if (low > 1) == more_is_better else "worse"
    return "undecided"


def more_starts(
    found: Effect, noise: Noise, level: float, settled: Callable[[float, float], bool], most: int = 20
) -> int | None:
    """How many further starts of each side would settle it, if the difference stays what it looks like; None if `most`
    do not.

    `settled` says whether an interval (low, high) of the ratio does.
    """
    ours, theirs = found.starts
    for extra in range(1, most + 1):
        error = noise.deviation * math.sqrt(1 / (ours + extra) + 1 / (theirs + extra))
        grown = Effect(found.log, error, noise.degrees + 2 * extra, (ours + extra, theirs + extra))
        if settled(*grown.interval(level)):
            return extra
    return None


@dataclass(frozen=True)
class Drift:
    """What the baseline's starts say about the host over time: log change an hour, with its 95 % interval."""

    per_hour: float
    low: float
    high: float
    hours: float
    """Between the first and the last start."""

    @property
    def seen(self) -> bool:
        """Whether the interval leaves out no drift at all."""
        return self.low > 0 or self.high < 0


def drift(hours: Sequence[float], logs: Sequence[float], noise: Noise) -> Drift | None:
    """Least squares of the baseline's logarithms over time, with the pooled noise; None below three starts."""
    if len(logs) < 3 or max(hours) - min(hours) <= 0:
        return None
    middle, mean = math.fsum(hours) / len(hours), math.fsum(logs) / len(logs)
    spread = math.fsum((x - middle) ** 2 for x in hours)
    slope = math.fsum((x - middle) * (y - mean) for x, y in zip(hours, logs, strict=True)) / spread
    half = t_point(ERROR, noise.degrees) * noise.deviation / math.sqrt(spread)
    return Drift(slope, slope - half, slope + half, max(hours) - min(hours))
