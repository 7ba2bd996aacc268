"""A sweep as the playbooks run it, verb after verb, in one process that may be killed at any moment.

playbooks/sweep.yml and tasks/{take,turn,measure,after}.yml say the same in Ansible, which costs half a minute a sweep.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_site import HOST, WORKLOAD, Site

from benchmark.campaign import __main__ as controller_verbs
from benchmark.host import holding, jobs, records, watch
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
                measured += _turn(site, number, name, tell, full_disk_at)
            except Exception as error:  # as the playbook's rescue: the next configuration has its turn too
                tell(f"no-record {name} {type(error).__name__}: {error}")
    finally:
        tell("ending")
        while (said := holding.end(settings, token, "previous"))["phase"] == "restoring":
            pass
        tell(f"ended {said['phase']} {(said.get('failure') or {}).get('sentence', '')}")
    return 0 if measured == len(names) and said["phase"] == "restored" else 1


def _turn(site: Site, number: int, name: str, tell: Tell, full_disk_at: str) -> bool:
    settings = site.settings
    begun = records.begin(settings, site.context(name, number))
    tell(f"begun {name}")
    if not begun["complete"]:
        try:
            start = _serve(site, name, begun["fingerprint"])
            tell(f"ready {name}")
            for rung in [rung for rung in site.ladder(name) if rung not in begun["measured"]]:
                tell(f"point {name} {rung}")
                record = _point(site, name, begun, rung, start)
                with _full_disk(full_disk_at == "controller"):
                    _keep(site, record, Path(begun["record"]).parent)
                tell(f"kept {name} {rung}")
        except Failed as failed:
            failure = failed.failure
            if failure["kind"] == "point_failed":
                failure = death(settings, name) or watch.failure(settings, name) or failure
            records.fail(settings, name, begun["key"], failure, failed.start)
            tell(f"failed {name} {failure['kind']} {failure['sentence']}")
    finished = records.finish(settings, name, begun["key"], site.folder / "facts.d")
    _keep(site, finished["record"], Path(begun["record"]).parent)
    return finished["outcome"] == "measured"


def _serve(site: Site, name: str, fingerprint: str) -> dict[str, Any]:
    token = uuid.uuid4().hex
    while True:
        said = switch(site.settings, name, fingerprint, token, yields=[], seconds=_LOOK_SECONDS)
        if said["phase"] == "ready":
            return said["start"]
        if said["phase"] == "failed":
            raise Failed(said["failure"], said["start"])


def _point(site: Site, name: str, begun: dict[str, Any], rung: int, start: dict[str, Any]) -> str:
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
