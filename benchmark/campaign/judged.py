"""A campaign folder judged: the decision by what its sweeps asked for, and the report written from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import turns
from .decide import decide
from .objectives import CHOOSING_STARTS, KNOWN, PEAK, group
from .record import Record
from .store import Campaign, StoreError


def decided(campaign: Campaign, records: list[Record] | None = None) -> dict[str, Any]:
    """The decision of a campaign as its records stand: that of decide.py, with "name", "confidence", "looks" and
    "skipped".

    "skipped" are what its sweeps did not try, or left early, and why: [{"configuration", "host", "reason",
    "chance"}].
    """
    records = campaign.records() if records is None else records
    about, sweeps = campaign.about(), campaign.sweeps()
    objective = str(about.get("objective") or PEAK.name)
    full = about.get("confidence") == "full" or any(sweep.asked.confidence == "full" for sweep in sweeps)
    confidence = "full" if full else "quick"
    looks = kept_looks(campaign) or 1
    decision = decide(records, objective, _of_all(records, sweeps), looks)
    lacking = [row for sweep in sweeps for row in turns.baseline_lacks(sweep, records)]
    return decision | {
        "more_starts": [*decision["more_starts"], *lacking],
        "name": campaign.name,
        "confidence": confidence if sweeps else None,
        "looks": looks,
        "skipped": [*_not_tried(sweeps, records), *_left_early(records)],
    }


def kept_looks(campaign: Campaign) -> int:
    """Among how many looks the campaign's error is shared; 0 where nothing was asked for yet. An earlier version kept
    it with its sweeps alone.
    """
    told = None
    with contextlib.suppress(StoreError):  # spoiled: the next sweep sets it aside
        told = campaign.about().get("looks")
    return told if isinstance(told, int) else max((sweep.asked.looks for sweep in campaign.sweeps()), default=0)


def shared_looks(campaign: Campaign, asked: int) -> int:
    """Among how many looks a further sweep that asks for so many shares the campaign's error.

    The most that were ever asked for, and no more than those once the first was taken: what was to be spent on it is
    spent, and more looks would have nothing left.
    """
    kept = kept_looks(campaign)
    if not kept or asked <= kept:
        return max(kept, asked)
    started = sorted(len(found.measured) for found in group(campaign.all_records(skip_broken=True)))
    looked = len(started) > 1 and started[-2] >= CHOOSING_STARTS
    return kept if looked else asked


def _of_all(records: list[Record], sweeps: list[turns.HostSweep]) -> list[str]:
    """What the configurations are weighed by all at once, beside the objective: what was asked for, and what each of
    those that were measured tells."""
    measured = [found for found in group(records) if found.measured]
    told = [by.name for by in KNOWN if measured and all(found.values(by) for found in measured)]
    return list(dict.fromkeys([*(sweep.asked.objective for sweep in sweeps), *told]))


def _not_tried(sweeps: list[turns.HostSweep], records: list[Record]) -> list[dict[str, Any]]:
    """What the sweeps leave out, and those before them left, as of their last turn; what is rejected has a record that
    says why."""
    there = {(record.host.name, record.configuration.name) for record in records}
    return [
        row | {"host": sweep.host}
        for sweep in sweeps
        for row in (*sweep.carried, *sweep.skipped)
        if (sweep.host, row["configuration"]) not in there
    ]


def _left_early(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {
            "configuration": record.configuration.name,
            "host": record.host.name,
            "reason": f"Concurrency {', '.join(map(str, record.left.rungs))} not measured: {record.left.reason}",
            "chance": None,
        }
        for record in records
        if record.left
    ]


def written(campaign: Campaign, *, page: bool = True) -> tuple[dict[str, Any], dict[str, Path]]:
    """Decide, and write decision.json and the report (its files; none without `page`); the caller holds the lock."""
    records = campaign.records()
    decision = decided(campaign, records)
    campaign.write(campaign.folder / "decision.json", json.dumps(decision, indent=1, sort_keys=True).encode() + b"\n")
    if not page:
        return decision, {}
    from ..report import write_report

    return decision, write_report(campaign.folder, campaign.about(), records, decision)


def winner_on(decision: Mapping[str, Any], host: str) -> dict[str, Any] | None:
    """The winner that a host is to serve: its own where not all hosts can be compared, else that of all."""
    own = decision["winners_by_host"]
    winner: dict[str, Any] | None = own.get(host) if own else decision["winner"]
    return winner
