"""What the records say: who won by each objective, what each experiment showed, and why each loser lost. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..load import agreement
from .experiments import Comparison, compare, experiments, listed, settings_changed
from .hosts import NO_SHIFTS, Shifts, host_shifts
from .objectives import (
    CHOOSING_STARTS,
    KNOWN,
    PEAK,
    SINGLE_STREAM,
    Objective,
    Starts,
    compared_starts,
    group,
    objective,
    ranking_starts,
)
from .reasons import why
from .record import Record
from .statistics import ASSUMED_NOISE, ERROR, Noise, bounded_exp, drift, pooled_noise, t_point

OBJECTIVES = {known.name: known.title for known in KNOWN}


def decide(
    records: Iterable[Record], objective: Objective | str = PEAK, objectives: Sequence[str] = (), looks: int = 1
) -> dict[str, Any]:
    """Rank the records and read their experiments.

    Records of one configuration and the same inputs are starts of it: the replicates that intervals come from.

    Args:
        objective: what the main winner is chosen by.
        objectives: names of further ones to judge by, such as `throughput@64`; those of KNOWN are always read.
        looks: how often starts are added and contenders compared at most: what the error is shared among. Starts beyond
            those are quoted, and name nothing new.

    Returns:
        {"simulated", "objective": the name of the main one, "winner": see `_winner`, "winners": {objective: ...},
        "winners_by_host": {host: ...} where hosts cannot be compared, "ranking": [...], "experiments": see
        experiments.py, "pareto": [...], "drift": [...],
        "noise": {objective: {"deviation", "degrees", "assumed"}}, "more_starts": [{"configuration", "host", "starts",
        "why"}], "spent": that no look is left at what came close, or None, "notes": [...]}.

    Raises:
        ObjectiveError: an objective that does not exist.
    """
    main = _named(objective)
    groups = group(records)
    judged = {o.name: o for o in (main, *KNOWN, *map(_named, objectives))}
    told = {name: o for name, o in judged.items() if any(found.values(o) for found in groups)}
    first = compared_starts(looks)
    noises = {name: pooled_noise(found.logs(o, first) for found in groups) for name, o in told.items()}
    shifts = {name: host_shifts(groups, o) for name, o in told.items()}
    winners = {name: _winner(groups, o, noises[name], shifts[name], looks=looks) for name, o in told.items()}
    winner = winners.get(main.name)
    found = experiments(groups, list(told.values()), looks)
    by_host = _by_host(groups, main, noises[main.name], shifts[main.name], looks) if main.name in told else {}
    drifts = [d for host in dict.fromkeys(g.host for g in groups) if (d := _drift(groups, host, main, noises))]
    return {
        "simulated": any(record.simulated for starts in groups for record in starts.records),
        "objective": main.name,
        "winner": winner,
        "winners": {name: won for name, won in winners.items() if won},
        "winners_by_host": by_host,
        "ranking": _ranking(groups, main, winner, by_host, noises, shifts, list(told.values())),
        "experiments": found,
        "pareto": _pareto(
            groups,
            [
                told[name]
                for name in dict.fromkeys((PEAK.name, SINGLE_STREAM.name, main.name, *objectives))
                if name in told
            ],
            shifts,
        ),
        "drift": drifts,
        "noise": {
            name: {"deviation": n.deviation, "degrees": n.degrees, "assumed": n.assumed} for name, n in noises.items()
        },
        "more_starts": _more_starts(groups, winner, main, looks),
        "spent": (spent := _spent(groups, winner, main, looks)),
        "notes": [*_notes(groups, noises.get(main.name), drifts, found), *([spent] if spent else [])],
    }


def _named(name: Objective | str) -> Objective:
    return name if isinstance(name, Objective) else objective(name)


def _mean(found: Starts, by: Objective, shifts: Shifts, home: str, first: int | None = None) -> float:
    """Mean logarithm over all (or the first so many) starts, as it would be on `home`; more is better."""
    return by.better(math.log(found.mean(by, first) or 1.0) - shifts.log(found.host, home))


def _winner(
    groups: Sequence[Starts], by: Objective, noise: Noise, shifts: Shifts, home: str | None = None, looks: int = 1
) -> dict[str, Any] | None:
    """The best by one objective, or the simplest of those that tie with it: of the hosts that `home` can be compared
    with, by default those of the host with the best reading.

    {"configuration", "host", "objective", "value": as it may be quoted, "interval": [low, high] | None, "starts",
    "quoted_starts", "verdict": "sure" | "tie" | "undecided" | "only", "close": names not told apart from it,
    "unknown": those of them whose ladder was left early, "ties": names within 2 % of it for certain,
    "ahead": the best where a simpler one that ties with it was chosen, "sentence"}.
    """
    there = [found for found in groups if found.values(by)]
    if not there:
        return None
    home = home or max(there, key=lambda g: _mean(g, by, shifts, g.host)).host
    peers = shifts.peers(home, (found.host for found in there))
    there = [found for found in there if found.host in peers]
    if not there:
        return None
    starts = ranking_starts(there, by)
    first = max(there, key=lambda g: _mean(g, by, shifts, home, starts))
    compared = _rivals(first, there, by, noise, shifts, looks)
    for _ in there:
        # Further starts may show for sure that another is better than the one that the first starts chose.
        better = [c for c in compared if c.verdict == "worse"]
        if not better:
            break
        first = min(better, key=lambda c: by.better(c.effect.log)).theirs
        compared = _rivals(first, there, by, noise, shifts, looks)
    chosen, compared = _simplest(first, compared, there, groups, by, noise, shifts, looks)
    # Whose best is not known may yet be better. (By throughput it is not: a ladder is left because of that.)
    unknown = [
        c.theirs.name
        for c in compared
        if c.verdict in ("better", "tie") and by.of_point is not PEAK.of_point and c.theirs.best_unknown(by)
    ]
    judged = [c for c in compared if c.theirs.name not in unknown]
    ties = [c for c in judged if c.verdict == "tie"]
    close = [c for c in judged if c.verdict in ("tie", "undecided")]
    close_names = [c.theirs.name for c in sorted(close, key=lambda c: by.better(c.effect.log))]
    verdict = "only" if not compared else "sure" if not close else "tie" if len(close) == len(ties) else "undecided"
    sentence = _winner_sentence(chosen, first, by, judged, close_names, verdict)
    if unknown:
        verdict = "undecided"
        sentence += (
            f" The ladder of {listed(unknown)} was left early, so what {'it' if len(unknown) == 1 else 'they'} would "
            "reach is not known."
        )
    value = chosen.value(by)
    return {
        "configuration": chosen.name,
        "host": chosen.host,
        "objective": by.name,
        "value": value,
        "interval": _interval(chosen, by, noise),
        "starts": len(chosen.values(by)),
        "quoted_starts": chosen.quoted_starts(by),
        "verdict": verdict,
        "close": [*close_names, *unknown],
        "unknown": unknown,
        "ahead": first.name if chosen is not first else None,
        "ties": [c.theirs.name for c in ties],
        "sentence": sentence,
    }


def _simplest(
    first: Starts,
    compared: Sequence[Comparison],
    there: Sequence[Starts],
    groups: Sequence[Starts],
    by: Objective,
    noise: Noise,
    shifts: Shifts,
    looks: int,
) -> tuple[Starts, Sequence[Comparison]]:
    """The simplest of the best and those that tie with it, and how it compares with all others.

    One that ties with the best may be behind a third for sure: that one is no choice.
    """
    of_first = complexity(first, groups)
    ties = [c.theirs for c in compared if c.verdict == "tie" and complexity(c.theirs, groups) < of_first]
    for found in sorted(ties, key=lambda found: complexity(found, groups)):
        own = _rivals(found, there, by, noise, shifts, looks)
        ahead = {c.theirs.name for c in own if c.verdict == "worse"}
        if not ahead and any(c.theirs is first and c.verdict == "tie" for c in own):
            return found, own
    return first, compared


def _rivals(
    first: Starts, groups: Sequence[Starts], by: Objective, noise: Noise, shifts: Shifts, looks: int
) -> list[Comparison]:
    """One configuration against all others; it is no rival of itself on another host."""
    others = [(first, other) for other in groups if other.name != first.name]
    return compare(others, by, noise, shifts=shifts, looks=looks)


def complexity(found: Starts, groups: Sequence[Starts]) -> int:
    """How many settings that the engine reads differ from the root of what it is held against."""
    root, walked = found, set()
    while (against := root.newest.configuration.against) and root.name not in walked:
        walked.add(root.name)
        named = [other for other in groups if other.name == against]
        if not named:
            # What it extends was not measured: the host's baseline is.
            root = next((g for g in groups if g.host == found.host and not g.newest.configuration.against), found)
            break
        root = next((other for other in named if other.host == found.host), named[0])
    return len(settings_changed(root.newest, found.newest)[0])


def _winner_sentence(
    chosen: Starts, first: Starts, by: Objective, compared: Sequence[Comparison], close: Sequence[str], verdict: str
) -> str:
    rung, value = chosen.rung(by), chosen.value(by) or 0.0
    sentence = f"{chosen.name} reached {by.shown(value)}"
    sentence += " with one stream" if by is SINGLE_STREAM else f" at concurrency {rung}"
    fresh = chosen.quoted_starts(by)
    if len(chosen.values(by)) > CHOOSING_STARTS:
        sentence += f" on {fresh} fresh start{'s' if fresh > 1 else ''}"
    if verdict == "only":
        return f"{sentence}; nothing else was measured."
    ties = [name for name in close if any(c.theirs.name == name and c.verdict == "tie" for c in compared)]
    if verdict == "tie" or chosen is not first:
        sentence += f"; {listed(ties)} {'is' if len(ties) == 1 else 'are'} within 2 %"
        sentence += " of it: a tie" if chosen is first else ", and this one differs least from the baseline"
        if verdict == "tie":
            return f"{sentence}."
        close = [name for name in close if name not in ties]
    if close:
        open_ = [c for c in compared if c.verdict == "undecided"]
        reach = max(c.effect.detectable(c.level) for c in open_)
        starts = "one start" if min(min(c.effect.starts) for c in open_) == 1 else "these starts"
        sentence += f"; {_shortened(close)} came so close that {starts} cannot tell"
        return f"{sentence} (a difference of {reach:.0%} would have shown)."
    if not compared:
        return f"{sentence}."
    nearest = min(compared, key=lambda c: by.better(c.effect.log))
    low, high = nearest.interval
    basis = f", if starts differ by {ASSUMED_NOISE * 100:.0f} %" if nearest.noise.assumed else ""
    return (
        f"{sentence}, {nearest.effect.ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%}{basis}) against "
        f"{nearest.theirs.name}, the next."
    )


def _shortened(names: Sequence[str], most: int = 4) -> str:
    return listed(names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"])


def _interval(found: Starts, by: Objective, noise: Noise) -> list[float] | None:
    """95 % of the quoted value; None while the noise between starts is only assumed."""
    value = found.value(by)
    if value is None or noise.assumed:
        return None
    half = t_point(ERROR, noise.degrees) * noise.deviation / math.sqrt(found.quoted_starts(by))
    return [value * bounded_exp(-half), value * bounded_exp(half)]


def _ranking(
    groups: Sequence[Starts],
    main: Objective,
    winner: Mapping[str, Any] | None,
    by_host: Mapping[str, Mapping[str, Any] | None],
    noises: Mapping[str, Noise],
    shifts: Mapping[str, Shifts],
    objectives: Sequence[Objective],
) -> list[dict[str, Any]]:
    """The winner, then the others by the main objective, then what has no number; hosts that differ are corrected."""
    at = {found.key: found for found in groups}
    won = at[winner["host"], winner["configuration"]] if winner else None
    between = shifts.get(main.name, NO_SHIFTS)
    home = won.host if won else ""

    def place(found: Starts) -> tuple[bool, bool, float]:
        there = bool(found.values(main))
        return found is not won, not there, -_mean(found, main, between, home) if there else 0.0

    def told(found: Starts) -> str:
        # Where hosts cannot be compared, each configuration is held against the winner of its own.
        mine = (by_host.get(found.host) if by_host else winner) or winner
        best = at[mine["host"], mine["configuration"]] if mine else None
        return why(found, best, mine, main, between)

    return [
        {
            "configuration": found.name,
            "host": found.host,
            "outcome": "measured" if found.measured else found.newest.outcome,
            "peak": found.value(PEAK),
            "peak_concurrency": found.rung(PEAK),
            "single_stream": found.value(SINGLE_STREAM),
            "interval": _interval(found, PEAK, noises[PEAK.name]) if PEAK.name in noises else None,
            "starts": len(found.measured),
            "objectives": {o.name: found.value(o) for o in objectives},
            "sentence": told(found),
        }
        for found in sorted(groups, key=place)
    ]


def _by_host(groups: Sequence[Starts], by: Objective, noise: Noise, shifts: Shifts, looks: int) -> dict[str, Any]:
    """The winner of each host and those alike, where not all hosts can be compared with one another."""
    hosts = list(dict.fromkeys(found.host for found in groups if found.values(by)))
    if len(shifts.peers(hosts[0], hosts)) == len(hosts):
        return {}
    return {host: _winner(groups, by, noise, shifts, host, looks) for host in hosts}


def _pareto(
    groups: Sequence[Starts], objectives: Sequence[Objective], shifts: Mapping[str, Shifts]
) -> list[dict[str, Any]]:
    """Those that no other beats in one objective without losing in another; only of those that tell all of them, and
    not merely the least of one because their ladder was left early.

    Of hosts that differ, numbers are corrected; what cannot be compared beats nothing.
    """
    if not objectives:
        return []
    rows = [
        found
        for found in groups
        if all(found.values(o) and (o.of_point is PEAK.of_point or not found.best_unknown(o)) for o in objectives)
    ]

    def beats(other: Starts, found: Starts) -> bool:
        if not all(shifts[o.name].comparable(other.host, found.host) for o in objectives):
            return False
        theirs = [_mean(other, o, shifts[o.name], found.host) for o in objectives]
        mine = [_mean(found, o, shifts[o.name], found.host) for o in objectives]
        # What is equal but for rounding is equal.
        gains = [0.0 if math.isclose(a, b, abs_tol=1e-12) else a - b for a, b in zip(theirs, mine, strict=True)]
        return min(gains) >= 0 and max(gains) > 0

    kept = [found for found in rows if not any(beats(other, found) for other in rows)]
    return [
        {"configuration": g.name, "host": g.host, "objectives": {o.name: g.value(o) for o in objectives}} for g in kept
    ]


def _drift(groups: Sequence[Starts], host: str, by: Objective, noises: Mapping[str, Noise]) -> dict[str, Any] | None:
    """What the most often started configuration of a host says about the host over time."""
    there = [g for g in groups if g.host == host and len(g.values(by)) >= 3]
    if not there:
        return None
    baseline = max(there, key=lambda g: (g.newest.configuration.against is None, len(g.values(by))))
    times = [_hours(r.created_at) for r in baseline.measured]
    if None in times or len(times) != len(baseline.values(by)):
        return None
    found = drift([t for t in times if t is not None], baseline.logs(by), noises[by.name])
    if found is None:
        return None
    whole = bounded_exp(found.per_hour * found.hours) - 1
    seen = "more than noise" if found.seen else "within noise"
    return {
        "configuration": baseline.name,
        "host": host,
        "objective": by.name,
        "per_hour": found.per_hour,
        "low": found.low,
        "high": found.high,
        "seen": found.seen,
        "sentence": f"{baseline.name} changed by {whole:+.1%} over {found.hours:.1f} h on {host}: {seen}. "
        "No number is corrected for it.",
    }


def _hours(stamp: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(stamp).timestamp() / 3600
    except ValueError:
        return None


def _open_calls(groups: Sequence[Starts], winner: Mapping[str, Any], by: Objective, looks: int) -> list[Starts]:
    """What came close to an undecided winner, and that itself, as far as a further start of it is a look that is left:
    both sides of a pair have one start more than the looks they had.
    """
    if winner["verdict"] != "undecided" or not _came_close(winner):
        return []
    there = {found.name: found for found in reversed(groups) if found.measured}
    close = [there[name] for name in _came_close(winner)[:3] if name in there]
    return [found for found in (*close, there[winner["configuration"]]) if len(found.values(by)) <= looks]


def _came_close(winner: Mapping[str, Any]) -> list[str]:
    """What further starts may tell apart from the winner: not those whose ladder was left early."""
    return [name for name in winner["close"] if name not in winner["unknown"]]


def _spent(groups: Sequence[Starts], winner: Mapping[str, Any] | None, by: Objective, looks: int) -> str | None:
    """That no look is left at what came close; None where one is, or none is needed."""
    if winner is None or winner["verdict"] != "undecided" or not _came_close(winner):
        return None
    if _open_calls(groups, winner, by, looks):
        return None
    times = "once, which has" if looks == 1 else f"{looks} times, which have"
    return (
        f"What came close was to be compared {times} been done: the {ERROR:.0%} chance of naming a false difference is "
        "spent, and further starts of this campaign name nothing new. A campaign of its own has its own."
    )


def _more_starts(
    groups: Sequence[Starts], winner: Mapping[str, Any] | None, by: Objective, looks: int
) -> list[dict[str, Any]]:
    """Which configurations need a further start before the decision may be relied on."""
    if winner is None:
        return []
    wanted = []
    if winner["starts"] <= CHOOSING_STARTS:
        why_one = "It was read on the starts that chose it; a fresh start is needed before it is quoted."
        wanted.append((winner["configuration"], winner["host"], why_one))
    for found in _open_calls(groups, winner, by, looks):
        if found.name != winner["configuration"]:
            wanted.append((found.name, found.host, f"Not told apart from {winner['configuration']}."))
        elif winner["starts"] > CHOOSING_STARTS:
            wanted.append((found.name, winner["host"], "Not told apart from those that came close."))
    return [{"configuration": name, "host": host, "starts": 1, "why": text} for name, host, text in wanted]


def _notes(
    groups: Sequence[Starts],
    noise: Noise | None,
    drifts: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> list[str]:
    notes = []
    if any(record.simulated for starts in groups for record in starts.records):
        notes.append("The engine was simulated: these numbers come from a model of it, not from a GPU.")
    if noise is not None and noise.assumed:
        notes.append("One start a configuration: 4 % between starts is assumed, and close calls are not decided.")
    elif noise is not None:
        notes.append(
            f"Starts of one configuration differ by {noise.deviation:.1%} (standard deviation, pooled, "
            f"{noise.degrees} degrees of freedom)."
        )
    notes += [str(told["sentence"]) for told in drifts]
    for starts in groups:
        if starts.measured and starts.failures:
            notes.append(
                f"{starts.name} failed on {len(starts.failures)} of {len(starts.records)} starts: "
                f"{starts.failures[0].failure.sentence if starts.failures[0].failure else 'no reason was recorded.'}"
            )
    wrong = [f"{e['configuration']}: {listed(e['ignored'])}" for e in found if e["ignored"]]
    if wrong:
        notes.append(f"Set, and not read by the engine: {'; '.join(wrong)}.")
    return notes + agreement.notes(record for starts in groups for record in starts.records)
