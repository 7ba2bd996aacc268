"""The live view of a sweep: bars on a terminal, one line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .sweep import Event, Sweep, Turn

_MARKS = {
    "measured": ("✓", "green"),
    "known": ("✓", "dim"),
    "failed": ("✗", "red"),
    "rejected": ("!", "yellow"),
    "deferred": ("-", "dim"),
    "waiting": ("·", "dim"),
}


class View(Protocol):
    def __enter__(self) -> View: ...

    def __exit__(self, *problem: object) -> None: ...

    def show(self, sweep: Sweep, events: list[Event]) -> None: ...

    def paused(self) -> AbstractContextManager[None]: ...


class PlainView:
    """One line an event, with the time since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def show(self, sweep: Sweep, events: list[Event]) -> None:
        for event in events:
            if event.plan:
                self._console.print(event.text, highlight=False, markup=False, soft_wrap=True)
                continue
            seconds = int(time.monotonic() - self._began)
            self._console.print(
                f"{seconds // 60:3d}:{seconds % 60:02d}  {event.text}", highlight=False, markup=False, soft_wrap=True
            )


class LiveView:
    """One bar a configuration, one step a point; what is running now, the best so far, and the time left."""

    def __init__(self, console: Console) -> None:
        self._sweep: Sweep | None = None
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._render)

    def _render(self) -> Group | Text:
        # Drawn anew twice a second, so that the time left goes down between two events.
        return render(self._sweep) if self._sweep else Text("preparing", "dim")

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._live.__exit__(*problem)  # type: ignore[arg-type]

    def show(self, sweep: Sweep, events: list[Event]) -> None:
        for event in events:
            if event.plan:
                self._live.console.print(event.text, highlight=False, markup=False)
        self._sweep = sweep

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bars away while something is asked."""
        self._live.stop()
        yield
        self._live.start(refresh=True)


def render(sweep: Sweep) -> Group:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(width=18)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    several = len({turn.host for turn in sweep.turns.values()}) > 1
    for turn in sweep.turns.values():
        mark, style = _MARKS.get(turn.state, (">", "cyan"))
        name = f"{turn.host} {turn.name}" if several else turn.name
        name += f" #{turn.start_number}" if turn.start_number > 1 else ""
        total = max(len(turn.rungs), 1)
        done = total if turn.over else len(turn.done)
        steps = f"{len(turn.done)}/{total}" if turn.rungs else ""
        bar = ProgressBar(total=total, completed=done, width=18, complete_style=style, finished_style=style)
        table.add_row(Text(mark, style), Text(name), bar, Text(steps), Text(_detail(turn), "dim" if turn.over else ""))
    return Group(table, Text(_footer(sweep), "dim"))


def _detail(turn: Turn) -> str:
    if turn.state in ("failed", "rejected", "deferred"):
        return turn.sentence or turn.state
    if turn.state == "waiting":
        return ""
    return f"{turn.state}: {turn.detail}" if not turn.over else turn.detail


def _before(sweep: Sweep) -> str:
    return "installing the tools on the host" if sweep.installing else "preparing"


def _footer(sweep: Sweep) -> str:
    parts = [f"{len(sweep.ended())} of {len(sweep.turns)} done"] if sweep.turns else [_before(sweep)]
    if best := sweep.best():
        parts.append(f"best so far {best.name} with {best.peak:,.0f} tok/s")
    if (left := sweep.seconds_left()) is not None and len(sweep.ended()) < len(sweep.turns):
        parts.append(f"about {int(left) // 60}:{int(left) % 60:02d} left")
    return "  ·  ".join(parts)
