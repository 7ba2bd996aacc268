"""Does the search find the best configuration, and how soon? 1,000 made-up campaigns on a virtual clock.

    python measurements/search.py [--landscapes 1000] [--seed 1]

The truth comes from landscapes.py, which imports nothing of the project. Every campaign is run by the product's own
benchmark.campaign.schedule and judged by benchmark.campaign.decide, on records as a host would write them. A choice is
scored by the true peak of what was chosen, over the true peak of the best: `within 2 %` counts those at 0.98 or more.
Time is that of the grid: one start and the whole ladder of each configuration, failed starts as long as they lasted.
No ladder is left early, no point follows one, and the guessed minutes of a start and a point are the true ones.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "measurements")]

import landscapes as land  # noqa: E402

from benchmark.campaign import record as rec  # noqa: E402
from benchmark.campaign.decide import decide  # noqa: E402
from benchmark.campaign.schedule import Settings, Turn, cost, next_turns  # noqa: E402

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CASES = PROJECT / "tests/data/plan-cases.yml"


@dataclass(frozen=True)
class Score:
    """What one campaign came to: true value of the choice over the best, and time over the grid's."""

    ratio: float
    time: float
    starts: int
    quoted: float | None
    """The peak as quoted over the true peak."""


def plan_of(landscape: land.Landscape) -> list[dict]:
    """The landscape's plan as the product takes it."""
    first = landscape.configurations[0].name
    return [
        {
            "configuration": {
                "name": c.name,
                "against": None if c.name == first else first,
                "engine": c.engine,
                "environment": c.environment,
            },
            "plan": {"verdict": "runs", "speed": {"peak": {"expected": float(c.planned.max())}}},
        }
        for c in landscape.configurations
    ]


def record_of(landscape: land.Landscape, turn: Turn, minutes: float) -> rec.Record:
    """The record that a host would write of this start, at this time of the virtual clock."""
    found = landscape.start(turn.configuration, turn.rungs, minutes / 60)
    c = next(c for c in landscape.configurations if c.name == turn.configuration)
    first = landscape.configurations[0].name
    at = (NOON + dt.timedelta(minutes=minutes)).isoformat(timespec="seconds")
    failure = rec.Failure(kind="out_of_memory", stage="weights", sentence="It does not fit.")
    return rec.Record(
        fingerprint=c.name,
        start_number=turn.start_number,
        created_at=at,
        updated_at=at,
        configuration=rec.Configuration(
            name=c.name, against=None if c.name == first else first, engine=c.engine, environment=c.environment
        ),
        host=rec.Host(name="h"),
        engine=rec.Engine(name="other", version="0"),
        model=rec.Model(name="m"),
        outcome="failed" if found is None else "measured",
        failure=failure if found is None else None,
        points=[_point(rung, value, at) for rung, value in (found or {}).items()],
    )


def _point(concurrency: int, value: float, at: str) -> rec.Point:
    seconds = land.POINT_MINUTES * 60
    return rec.Point(
        workload="w",
        concurrency=concurrency,
        started_at=at,
        duration_seconds=seconds,
        window_seconds=seconds,
        requests_completed=1,
        requests_failed=0,
        prompt_tokens=1,
        output_tokens=1,
        output_tokens_per_second=value,
    )


def campaign(landscape: land.Landscape, settings: Settings) -> tuple[list[rec.Record], float]:
    """Run it on the virtual clock: (records, minutes)."""
    plan, records, clock = plan_of(landscape), [], 0.0
    most = cost(plan, settings).starts
    while turns := next_turns(plan, records, settings, clock):
        records.append(record_of(landscape, turns[0], clock))
        c = next(c for c in landscape.configurations if c.name == turns[0].configuration)
        clock += landscape.minutes(c, len(turns[0].rungs))
        if len(records) > most:
            raise RuntimeError(f"{len(records)} starts, and {most} were the most that were foreseen.")
    return records, clock


def scored(landscape: land.Landscape, confidence: str, share: float) -> Score:
    settings = Settings(
        ladder=landscape.ladder,
        confidence=confidence,  # type: ignore[arg-type]
        budget_minutes=share * landscape.grid_minutes,
        start_minutes=land.START_MINUTES,
        point_minutes=land.POINT_MINUTES,
    )
    records, clock = campaign(landscape, settings)
    winner = decide(records)["winner"]
    peaks = landscape.peaks
    best = max(peaks.values())
    if winner is None:
        return Score(0.0, clock / landscape.grid_minutes, len(records), None)
    true = peaks[winner["configuration"]]
    return Score(true / best, clock / landscape.grid_minutes, len(records), winner["value"] / true)


def top_of_plan(landscape: land.Landscape, rng: np.random.Generator) -> Score:
    """The plan's first, unmeasured; if it fails, the next."""
    peaks = landscape.peaks
    ranked = sorted(landscape.configurations, key=lambda c: -c.planned.max())
    first = next(c for c in ranked if c.fails_after_minutes is None)
    return Score(peaks[first.name] / max(peaks.values()), 0.0, 0, None)


def random_part(landscape: land.Landscape, rng: np.random.Generator, share: float = 0.4) -> Score:
    """One start each of a random 40 % of the time, the highest reading chosen."""
    clock, read = 0.0, {}
    for i in rng.permutation(len(landscape.configurations)):
        c = landscape.configurations[i]
        clock += landscape.minutes(c, len(landscape.ladder))
        if clock > share * landscape.grid_minutes:
            break
        if found := landscape.start(c.name, landscape.ladder, clock / 60):
            read[c.name] = max(found.values())
    peaks = landscape.peaks
    chosen = max(read, key=lambda name: read[name]) if read else None
    return Score(peaks[chosen] / max(peaks.values()) if chosen else 0.0, share, len(read), None)


Make = Callable[[np.random.Generator], land.Landscape]


def kinds() -> Iterator[tuple[str, Make]]:
    """(what a row is called, how its landscapes are made)."""
    for sigma in (0.1, 0.3, 0.6):
        yield f"plan off by {sigma} a family", lambda rng, s=sigma: land.generated("sigma", rng, s)
    yield "the same 0.3, each on its own", lambda rng: land.generated("own", rng, 0.0, own=0.3)
    yield "reversed plan", lambda rng: land.generated("reversed", rng, 0.0)
    yield "one surprise of 2.5 times", lambda rng: land.generated("surprise", rng)
    yield "a quarter fail", lambda rng: land.generated("failing", rng)
    yield "drift 0.2 to 1 % an hour", lambda rng: land.generated("drift", rng)
    grids = [rows for _, rows in land.replayed(CASES)]
    yield f"{len(grids)} public grids, plan off by 0.3", lambda rng: land.replay(grids[rng.integers(len(grids))], rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only the rows whose name holds this")
    options = parser.parse_args()
    began = time.monotonic()
    table(options.landscapes, options.seed, options.only)
    errors(options.landscapes, options.seed)
    say(f"\n{time.monotonic() - began:.0f} s")
    return 0


# The rows that the product promises something for get more of the landscapes.
PARTS = {"plan off by 0.3 a family": 3, "reversed plan": 2}
COLUMNS = (("full", 0.4), ("quick", 0.4), ("full", 1.0))


def table(landscapes: int, seed: int, only: str) -> None:
    """Print the share within 2 % of the best, and the time that was used, for each kind."""
    head = [f"{confidence} in {share:.0%}" for confidence, share in COLUMNS] + ["plan's first", "random 40 %"]
    say(f"{'chosen within 2 % of the best (time used)':<42}" + "".join(f"{h:>16}" for h in head))
    rows = [(name, make) for name, make in kinds() if only in name]
    parts = [PARTS.get(name, 1) for name, _ in rows]
    for place, (name, make) in enumerate(rows):
        each = max(1, landscapes * parts[place] // sum(parts))
        cells = []
        for confidence, share in COLUMNS:
            found = [scored(make(_rng(seed, place, i)), confidence, share) for i in range(each)]
            cells.append(f"{within(found):.1%} ({np.mean([s.time for s in found]):.0%})")
        for other in (top_of_plan, random_part):
            found = [other(make(_rng(seed, place, i)), _rng(seed, place, i + landscapes)) for i in range(each)]
            cells.append(f"{within(found):.1%}")
        say(f"{f'{name} ({each})':<42}" + "".join(f"{cell:>16}" for cell in cells))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def errors(landscapes: int, seed: int) -> None:
    """Print how often something false is named among eight equal configurations, at any time."""
    each = max(1, landscapes // 5)
    say(
        f"\n{f'among 8 equal configurations ({each})':<42}"
        f"{'winner named':>16}{'effect named':>16}{'in the end':>16}{'peak quoted at':>16}{'starts':>10}"
    )
    cases = (("quick", 1, 0.02), ("quick", 1, 0.04), ("full", 1, 0.02), ("full", 1, 0.04), ("full", 4, 0.02))
    for place, (confidence, looks, noise) in enumerate(cases):
        found = [false_names(land.equals(_rng(seed, 99, place, i), 8, noise), confidence, looks) for i in range(each)]
        winners, effects, last, quoted, starts = (np.mean([row[k] for row in found]) for k in range(5))
        name = f"{confidence}, {looks} look{'s' if looks > 1 else ''}, noise {noise:.0%}"
        say(f"{name:<42}{winners:>16.1%}{effects:>16.1%}{last:>16.1%}{quoted - 1:>+16.1%}{starts:>10.1f}")


def false_names(landscape: land.Landscape, confidence: str, looks: int) -> tuple[bool, bool, bool, float, int]:
    """(a winner was named for sure, an effect was named, one is named in the end, quoted peak over the truth, starts).

    Whoever looks after any start from the one that completes the first round counts, which is more looks than planned;
    what is named in the end is what the error was shared for.
    """
    settings = Settings(
        ladder=landscape.ladder,
        confidence=confidence,  # type: ignore[arg-type]
        looks=looks,
        start_minutes=land.START_MINUTES,
        point_minutes=land.POINT_MINUTES,
    )
    records, _ = campaign(landscape, settings)
    names = [record.configuration.name for record in records]
    first = max(names.index(c.name) for c in landscape.configurations) + 1
    decision, winner, effect, last = {}, False, False, False
    for count in range(first, len(records) + 1):
        decision = decide(records[:count], looks=looks)
        winner |= decision["winner"]["verdict"] == "sure"
        last = any(e["effect"]["peak"]["verdict"] in ("better", "worse") for e in decision["experiments"])
        effect |= last
    true = next(iter(landscape.peaks.values()))
    return winner, effect, last, decision["winner"]["value"] / true, len(records)


def within(found: list[Score], loss: float = 0.02) -> float:
    return sum(score.ratio >= 1 - loss for score in found) / len(found)


def _rng(*parts: int) -> np.random.Generator:
    return np.random.default_rng(parts)


if __name__ == "__main__":
    sys.exit(main())
