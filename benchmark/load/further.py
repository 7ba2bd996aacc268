"""What is measured on the same start after the ladder: other workloads, an open loop, the first rung again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..campaign.record import Flag, Point
from .workload import Workload, WorkloadError, named

if TYPE_CHECKING:
    # Of the host's verbs most need nothing of it, nor numpy.
    from .metrics import First

DRIFT_SHARE = 0.02
"""Two measurements of one point on one start agree within this (docs/measuring.md), or within their own half-widths."""
DOES_NOT_FIT = "does_not_fit"
OPEN = "_open"
"""Ends the name of a workload that is offered at a rate, so that no table mixes it with the closed loop's points."""


@dataclass(frozen=True)
class Further:
    """One point after the ladder."""

    workload: Workload
    concurrency: int
    repeat: int = 1
    ladder: tuple[int, ...] = ()
    """All concurrencies of this workload on the start: what its warm-up has to cover."""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.workload.name, self.concurrency, self.repeat

    @property
    def twin(self) -> str:
        """The workload whose warm-up serves: an open loop's requests are those of its closed loop."""
        return self.workload.name.removesuffix(OPEN) if self.workload.rate is not None else self.workload.name

    @property
    def label(self) -> str:
        if self.workload.rate is not None:
            return f"{self.workload.name} at {self.workload.rate:g} requests a second"
        again = " again" if self.repeat > 1 else ""
        return f"{self.workload.name} at concurrency {self.concurrency}{again}"

    def to_mapping(self) -> dict[str, Any]:
        """As a record keeps it, and a measuring job takes it."""
        return {
            "workload": self.workload.to_mapping(),
            "concurrency": self.concurrency,
            "repeat": self.repeat,
            "ladder": list(self.ladder),
            "label": self.label,
        }


def after_ladder(
    workload: Workload,
    ladder: Sequence[int],
    wanted: Sequence[Mapping[str, Any]] = (),
    *,
    rate: float | None = None,
    ttft_limit_seconds: float | None = None,
    tpot_limit_seconds: float | None = None,
    first_again: bool = True,
) -> list[Further]:
    """The points that follow a ladder, in order; the first rung again is the last of all.

    Args:
        wanted: {"workload": name or mapping, "concurrency": requests in flight} each.
        rate: requests a second of an open loop of the main workload; None: no such point.
        ttft_limit_seconds, tpot_limit_seconds: what its goodput is counted under.

    Raises:
        WorkloadError: a point that makes no sense, or two of one name and concurrency.
    """
    found = [_further(item) for item in wanted]
    rungs: dict[str, tuple[int, ...]] = {}
    for point in found:
        rungs[point.workload.name] = (*rungs.get(point.workload.name, ()), point.concurrency)
    found = [replace(point, ladder=rungs[point.workload.name]) for point in found]
    if rate is not None:
        limits = {
            "ttft_limit_seconds": ttft_limit_seconds or workload.ttft_limit_seconds,
            "tpot_limit_seconds": tpot_limit_seconds or workload.tpot_limit_seconds,
        }
        found.append(Further(open_loop(workload, rate, **limits), max(ladder, default=1), ladder=tuple(ladder)))
    if first_again and len(ladder) > 1:
        found.append(Further(workload, ladder[0], 2, tuple(ladder)))
    keys = [(workload.name, rung, 1) for rung in ladder] + [point.key for point in found]
    for key in keys:
        if keys.count(key) > 1:
            raise WorkloadError(
                f"workload {key[0]!r} at concurrency {key[1]} is asked for twice; give one another name."
            )
    return found


def open_loop(
    workload: Workload, rate: float, ttft_limit_seconds: float | None = None, tpot_limit_seconds: float | None = None
) -> Workload:
    """The same requests at a Poisson rate (requests a second), whatever the engine does.

    Raises:
        WorkloadError: the rate or a limit is not above zero, or no limit says what goodput is to be counted under.
    """
    if ttft_limit_seconds is None and tpot_limit_seconds is None:
        raise WorkloadError(
            f"workload {workload.name!r} at a rate needs ttft_limit or tpot_limit (seconds): goodput is counted under "
            "them."
        )
    return Workload.from_mapping(
        {
            **workload.to_mapping(),
            "name": workload.name + OPEN,
            "rate": rate,
            "ttft_limit_seconds": ttft_limit_seconds,
            "tpot_limit_seconds": tpot_limit_seconds,
        }
    )


def _further(item: Mapping[str, Any]) -> Further:
    if not isinstance(item, Mapping) or set(item) - {"workload", "concurrency"} or "workload" not in item:
        raise WorkloadError(f"{item!r} is no point after the ladder: it has a workload and a concurrency.")
    wanted, concurrency = item["workload"], item.get("concurrency", 1)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise WorkloadError(f"concurrency of {item!r} must be a whole number of at least 1.")
    return Further(named(wanted) if isinstance(wanted, str) else Workload.from_mapping(wanted), concurrency)


def too_long(workload: Workload, info: Mapping[str, Any]) -> str | None:
    """Why an engine cannot take a workload's requests, by what it tells of itself; None if nothing speaks against it.

    Args:
        info: `Target.info`: context_length and max_total_num_tokens, as far as they were told.
    """
    for key, what in (("context_length", "context length"), ("max_total_num_tokens", "KV cache")):
        room = info.get(key)
        if isinstance(room, int) and 0 < room < workload.longest_tokens:
            return f"its {what} of {room:,} tokens does not hold a request of {workload.longest_tokens:,}"
    return None


def gap(point: Further, why: str, started_at: str) -> Point:
    """A point that could not be measured: a gap in pictures, with its reason."""
    return Point(
        workload=point.workload.name,
        concurrency=point.concurrency,
        repeat=point.repeat,
        started_at=started_at,
        duration_seconds=0.0,
        window_seconds=0.0,
        requests_completed=0,
        requests_failed=0,
        prompt_tokens=0,
        output_tokens=0,
        rate=point.workload.rate,
        flags=[Flag(id=DOES_NOT_FIT, severity="invalid", message=f"{point.label} was left out: {why}.")],
    )


def drifted(first: First | None, again: Point) -> list[Flag]:
    """A warning if the first rung, measured again at the end of a start, is not what it was.

    The two agree within 2 %, or within the half-widths of both where those are wider: a short window cannot tell more.
    """
    if first is None or not again.valid or not again.output_tokens_per_second:
        return []
    rates = (first.output_tokens_per_second, again.output_tokens_per_second)
    change = rates[1] / rates[0] - 1
    widths = [point.output_tokens_per_second_half_width or 0.0 for point in (first, again)]
    if abs(change) <= max(DRIFT_SHARE, (widths[0] ** 2 + widths[1] ** 2) ** 0.5):
        return []
    text = (
        f"Measured again at the end of this start, concurrency {first.concurrency} gave {rates[1]:,.1f} tok/s after "
        f"{rates[0]:,.1f} at its beginning ({100 * change:+.1f} %): the engine changed meanwhile, and what lies "
        "between is uncertain by as much."
    )
    return [Flag(id="drifted", severity="warning", message=text)]
