"""`python -m benchmark.campaign VERB`: what the roles call on the controller. One JSON object on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.configuration import fingerprint
from . import record as rec
from .decide import decide
from .store import MOST_BYTES, Campaign, StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        campaign = Campaign(options.campaigns, options.campaign)
        answer = _VERBS[options.verb](campaign, options)
    except (StoreError, rec.RecordError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(answer, sort_keys=True) + "\n")
    return 0


def _open(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    campaign.open(json.loads(_standard_input()))
    return {"folder": str(campaign.folder)}


def _put(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Keep a host's record; answers its folder and which of its raw files are not there yet."""
    record = rec.load(_standard_input(), f"the record of {options.host}")
    if record.host.name != options.host:
        raise StoreError(f"{options.host} sent a record that says it is of {record.host.name}.")
    folder = campaign.put(record)
    missing = [point.raw for point in record.points if point.raw and not (folder / point.raw).exists()]
    if any("/" in name or name.startswith(".") for name in missing):
        raise StoreError(f"The record of {record.configuration.name} names a raw file outside its folder.")
    return {"folder": str(folder), "missing": missing}


def _reject(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Keep the record of a configuration that never touched the host."""
    said = json.loads(_standard_input())
    record = rejected_record(said, options.host)
    return {"folder": str(campaign.put(record)), "missing": []}


def rejected_record(said: dict[str, Any], host: str) -> rec.Record:
    from ..host.records import now

    configuration = said["configuration"]
    known = {key: configuration.get(key) for key in ("name", "description", "against", "hypothesis", "engine")}
    of = {key: said[key] for key in ("engine", "model", "workload")} | {"configuration": known, "rejected": True}
    rules = [rule for rule in said["plan"].get("rules", []) if rule.get("severity") == "reject"]
    first = rules[0] if rules else {}
    return rec.Record(
        fingerprint=fingerprint(of),
        fingerprint_of=of,
        created_at=now(),
        updated_at=now(),
        configuration=rec.Configuration(
            **known, environment={key: str(value) for key, value in configuration["environment"].items()}
        ),
        host=rec.Host(name=host),
        engine=rec.Engine(**said["engine"]),
        model=rec.Model(**said["model"]),
        workload=said["workload"] if isinstance(said["workload"], dict) else {"name": said["workload"]},
        ladder=[int(rung) for rung in said["ladder"]],
        outcome="rejected",
        complete=True,
        failure=rec.Failure(
            kind=first.get("rule", "will_not_fit"),
            stage="check" if rules else "plan",
            sentence=first.get("sentence") or said["sentence"],
            evidence=[first["engine_message"]] if first.get("engine_message") else [],
            advice=first.get("advice", ""),
        ),
        plan=said["plan"],
    )


def _report(campaign: Campaign, options: argparse.Namespace) -> dict[str, Any]:
    """Write the report from what is there; answers the decision in a few words."""
    from ..report import write_report

    with campaign.locked():
        records = campaign.records()
        decision = decide(records) | {"name": campaign.name}
        campaign.write(
            campaign.folder / "decision.json", json.dumps(decision, indent=1, sort_keys=True).encode() + b"\n"
        )
        paths = write_report(campaign.folder, campaign.about(), records, decision)
    here = [row for row in decision["ranking"] if row["host"] == options.host or not options.host]
    winner = next((row["configuration"] for row in here if row["peak"]), None)
    return {"folder": str(campaign.folder), "winner": winner, "report": {key: str(path) for key, path in paths.items()}}


def _standard_input() -> str:
    text = sys.stdin.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise StoreError(f"Standard input is longer than {MOST_BYTES >> 20} MiB; that is no record.")
    return text


_VERBS = {"open": _open, "put": _put, "reject": _reject, "report": _report}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmark.campaign", description=__doc__)
    parser.add_argument("--campaigns", type=Path, required=True)
    parser.add_argument("--campaign", required=True)
    parser.add_argument("verb", choices=sorted(_VERBS))
    parser.add_argument("--host", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
