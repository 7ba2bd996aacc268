"""The commands `sweep`, `report` and `compare`: a playbook run and watched, a table at the end."""

from __future__ import annotations

import json
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ..engine.models import shipped_shape
from ..engine.secrets import masked
from ..load.workload import NAMED
from ..report.compare import SideError, compare, read_side
from ..report.tables import comparison_text, terminal_table
from .extra import readable
from .judged import decided, written
from .objectives import PEAK
from .playbooks import NoProject, command_line, forks, run_plain, run_watched
from .progress import LiveView, PlainView, View
from .record import CampaignError, Record
from .statistics import LOOKS
from .store import Campaign
from .sweep import Sweep

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_WIDTH = 100
_ANSWER_SECONDS = 60
"""Less than a host waits for its controller before it takes itself back."""


def sweep_command(
    inventory: list[str],
    limit: str | None,
    variables: dict[str, Any],
    console: Console,
    *,
    extra: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Run sweep.yml with a live view. `extra` is what stood behind `-e`; `variables` win over it.

    Returns:
        0 when each configuration ended in an outcome, 1 when the sweep itself failed, 130 when it was interrupted.
    """
    out = Console(stderr=True) if as_json else console
    asks = _can_ask(out)
    typed = Typed(inventory, limit, readable(extra) | variables, extra)
    try:
        # A prompt of the playbook's own would not be seen: its output is read, not shown.
        fold, status, exit_status = _swept(
            inventory, limit, extra, variables | {"asks": "caller" if asks else "nobody"}, out
        )
        if asks and fold.serving and status != "canceled":
            if not _may_be_stopped(fold.serving, out):
                return _ended(fold, "Nothing was stopped, and nothing measured.", out, exit_status, as_json=as_json)
            fold, status, exit_status = _swept(inventory, limit, extra, variables | {"interrupt": True}, out)
    except NoProject as error:
        out.print(str(error), style="red", highlight=False)
        if as_json:
            _tell_machines(None, [str(error)])
        return _USAGE
    if status == "canceled":
        out.print("Interrupted. Giving the host back ...", highlight=False)
        with command_line(inventory, limit, extra, variables | {"sweep_tokens": fold.tokens}) as back:
            run_plain("playbooks/give_back.yml", back, out=sys.stderr if as_json else None)
        if fold.folder is not None:
            try:
                _written(Path(fold.folder))
            except CampaignError as error:
                out.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        told = "What was measured is kept; the same command goes on where it was."
        return _ended(fold, told, out, _INTERRUPTED, as_json=as_json)
    for error in fold.errors:
        out.print(error, style="red", highlight=False, markup=False, soft_wrap=True)
    if fold.folder is None:
        nobody = not fold.hosts_seen and not fold.errors
        told = "No host took part. Look at the inventory and --limit." if nobody else ""
        return _ended(fold, told, out, exit_status or _FAILED, as_json=as_json)
    if as_json:
        told = _tell_machines(Path(fold.folder), fold.errors)
        return exit_status or told
    try:
        shown = _show(Path(fold.folder), out, typed)
    except CampaignError as error:
        out.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        shown = _FAILED
    return exit_status or shown


def _can_ask(out: Console) -> bool:
    """Whether somebody sees a question and can answer it: what is read elsewhere is the input of somebody else."""
    return out.is_terminal and sys.stdin is not None and sys.stdin.isatty()


def _swept(
    inventory: list[str], limit: str | None, extra: Sequence[str], variables: dict[str, Any], out: Console
) -> tuple[Sweep, str, int]:
    """Run sweep.yml and show it: (what its events tell, ansible-runner's status, exit status)."""
    fold = Sweep(forks=forks())
    view = LiveView(out) if out.is_terminal else PlainView(out)
    stopping = _Interrupts(out, view)
    with stopping, view, command_line(inventory, limit, extra, variables) as arguments:
        status, exit_status = run_watched(
            "sweep.yml",
            arguments,
            lambda event: view.show(fold, fold.take(event)),
            stopping.asked,
        )
    return fold, status, exit_status


def _may_be_stopped(serving: Mapping[str, Sequence[str]], out: Console) -> bool:
    """Ask at the terminal, once for all hosts."""
    for host, units in serving.items():
        out.print(f"{', '.join(units)} serves on {host}.", markup=False, highlight=False)
    out.print("Stop it for the sweep? [y/N] ", end="", markup=False, highlight=False)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        return False


def _ended(fold: Sweep, told: str, out: Console, exit_status: int, *, as_json: bool) -> int:
    """The end of a sweep that was stopped or never began, with the decision so far for machines."""
    if told:
        out.print(told, highlight=False)
    if as_json:
        _tell_machines(Path(fold.folder) if fold.folder is not None else None, fold.errors)
    return exit_status


def _tell_machines(folder: Path | None, errors: Sequence[str]) -> int:
    """One JSON object on standard output, whatever came of the sweep: the decision so far, and "errors".

    Returns:
        0, or 1 where the campaign cannot be read.
    """
    decision: dict[str, Any] = {"winner": None}
    status, told = _OK, list(errors)
    if folder is not None:
        try:
            decision = decided(Campaign(folder.parent, folder.name))
        except CampaignError as error:
            status, told = _FAILED, [*told, str(error)]
    sys.stdout.write(json.dumps(decision | {"errors": told}, indent=1, sort_keys=True) + "\n")
    return status


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


def _show(folder: Path, console: Console, typed: Typed | None = None) -> int:
    campaign = Campaign(folder.parent, folder.name)
    records = campaign.records()
    decision = decided(campaign, records)
    console.print()
    width = min(console.width, _WIDTH)
    console.print(terminal_table(records, decision, width=width), highlight=False, markup=False)
    typed = typed or Typed(variables=_asked_before(campaign, records))
    console.print(_ending(folder, records, decision, typed), highlight=False, markup=False, soft_wrap=True)
    return _OK


def _asked_before(campaign: Campaign, records: list[Record]) -> dict[str, Any]:
    """What a campaign's last sweeps were asked for, where nobody typed it now."""
    asked = [sweep.asked for sweep in campaign.sweeps()]
    names = {str(record.workload.get("name") or "") for record in records}
    told: dict[str, Any] = {"workload": names.pop()} if len(names) == 1 and names <= NAMED.keys() else {}
    if asked:
        told["concurrencies"] = ",".join(map(str, sorted({rung for one in asked for rung in one.ladder})))
        told |= {"objective": asked[-1].objective} if asked[-1].objective != PEAK.name else {}
    return told


def _ending(folder: Path, records: list[Record], decision: dict[str, Any], typed: Typed) -> str:
    lines = []
    if decision["simulated"]:
        release = next(record.engine.version for record in records if record.simulated)
        lines.append(f"SIMULATED: SGLang {release} was simulated; no number here comes from a GPU.")
    winner = decision["winner"]
    lines.append(f"Winner: {winner['sentence']}" if winner else "No winner: no configuration has a valid point.")
    lines += [
        f"  on {host}: {own['sentence'] if own else 'nothing has a valid point.'}"
        for host, own in decision["winners_by_host"].items()
    ]
    lines += [
        f"One more start of {row['configuration']} on {row['host']} is wanted. {row['why']}"
        if row["starts"] == 1
        else f"{row['starts']} more starts of {row['configuration']} on {row['host']} are wanted. {row['why']}"
        for row in decision["more_starts"]
    ]
    lines.append(f"Report: {folder / 'report.html'}")
    if winner:
        lines += [told] if (told := _spent(decision)) else []
        lines += ["Next:", *(f"  {command}" for command in _next_commands(folder, decision, records, typed))]
    return "\n".join(lines)


def _next_commands(folder: Path, decision: dict[str, Any], records: list[Record], typed: Typed) -> list[str]:
    """The three commands that one may want now, with what was typed for this one."""
    winner = decision["winner"]
    # A name would put the winner of one host into service on hosts of another kind too.
    several = bool(decision["winners_by_host"])
    first = typed.promote_own(folder) if several else typed.promote(winner["configuration"])
    wanted = {row["configuration"] for row in decision["more_starts"]}
    failed = any(record.outcome == "failed" for record in records)
    if wanted and decision["confidence"] != "full":
        second = typed.sweep(confidence="full")
    elif decision["spent"]:
        # What came close, with an error and starts of its own.
        close = ",".join((winner["configuration"], *winner["close"]))
        own = {"sglang_report_campaign": f"{folder.name}-again"}
        second = typed.sweep(configs=close, confidence="full", looks=LOOKS, **own)
    elif wanted - {winner["configuration"]} or (wanted and winner["verdict"] == "undecided"):
        second = typed.sweep(retry="failed" if failed else "may_pass")  # goes on where it was
    elif wanted:
        # It is to be quoted, and was not started afresh.
        second = typed.sweep(configs=winner["configuration"], confidence="quick", retry="all")
    else:
        second = typed.sweep(retry="failed" if failed else "all")
    # Numbers of the simulated engine's quick workload are for looking around.
    quick = any(record.workload.get("name") == "quick" for record in records)
    there = [record for record in records if record.host.name == winner["host"]]
    third = typed.sweep(workload="chat", concurrencies="1,8,64,256") if quick else _search_command(there, typed)
    return [first, second, third]


def _spent(decision: dict[str, Any]) -> str:
    """What further starts cannot do any more; empty where there is something that they can."""
    if decision["spent"]:
        return str(decision["spent"])
    if decision["confidence"] == "full" and not decision["more_starts"]:
        return "Further starts narrow what is quoted; the error is spent, and they name nothing new."
    return ""


def _search_command(records: list[Record], typed: Typed) -> str:
    """`plan --search` for the model, GPUs, release and points of these records, as far as they tell them."""
    newest = max(records, key=lambda record: record.updated_at)
    model = newest.model.path if newest.model.path and _known_here(newest.model.path) else newest.model.name
    workload = str(newest.workload.get("name") or "")
    gpus = [str(gpu.get("name") or "") for gpu in newest.host.gpus]
    told = {
        "--model": model,
        "--hardware": f"{len(gpus)}x {gpus[0]}" if gpus and gpus[0] else "",
        "--release": newest.engine.version if newest.engine.name != "other" else "",
        "--workload": workload if workload in NAMED else "",
        "--concurrencies": _as_typed(typed.variables.get("concurrencies") or newest.ladder),
    }
    words = [word for option, value in told.items() if value for word in (option, value)]
    return shlex.join(["shardsweep", "plan", "--search", *words, *(["--simulated"] if newest.simulated else [])])


def _known_here(model: str) -> bool:
    return Path(model).exists() or shipped_shape(model) is not None


def _as_typed(value: Any) -> str:
    """A variable as an option takes it: a file of variables may hold a list."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Typed:
    """What the sweep was told on its command line, so that the next command can be told it as well."""

    inventory: Sequence[str] = ()
    limit: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    extra: Sequence[str] = ()
    """What stood behind `-e`."""

    _OPTIONS = ("concurrencies", "workload", "confidence", "budget", "objective", "retry", "after")

    def sweep(self, **changed: Any) -> str:
        """`shardsweep sweep` as it was typed, with these variables instead."""
        told = dict(self.variables) | changed
        words = [word for word in _as_typed(told.get("configs") or "").split(",") if word]
        for name in self._OPTIONS:
            if told.get(name) is not None:
                words += [f"--{name}", _as_typed(told[name])]
        words += ["--interrupt"] if told.get("interrupt") is True else []
        own = {*self._OPTIONS, "configs", "interrupt"}
        kept = [pair for pair in self.extra if pair.partition("=")[0] not in own | changed.keys()]
        kept += [f"{name}={value}" for name, value in changed.items() if name not in own]
        return self._line("sweep", words, kept)

    def promote(self, configuration: str) -> str:
        """With the settings of hosts and catalogue that were typed; the others speak of sweeps."""
        return self._line("promote", [configuration], self._settings())

    def promote_own(self, folder: Path) -> str:
        """Each host its own winner: that of the campaign in this folder, which is therefore named."""
        named = {"sglang_report_campaign": folder.name}
        if folder.parent != Path.cwd() / "campaigns":
            named["sglang_report_campaigns"] = str(folder.parent)
        kept = [pair for pair in self._settings() if pair.partition("=")[0] not in named]
        return self._line("promote", [], [*kept, *(f"{name}={value}" for name, value in named.items())])

    def _settings(self) -> list[str]:
        return [pair for pair in self.extra if pair.startswith(("@", "sglang_", "ansible_"))]

    def _line(self, command: str, words: Sequence[str], extra: Sequence[str]) -> str:
        ways = [*(word for name in self.inventory for word in ("-i", name))]
        ways += ["--limit", self.limit] if self.limit else []
        # A terminal's end is pasted into tickets: a password that was typed is not said again.
        told = (word for pair in extra for word in ("-e", masked(pair)))
        return shlex.join(["shardsweep", command, *words, *ways, *told])


class _Interrupts:
    """Ctrl-C: where it can ask, it asks once whether to stop; elsewhere it stops. So do `kill` and a terminal that
    is gone. Ending is in order either way.
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
            if not _can_ask(self._console) or self._confirmed():
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
    """A line from the terminal; empty after so many seconds, None if Ctrl-C was pressed meanwhile or it is gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if pressed.is_set():
            return None
        if select.select([sys.stdin], [], [], 0.1)[0]:
            return sys.stdin.readline() or None
    return ""
