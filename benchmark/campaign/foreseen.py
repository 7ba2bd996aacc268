"""The plan of a sweep in lines that a terminal shows before anything is stopped. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from . import schedule, turns
from .record import Record


def foreseen_lines(sweep: turns.HostSweep, records: Sequence[Record], found: turns.Outlook) -> list[str]:
    """What will be tried, in which order, how long it takes, and what will not be tried and why."""
    lines = [f"{sweep.host}: {_headline(sweep, found)}"]
    lines += [f"  {place}. {_turn(turn)}" for place, turn in enumerate(found.turns, 1)]
    if found.turns and sweep.asked.confidence == "full":
        lines.append("  then further starts of those that come close; the order follows what is measured.")
    lines += [
        f"  {row['configuration']}: measured before otherwise ({row['changed']}), so it is measured again."
        for row in turns.measured_otherwise(sweep, records)
    ]
    lines += [f"  {row['configuration']}: {row['why']}." for row in turns.kept(sweep, records)]
    lines += [f"  {row['configuration']}: not tried. {row['reason']}" for row in found.skipped]
    return lines


def looks_lines(asked: int, looks: int) -> list[str]:
    """Where a campaign keeps to other looks than this sweep asks for, why."""
    if asked < looks:
        return [f"  looks={looks}, as this campaign was asked for before: its error is shared among so many."]
    if asked > looks:
        return [
            f"  looks={looks}, not {asked}: the campaign's error was shared among {looks}, and starts for more of them "
            "would name nothing new. A campaign of its own (-e sglang_report_campaign=NAME) can have them."
        ]
    return []


def _headline(sweep: turns.HostSweep, found: turns.Outlook) -> str:
    if not found.turns:
        return "nothing is left to measure."
    whole = schedule.cost(sweep.scheduled(), sweep.settings())
    asked = sweep.asked
    budget = f", within a budget of {asked.budget_minutes:g} minutes" if asked.budget_minutes else ""
    foreseen = f"{_count(len(found.turns))} foreseen, about {schedule.minutes_told(found.minutes_left)}{budget}"
    if asked.confidence == "quick":
        return f"{foreseen}. Close calls are not decided (confidence=quick)."
    return f"{foreseen}; {_count(whole.starts)} at most."


def _count(starts: int) -> str:
    return f"{starts} engine start{'s' if starts != 1 else ''}"


def _turn(turn: schedule.Turn) -> str:
    again = f", start {turn.start_number}" if turn.start_number > 1 else ""
    return f"{turn.configuration}{again}: {schedule.minutes_told(turn.minutes)}. {turn.sentence}"
