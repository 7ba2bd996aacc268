"""Break a sweep in every way that is known, so often, and see what is left: `make chaos`.

    python tests/chaos/run.py [--rounds 20] [--seed 1] [--kind 'kill -9 engine'] [--folder DIR] [--port 30399]
    python tests/chaos/run.py --units SETTINGS.json
    python tests/chaos/run.py --playbooks [--inventory FILE --host NAME]

Each round sweeps two configurations of the simulated engine, lets one seeded fault strike at a seeded moment, and then
sweeps once more. A round is survived when no finished point is lost or changed, nothing is left running, the exit
status told of what went wrong, and the second sweep measures all that is missing. Rounds are numbered by their seeds:
`CHAOS_SEED=17 CHAOS=1 make chaos` repeats round 17. A run that was cut off goes on where it was.

By itself a process of the suite calls the host's verbs as the playbooks do, which makes a round cheap: here under
supervisor; with `--units` on a host with systemd, whose units the roles have rendered. With `--playbooks` it is
`ansible-playbook sweep.yml`, on this machine under supervisor or on a host of an inventory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos_controller import InProcess
from chaos_faults import FAKETIME, HOST_KINDS, KINDS
from chaos_playbooks import Playbooks
from chaos_round import Site, play
from chaos_units import Units

ALL_KINDS = tuple(dict.fromkeys([*KINDS, FAKETIME, *HOST_KINDS]))


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    site = _site(options, folder)
    kinds = options.kind or site.kinds
    known = (*site.kinds, *site.kinds_by_name)
    if strange := [kind for kind in kinds if kind not in known]:
        sys.exit(f"Not of this site: {', '.join(strange)}. It knows {', '.join(known)}.")
    log = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    seeds = range(options.seed, options.seed + options.rounds)
    left = [seed for seed in seeds if seed not in {row["seed"] for row in rows}]
    began = time.monotonic()
    try:
        if left:
            site.open()
        for seed in left:
            rows.append(play(site, seed, kinds[seed % len(kinds)]))
            with log.open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
            sys.stdout.write(_line(rows[-1]) + "\n")
            sys.stdout.flush()
    finally:
        site.end()
    sys.stdout.write(table(rows) + f"\n{time.monotonic() - began:.0f} s; {folder}\n")
    failed = [row for row in rows if row["problem"]]
    for row in failed:
        sys.stdout.write(
            f"Repeat it with --rounds 1 --seed {row['seed']} (make chaos CHAOS=1 CHAOS_SEED={row['seed']})\n"
        )
    if not failed and not options.folder:
        shutil.rmtree(folder)
    return 1 if failed else 0


def _site(options: argparse.Namespace, folder: Path) -> Site:
    if options.units:
        return Units(folder, options.units)
    if not options.playbooks:
        return InProcess(folder, options.port)
    return Playbooks(folder, options.port, options.inventory, options.host)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--kind", action="append", choices=ALL_KINDS, help="only this kind; may be given again")
    parser.add_argument("--folder", type=Path, help="state and results; kept, and a run goes on in it")
    parser.add_argument("--port", type=int, default=30399)
    parser.add_argument("--units", type=Path, metavar="SETTINGS", help="this host's systemd, its settings by the roles")
    parser.add_argument("--playbooks", action="store_true", help="sweep by ansible-playbook")
    parser.add_argument("--inventory", type=Path, help="of a host to be swept and broken; else this machine")
    parser.add_argument("--host", default="here", help="its name in the inventory")
    return parser


def _line(row: dict[str, Any]) -> str:
    what = f"seed {row['seed']:>4}  {row['kind']:<28} {row['victim']} {row['moment']!r} {row['detail']}"
    return f"{what}  {row['seconds']:.0f} s  {'NOT SURVIVED: ' + row['problem'] if row['problem'] else 'survived'}"


def table(rows: list[dict[str, Any]]) -> str:
    """A table of the kinds: how many rounds, in how many it struck, were survived, points lost."""
    lines = [f"{'kind':<30}{'rounds':>8}{'struck':>8}{'survived':>10}{'points lost':>13}"]
    for kind in [*ALL_KINDS, "all"]:
        of = [row for row in rows if kind in (row["kind"], "all")]
        if of:
            struck, survived = sum(row["struck"] for row in of), sum(not row["problem"] for row in of)
            lines.append(f"{kind:<30}{len(of):>8}{struck:>8}{survived:>10}{sum(row['lost'] for row in of):>13}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
