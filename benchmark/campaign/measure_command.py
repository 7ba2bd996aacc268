"""The command `measure`: any running server, without Ansible; live numbers, the same record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..load.drive import Progress
from ..load.measure import run
from ..load.target import TargetError
from ..load.url import measure_url
from ..load.workload import WorkloadError, named
from .record import Point

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130


def measure_command(
    url: str,
    *,
    ladder: list[int],
    workload: str,
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

    Returns:
        0 when each point is valid, 1 when one is not or the server cannot be measured, 2 for an unknown workload,
        130 when interrupted (points that were finished are in the record, if a folder was given).
    """
    view = _View(console)
    try:
        work = named(workload)
        with view:
            record = run(
                measure_url(
                    url,
                    workloads=[work],
                    ladder=ladder,
                    repeats=repeats,
                    route=route,
                    model=model,
                    headers=headers,
                    name=name,
                    folder=folder,
                    telemetry=telemetry,
                    on_progress=view.progress,
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
    if record.simulated:
        console.print("SIMULATED: this server is a simulated engine; no number here comes from a GPU.", highlight=False)
    for point in record.points:
        for flag in point.flags:
            line = f"concurrency {point.concurrency}: {flag.severity}: {flag.message}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if folder is not None:
        console.print(f"Record: {folder / 'record.json'}", highlight=False, soft_wrap=True)
    return _OK if all(point.valid for point in record.points) else _FAILED


class _View:
    """A table that grows by a row a point; on a terminal also what is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._points: list[Point] = []
        self._progress: Progress | None = None
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

    def point(self, point: Point) -> None:
        self._points.append(point)
        self._progress = None
        if not self._live:
            rate = point.output_tokens_per_second
            text = f"concurrency {point.concurrency}: " + (f"{rate:,.1f} tok/s" if rate else "no rate")
            self._console.print(text, highlight=False)

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("concurrency", "tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "requests", ""):
            table.add_column(name, justify="right" if name else "left")
        for point in self._points:
            table.add_row(*_cells(point))
        if self._progress is not None:
            table.add_row(*_under_way(self._progress))
        return table


def _cells(point: Point) -> tuple[str | Text, ...]:
    ttft, tpot = point.ttft_seconds, point.tpot_seconds
    return (
        str(point.concurrency),
        f"{point.output_tokens_per_second:,.1f}" if point.output_tokens_per_second else "-",
        f"{ttft.p50 * 1e3:,.0f} ms" if ttft else "-",
        f"{ttft.p99 * 1e3:,.0f} ms" if ttft else "-",
        f"{tpot.p50 * 1e3:,.2f} ms" if tpot else "-",
        f"{tpot.p99 * 1e3:,.2f} ms" if tpot else "-",
        str(point.requests_completed) + (f" ({point.requests_failed} failed)" if point.requests_failed else ""),
        "" if point.valid else Text("invalid", "red"),
    )


def _under_way(progress: Progress) -> tuple[str | Text, ...]:
    rate = progress.output_tokens_per_second
    left = f", {progress.remaining_seconds:.0f} s left at most" if progress.remaining_seconds else ""
    return (
        str(progress.concurrency),
        f"{rate:,.0f}" if rate else "",
        "",
        "",
        "",
        "",
        str(progress.completed),
        Text(f"{progress.phase}{left}", "dim"),
    )
