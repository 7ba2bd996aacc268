"""What to start next, how long it takes, and what a budget leaves out. Pure: asked again after each start.

Baseline first; then one start of each configuration, the most promising next (search.py); the baseline again half-way;
then the finalists again, in turn; then the winner on a fresh start, to be quoted; the baseline last. `quick` stops
after one start of each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..engine.share import baseline_of
from .experiments import claims
from .objectives import CHOOSING_STARTS, GOODPUT, KNOWN, PEAK, Objective, group, ranking_starts
from .record import Record
from .search import Candidate, Outlook, family_of, outlook
from .statistics import LOOKS, USUAL_NOISE, pooled_noise

Plan = Sequence[Mapping[str, Any]]
"""Of each configuration {"configuration": resolved, "plan": what engine/plan.py says}, as engine/search.py gives it."""
OPEN_LOOP = ("rate", "ttft_limit_seconds", "tpot_limit_seconds")
BESIDE = "points"
"""Settings of what follows the ladder (load/further.py): the open loop that tells goodput, and other workloads."""
FINALIST_MARGIN = 3 * math.sqrt(2)
"""A configuration that is further behind the best than so many standard deviations of a start is no finalist."""
MOST_RESERVED = 0.4
"""The part of a budget that is kept for second starts, at most."""
WORTH_MORE = 0.003
"""An untried configuration with a larger expected gain than this (log) comes before second starts of others."""


@dataclass(frozen=True)
class Settings:
    """What the user asked for. Times are minutes; those of a start and a point are guesses until some were measured."""

    ladder: tuple[int, ...]
    confidence: Literal["quick", "full"] = "full"
    objective: Objective = PEAK
    budget_minutes: float | None = None
    baseline: str | None = None
    """By default the one that others are held against and that is held against none."""
    baseline_starts: int = 3
    finalists: int = 3
    looks: int = 1
    """How often finalists are compared at most: each further look is a further start of those still undecided."""
    start_minutes: float = 20.0
    point_minutes: float = 2.0
    further_points: int = 0
    """Points that follow the ladder on a first start (load/further.py)."""

    def __post_init__(self) -> None:
        if not 1 <= self.looks <= LOOKS:
            raise ValueError(f"looks is {self.looks}; it must be 1 to {LOOKS}.")
        if not self.ladder:
            raise ValueError("The ladder is empty; name at least one concurrency.")


@dataclass(frozen=True)
class Turn:
    """One engine start to make, with the rungs to measure on it."""

    configuration: str
    start_number: int
    purpose: Literal["baseline", "explore", "confirm", "settle"]
    rungs: tuple[int, ...]
    minutes: float
    sentence: str
    after: tuple[str, ...] = ()
    """Of what follows the ladder, the settings (load/further.py) that a further start measures too; a first start
    measures all of it."""


@dataclass(frozen=True)
class Cost:
    """What a plan takes if nothing is left early."""

    starts: int
    minutes: float
    sentence: str


def next_turns(
    plan: Plan, records: Sequence[Record], settings: Settings, spent_minutes: float | None = None
) -> list[Turn]:
    """The starts still to make on one host, in order, as foreseen now; the first is next, the rest may change.

    `records` are those of this host. `spent_minutes` is what the budget has lost so far; by default the time of the
    records.
    """
    state = _State(plan, records, settings, spent_minutes)
    turns = state.explore()
    if settings.confidence == "full":
        turns = state.with_repeats(turns)
    return state.within_budget(turns)


def skipped(
    plan: Plan, records: Sequence[Record], settings: Settings, spent_minutes: float | None = None
) -> list[dict[str, Any]]:
    """What is not going to be tried, and why: [{"configuration", "reason", "chance", "deferred": by the budget; it can
    start}], the most promising first.

    `chance` is that of beating the best so far by more than 2 %; None for what cannot start, and with nothing seen.
    """
    state = _State(plan, records, settings, spent_minutes)
    turns = next_turns(plan, records, settings, spent_minutes)
    coming = {turn.configuration for turn in turns}
    left = [o for o in state.outlooks if o.name not in coming]
    why, found = state.why_deferred(turns), []
    for o in left:
        reason = f"Deferred: {why}"
        if o.chance is not None:
            reason += f"; the chance that it beats the best so far by more than 2 % is {o.chance:.0%}"
        found.append({"configuration": o.name, "reason": f"{reason}.", "chance": o.chance, "deferred": True})
    for entry in plan:
        name, said = entry["configuration"]["name"], entry.get("plan") or {}
        if _rejected(entry) and name not in state.groups:
            reason = said.get("sentence") or "It cannot start."
            found.append({"configuration": name, "reason": reason, "chance": None, "deferred": False})
    return found


def baseline_starts(plan: Plan, records: Sequence[Record], settings: Settings) -> tuple[str, int] | None:
    """The baseline of these records of one host, and how many starts of it tell the objective; None without one."""
    state = _State(plan, records, settings, 0.0)
    return (state.baseline, state.starts(state.baseline)) if state.baseline is not None else None


def cost(plan: Plan, settings: Settings) -> Cost:
    """Starts and minutes if everything is tried, and what the confidence adds; the schedule makes no more starts."""
    state = _State(plan, [], settings, 0.0)
    tried = len(state.candidates)
    minutes = tried * state.whole
    if settings.confidence == "quick" or not tried:
        sentence = f"{tried} starts, about {minutes_told(minutes)}; close calls are not decided (confidence=quick)."
        return Cost(tried, minutes, sentence)
    most = max(settings.baseline_starts - 1, 0) + state.most_confirmed + state.most_settled
    minutes += most * state.again
    sentence = (
        f"{tried + most} starts, about {minutes_told(minutes)}: {tried} to see each once, "
        f"{settings.baseline_starts - 1} more of the baseline and "
        f"up to {most - settings.baseline_starts + 1} of finalists. confidence=quick takes {tried}."
    )
    return Cost(tried + most, minutes, sentence)


class _State:
    """What is known at this moment."""

    def __init__(self, plan: Plan, records: Sequence[Record], settings: Settings, spent: float | None) -> None:
        self.settings = settings
        self.groups = {found.name: found for found in group(records)}
        self.start_minutes, self.point_minutes = _pace(records, settings)
        self.whole = self.start_minutes + (len(settings.ladder) + settings.further_points) * self.point_minutes
        if spent is None:
            spent = sum(_minutes(record, self.start_minutes) for record in records)
        budget = settings.budget_minutes
        self.remaining = None if budget is None else budget - spent
        startable = [entry for entry in plan if not _rejected(entry)]
        self.candidates = [_candidate(e, settings.objective) for e in startable]
        by = settings.objective
        starts = ranking_starts(list(self.groups.values()), by)
        values = {name: found.mean(by, starts) for name, found in self.groups.items()}
        # Objectives where less is better enter the search upside down.
        self.seen = {name: v if by.more_is_better else 1 / v for name, v in values.items() if v}
        unusable = set(self.groups) - set(self.seen)
        # What has failed shows no drift: the next root takes its place.
        configurations = [e["configuration"] for e in startable if e["configuration"]["name"] not in unusable]
        asked = [c["name"] for c in configurations if c["name"] == settings.baseline]
        self.baseline = asked[0] if asked else baseline_of(configurations)
        self.spoken_of = _spoken_of(startable, self.groups)
        # The best rung and its neighbours, and rungs that hypotheses name.
        named = {told.concurrency for spoken in self.spoken_of.values() for told in spoken if told.concurrency}
        self.again = self.start_minutes + min(3 + len(named), len(settings.ladder)) * self.point_minutes
        finalists = min(settings.finalists, len(self.candidates))
        self.most_confirmed = finalists + 1
        self.most_settled = (settings.looks - 1) * finalists
        self.confirmed = self._confirmed()
        usable = [c for c in self.candidates if c.name not in unusable]
        self.outlooks: list[Outlook] = outlook(usable, self.seen)

    def _confirmed(self) -> int:
        """Further starts, apart from those that the baseline has anyway, made since everything was tried once.

        Those of before belong to an earlier sweep: they take nothing from what this one may find.
        """
        tried = {c.name for c in self.candidates}
        records = [r for name, found in self.groups.items() if name in tried for r in found.records]
        # A first start that is tried again keeps the date of its record.
        explored = max((r.updated_at for r in records if r.start_number == 1), default="")
        telling = [r for name in tried & self.groups.keys() for r in self.groups[name].telling(self.settings.objective)]
        later = [r.configuration.name for r in telling if r.start_number > 1 and r.created_at >= explored]
        others = [name for name in later if name != self.baseline]
        own = self.starts(self.baseline) if self.baseline else 0
        return len(others) + min(max(own - self.settings.baseline_starts, 0), len(later) - len(others))

    def starts(self, name: str) -> int:
        """Starts that tell the objective, or that it cannot be had; an earlier sweep may have asked for another one."""
        return len(self.groups[name].telling(self.settings.objective)) if name in self.groups else 0

    def explore(self) -> list[Turn]:
        """One start of each configuration not yet tried; the baseline before all others."""
        order = sorted(self.outlooks, key=lambda o: o.name != self.baseline)
        return [
            Turn(
                o.name,
                1,
                "baseline" if o.name == self.baseline else "explore",
                tuple(self.settings.ladder),
                self.whole,
                "The baseline, first." if o.name == self.baseline else self._promise(o),
            )
            for o in order
        ]

    def _promise(self, found: Outlook) -> str:
        if not self.seen:
            return "In the plan's order."
        return f"Chance to beat the best so far: {found.chance:.0%}."

    def with_repeats(self, turns: list[Turn]) -> list[Turn]:
        """Put the baseline's further starts half-way and last, and the finalists' second starts between."""
        if self.baseline is None:
            return turns
        there = self.starts(self.baseline) or 1
        wanted = [self._again(self.baseline, n) for n in range(there + 1, self.settings.baseline_starts + 1)]
        left = [turn for turn in turns if turn.purpose == "explore"]
        tried = len(self.groups)
        confirm = self._confirm()
        middle: list[Turn] = []
        if len(wanted) > 1:
            place = max(0, (tried + len(left)) // 2 - tried)
            middle, wanted = wanted[:-1], wanted[-1:]
            turns = [*turns[: place + (len(turns) - len(left))], *middle, *turns[place + (len(turns) - len(left)) :]]
        last_done = not wanted and not left
        return [*turns, *confirm, *wanted, *(self._settle() if last_done and not confirm else [])]

    def _confirm(self) -> list[Turn]:
        """A second start of each finalist, and a third of the best of them; the baseline has its own anyway.

        Second starts change who is a finalist. Once there have been as many as were foreseen, only one that comes to
        lead has a further start, if the one that was to be quoted has not been made.
        """
        finalists = [name for name in self.finalists() if name != self.baseline]
        if not finalists:
            return []
        room = max(self.most_confirmed - self.confirmed, 0)
        starts = {name: self.starts(name) for name in finalists}
        best, *others = finalists
        lead = [self._again(best, n) for n in range(2, CHOOSING_STARTS + 2) if n > starts[best]]
        behind = [self._again(name, 2) for name in others if starts[name] < 2][: max(room - len(lead), 0)]
        second = 1 if starts[best] < CHOOSING_STARTS else 0
        return [*lead[:second], *behind, *lead[second:]][:room]

    def finalists(self) -> list[str]:
        """The best so far, and those that a start's noise may have put behind it."""
        ranked = sorted(self.seen, key=lambda name: -self.seen[name])[: self.settings.finalists]
        noise = pooled_noise(found.logs(self.settings.objective) for found in self.groups.values())
        margin = FINALIST_MARGIN * max(noise.deviation, USUAL_NOISE if noise.degrees < 3 else 0.0)
        return [name for name in ranked if math.log(self.seen[ranked[0]] / self.seen[name]) <= margin]

    def _settle(self) -> list[Turn]:
        """One further start of each of the best two while they are not told apart and looks are left."""
        from .decide import decide

        records = [record for found in self.groups.values() for record in found.records]
        winner = decide(records, self.settings.objective, looks=self.settings.looks)["winner"]
        if winner is None or winner["verdict"] != "undecided":
            return []
        names = [winner["configuration"], *winner["close"]][: self.settings.finalists]
        # The winner changes on the way: what others had counts as well.
        room = self.most_confirmed + self.most_settled - self.confirmed
        turns = [
            self._again(name, self.starts(name) + 1, "settle")
            for name in names
            if self.starts(name) - 1 < self.settings.looks
        ]
        return turns[: max(room, 0)]

    def _again(self, name: str, nth: int, purpose: Literal["confirm", "settle"] = "confirm") -> Turn:
        """The nth start that tells the objective."""
        rungs, after, points = self._read_again(name)
        silent = len(self.groups[name].records) - self.starts(name) if name in self.groups else 0
        number = nth + silent
        minutes = self.start_minutes + points * self.point_minutes
        what = "A second start, to compare." if nth <= CHOOSING_STARTS else "A fresh start before it is quoted."
        what = "The baseline again: drift and noise." if name == self.baseline else what
        if purpose == "settle":
            return Turn(name, number, purpose, rungs, minutes, "Not told apart yet: one more start.", after)
        return Turn(name, number, "baseline" if name == self.baseline else "confirm", rungs, minutes, what, after)

    def _read_again(self, name: str) -> tuple[tuple[int, ...], tuple[str, ...], int]:
        """What a further start measures: (rungs, settings of what follows the ladder, points in all).

        What the objective is read at, and what the hypotheses speak of that it was started for: a verdict from one
        start is none. A best rung has its neighbours beside it, since it may be another one on another start.
        """
        found, ladder = self.groups.get(name), sorted(self.settings.ladder)
        rungs: set[int] = set()
        after: dict[str, int] = {}
        for by in (self.settings.objective, *self.spoken_of.get(name, ())):
            rung = found.rung(by) if found else by.concurrency
            if rung is None and by is not self.settings.objective:
                continue  # no point tells it
            if by is GOODPUT:
                # Its open loop is named after the ladder's last rung.
                rungs.add(ladder[-1])
                after |= dict.fromkeys(OPEN_LOOP, 0) | {OPEN_LOOP[0]: 1}
            elif by.long_prompts and found and not found.has_long_prompts:
                after[BESIDE] = sum(f.get("repeat") == 1 and not _open(f) for f in found.shown.after_ladder)
            elif rung in ladder:
                place = ladder.index(rung)
                rungs |= {rung} if by.concurrency else set(ladder[max(0, place - 1) : place + 2])
            elif by is self.settings.objective:
                rungs |= set(ladder)
        rungs = rungs or {ladder[0]}
        return tuple(sorted(rungs)), tuple(after), len(rungs) + sum(after.values())

    def within_budget(self, turns: list[Turn]) -> list[Turn]:
        """Leave out the explorations that the budget does not hold, keeping room for the repeats behind them."""
        if self.remaining is None:
            return turns
        kept = self._reserve(turns)
        gains = {o.name: o.gain for o in self.outlooks} if self.seen else {}
        room = self.remaining
        found = []
        for turn in turns:
            reserved = 0.0 if gains.get(turn.configuration, 0.0) > WORTH_MORE else kept
            if turn.purpose == "explore" and turn.minutes > room - reserved + 1e-6:
                continue
            if turn.minutes > room + 1e-6:
                continue
            if turn.start_number > 1 and not self._quotes(turn):
                kept = max(0.0, kept - turn.minutes)
            room -= turn.minutes
            found.append(turn)
        return found

    def why_deferred(self, turns: Sequence[Turn]) -> str:
        """Why the budget does not hold one more first start beside these."""
        remaining = max(self.remaining or 0.0, 0.0)
        takes = f"a start with its points takes {self.whole:.0f}"
        if not turns:
            # Less than a minute is no minute to a reader.
            return f"{f'{remaining:.0f} minutes are left' if remaining >= 1 else 'the budget is spent'}, {takes}"
        left = remaining - sum(turn.minutes for turn in turns)
        if left >= self.whole:
            return f"the starts foreseen leave {left:.0f} minutes, which are kept for second starts of those that lead"
        return f"the starts foreseen leave {max(left, 0.0):.0f} of {remaining:.0f} minutes, {takes}"

    def _quotes(self, turn: Turn) -> bool:
        return turn.purpose == "confirm" and turn.start_number > CHOOSING_STARTS

    def _reserve(self, turns: list[Turn]) -> float:
        """Minutes for second starts: those foreseen, and those of finalists yet to be found."""
        if self.settings.confidence == "quick":
            return 0.0
        # The start that quotes the winner comes if there is room: seeing more is worth more.
        foreseen = [t for t in turns if t.start_number > 1 and not self._quotes(t)]
        baseline = sum(turn.minutes for turn in foreseen if turn.configuration == self.baseline)
        confirm = sum(turn.minutes for turn in foreseen) - baseline
        exploring = any(turn.purpose == "explore" for turn in turns)
        most = MOST_RESERVED * (self.settings.budget_minutes or 0.0)
        return min(baseline + (max(confirm, 2 * self.again) if exploring else confirm), most)


def _spoken_of(plan: Plan, measured: Iterable[str]) -> dict[str, list[Objective]]:
    """The objectives that hypotheses speak of, for each side of an experiment that has both."""
    known = {by.name: by for by in KNOWN}
    configurations = [entry["configuration"] for entry in plan]
    there = {*measured, *(c["name"] for c in configurations)}
    found: dict[str, list[Objective]] = {}
    for configuration in configurations:
        if configuration.get("against") in there:
            spoken_of = [known[claim.objective] for claim in claims(configuration.get("hypothesis"))]
            for name in (configuration["name"], configuration["against"]):
                found.setdefault(name, []).extend(spoken_of)
    return found


def _open(further: Mapping[str, Any]) -> bool:
    return (further.get("workload") or {}).get("rate") is not None


def _candidate(entry: Mapping[str, Any], by: Objective) -> Candidate:
    configuration, said = entry["configuration"], entry.get("plan") or {}
    return Candidate(configuration["name"], family_of(configuration), planned(said, by), said.get("verdict", "runs"))


def _rejected(entry: Mapping[str, Any]) -> bool:
    return (entry.get("plan") or {}).get("verdict") == "rejected"


def planned(said: Mapping[str, Any], by: Objective) -> float | None:
    """The plan's expectation of an objective, turned so that more is better; None where it predicts none."""
    speed = said.get("speed") or {}
    if by.name == "single_stream":
        return (speed.get("single_user") or {}).get("expected")
    if by.concurrency is not None:
        rungs = [rung for rung in speed.get("ladder") or [] if rung.get("concurrency") == by.concurrency]
        return (rungs[0].get("output_tokens_per_second") or {}).get("expected") if rungs else None
    if by.name == "ttft":
        times = [(rung.get("ttft") or {}).get("expected") for rung in (speed.get("ladder") or [])[:1]]
        return 1 / times[0] if times and times[0] else None
    return (speed.get("peak") or {}).get("expected")


def _pace(records: Sequence[Record], settings: Settings) -> tuple[float, float]:
    """Minutes of a start, with what goes with it, and of a point: medians of what was measured, else the guesses."""
    starts = [r.start.ready_seconds / 60 for r in records if r.start and r.start.ready_seconds]
    points = [p.duration_seconds / 60 for r in records for p in r.points if p.duration_seconds > 0]
    beside = [minutes for r in records if (minutes := _minutes_beside(r)) is not None]
    start = statistics.median(starts) + statistics.median(beside or [0.0]) if starts else settings.start_minutes
    return start, statistics.median(points) if points else settings.point_minutes


def _minutes_beside(record: Record) -> float | None:
    """What a start took beside becoming ready and the points: the switch, warm-up, answers, what Ansible takes.

    None for a record of several sittings, whose dates tell nothing.
    """
    if not record.complete or not record.points or record.earlier_starts or not record.start:
        return None
    begun, ended = (datetime.fromisoformat(text) for text in (record.created_at, record.updated_at))
    known = (record.start.ready_seconds or 0.0) + sum(p.duration_seconds for p in record.points)
    return max((ended - begun).total_seconds() - known, 0.0) / 60


def _minutes(record: Record, start_minutes: float) -> float:
    if record.outcome in ("rejected", "skipped"):
        return 0.0
    ready = record.start.ready_seconds / 60 if record.start and record.start.ready_seconds else start_minutes
    return ready + sum(p.duration_seconds for p in record.points) / 60


def minutes_told(minutes: float) -> str:
    """As a person says it: seconds below two minutes, hours from two on."""
    if minutes < 2:
        return f"{minutes * 60:.0f} seconds"
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
