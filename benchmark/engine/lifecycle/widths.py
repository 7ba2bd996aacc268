"""Splits that do not fit, with the next one to try in numbers."""

from __future__ import annotations

import math
import re

from .failure import LONGEST_LINE, Case, Failure

_LARGEST = 1 << 20
"""Of the numbers that are reckoned with: a log may hold any."""
_NUMBER = r"(\d{1,7})"
_OF_EXPERTS = re.compile(rf"\(\w+={_NUMBER} ?/ ?\w+={_NUMBER}\) ?% ?\w+={_NUMBER} == 0")
_OF_A_RANK = re.compile(rf"= ?{_NUMBER} is not divisible by [^=]{{0,80}}= ?{_NUMBER}")
_OF_ALL = re.compile(rf"\b{_NUMBER}\)? (?:must be (?:an? )?|is not )divisible by [^\d]{{0,80}}{_NUMBER}\b")
_OF_SETTINGS = re.compile(r"\b(\w{1,60}) must be (?:an? )?divisible by (?:--)?(\w{1,60})")


def too_few_gpus(case: Case) -> Failure:
    tp, pp, dp, nodes = (_setting(case, name) or 1 for name in ("tp_size", "pp_size", "dp_size", "nnodes"))
    # Attention's data parallelism shares the GPUs of the tensor-parallel group.
    dp = 1 if case.setting("enable_dp_attention") is True else dp
    needed = tp * pp * dp // nodes
    if needed < 2:
        taken, less = "more GPUs than the engine can see", ""
    else:
        split = f"tp {tp} x pp {pp}" + (f" x dp {dp}" if dp > 1 else "") + (f" over {nodes} nodes" if nodes > 1 else "")
        taken = f"{needed} GPUs ({split}), more than the engine can see"
        name, width = next((name, width) for name, width in (("dp", dp), ("tp", tp), ("pp", pp)) if width > 1)
        less = f", or take fewer (--{name}-size {width // 2})"
    return Failure(
        "too_few_gpus",
        "distributed",
        f"The configuration takes {taken}.",
        advice=f"Look at CUDA_VISIBLE_DEVICES and at nvidia-smi -L{less}.",
    )


def does_not_divide(case: Case) -> Failure:
    said, advice = _reckoned(case) or (
        "a width does not divide what it splits",
        "The evidence names the two numbers; choose widths that divide.",
    )
    return Failure("does_not_divide", case.stage, f"The engine refuses the split: {said}.", advice=advice)


def _reckoned(case: Case) -> tuple[str, str] | None:
    """What does not divide, and what would; None where the engine's words hold no numbers."""
    text = case.line.text[:LONGEST_LINE]
    for pattern, tell in ((_OF_EXPERTS, _experts), (_OF_A_RANK, _rank), (_OF_ALL, _all)):
        if found := pattern.search(text):
            numbers = [int(number) for number in found.groups()]
            return tell(case, *numbers) if all(0 < number < _LARGEST for number in numbers) else None
    if found := _OF_SETTINGS.search(text):
        return _settings(case, *found.groups())
    return None


def _experts(case: Case, whole: int, width: int, block: int) -> tuple[str, str]:
    """moe_tp_size = tp_size / ep_size has to leave whole blocks."""
    tp = _setting(case, "tp_size")
    fits = max((w for w in range(1, min(width, 1024)) if width % w == 0 and whole % (w * block) == 0), default=None)
    advice = "Split the experts' weights less: a larger --ep-size"
    if fits and tp and tp % fits == 0:
        advice += f", for example {tp // fits}: {whole} / {fits} is a multiple of {block}"
    return f"{whole} / {width} is no multiple of {block}", advice + "."


def _rank(case: Case, part: int, block: int) -> tuple[str, str]:
    """One rank's part of a layer is too small; as many GPUs as before make larger ones in a pipeline."""
    tp, pp, ep = (_setting(case, name) or 1 for name in ("tp_size", "pp_size", "ep_size"))
    times = block // math.gcd(part, block)
    ways = []
    if tp % times == 0:
        fewer = f" --ep-size {math.gcd(ep, tp // times)}" if (tp // times) % ep else ""
        ways.append(f"--tp-size {tp // times}{fewer} --pp-size {pp * times}")
    if tp % (ep * times) == 0:
        ways.append(f"for experts' weights --ep-size {ep * times}")
    advice = f"Split the layer {times} times less" + (f": {', or '.join(ways)}" if ways else "")
    return f"a rank's part of {part} is no multiple of {block}", advice + "."


def _all(_: Case, whole: int, width: int) -> tuple[str, str]:
    return f"{width} does not divide {whole}", f"Use a width that divides {whole}{_nearest(whole, width)}."


def _settings(case: Case, whole: str, width: str) -> tuple[str, str] | None:
    first, second = _setting(case, whole), _setting(case, width)
    if first is None or second is None:
        return None
    said = f"{whole} {first} is no multiple of {width} {second}"
    if whole in ("tp_size", "pp_size", "dp_size", "ep_size"):
        return said, f"Use a --{width.replace('_', '-')} that divides {first}{_nearest(first, second)}."
    above = -(-first // second) * second
    return said, f"Use a --{whole.replace('_', '-')} that is a multiple of {second}, for example {above}."


def _nearest(whole: int, width: int) -> str:
    """The divisors next to a width, `: 2 or 4`."""
    if width > 4096:
        return ""
    below = next((w for w in range(min(width, whole) - 1, 0, -1) if whole % w == 0), None)
    above = next((w for w in range(width + 1, min(whole, 4 * width) + 1) if whole % w == 0), None)
    near = [str(w) for w in (below, above) if w]
    return f": {' or '.join(near)}" if near else ""


def _setting(case: Case, name: str) -> int | None:
    value = case.setting(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST else None
