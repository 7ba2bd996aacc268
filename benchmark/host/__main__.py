"""`shardsweep-host VERB`: what Ansible calls on a host. Each verb answers one JSON object on standard output.

A verb imports what it needs when it is asked: a sweep asks some ten of them for each engine start.

Exit status: 0 with an answer; 2 with {"error": "..."} when this host stops the verb; 3 when the verb itself broke.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from . import forms, lease
from .managers import manager_for
from .settings import HostError, Settings, read_json, read_settings


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        settings = read_settings(options.settings)
        answer = _VERBS[options.verb](settings, options)
    except HostError as error:
        answer, status = {"error": str(error)}, 2
    except Exception as error:
        # A mistake of ours: the caller still gets one JSON object, and the trace for a bug report.
        traceback.print_exc()
        answer, status = {"error": f"{options.verb} broke: {type(error).__name__}: {error}"}, 3
    else:
        status = 0
    if answer is not None:
        sys.stdout.write(json.dumps(msgspec.to_builtins(answer), sort_keys=True) + "\n")
    return status


def observe(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """What runs here, what it holds, who is at the port. Changes nothing.

    A broken nvidia-smi takes nothing else along: `gpus` is then "unknown: " and why.
    """
    import getpass

    from . import engine_http, failures, gpus, holding, processes
    from .services import configuration_of
    from .serving import running, serving_units

    manager = manager_for(settings)
    known = running(settings)
    serving = []
    for unit in serving_units(settings, manager, options.yields):
        state = manager.state(unit)
        last = known.get(unit, {})
        serving.append(
            {
                "unit": unit,
                "configuration": configuration_of(unit),
                "activity": state.activity,
                "pid": state.pid,
                "started_at": state.started_at,
                "fingerprint": last.get("fingerprint"),
                "ready_seconds": last.get("ready_seconds"),
                "restarts": state.restarts,
            }
        )
    try:
        devices = gpus.summary(gpus.gpus(settings)) or "no GPU"
    except HostError as error:
        devices = f"unknown: {error}"
    holders = processes.port_holders(settings.port)
    return {
        "manager": settings.manager,
        "engine": settings.engine,
        "user": getpass.getuser(),
        "serving": serving,
        "health": engine_http.health(settings) if serving else "refused",
        "gpus": devices,
        "port": {"number": settings.port, "holders": None if holders is None else [str(h) for h in holders]},
        "lease": lease.current(settings),
        "held_by": holding.held_by(settings),
        "last_failure": failures.last(settings, manager),
        "allreduce": _allreduces(settings),
    }


def _allreduces(settings: Settings) -> list[dict[str, Any]]:
    """What the last communication check measured, for the plan; empty without one."""
    from .preflight import HOST_FILE

    return read_json(settings.state / HOST_FILE, {}, forms.Host).get("communication", {}).get("allreduce") or []


def _held(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Whose sweep keeps a deployment or a promotion from this host ("held_by"), and whose another sweep.

    Asked before these tools and their settings are written anew, so it needs neither the engine nor nvidia-smi.
    """
    from . import holding

    return {"held_by": holding.held_by(settings), "sweep_refused": holding.sweep_refused(settings, options.first)}


def _switch(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from .switch import switch

    return switch(
        settings,
        options.configuration,
        options.fingerprint,
        options.token,
        yields=options.yields,
        seconds=options.seconds,
        node=options.node,
        anew=options.anew,
        sweep=options.sweep,
        gpus=[int(place) for place in options.gpus.split(",")] if options.gpus else None,
        start=not options.make_room,
    )


def _stop(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from .switch import switch

    if options.interrupt:
        # Whoever says so does not want the sweep's guard to start again what served before it.
        lease.forget(settings)
    answer = switch(settings, None, "", options.token, yields=options.yields, sweep="", proof=False)
    if answer["phase"] == "stopped":
        manager_for(settings).release()
    return answer


def _restore(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from .rollback import restore

    return restore(settings, options.units, options.token, seconds=options.seconds, sweep=options.sweep)


def _sweep_begin(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import holding

    return holding.begin(settings, options.token, options.owner, options.after, options.yields, options.first)


def _sweep_end(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import holding

    return holding.end(settings, options.token, options.after)


def _guard(settings: Settings, options: argparse.Namespace) -> None:
    from . import holding

    holding.guard(settings)


def _workload(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """A workload whole, from its name or a mapping on standard input: refused here, before anything is stopped.

    So are points after the ladder that make no sense ("ladder", "further": as `begin` takes them).
    """
    from . import records

    said = _standard_input()
    workload = records.workload_of(said["workload"])
    records.further_of(workload, said.get("ladder") or [], said.get("further") or {})
    return workload.to_mapping()


def _begin(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import holding, records

    holding.claim(settings, options.sweep)
    return records.begin(settings, _standard_input())


def _fingerprints(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import records

    return {"fingerprints": records.fingerprints(settings, _standard_input()["contexts"])}


def _measure(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import jobs

    return jobs.measure(settings, _standard_input())


def _run_job(settings: Settings, options: argparse.Namespace) -> None:
    from .job import run

    run(settings)


def _died(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Whether the engine that served, or its rank on this host, has ended by itself, and why."""
    from .switch import death

    failure = death(settings, options.configuration)
    return {"phase": "failed" if failure else "ready", "failure": failure}


def _fail(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import failures, holding, records, watch
    from .switch import death

    holding.claim(settings, options.sweep)
    said = _standard_input()
    failure = said["failure"]
    if failure.get("kind") == "point_failed":
        # The engine's own end says more than the load generator's view of it.
        failure = death(settings, options.configuration) or watch.failure(settings, options.configuration) or failure
    failures.note(settings, options.configuration, failure)
    records.fail(settings, options.configuration, options.fingerprint, failure, said.get("start") or {})
    return records.finish(settings, options.configuration, options.fingerprint, options.facts)


def _finish(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import records

    return records.finish(settings, options.configuration, options.fingerprint, options.facts)


def _promoted(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import promotion

    return promotion.promoted(settings)


def _promote_begin(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import holding, promotion

    holding.claim(settings, "")
    return {"before": promotion.prepare(settings, options.configuration, options.fingerprint, options.yields)}


def _promote(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import promotion

    return promotion.promote(settings, options.configuration, options.fingerprint, _standard_input()["before"])


def _roll_back(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import promotion

    return promotion.roll_back(settings, spread=options.spread)


def _rolled_back(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from . import promotion

    return promotion.rolled_back(settings)


def _preflight(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from .preflight import preflight

    return preflight(settings, options.yields, options.gpus, keep=not options.look_only)


def _communication(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    from .communication import communication

    return communication(settings, _standard_input(), options.token)


def _model(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """Is the model's folder whole, for the user who asks? The folder stands where other verbs have a configuration."""
    from ..engine import model_files

    if not options.configuration:
        raise HostError("Say which folder: model /srv/models/NAME.")
    found = model_files.look_at(Path(options.configuration))
    return {**asdict(found), "whole": found.whole}


def _standard_input() -> dict[str, Any]:
    try:
        said = json.load(sys.stdin)
    except ValueError as error:
        raise HostError(f"Standard input is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise HostError("Standard input is not a JSON object.")
    return said


_VERBS = {
    "observe": observe,
    "held": _held,
    "switch": _switch,
    "stop": _stop,
    "restore": _restore,
    "sweep-begin": _sweep_begin,
    "sweep-end": _sweep_end,
    "guard": _guard,
    "workload": _workload,
    "fingerprints": _fingerprints,
    "begin": _begin,
    "measure": _measure,
    "run-job": _run_job,
    "died": _died,
    "fail": _fail,
    "finish": _finish,
    "model": _model,
    "promoted": _promoted,
    "promote-begin": _promote_begin,
    "promote": _promote,
    "roll-back": _roll_back,
    "rolled-back": _rolled_back,
    "preflight": _preflight,
    "communication": _communication,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shardsweep-host", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="the host's settings file")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in _VERBS:
        verb = verbs.add_parser(name)
        verb.add_argument("configuration", nargs="?")
        verb.add_argument("--fingerprint", default="")
        verb.add_argument("--token", default="")
        verb.add_argument("--gpus", default="", help="those that are meant, such as 0,1,2,3")
        verb.add_argument("--sweep", default="", help="the token of the sweep that asks")
        verb.add_argument("--interrupt", action="store_true", help="end the sweep that holds the host")
        verb.add_argument("--owner", default="")
        verb.add_argument("--after", choices=("previous", "winner", "stopped"))
        verb.add_argument("--facts", type=Path, help="the folder of host facts")
        verb.add_argument("--units", nargs="*", default=[])
        verb.add_argument("--yields", nargs="*", default=[])
        verb.add_argument("--seconds", type=float, default=5.0, help="how long to look")
        verb.add_argument("--node", type=int, default=0, help="which of several nodes this host is")
        verb.add_argument("--look-only", action="store_true", help="write nothing of what is seen")
        verb.add_argument("--anew", action="store_true", help="start again what runs as wanted")
        verb.add_argument("--make-room", action="store_true", help="stop what runs, and start nothing yet")
        verb.add_argument("--spread", action="store_true", help="other hosts go back with this one")
        verb.add_argument("--first", default="", help="ADDRESS:PORT at which further nodes meet the first")
    return parser


if __name__ == "__main__":
    sys.exit(main())
