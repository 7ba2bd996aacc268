"""`python -m benchmark.campaign VERB`: what the roles call on the controller. One JSON object on standard output.

A verb imports what it needs when it is asked: `put` is asked after each point.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from . import record as rec
from .store import MOST_BYTES, Campaign, StoreError, is_raw_name, with_points_of

if TYPE_CHECKING:
    from .schedule import Turn
    from .turns import HostSweep

_REPORT_SECONDS = 60.0
"""A report that is older is written again between two starts."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        campaign = Campaign(options.campaigns, options.campaign)
        answer = _VERBS[options.verb](campaign, options)
    except rec.CampaignError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(answer, sort_keys=True) + "\n")
    return 0


def _foresee(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """What a sweep would do, from what it is asked for on standard input; writes nothing."""
    from . import turns

    sweep = turns.asked_for(_standard_input().encode())
    return _foreseen(campaign, sweep, now())


def _with_looks(campaign: Campaign, sweep: HostSweep) -> HostSweep:
    """The sweep with as many looks as the campaign's error is shared among: it is judged by no other number."""
    from . import turns
    from .judged import shared_looks

    return turns.with_looks(sweep, shared_looks(campaign, sweep.asked.looks))


def _foreseen(campaign: Campaign, sweep: HostSweep, at: dt.datetime) -> dict[str, Any]:
    from . import turns
    from .foreseen import foreseen_lines, looks_lines

    records = campaign.all_records(skip_broken=True)
    asked, sweep = sweep.asked.looks, _with_looks(campaign, sweep)
    sweep = turns.opened(sweep, records, at, _last(campaign, sweep.host))
    found = turns.look(sweep, records, at)
    return {
        "most": turns.most_turns(sweep),
        "order": [_brief(turn) for turn in found.turns],
        "minutes": found.minutes_left,
        "kept": turns.kept(sweep, records),
        "otherwise": turns.measured_otherwise(sweep, records),
        "skipped": found.skipped,
        "lines": [*foreseen_lines(sweep, records, found), *looks_lines(asked, sweep.asked.looks)],
    }


def _last(campaign: Campaign, host: str) -> HostSweep | None:
    """The last sweep of a host; None before its first."""
    try:
        return campaign.sweep(host)
    except rec.CampaignError:
        return None


def _brief(turn: Turn) -> dict[str, Any]:
    return {"configuration": turn.configuration, "start_number": turn.start_number, "minutes": turn.minutes}


def _open(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Begin a sweep of one host: note what it is, keep the records of what is rejected; answers what is foreseen."""
    from . import turns

    said = json.loads(_standard_input())
    about = said.pop("about")
    for path in campaign.set_aside_broken():
        sys.stderr.write(
            f"{path} could not be read, and was set aside; its copy, or what its host has of it, takes its place.\n"
        )
    sweep, at = turns.asked_for(json.dumps(said).encode()), now()
    names = [entry["name"] for entry in sweep.plan]
    told, sweep = sweep, _with_looks(campaign, sweep)
    # How sure it is to be, and among how many looks its error is shared, a later sweep does not lower.
    full = "full" in (sweep.asked.confidence, campaign.about().get("confidence"))
    asked = {
        "objective": sweep.asked.objective,
        "confidence": "full" if full else "quick",
        "looks": sweep.asked.looks,
    }
    campaign.open(about | asked | {"configurations": names, "host": sweep.host})
    for entry in sweep.plan:
        if entry["verdict"] == "rejected":
            campaign.put(rejected_record(entry, about, sweep))
    with campaign.locked():
        if (last := _last(campaign, sweep.host)) is not None:
            sweep = turns.following(sweep, last)
        campaign.keep_sweep(turns.opened(sweep, campaign.all_records(), at, last))
    return _foreseen(campaign, told, at) | {"folder": str(campaign.folder)}


def _next(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Keep the record of the last start, decide, and hand out the next start; an empty one if none is left.

    One call between two starts: each of them is a process on the controller. The report is written when it is some
    while old, and when nothing is left to start: a page takes longer than all the rest of this.
    """
    from . import turns

    if record := _standard_input().strip():
        _keep(campaign, record, options.host)
    with campaign.locked():
        sweep, records = campaign.sweep(options.host), campaign.all_records()
        found = turns.look(sweep, records, now())
        turn = turns.told(sweep, records, found.turns[0]) if found.turns else {}
        campaign.keep_sweep(turns.taken(sweep, found))
        due = not found.turns or campaign.report_age() > _REPORT_SECONDS
        told = _told(campaign, options.host, page=due)
    coming = [_brief(turn) for turn in found.turns]
    lacking = _lacking(campaign, records, options.host)
    return told | {"turn": turn, "coming": coming, "minutes": found.minutes_left, "lacking": lacking}


def _lacking(campaign: Campaign, records: Sequence[rec.Record], host: str) -> list[str]:
    """CONFIGURATION/KEY/FILE of requests that are not here: a controller that was killed had not fetched them yet."""
    folder = campaign.folder / host
    missing = [
        campaign.folder_of(record) / point.raw
        for record in records
        if record.host.name == host
        for point in record.points
        if is_raw_name(point.raw)
    ]
    return [str(path.relative_to(folder)) for path in missing if not path.exists()]


def _put(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Keep a host's record; answers its folder and which of its raw files are not there yet.

    Standard input is the record, or the answer of the host's verb `measure`: the record as text, and raw files.
    """
    text, files = _record_and_requests(_standard_input())
    record = _keep(campaign, text, options.host)
    here = campaign.known(record) or record
    # Of an invalid point that did not take a valid one's place the requests would stand under that one's name.
    raw = [point.raw for point in record.points if point.raw and point in here.points]
    campaign.keep_requests(record, {name: content for name, content in files.items() if name in raw})
    missing = [name for name in raw if not campaign.raw_file(record, name).exists()]
    return {"folder": str(campaign.folder_of(record)), "missing": missing}


def _record_and_requests(text: str) -> tuple[str, dict[str, str]]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return text, {}
    if not isinstance(answer, dict) or not isinstance(answer.get("record"), str):
        return text, {}
    files = answer.get("requests") or {}
    if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
        raise StoreError("The requests that came with a record are no files.")
    return answer["record"], files


def _measured_again(known: rec.Record | None, record: rec.Record) -> list[str]:
    """Raw files of points that were measured again: other requests under the same name."""
    if known is None:
        return []
    # Those of a valid point stay where it does, for the new one was invalid.
    now = {point.raw: point.started_at for point in with_points_of(record, known).points}
    return [p.raw for p in known.points if is_raw_name(p.raw) and now.get(p.raw, p.started_at) != p.started_at]


def _keep(campaign: Campaign, text: str, host: str) -> rec.Record:
    """Keep a host's record, whichever verb brings it; requests of points that were measured again are lacking then."""
    record = rec.load(text, f"the record of {host}")
    if record.host.name != host:
        raise StoreError(f"{host} sent a record that says it is of {record.host.name}.")
    for point in record.points:
        if point.raw:
            campaign.raw_file(record, point.raw)  # before anything of it is kept
    for stale in _measured_again(campaign.known(record), record):
        (campaign.folder_of(record) / stale).unlink(missing_ok=True)
    campaign.put(record)
    return record


def rejected_record(entry: dict[str, Any], about: dict[str, Any], sweep: HostSweep) -> rec.Record:
    """The record of a configuration that never touches the host."""
    from ..engine.configuration import fingerprint

    configuration, said = entry["configuration"], entry.get("plan") or {}
    known = {key: configuration.get(key) for key in ("name", "description", "against", "hypothesis", "engine")}
    of = {key: about[key] for key in ("engine", "model", "workload")} | {"configuration": known, "rejected": True}
    rules = [rule for rule in said.get("rules", []) if rule.get("severity") == "reject"]
    first = rules[0] if rules else {}
    stamp = now().isoformat(timespec="seconds").replace("+00:00", "Z")
    return rec.Record(
        fingerprint=fingerprint(of),
        fingerprint_of=of,
        created_at=stamp,
        updated_at=stamp,
        configuration=rec.Configuration(
            **known, environment={key: str(value) for key, value in configuration["environment"].items()}
        ),
        host=rec.Host(name=sweep.host),
        engine=msgspec.convert(about["engine"], rec.Engine),
        model=rec.Model(**about["model"]),
        workload=about["workload"] if isinstance(about["workload"], dict) else {"name": about["workload"]},
        ladder=sweep.asked.ladder,
        outcome="rejected",
        complete=True,
        failure=rec.Failure(
            kind=first.get("rule", "will_not_fit"),
            stage="check" if rules else "plan",
            sentence=first.get("sentence") or entry["sentence"],
            evidence=[first["engine_message"]] if first.get("engine_message") else [],
            advice=first.get("advice", ""),
        ),
        plan=said,
    )


def _report(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Write the report from what is there; answers the decision in a few words."""
    with campaign.locked():
        return _told(campaign, options.host)


def _told(campaign: Campaign, host: str, *, page: bool = True) -> dict[str, Any]:
    from .judged import winner_on, written

    decision, paths = written(campaign, page=page)
    return {
        "folder": str(campaign.folder),
        "winner": (winner_on(decision, host) or {}).get("configuration"),
        "report": {key: str(path) for key, path in paths.items()},
    }


def _winner(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """The configuration to put into service on a host, by the decision as it stands."""
    from .judged import decided, winner_on

    winner = winner_on(decided(campaign), options.host) or {}
    return {"winner": winner.get("configuration"), "sentence": winner.get("sentence")}


def _arrived(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Raw files were fetched whole, each as `.NAME.part` beside its place: {"folder", "names": [paths below it]}."""
    said = json.loads(_standard_input())
    return {"kept": [name for name in said["names"] if campaign.arrived(Path(said["folder"]) / name)]}


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _standard_input() -> str:
    text = sys.stdin.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise StoreError(f"Standard input is longer than {MOST_BYTES >> 20} MiB; that is no record.")
    return text


_VERBS = {
    "foresee": _foresee,
    "open": _open,
    "next": _next,
    "put": _put,
    "arrived": _arrived,
    "report": _report,
    "winner": _winner,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmark.campaign", description=__doc__)
    parser.add_argument("--campaigns", type=Path, required=True)
    parser.add_argument("--campaign", required=True)
    parser.add_argument("verb", choices=sorted(_VERBS))
    parser.add_argument("--host", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
