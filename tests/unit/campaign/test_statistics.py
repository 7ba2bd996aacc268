from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.campaign import statistics as stats


@pytest.mark.parametrize(
    ("tail", "degrees", "value"),
    [
        # Abramowitz and Stegun, table 26.10.
        (0.05, 1, 12.706),
        (0.05, 4, 2.776),
        (0.01, 2, 9.925),
        (0.001, 3, 12.924),
        (0.01, 10, 3.169),
        (0.05, 30, 2.042),
        (0.05, 120, 1.980),
        (0.05, 0, 1.960),
    ],
)
def test_points_of_students_t_are_those_of_the_table(tail, degrees, value):
    assert stats.t_point(tail, degrees) == pytest.approx(value, abs=6e-4)


@given(st.floats(1e-6, 0.999), st.integers(0, 60))
def test_the_point_of_a_tail_has_that_tail(tail, degrees):
    assert stats.t_tail(stats.t_point(tail, degrees), degrees) == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("tail", [0, 1, -0.1])
def test_a_chance_outside_0_to_1_is_refused(tail):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.t_point(tail, 3)


def test_noise_is_pooled_over_configurations():
    # Squares about their means: 0.0002 with one degree, 0.0008 with two; singles tell nothing.
    noise = stats.pooled_noise([[0.0, 0.02], [1.0, 1.02, 0.98], [5.0]])
    assert noise.degrees == 3
    assert noise.deviation == pytest.approx(math.sqrt(0.001 / 3))


def test_noise_is_assumed_where_nothing_was_started_twice():
    noise = stats.pooled_noise([[0.0], [1.0], []])
    assert (noise.deviation, noise.degrees, noise.assumed) == (0.04, 0, True)


def test_alike_repeats_do_not_make_noise_vanish():
    assert stats.pooled_noise([[1.0, 1.0]]).deviation == stats.LEAST_NOISE


def test_an_effect_is_a_log_ratio_with_the_error_of_both_sides():
    found = stats.effect([0.10, 0.12], [0.0, 0.01, 0.02], stats.Noise(0.02, 3))
    assert found.log == pytest.approx(0.10)
    assert found.error == pytest.approx(0.02 * math.sqrt(1 / 2 + 1 / 3))
    assert found.starts == (2, 3)
    low, high = found.interval(0.05)
    # t of 3 degrees is 3.182; half width 0.0581.
    assert (math.log(low), math.log(high)) == (pytest.approx(0.0419, abs=1e-4), pytest.approx(0.1581, abs=1e-4))


def test_the_detectable_differences_that_the_page_names():
    # Two starts against three, 2 % noise known from five further starts: error 0.01826, t(0.05, 5) = 2.571 and, for
    # four in five, t(0.4, 5) = 0.920: 3.491 x 0.01826 = 0.0637.
    found = stats.effect([0.0, 0.0], [0.0, 0.0, 0.0], stats.Noise(0.02, 5))
    assert found.detectable(0.05) == pytest.approx(math.expm1(0.0637), abs=2e-4)
    # The hardest of seven contenders: t(0.05 / 7, 5) = 4.38 by interpolation of the table.
    assert found.detectable(0.05 / 7) == pytest.approx(0.10, abs=0.004)


def test_the_detectable_difference_where_noise_is_well_known():
    # Two starts against three, 2 % noise, well known: (1.96 + 0.84) x 0.0183 = 0.0512.
    found = stats.effect([0.0, 0.0], [0.0, 0.0, 0.0], stats.Noise(0.02, 0))
    assert found.detectable(0.05) == pytest.approx(math.expm1(0.0512), abs=2e-4)


def test_looks_together_spend_no_more_than_the_error():
    parts = [stats.look_error(look, 4) for look in (1, 2, 3, 4)]
    assert parts[0] == pytest.approx(0.025)
    assert math.fsum(parts) == pytest.approx(0.05)
    assert [stats.look_of(starts, 4) for starts in (1, 2, 3, 4, 5, 9)] == [1, 1, 2, 3, 4, 4]


def test_one_look_has_the_whole_error():
    assert stats.look_error(1, 1) == pytest.approx(0.05)
    assert [stats.look_of(starts, 1) for starts in (1, 2, 5)] == [1, 1, 1]
    assert math.fsum(stats.look_error(look, 2) for look in (1, 2)) == pytest.approx(0.05)


def test_holm_lets_go_step_by_step_and_stops():
    # 0.01 <= 0.05/3; 0.02 <= 0.05/2; 0.2 > 0.05.
    assert stats.holm_levels([0.2, 0.01, 0.02], [0.05] * 3) == pytest.approx([0.05, 0.05 / 3, 0.025])
    # 0.03 > 0.05/2 stops, so 0.04 keeps the divisor 2 although it is below 0.05.
    assert stats.holm_levels([0.03, 0.04], [0.05] * 2) == pytest.approx([0.025, 0.025])
    # Contenders that were seen and not compared count.
    assert stats.holm_levels([0.01], [0.05], contenders=10) == pytest.approx([0.005])
    assert stats.holm_levels([], []) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_names_no_more_than_plain_tests_and_no_fewer_than_bonferroni(tails):
    levels = stats.holm_levels(tails, [0.05] * len(tails))
    for tail, level in zip(tails, levels, strict=True):
        assert 0.05 / len(tails) * 0.999 <= level <= 0.05
        if tail <= 0.05 / len(tails):
            assert tail <= level


@pytest.mark.parametrize(
    ("low", "high", "more", "verdict"),
    [
        (1.01, 1.2, True, "better"),
        (0.7, 0.9, True, "worse"),
        (0.7, 0.9, False, "better"),
        (0.985, 1.019, True, "tie"),
        # Inside +-2 % it is a tie, though it leaves out 1.
        (1.003, 1.012, True, "tie"),
        (0.985, 0.995, True, "tie"),
        (1.003, 1.012, False, "tie"),
        (1.003, 1.025, True, "better"),
        (0.97, 1.01, True, "undecided"),
    ],
)
def test_verdicts_of_an_interval(low, high, more, verdict):
    assert stats.verdict(low, high, more_is_better=more) == verdict


def told_apart(low, high):
    return stats.verdict(low, high) != "undecided"


def test_more_starts_are_as_many_as_the_interval_needs():
    noise = stats.Noise(0.02, 0)
    # With noise of 0 degrees the first extra start gives 2: t(0.05, 2) = 4.303; 4.303 x 0.02 = 0.086 > 0.05.
    # Two extra: t(4) = 2.776, error 0.02 x sqrt(2/3) = 0.0163, half 0.0453 < 0.05.
    found = stats.effect([0.05], [0.0], noise)
    assert stats.more_starts(found, noise, 0.05, told_apart) == 2
    wide = stats.Noise(0.3, 4)
    assert stats.more_starts(stats.effect([0.01], [0.0], wide), wide, 0.05, told_apart) is None


def test_drift_is_the_slope_of_the_baseline_over_time():
    found = stats.drift([0.0, 1.0, 2.0], [1.0, 1.01, 1.02], stats.Noise(0.001, 0))
    # Spread of the hours is 2; half width 1.96 x 0.001 / sqrt(2) = 0.00139.
    assert found.per_hour == pytest.approx(0.01)
    assert found.low == pytest.approx(0.01 - 0.001386, abs=1e-6)
    assert found.seen
    assert not stats.drift([0.0, 1.0, 2.0], [1.0, 1.01, 1.0], stats.Noise(0.02, 0)).seen
    assert stats.drift([0.0, 1.0], [1.0, 1.0], stats.Noise(0.02, 0)) is None
    assert stats.drift([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], stats.Noise(0.02, 0)) is None
