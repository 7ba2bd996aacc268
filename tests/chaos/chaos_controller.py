"""A sweep as the playbooks run it, verb after verb, in one process that may be killed at any moment.

playbooks/sweep.yml and tasks/{take,turn,measure,after}.yml say the same in Ansible, which costs half a minute a sweep;
chaos_playbooks.py breaks those.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from chaos_faults import FAKETIME, KINDS, WORKLOAD, Fault
from chaos_round import PATIENCE_SECONDS
from chaos_site import CLOCK, GPUS, HOST, LIBFAKETIME, Site

from benchmark.campaign import __main__ as controller_verbs
from benchmark.host import holding, jobs, records, watch
from benchmark.host.managers import manager_for
from benchmark.host.services import GUARD_UNIT, JOB_UNIT
from benchmark.host.settings import HostError
from benchmark.host.switch import death, switch

Tell = Callable[[str], None]
_LOOK_SECONDS = 2.0
_LONGEST_SECONDS = 60.0


class Failed(Exception):  # noqa: N818
    """A configuration that could not be measured; holds the failure as its record will."""

    def __init__(self, failure: dict[str, Any], start: dict[str, Any]) -> None:
        super().__init__(failure["sentence"])
        self.failure, self.start = failure, start


def sweep(site: Site, number: int, names: list[str], tell: Tell, *, full_disk_at: str = "") -> int:
    """Measure the configurations. 0: each has all its points; 1: the records say which has not, and why; 2: refused."""
    token = uuid.uuid4().hex
    settings = site.settings
    try:
        holding.begin(settings, token, "chaos", "previous", [])
    except HostError as refused:
        tell(f"refused {refused}")
        return 2
    for path in site.campaign.set_aside_broken():
        tell(f"set aside {path}")
    tell("taken")
    measured = 0
    try:
        for name in names:
            try:
                measured += _turn(site, number, name, token, tell, full_disk_at)
            except Exception as error:  # as the playbook's rescue: the next configuration has its turn too
                tell(f"no-record {name} {type(error).__name__}: {error}")
    finally:
        tell("ending")
        while (said := holding.end(settings, token, "previous"))["phase"] == "restoring":
            pass
        tell(f"ended {said['phase']} {(said.get('failure') or {}).get('sentence', '')}")
    return 0 if measured == len(names) and said["phase"] == "restored" else 1


def _turn(site: Site, number: int, name: str, token: str, tell: Tell, full_disk_at: str) -> bool:
    settings = site.settings
    holding.claim(settings, token)
    begun = records.begin(settings, site.context(name, number))
    tell(f"begun {name}")
    if not begun["complete"]:
        try:
            start = _serve(site, name, begun["fingerprint"], token)
            tell(f"ready {name}")
            for rung in [rung for rung in site.ladder(name) if rung not in begun["measured"]]:
                tell(f"point {name} {rung}")
                record = _point(site, name, begun, rung, start, token)
                with _full_disk(full_disk_at == "controller"):
                    _keep(site, record, Path(begun["record"]).parent)
                tell(f"kept {name} {rung}")
        except Failed as failed:
            failure = failed.failure
            if failure["kind"] == "point_failed":
                failure = death(settings, name) or watch.failure(settings, name) or failure
            holding.claim(settings, token)
            records.fail(settings, name, begun["key"], failure, failed.start)
            tell(f"failed {name} {failure['kind']} {failure['sentence']}")
    finished = records.finish(settings, name, begun["key"], site.facts)
    _keep(site, finished["record"], Path(begun["record"]).parent)
    return finished["outcome"] == "measured"


def _serve(site: Site, name: str, fingerprint: str, sweep: str) -> dict[str, Any]:
    token = uuid.uuid4().hex
    while True:
        said = switch(site.settings, name, fingerprint, token, yields=[], seconds=_LOOK_SECONDS, sweep=sweep)
        if said["phase"] == "ready":
            return said["start"]
        if said["phase"] == "failed":
            raise Failed(said["failure"], said["start"])


def _point(site: Site, name: str, begun: dict[str, Any], rung: int, start: dict[str, Any], sweep: str) -> str:
    spec = {
        "id": f"{begun['key'][:12]}-{name}-c{rung}-{uuid.uuid4().hex}",
        "configuration": name,
        "fingerprint": begun["key"],
        "workload": WORKLOAD,
        "concurrency": rung,
        "ladder": site.ladder(name),
        "start": start,
        "accuracy": False,
        "needed": site.ladder(name),
        "limit_seconds": _LONGEST_SECONDS,
        "sweep": sweep,
    }
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        try:
            said = jobs.measure(site.settings, spec, seconds=_LOOK_SECONDS)
        except HostError as error:
            said = {"phase": "failed", "failure": str(error)}
        if said["phase"] == "done":
            return said["record"]
        if said["phase"] == "failed":
            _fail_point(said["failure"], start)
    _fail_point("the point did not end", start)
    raise AssertionError


def _fail_point(text: str, start: dict[str, Any]) -> None:
    raise Failed({"kind": "point_failed", "stage": "measuring", "sentence": text, "may_pass": True}, start)


def _keep(site: Site, record: str, folder: Path) -> None:
    """The controller's own verb, then the raw files that it asks for."""
    said = io.StringIO()
    before = sys.stdin
    sys.stdin = io.StringIO(record)
    words = ["--campaigns", str(site.folder / "campaigns"), "--campaign", "chaos", "put", "--host", HOST]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = controller_verbs.main(words)
    finally:
        sys.stdin = before
    if status:
        raise OSError(said.getvalue().strip())
    answer = json.loads(said.getvalue())
    for name in answer["missing"]:
        if (folder / name).exists():
            partial = Path(answer["folder"]) / f".{name}.part"
            shutil.copyfile(folder / name, partial)
            partial.replace(Path(answer["folder"]) / name)


@contextlib.contextmanager
def _full_disk(full: bool):
    """No file of this process may have a byte while it lasts: what a full disk does to whoever writes."""
    if not full:
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class InProcess(Site):
    """A site that is swept by a process of the suite's own."""

    kinds = KINDS
    kinds_by_name = (FAKETIME,) if LIBFAKETIME else ()
    gpus = GPUS
    patience_seconds = PATIENCE_SECONDS
    usual_seconds = 0.0

    def open(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        self.prepare(0, None)

    def prepare(self, seed: int, fault: Fault | None) -> None:
        self.limits = fault.limits if fault else {}
        if fault:
            self.victim, self.fake_time = fault.victim, fault.kind == FAKETIME
        # A clock that jumped stays where it is until the next round.
        if fault or not self.clock.exists():
            self.set_clock(0)
        self.render(fault.engine if fault else {})

    def sweep(self, seed: int, fault: Fault | None) -> Forked:
        return Forked(self, seed, fault.full_disk_at if fault else "")

    def told(self, seed: int, status: int | None, said: list[str]) -> str:
        bad = [line for line in said if line.startswith(("failed", "no-record", "refused")) or "failed" in line]
        return bad[0] if status == 0 and bad else ""

    def repair(self, fault: Fault) -> None:
        fault.wait_until_over()
        self.strike("repair")

    def end_controller(self, pid: int, kind: str, whole: bool) -> str | None:
        os.kill(pid, signal.SIGKILL)
        return f"killed {pid}"

    def fill_controllers_disk(self, pid: int, seconds: float) -> str | None:
        # The controller has one at its moment (`full_disk_at`).
        return None

    def end(self) -> None:
        self.limits, token = {}, f"end-{time.time()}"
        settings, manager = self.settings, manager_for(self.settings)
        self.strike("repair")
        (self.state / "lease.json").unlink(missing_ok=True)
        (self.state / "lease-copy.json").unlink(missing_ok=True)
        try:
            while switch(settings, None, "", token, yields=[])["phase"] == "stopping":
                pass
        finally:
            for unit in (JOB_UNIT, GUARD_UNIT):
                manager.stop(unit)
            deadline = time.monotonic() + 8
            while any(manager.state(u).running for u in manager.units()) and time.monotonic() < deadline:
                time.sleep(0.2)
            manager.release()


class Forked:
    """A sweep in a process of its own, in a session of its own: what kills it does not reach the suite."""

    def __init__(self, site: Site, seed: int, full_disk_at: str) -> None:
        context = multiprocessing.get_context("fork")
        self._reading, writing = context.Pipe(duplex=False)
        self._process = context.Process(target=_controller, args=(site, seed, writing, full_disk_at))
        self._process.start()
        writing.close()
        self.pid = self._process.pid

    def hear(self, seconds: float) -> str | None:
        try:
            return self._reading.recv() if self._reading.poll(seconds) else None
        except EOFError:
            time.sleep(seconds)
            return None

    @property
    def over(self) -> bool:
        return not self._process.is_alive()

    def status(self) -> int | None:
        self._process.join(PATIENCE_SECONDS)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _controller(site: Site, seed: int, writing: Connection, full_disk_at: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["SHARDSWEEP_CHAOS_CLOCK"] = str(site.clock)
    exec(compile((CLOCK / "sitecustomize.py").read_text(), "clock", "exec"), {"__name__": "clock"})
    status = 3
    try:
        status = sweep(site, seed, site.names(seed), writing.send, full_disk_at=full_disk_at)
    except BaseException:
        writing.send("broke " + traceback.format_exc(limit=-4).replace("\n", " | "))
    finally:
        writing.close()
        os._exit(status)
