"""When a warm-up may end, by what an H200 did; and what points cost."""

import pytest

from benchmark.load import cost
from benchmark.load.warmup import BurstTimes, agree
from benchmark.load.workload import Workload

# Prefill of the bursts of 64 and of 256 prompts (512 tokens each), pass by pass, from the first prefill batch to the
# last one (sums of tokens / input throughput over the `Prefill batch` lines of docs/evidence/h200-one-gpu/logs).
MINI = [(0.415, 0.755), (0.197, 0.756), (0.158, 0.814), (0.166, 0.822), (0.162, 0.815)]
LPM = [(0.112, 0.812), (0.097, 0.728), (0.200, 0.832), (0.168, 0.837), (0.172, 0.831)]
FRAC50 = [(0.181, 0.633), (0.111, 0.632), (0.168, 0.738), (0.158, 0.835), (0.198, 0.847)]


def bursts(prefills, decode=0.1):
    return [BurstTimes(rung, seconds, decode) for rung, seconds in zip((64, 256), prefills, strict=True)]


def passes_needed(prefills):
    return next(i for i in range(2, 6) if agree(bursts(prefills[i - 2]), bursts(prefills[i - 1])))


@pytest.mark.parametrize(("prefills", "needed"), [(MINI, 3), (LPM, 2), (FRAC50, 2)])
def test_real_passes_agree(prefills, needed):
    """The first pass of `mini` paid 0.2 s once; all else is how bursts were cut into prefills."""
    assert passes_needed(prefills) == needed


# F1.18: the first cell pays what a warm-up has not.
def test_a_kernel_compiled_in_a_pass_is_waited_out():
    """2.5 s in the prefill of one rung, as on the captured machine; or 0.3 s in its decode."""
    assert not agree(bursts((0.16, 3.3)), bursts((0.16, 0.8)))
    assert not agree(bursts((0.16, 0.8)), bursts((0.16, 3.3)))
    assert not agree(bursts((0.16, 0.8), decode=0.4), bursts((0.16, 0.8), decode=0.1))


def test_passes_of_other_rungs_do_not_agree():
    assert not agree(bursts((0.1, 0.1)), bursts((0.1, 0.1))[:1])


def test_a_wave_at_1538_tokens_a_second():
    """256 answers of 512 tokens take 85.2 s: ramp half of that, a window of one turnover (a second one would end
    after 170 s, and a cap of 120 s stretches to 150 s at most), and one answer to drain."""
    answer = 256 * 512 / 1538
    found = cost.point_cost(Workload(name="w"), 256, answer)
    assert found.least == found.most == pytest.approx(2.5 * 85.2, abs=0.2)
    assert found.text == "3:33"


def test_a_wave_at_10000_tokens_a_second():
    """13.1 s a turnover: three of them fill the shortest window of 30 s, eleven end before 150 s."""
    found = cost.point_cost(Workload(name="w"), 256, 13.1)
    assert found.least == pytest.approx(1.5 * 13.1 + 3 * 13.1)
    assert found.most == pytest.approx(1.5 * 13.1 + 11 * 13.1)
    assert found.text == "0:59 to 2:44"


def test_a_turnover_that_is_longer_than_the_window_may_be():
    found = cost.point_cost(Workload(name="w"), 256, 400.0)
    assert found.least == found.most == pytest.approx(600 + 150)


def test_short_points():
    """One of ten tokens in 0.2 s: 16 of them take 3.2 s, the window lasts 30 s at least and 150 s at most."""
    found = cost.point_cost(Workload(name="w"), 1, 0.2)
    assert (found.least, found.most) == (pytest.approx(30.3), pytest.approx(150.3))
    assert cost.Cost(4.6, 12.2).text == "5 to 12 s"


def test_an_open_loop_lasts_as_long_as_it_is_told():
    work = Workload(name="w", rate=5.0, window_seconds=60.0)
    assert cost.point_cost(work, 1, 2.0) == cost.Cost(64.0, 64.0)


def test_the_cost_follows_from_the_warm_up():
    """7 steps in 0.14 s are 20 ms a token: 512 tokens take 10.24 s, and the prefills between them 1.5 s."""
    work = Workload(name="w", window_seconds=60.0)
    told = {"last_pass": [{"concurrency": 64, "prefill_seconds": 1.5, "decode_seconds": 0.14}]}
    answer = 11.74
    # Six turnovers end before 75 s.
    assert cost.from_warm_up(work, told)[64].most == pytest.approx((1.5 + 6) * answer)
    assert cost.from_warm_up(work, {}) == {}
