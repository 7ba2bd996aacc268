"""A sweep of one host as the controller runs it: what was asked for, which starts are still to make, and why. Pure.

`schedule.py` decides; here is what a sweep adds to it: records of earlier sweeps, of which some count, some go on and
some are tried again; and the turns that this sweep has taken, so that none is taken twice.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..engine.configuration import measured_inputs
from ..load.further import OPEN
from ..load.workload import NAMED
from . import schedule
from .objectives import GOODPUT, LONG_PROMPT_TOKENS, PEAK, SINGLE_STREAM, objective
from .record import CampaignError, Record

Retry = Literal["may_pass", "failed", "all", "none"]


class SweepError(CampaignError):
    """A sweep that was asked for in a way that makes no sense; the text says what to change."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How the sweep was asked for."""

    ladder: list[int]
    confidence: Literal["quick", "full"] = "full"
    objective: str = PEAK.name
    budget_minutes: float | None = None
    looks: int = 1
    """How often finalists that are not told apart are compared at most; each further time both are started again."""
    retry: Retry = "may_pass"
    """Which records of earlier sweeps are measured again: those whose failure may pass, all failed ones, none; or
    `all`: everything is started once more, beside what is there."""
    start_minutes: float = 20.0
    point_minutes: float = 2.0


class Taken(msgspec.Struct, frozen=True):
    """One turn that this sweep has handed out."""

    configuration: str
    start_number: int


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration's record would be called now, and from what."""

    fingerprint: str
    of: dict[str, Any] = {}
    further: list[tuple[str, int, int]] = []
    """(workload, concurrency, repeat) of the points that follow the ladder on a first start."""


class HostSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep of one host, as it is kept beside its records."""

    host: str
    asked: Asked
    plan: list[dict[str, Any]]
    """[{"name", "verdict", "sentence", "configuration", "plan"}]: of engine/sweep.py, this host's share."""
    fingerprints: dict[str, Known] = {}
    began_at: str = ""
    taken: list[Taken] = []
    before: dict[str, int] = {}
    """With `retry=all`: how many starts of each there were."""
    through: bool | None = None
    """Whether it was asked for a turn when none was left; one that was cut off was not. None: it is not known."""
    skipped: list[dict[str, Any]] = []
    """What it is not going to try, and why, as of its last turn."""
    carried: list[dict[str, Any]] = []
    """What sweeps before it were not going to try, of configurations that this one does not name."""

    def scheduled(self) -> list[dict[str, Any]]:
        """The plan as schedule.py takes it: `plan=off` tries what the plan itself would reject."""
        return [
            {"configuration": e["configuration"], "plan": (e.get("plan") or {}) | {"verdict": e["verdict"]}}
            for e in self.plan
        ]

    def settings(self) -> schedule.Settings:
        asked = self.asked
        return schedule.Settings(
            ladder=tuple(sorted(asked.ladder)),
            confidence=asked.confidence,
            objective=objective(asked.objective),
            budget_minutes=asked.budget_minutes,
            looks=asked.looks,
            start_minutes=asked.start_minutes,
            point_minutes=asked.point_minutes,
            further_points=max((len(known.further) for known in self.fingerprints.values()), default=0),
        )


def asked_for(text: bytes) -> HostSweep:
    """A sweep that is asked for, from JSON.

    Raises:
        SweepError: a setting that does not exist, one out of its range, or an objective that nothing would tell.
    """
    sweep = kept_sweep(text)
    if why := _not_measured(sweep):
        raise SweepError(why)
    if sweep.asked.budget_minutes is not None and sweep.asked.budget_minutes <= 0:
        raise SweepError(f"A budget of {sweep.asked.budget_minutes:g} minutes holds nothing; say -e budget=120.")
    return sweep


def kept_sweep(text: bytes) -> HostSweep:
    """A sweep as it was kept, from JSON.

    Raises:
        SweepError: a setting that does not exist, or one out of its range.
    """
    try:
        sweep = msgspec.json.decode(text, type=HostSweep)
        sweep.settings()
    except (msgspec.MsgspecError, ValueError) as error:
        raise SweepError(f"This sweep cannot be: {error}") from error
    return sweep


def _not_measured(sweep: HostSweep) -> str:
    """Why no point of this sweep would tell its objective, and what to ask for; empty where one does."""
    by, ladder = sweep.settings().objective, sorted(sweep.asked.ladder)
    if by.concurrency is not None and by.concurrency not in ladder:
        rungs = ",".join(map(str, sorted({by.concurrency, *ladder})))
        return (
            f"The objective {by.name} is read at concurrency {by.concurrency}, which is not on the ladder: "
            f"say -e concurrencies={rungs}."
        )
    known = list(sweep.fingerprints.values())
    if not known:
        return ""  # nothing is to be started, or a dry run has not asked the host
    after = {name for found in known for name, _, repeat in found.further if repeat == 1}
    if by.name == GOODPUT.name and not any(name.endswith(OPEN) for name in after):
        return (
            "The objective goodput is read from an open loop, and none is measured: say at how many requests a second "
            "and under which limits, such as -e rate=2 -e ttft_limit=2 -e tpot_limit=0.05."
        )
    works = [found.of["workload"] for found in known if isinstance(found.of.get("workload"), dict)]
    lengths = [work.get("prompt_tokens") for work in works]
    beside = [NAMED[name].prompt_tokens if name in NAMED else None for name in after if not name.endswith(OPEN)]
    told = [tokens for tokens in (*lengths, *beside) if isinstance(tokens, int)]
    # A workload of the user's own beside the ladder is not known here.
    if by.long_prompts and works and None not in beside and max(told, default=0) < LONG_PROMPT_TOKENS:
        return (
            f"The objective {by.name} is read from prompts of {LONG_PROMPT_TOKENS:,} tokens and more, and none is "
            "measured: say -e workload=long_prompt, or name one in sglang_benchmark_further."
        )
    return ""


def opened(
    sweep: HostSweep, records: Iterable[Record], now: dt.datetime, earlier: HostSweep | None = None
) -> HostSweep:
    """The sweep as it begins.

    Args:
        earlier: the host's last one. Where it was this one, and was cut off, its starts are those of this one.
    """
    before: dict[str, int] = {}
    if earlier is not None and _goes_on(sweep, earlier):
        before = earlier.before
    elif sweep.asked.retry == "all":
        for record in _own(sweep, records):
            name = record.configuration.name
            before[name] = max(before.get(name, 0), record.start_number)
    return msgspec.structs.replace(
        sweep, began_at=now.isoformat(timespec="seconds"), taken=[], before=before, through=False
    )


def _goes_on(sweep: HostSweep, earlier: HostSweep) -> bool:
    def inputs(of: HostSweep) -> dict[str, str]:
        return {name: known.fingerprint for name, known in of.fingerprints.items()}

    return earlier.through is False and earlier.asked == sweep.asked and inputs(earlier) == inputs(sweep)


def with_looks(sweep: HostSweep, looks: int) -> HostSweep:
    """The sweep, asked for with so many looks."""
    return msgspec.structs.replace(sweep, asked=msgspec.structs.replace(sweep.asked, looks=looks))


def following(sweep: HostSweep, earlier: HostSweep) -> HostSweep:
    """The sweep, behind another of its host: what that one left out and this one does not name is left out still."""
    named = {entry["name"] for entry in sweep.plan}
    rows = {row["configuration"]: row for row in (*earlier.carried, *earlier.skipped)}
    return msgspec.structs.replace(sweep, carried=[row for name, row in rows.items() if name not in named])


def _own(sweep: HostSweep, records: Iterable[Record]) -> list[Record]:
    """Records of this host whose inputs are still those of the configuration."""
    known = sweep.fingerprints
    return [
        r
        for r in records
        if r.host.name == sweep.host
        and r.configuration.name in known
        and r.fingerprint == known[r.configuration.name].fingerprint
    ]


def counting(sweep: HostSweep, records: Iterable[Record]) -> list[Record]:
    """The records that need no turn any more: complete ones of earlier sweeps, and whatever this sweep has tried."""
    records = list(records)
    made = _made(sweep, records)
    found = []
    for record in _own(sweep, records):
        name, number = record.configuration.name, record.start_number - sweep.before.get(record.configuration.name, 0)
        if number < 1:
            continue
        if (name, record.start_number) in made or _stands(sweep, record):
            found.append(msgspec.structs.replace(record, start_number=number))
    # Where the first start has to go on, it comes before what followed it.
    begun = {record.configuration.name for record in found if record.start_number == 1}
    return [record for record in found if record.configuration.name in begun]


def _made(sweep: HostSweep, records: Iterable[Record]) -> set[tuple[str, int]]:
    """The starts that this sweep has tried for good: (configuration, start number).

    One that failed in a way that may pass another time is tried once more in the same sweep, and not twice.
    """
    turns = [(t.configuration, t.start_number) for t in sweep.taken]
    if sweep.asked.retry == "none":
        return set(turns)
    again = {
        (r.configuration.name, r.start_number)
        for r in _own(sweep, records)
        if r.outcome == "failed" and r.failure is not None and r.failure.may_pass
    }
    return {turn for turn in turns if turn not in again or turns.count(turn) > 1}


def _stands(sweep: HostSweep, record: Record) -> bool:
    """Whether a record of an earlier sweep is left as it is."""
    retry = sweep.asked.retry
    if record.outcome == "failed" and record.failure is not None:
        # With `all` it is one of this sweep's own, from before it was cut off.
        return not (retry == "failed" or (retry in ("may_pass", "all") and record.failure.may_pass))
    if not record.complete and record.outcome == "measured":
        return False  # whole perhaps, but not closed: its host was lost before it could be, and has no fact of it
    # A first start has the whole ladder; a later one only the rungs that it was made for.
    if record.start_number > 1:
        return record.covers(record.ladder)
    here = {(p.workload, p.concurrency, p.repeat) for p in record.points}
    return record.covers(sweep.asked.ladder) and here.issuperset(sweep.fingerprints[record.configuration.name].further)


@dataclass(frozen=True)
class Outlook:
    """Where a sweep stands: the starts still to make as foreseen now, what is skipped and why, minutes spent."""

    turns: list[schedule.Turn]
    skipped: list[dict[str, Any]]
    spent_minutes: float

    @property
    def minutes_left(self) -> float:
        return sum(turn.minutes for turn in self.turns)


def look(sweep: HostSweep, records: Sequence[Record], now: dt.datetime) -> Outlook:
    """Where the sweep stands; the first turn is next, the rest may change."""
    there, settings, spent = counting(sweep, records), sweep.settings(), _spent(sweep, now)
    made = _made(sweep, records)
    turns = [
        dataclasses.replace(turn, start_number=turn.start_number + sweep.before.get(turn.configuration, 0))
        for turn in schedule.next_turns(sweep.scheduled(), there, settings, spent)
    ]
    turns = [turn for turn in turns if (turn.configuration, turn.start_number) not in made]
    # What was tried without leaving a record is not skipped: it says so where it was tried.
    seen = {turn.configuration for turn in turns} | {name for name, _ in made}
    skipped = schedule.skipped(sweep.scheduled(), there, settings, spent)
    return Outlook(turns, [row for row in skipped if row["configuration"] not in seen], spent)


def taken(sweep: HostSweep, found: Outlook) -> HostSweep:
    """The sweep with the next turn handed out, if there is one."""
    turns = [Taken(turn.configuration, turn.start_number) for turn in found.turns[:1]]
    return msgspec.structs.replace(sweep, taken=[*sweep.taken, *turns], skipped=found.skipped, through=not turns)


def told(sweep: HostSweep, records: Sequence[Record], turn: schedule.Turn) -> dict[str, Any]:
    """A turn for whoever makes it, with what its ladder is held against.

    Only a first start may leave its ladder early: a repeat has no rung too many, and the baseline is what others are
    held against.
    """
    by = sweep.settings().objective
    peaks = [r.peak() for r in counting(sweep, records)]
    rates = [p.output_tokens_per_second for p in peaks if p and p.output_tokens_per_second]
    best = max(rates) if rates and turn.purpose == "explore" else None
    # The bound is one of throughput; another objective asks for the whole ladder.
    by_throughput = by.of_point is PEAK.of_point
    needed = {SINGLE_STREAM.concurrency, by.concurrency} if by_throughput else set(sweep.asked.ladder)
    return dataclasses.asdict(turn) | {"best": best, "needed": sorted(rung for rung in needed if rung)}


def most_turns(sweep: HostSweep) -> int:
    """No sweep of this plan makes more starts, each of them tried twice."""
    tries = 1 if sweep.asked.retry == "none" else 2
    return tries * schedule.cost(sweep.scheduled(), sweep.settings()).starts


def baseline_lacks(sweep: HostSweep, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Starts of the baseline that a full sweep makes and has not made, such as for want of minutes: a row of
    `more_starts` (decide.py), or none.
    """
    if sweep.asked.confidence != "full":
        return []
    settings = sweep.settings()
    name, there = schedule.baseline_starts(sweep.scheduled(), _own(sweep, records), settings) or ("", 0)
    lacking = settings.baseline_starts - there
    if not there or lacking <= 0:
        return []
    why = f"The baseline has {there} of its {settings.baseline_starts} starts, and drift is estimated from all of them."
    return [{"configuration": name, "host": sweep.host, "starts": lacking, "why": why}]


def kept(sweep: HostSweep, records: Sequence[Record]) -> list[dict[str, Any]]:
    """What is not measured again, because an earlier sweep's record stands: [{"configuration", "outcome", "why"}]."""
    rows: dict[str, dict[str, Any]] = {}
    for record in counting(sweep, records):
        why = "measured before, kept"
        if record.outcome == "failed":
            why = "failed before; -e retry=failed tries it again"
        rows[record.configuration.name] = {
            "configuration": record.configuration.name,
            "outcome": record.outcome,
            "why": why,
        }
    return list(rows.values())


def measured_otherwise(sweep: HostSweep, records: Iterable[Record]) -> list[dict[str, str]]:
    """Configurations that were measured before, but not with the inputs of now, and what changed."""
    rows = []
    newest: dict[str, Record] = {}
    for record in records:
        if record.host.name == sweep.host and record.outcome != "rejected":
            newest[record.configuration.name] = max(
                record, newest.get(record.configuration.name, record), key=lambda r: r.updated_at
            )
    for name, known in sweep.fingerprints.items():
        old = newest.get(name)
        if old is None or old.fingerprint == known.fingerprint or not old.fingerprint_of:
            continue
        before = measured_inputs(old.fingerprint_of)
        changes = [key for key in known.of if known.of[key] != before.get(key)]
        what = ", ".join(_change(key, before.get(key), known.of[key]) for key in changes)
        # A record of an earlier version of these tools: the inputs are the same, what is kept of them is not.
        rows.append({"configuration": name, "changed": what or "by tools that counted other inputs"})
    return rows


def _change(key: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        parts = [k for k in dict.fromkeys([*old, *new]) if old.get(k) != new.get(k)]
        return ", ".join(f"{key} {part} {old.get(part, '(none)')} to {new.get(part, '(none)')}" for part in parts)
    if isinstance(old, list) and isinstance(new, list):
        gone, come = [x for x in old if x not in new], [x for x in new if x not in old]
        return f"{key} {' '.join(map(str, gone)) or '(none)'} to {' '.join(map(str, come)) or '(none)'}"
    return f"{key} {old} to {new}"


def _spent(sweep: HostSweep, now: dt.datetime) -> float:
    return (now - dt.datetime.fromisoformat(sweep.began_at)).total_seconds() / 60 if sweep.began_at else 0.0
