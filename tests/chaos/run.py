"""Break a sweep in every way that is known, so often, and see what is left: `make chaos`.

    python tests/chaos/run.py [--rounds 20] [--seed 1] [--kind 'kill -9 engine'] [--folder DIR] [--port 30399]

Each round sweeps two configurations of the simulated engine, lets one seeded fault happen at a seeded moment, and
then sweeps once more. A round is survived when no finished point is lost or changed, nothing is left running, the exit
status told of what went wrong, and the second sweep measures all that is missing. Rounds are numbered by their seeds:
`CHAOS_SEED=17 CHAOS=1 make chaos` repeats round 17. A run that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import chaos_controller
from chaos_faults import KINDS, Fault, catalogue_names, draw
from chaos_site import CLOCK, GPUS, Site

from benchmark.host.switch import switch

PATIENCE_SECONDS = 90.0
"""Longer than any sweep of two configurations here may last on a slow machine."""


_LOOK_SECONDS = 0.1
"""After so long a fault looks again for what it is about."""


class LostError(AssertionError):
    """A round that was not survived; the text says what is wrong."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    site = Site(folder, options.port)
    site.state.mkdir(parents=True, exist_ok=True)
    log = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {row["seed"] for row in rows}
    kinds = options.kind or KINDS
    began = time.monotonic()
    try:
        for seed in range(options.seed, options.seed + options.rounds):
            if seed in done:
                continue
            row = _round(site, seed, kinds[seed % len(kinds)])
            rows.append(row)
            with log.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            sys.stdout.write(_line(row) + "\n")
            sys.stdout.flush()
    finally:
        end(site)
    sys.stdout.write(table(rows) + f"\n{time.monotonic() - began:.0f} s; {folder}\n")
    failed = [row for row in rows if row["problem"]]
    for row in failed:
        sys.stdout.write(f"Repeat it: CHAOS=1 CHAOS_SEED={row['seed']} make chaos\n")
    if not failed and not options.folder:
        shutil.rmtree(folder)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given again")
    parser.add_argument("--folder", type=Path, help="state and results; kept, and a run goes on in it")
    parser.add_argument("--port", type=int, default=30399)
    return parser


def _round(site: Site, seed: int, kind: str) -> dict[str, Any]:
    names = catalogue_names(seed)
    fault = draw(seed, kind, names)
    row = {"seed": seed, "kind": kind, "victim": fault.victim, "moment": fault.moment, "detail": fault.detail}
    began, said = time.monotonic(), []
    try:
        before = site.finished()
        lost = _break_and_mend(site, seed, names, fault, before, said)
        problem = ""
    except LostError as error:
        problem, lost = str(error), getattr(error, "lost", 0)
    except Exception:
        problem, lost = traceback.format_exc(limit=-2).strip().replace("\n", " | ")[-600:], 0
    finally:
        for holder in fault.holder:
            holder.kill()
            holder.wait()
    if problem:
        end(site)
    seconds = round(time.monotonic() - began, 1)
    row["struck"] = fault.struck or bool(fault.engine or fault.full_disk_at)
    return row | {"problem": problem, "lost": lost, "seconds": seconds, "said": said}


def _break_and_mend(
    site: Site, seed: int, names: list[str], fault: Fault, before: dict[Any, Any], said: list[str]
) -> int:
    site.set_clock(0)
    site.limits, site.victim = fault.limits, fault.victim
    site.render(fault.engine)
    status = sweep(site, seed, names, said, fault)
    said.append(f"exit status {status}")
    # What was finished in the moment of the fault counts, even where the fault is a spoiled file.
    between = before | fault.finished | site.finished()
    told = any(line.startswith(("failed", "no-record", "refused")) or "failed" in line for line in said)
    if status == 0 and told:
        raise LostError("the sweep said that all is well, and it was not")
    for holder in fault.holder:
        holder.wait()
    # What a person mends: the GPU is reset, the disk has room again, the engine is repaired, the clock is set.
    for gpu in range(GPUS):
        site.ledger.reset(gpu)
    site.limits = {}
    if fault.kind != "clock jump":
        site.set_clock(0)
    site.render()
    again = sweep_when_free(site, seed, names, said)
    if again != 0:
        raise LostError(f"the next sweep ended with {again}")
    after = site.finished()
    gone = [key for key, value in between.items() if after.get(key) != value]
    if gone:
        error = LostError(f"{len(gone)} finished points are lost or changed: {gone[0]}")
        error.lost = len(gone)
        raise error
    missing = [name for name in names if site.points(name, seed) < len(site.ladder(name))]
    if missing:
        raise LostError(f"not all points of {missing}")
    if left := site.running():
        raise LostError(f"still there: {'; '.join(left)[:300]}")
    return 0


def sweep_when_free(site: Site, seed: int, names: list[str], said: list[str]) -> int | None:
    """The next sweep, as soon as the host lets it in."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        status = sweep(site, seed, names, said, None)
        if status != 2:
            return status
        time.sleep(0.5)
    return 2


def sweep(site: Site, seed: int, names: list[str], said: list[str], fault: Fault | None) -> int | None:
    """A sweep in a process of its own; its exit status, negative for a signal."""
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    full_disk_at = fault.full_disk_at if fault else ""
    process = context.Process(target=_controller, args=(site, seed, names, writing, full_disk_at))
    process.start()
    writing.close()
    try:
        _follow(site, process, reading, said, fault)
    except BaseException:
        # A sweep that went on would start engines behind our back.
        process.kill()
        raise
    process.join(PATIENCE_SECONDS)
    return process.exitcode


def _follow(site: Site, process: Any, reading: Connection, said: list[str], fault: Fault | None) -> None:
    """Hear what the sweep tells until it is over, and let the fault happen at its moment, or at the first after it."""
    due: float | None = None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.is_alive() or reading.poll():
        if time.monotonic() > deadline:
            raise LostError(f"the sweep did not end within {PATIENCE_SECONDS:.0f} s; last: {said[-1:]}")
        try:
            if reading.poll(0.05):
                line = reading.recv()
                said.append(line)
                if fault and due is None and line == fault.moment:
                    due = time.monotonic() + fault.delay_seconds
                    fault.finished = site.finished()
                elif due is not None and line.startswith("kept"):
                    fault.finished = site.finished()
        except EOFError:
            break
        if fault and due is not None and time.monotonic() >= due:
            if (done := fault.act(site, process.pid)) is None:
                due = time.monotonic() + _LOOK_SECONDS
                continue
            said.append(f"FAULT {done}")
            fault.struck, fault, due = True, None, None


def _controller(site: Site, seed: int, names: list[str], writing: Connection, full_disk_at: str) -> None:
    # A session of its own, as a terminal's: what kills it does not reach the suite.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["SHARDSWEEP_CHAOS_CLOCK"] = str(site.clock)
    exec(compile((CLOCK / "sitecustomize.py").read_text(), "clock", "exec"), {"__name__": "clock"})
    status = 3
    try:
        status = chaos_controller.sweep(site, seed, names, writing.send, full_disk_at=full_disk_at)
    except BaseException:
        writing.send("broke " + traceback.format_exc(limit=-4).replace("\n", " | "))
    finally:
        writing.close()
        os._exit(status)


def end(site: Site) -> None:
    """Stop all that a round left."""
    site.limits, token = {}, f"end-{time.time()}"
    for gpu in range(GPUS):
        site.ledger.reset(gpu)
    (site.state / "lease.json").unlink(missing_ok=True)
    (site.state / "lease-copy.json").unlink(missing_ok=True)
    try:
        while switch(site.settings, None, "", token, yields=[])["phase"] == "stopping":
            pass
    finally:
        manager = site.manager
        for unit in ("shardsweep-job", "shardsweep-guard"):
            manager.stop(unit)
        deadline = time.monotonic() + 8
        while any(manager.state(u).running for u in manager.units()) and time.monotonic() < deadline:
            time.sleep(0.2)
        manager.release()


def _line(row: dict[str, Any]) -> str:
    what = f"seed {row['seed']:>4}  {row['kind']:<28} {row['victim']} {row['moment']!r} {row['detail']}"
    return f"{what}  {row['seconds']:.0f} s  {'NOT SURVIVED: ' + row['problem'] if row['problem'] else 'survived'}"


def table(rows: list[dict[str, Any]]) -> str:
    """A table of the kinds: how many rounds, in how many it struck, were survived, points lost."""
    lines = [f"{'kind':<30}{'rounds':>8}{'struck':>8}{'survived':>10}{'points lost':>13}"]
    for kind in [*KINDS, "all"]:
        of = [row for row in rows if kind in (row["kind"], "all")]
        if of:
            struck, survived = sum(row["struck"] for row in of), sum(not row["problem"] for row in of)
            lines.append(f"{kind:<30}{len(of):>8}{struck:>8}{survived:>10}{sum(row['lost'] for row in of):>13}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
