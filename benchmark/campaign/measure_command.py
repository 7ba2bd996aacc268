"""The command `measure`: any running server, without Ansible; live numbers, the same record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..load.cost import Cost
from ..load.drive import Progress
from ..load.further import DOES_NOT_FIT, after_ladder
from ..load.measure import run
from ..load.statistics import bootstrap_interval, t_interval
from ..load.target import TargetError
from ..load.url import measure_url
from ..load.workload import WorkloadError, given
from .record import Point

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130


def measure_command(
    url: str,
    *,
    ladder: list[int],
    workload: str,
    also: list[str],
    rate: float | None,
    ttft_limit: float | None,
    tpot_limit: float | None,
    answers: bool,
    route: str,
    model: str | None,
    headers: Mapping[str, str],
    name: str,
    folder: Path | None,
    repeats: int,
    telemetry: bool,
    console: Console,
) -> int:
    """Measure and show.

    Args:
        also: points after the ladder, each WORKLOAD@CONCURRENCY.
        rate: requests a second of an open loop after the ladder, its goodput counted under the limits (seconds).
        answers: whether fixed prompts are asked at temperature 0.

    Returns:
        0 when each point is valid (or was left out since the server cannot hold its requests), 1 when one is not or
        the server cannot be measured, 2 for an unknown workload or point, 130 when interrupted (points that were
        finished are in the record, if a folder was given).
    """
    view = _View(console)
    try:
        work = given(workload)
        further = after_ladder(
            work,
            ladder,
            [_point_named(text) for text in also],
            rate=rate,
            ttft_limit_seconds=ttft_limit,
            tpot_limit_seconds=tpot_limit,
        )
        with view:
            record = run(
                measure_url(
                    url,
                    workload=work,
                    ladder=ladder,
                    further=further,
                    answers=answers,
                    repeats=repeats,
                    route=route,
                    model=model,
                    headers=headers,
                    name=name,
                    folder=folder,
                    telemetry=telemetry,
                    on_progress=view.progress,
                    on_cost=view.cost,
                    on_point=view.point,
                )
            )
    except WorkloadError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return _USAGE
    except TargetError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return _FAILED
    except KeyboardInterrupt:
        console.print("Interrupted.", highlight=False)
        return _INTERRUPTED
    if not console.is_terminal:
        console.print(view.table(), highlight=False)
    for line in across_repeats(record.points):
        console.print(line, highlight=False)
    if record.simulated:
        console.print("SIMULATED: this server is a simulated engine; no number here comes from a GPU.", highlight=False)
    for point in record.points:
        for flag in point.flags:
            line = f"{_label(point)}: {flag.severity}: {flag.message}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if folder is not None:
        console.print(f"Record: {folder / 'record.json'}", highlight=False, soft_wrap=True)
    left_out = [point for point in record.points if any(flag.id == DOES_NOT_FIT for flag in point.flags)]
    return _OK if all(point.valid or point in left_out for point in record.points) else _FAILED


def across_repeats(points: Sequence[Point]) -> list[str]:
    """Mean and 95 % interval (Student's t) of each point with valid repeats; the bootstrap's for their median TTFT.

    The first rung, which is always measured again at the end, has two.
    """
    groups: dict[tuple[str, int, float | None], list[Point]] = {}
    for point in points:
        if point.valid and point.output_tokens_per_second:
            groups.setdefault((point.workload, point.concurrency, point.rate), []).append(point)
    told = []
    for repeats in groups.values():
        if len(repeats) < 2:
            continue
        mean, width = t_interval([point.output_tokens_per_second or 0.0 for point in repeats])
        text = f"{_what(repeats[0])}, {len(repeats)} repeats: {mean:,.1f} +- {width:,.1f} tok/s"
        medians = [point.ttft_seconds.p50 for point in repeats if point.ttft_seconds]
        if len(medians) > 2:
            low, high = bootstrap_interval(medians)
            text += f", TTFT p50 {1e3 * low:,.0f} to {1e3 * high:,.0f} ms"
        told.append(text + " (95 %)")
    return told


def _point_named(text: str) -> dict[str, Any]:
    """`long_prompt@4` as a point after the ladder."""
    name, at, concurrency = text.partition("@")
    if at and not concurrency.isdecimal():
        raise WorkloadError(f"'{text}' is not WORKLOAD@CONCURRENCY, such as long_prompt@4.")
    return {"workload": name, "concurrency": int(concurrency) if at else 1}


def _label(point: Point) -> str:
    return _what(point) + (f", repeat {point.repeat}" if point.repeat > 1 else "")


def _what(point: Point) -> str:
    if point.rate is not None:
        return f"{point.workload} at {point.rate:g} requests a second"
    return f"{point.workload} at concurrency {point.concurrency}"


class _View:
    """A table that grows by a row a point; on a terminal also what is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._points: list[Point] = []
        self._progress: Progress | None = None
        self._expected = ""
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self.table) if console.is_terminal else None
        )

    def __enter__(self) -> _View:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._live:
            self._progress = None
            self._live.__exit__(*problem)  # type: ignore[arg-type]

    def progress(self, progress: Progress) -> None:
        self._progress = dataclasses.replace(progress)

    def cost(self, label: str, cost: Cost) -> None:
        """Before each point: what it will take."""
        self._expected = cost.text
        if not self._live:
            self._console.print(f"{label}: takes {cost.text}", highlight=False)

    def point(self, point: Point) -> None:
        self._points.append(point)
        self._progress = None
        if not self._live:
            rate, good = point.output_tokens_per_second, point.goodput_requests_per_second
            text = f"{_label(point)}: " + (f"{rate:,.1f} tok/s" if rate else "no rate")
            text += f", goodput {good:,.2f} requests a second" if good is not None else ""
            self._console.print(text, highlight=False)

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("workload", "C", "tok/s", "in tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "requests", ""):
            table.add_column(name, justify="left" if name in ("workload", "") else "right")
        for point in self._points:
            table.add_row(*_cells(point))
        if self._progress is not None:
            table.add_row(*_under_way(self._progress, self._expected))
        return table


def _cells(point: Point) -> tuple[str | Text, ...]:
    ttft, tpot = point.ttft_seconds, point.tpot_seconds
    good = point.goodput_requests_per_second
    return (
        point.workload,
        str(point.concurrency) if point.rate is None else f"{point.rate:g}/s",
        _shown(point.output_tokens_per_second, "{:,.1f}"),
        _shown(point.prompt_tokens_per_second, "{:,.0f}"),
        _shown(ttft and ttft.p50, "{:,.0f} ms", 1e3),
        _shown(ttft and ttft.p99, "{:,.0f} ms", 1e3),
        _shown(tpot and tpot.p50, "{:,.2f} ms", 1e3),
        _shown(tpot and tpot.p99, "{:,.2f} ms", 1e3),
        str(point.requests_completed) + (f" ({point.requests_failed} failed)" if point.requests_failed else ""),
        Text("invalid", "red") if not point.valid else "" if good is None else f"goodput {good:,.2f} requests/s",
    )


def _shown(value: float | None, form: str, factor: float = 1.0) -> str:
    """A figure, or a dash where there is none (a p99 of fewer than 1,000 requests, say)."""
    return "-" if value is None else form.format(value * factor)


def _under_way(progress: Progress, expected: str) -> tuple[str | Text, ...]:
    rate = progress.output_tokens_per_second
    left = f", {progress.remaining_seconds:.0f} s left at most" if progress.remaining_seconds else ""
    left = left or (f", takes {expected}" if expected else "")
    return (
        "",
        str(progress.concurrency),
        f"{rate:,.0f}" if rate else "",
        "",
        "",
        "",
        "",
        "",
        str(progress.completed),
        Text(f"{progress.phase}{left}", "dim"),
    )
