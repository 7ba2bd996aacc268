"""The commands `sweep`, `report` and `compare`: a playbook run and watched, a table at the end."""

from __future__ import annotations

import json
import select
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ..report.compare import SideError, compare, read_side
from ..report.tables import comparison_text, terminal_table
from .judged import decided, written
from .playbooks import NoProject, command_line, run_plain, run_watched
from .progress import LiveView, PlainView, View
from .record import CampaignError, Record
from .store import Campaign
from .sweep import Sweep

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_WIDTH = 100
_ANSWER_SECONDS = 60
"""Less than a host waits for its controller before it takes itself back."""


def sweep_command(
    inventory: list[str], limit: str | None, variables: dict[str, Any], console: Console, *, as_json: bool = False
) -> int:
    """Run sweep.yml with a live view.

    Returns:
        0 when each configuration ended in an outcome, 1 when the sweep itself failed, 130 when it was interrupted.
    """
    out = Console(stderr=True) if as_json else console
    fold = Sweep()
    view = LiveView(out) if out.is_terminal else PlainView(out)
    stopping = _Interrupts(out, view)
    arguments = command_line(inventory, limit, variables)
    try:
        with stopping, view:
            status, exit_status = run_watched(
                "sweep.yml", arguments, lambda event: view.show(fold, fold.take(event)), stopping.asked
            )
    except NoProject as error:
        out.print(str(error), style="red", highlight=False)
        return _USAGE
    if status == "canceled":
        out.print("Interrupted. Giving the host back ...", highlight=False)
        run_plain("playbooks/give_back.yml", command_line(inventory, limit, variables | {"sweep_tokens": fold.tokens}))
        if fold.folder is not None:
            try:
                _written(Path(fold.folder))
            except CampaignError as error:
                out.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        out.print("What was measured is kept; the same command goes on where it was.", highlight=False)
        return _INTERRUPTED
    for error in fold.errors:
        out.print(error, style="red", highlight=False, markup=False, soft_wrap=True)
    if fold.folder is None:
        if not fold.hosts_seen and not fold.errors:
            out.print("No host took part. Look at the inventory and --limit.", style="red", highlight=False)
        return exit_status or _FAILED
    try:
        shown = _show(Path(fold.folder), out, as_json=as_json)
    except CampaignError as error:
        out.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        shown = _FAILED
    return exit_status or shown


def _written(folder: Path) -> None:
    """The report as things stand: between two starts it is written once a minute."""
    campaign = Campaign(folder.parent, folder.name)
    with campaign.locked():
        written(campaign)


def report_command(folder: Path, console: Console) -> int:
    """Write a campaign's report again, and show its table."""
    folder = folder.resolve()
    campaign = Campaign(folder.parent, folder.name)
    try:
        with campaign.locked():
            if not campaign.records():
                console.print(f"There are no records below {folder}.", style="red", highlight=False)
                return _USAGE
            written(campaign)
        return _show(folder, console)
    except CampaignError as error:
        console.print(str(error), style="red", highlight=False)
        return _FAILED


def compare_command(before: str, after: str, console: Console) -> int:
    """Print what differs between two campaigns.

    Returns:
        0, 1 when they are not comparable (the text says why), 2 when one of them cannot be read.
    """
    try:
        found = compare(read_side(before), read_side(after), (before, after))
    except SideError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return _USAGE
    sys.stdout.write(comparison_text(found, width=min(console.width, _WIDTH)).rstrip() + "\n")
    return _OK if found.comparable else _FAILED


def _show(folder: Path, console: Console, *, as_json: bool = False) -> int:
    campaign = Campaign(folder.parent, folder.name)
    records = campaign.records()
    decision = decided(campaign, records)
    if as_json:
        sys.stdout.write(json.dumps(decision, indent=1, sort_keys=True) + "\n")
        return _OK
    console.print()
    width = min(console.width, _WIDTH)
    console.print(terminal_table(records, decision, width=width), highlight=False, markup=False)
    console.print(_ending(folder, records, decision), highlight=False, markup=False, soft_wrap=True)
    return _OK


def _ending(folder: Path, records: list[Record], decision: dict[str, Any]) -> str:
    lines = []
    if decision["simulated"]:
        release = next(record.engine.version for record in records if record.simulated)
        lines.append(f"SIMULATED: SGLang {release} was simulated; no number here comes from a GPU.")
    winner = decision["winner"]
    lines.append(f"Winner: {winner['sentence']}" if winner else "No winner: no configuration has a valid point.")
    lines.append(f"Report: {folder / 'report.html'}")
    if winner:
        lines += ["Next:", *(f"  {command}" for command in _next_commands(winner, decision, records))]
    return "\n".join(lines)


def _next_commands(winner: dict[str, Any], decision: dict[str, Any], records: list[Record]) -> list[str]:
    """The three commands that one may want now."""
    failed = any(record.outcome == "failed" for record in records)
    if decision["more_starts"]:
        second = "shardsweep sweep --confidence full"
    else:
        second = "shardsweep sweep --retry failed" if failed else "shardsweep sweep --retry all"
    # Numbers of the simulated engine's quick workload are for looking around.
    quick = any(record.workload.get("name") == "quick" for record in records)
    third = "shardsweep sweep --workload chat --concurrencies 1,8,64,256" if quick else "shardsweep plan --search"
    return [f"shardsweep promote {winner['configuration']}", second, third]


class _Interrupts:
    """Ctrl-C: at a terminal it asks once whether to stop, elsewhere it stops. So do `kill` and a terminal that is gone.
    Ending is in order either way.
    """

    def __init__(self, console: Console, view: View) -> None:
        self._console, self._view = console, view
        self._pressed, self._stop = threading.Event(), threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Interrupts:
        ways = {signal.SIGINT: self._ask, signal.SIGTERM: self._end, signal.SIGHUP: self._end}
        self._before = {number: signal.signal(number, way) for number, way in ways.items()}
        return self

    def __exit__(self, *problem: object) -> None:
        for number, way in self._before.items():
            signal.signal(number, way)

    def asked(self) -> bool:
        """Whether to stop; called between two events, so that the question does not come amidst one."""
        if self._pressed.is_set() and not self._stop.is_set():
            self._pressed.clear()
            if not self._console.is_terminal or self._confirmed():
                self._stop.set()
        return self._stop.is_set()

    def _confirmed(self) -> bool:
        with self._view.paused():
            self._console.print(
                "Stop the sweep? What was measured is kept, and the host is given back. [y/N, or Ctrl-C again] ",
                end="",
                markup=False,
                highlight=False,
            )
            answer = _line_within(_ANSWER_SECONDS, self._pressed)
        return answer is None or answer.strip().lower() in ("y", "yes")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._pressed.set()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()


def _line_within(seconds: float, pressed: threading.Event) -> str | None:
    """A line from the terminal; empty after so many seconds, None if Ctrl-C was pressed meanwhile."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if pressed.is_set():
            return None
        if select.select([sys.stdin], [], [], 0.1)[0]:
            return sys.stdin.readline()
    return ""
