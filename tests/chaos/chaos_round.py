"""One round: a sweep that a fault strikes, what a person mends, the next sweep, and what has to be true then."""

from __future__ import annotations

import time
import traceback
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from chaos_faults import EXITED, Fault, draw

PATIENCE_SECONDS = 90.0
"""Longer than any sweep of the suite's own may last on a slow machine."""
_LOOK_SECONDS = 0.1
"""After so long a fault looks again for what it is about."""
_GONE_SECONDS = 8.0
"""So long what ends by itself after a sweep (the guard looks every two seconds) may take."""


class LostError(AssertionError):
    """A round that was not survived; the text says what is wrong."""

    def __init__(self, text: str, lost: int = 0) -> None:
        super().__init__(text)
        self.lost = lost


class Sweeping(Protocol):
    """A sweep under way."""

    pid: int

    def hear(self, seconds: float) -> str | None:
        """The next line that it tells; None where it tells none for so long."""

    @property
    def over(self) -> bool: ...

    def status(self) -> int | None:
        """Its exit status, negative for a signal."""

    def kill(self) -> None: ...


class Site(Protocol):
    """A host, what sweeps it, and how to reach into both."""

    kinds: Sequence[str]
    """Those that take turns: the kind of a round follows from its seed, whatever this machine has."""
    kinds_by_name: Sequence[str]
    """Those that are there only where they are asked for."""
    gpus: int
    patience_seconds: float
    usual_seconds: float
    """What a sweep of one round takes; 0 where the controller tells its moments."""

    def open(self) -> None:
        """Make everything that the rounds need."""

    def names(self, seed: int) -> list[str]:
        """The configurations of a round."""

    def prepare(self, seed: int, fault: Fault | None) -> None:
        """What the fault needs before a sweep begins; None: as it is without one."""

    def sweep(self, seed: int, fault: Fault | None) -> Sweeping: ...

    def told(self, seed: int, status: int | None, said: list[str]) -> str:
        """What is wrong with an exit status after what happened; empty where it tells the truth."""

    def repair(self, fault: Fault) -> None:
        """What a person mends before the next sweep."""

    def held(self) -> bool:
        """Whether the next sweep would be refused, because the host still takes the last for alive."""

    def finished(self) -> Mapping[Hashable, Any]:
        """Every finished point, wherever it is kept, with its content."""

    def missing(self, seed: int) -> list[str]:
        """The configurations of a round of which points are missing."""

    def running(self) -> list[str]: ...

    def end(self) -> None:
        """Stop all that is left of a round."""

    # What a fault does, beside the verbs of chaos_strikes.py.
    def strike(self, verb: str, *words: Any) -> Any: ...

    def end_controller(self, pid: int, kind: str, whole: bool) -> str | None: ...

    def fill_controllers_disk(self, pid: int, seconds: float) -> str | None: ...

    def spoil_kept(self, how: str, seed: int) -> str | None: ...

    def set_clock(self, offset_seconds: float) -> str | None:
        """Of a site whose kinds have a clock that jumps."""

    def cut(self, seconds: float) -> str | None: ...

    def reboot(self) -> str | None: ...


def play(site: Site, seed: int, kind: str) -> dict[str, Any]:
    """A round, and what came of it: "problem" is empty where it was survived."""
    fault = draw(seed, kind, site.names(seed), site.gpus)
    began, said, lost, problem = time.monotonic(), [], 0, ""
    try:
        _break_and_mend(site, seed, fault, said)
    except LostError as error:
        problem, lost = str(error), error.lost
    except Exception:
        problem = traceback.format_exc(limit=-2).strip().replace("\n", " | ")[-600:]
    if problem:
        site.end()
    return {
        "seed": seed,
        "kind": kind,
        "victim": fault.victim,
        "moment": f"{fault.share:.0%}" if site.usual_seconds else fault.moment,
        "detail": fault.detail,
        "struck": fault.seen,
        "problem": problem,
        "lost": lost,
        "seconds": round(time.monotonic() - began, 1),
        "said": said,
    }


def _break_and_mend(site: Site, seed: int, fault: Fault, said: list[str]) -> None:
    before = site.finished()
    site.prepare(seed, fault)
    signs = fault.signs(site, said)
    try:
        status = follow(site, seed, fault, said)
        said.append(EXITED.format(status))
    finally:
        fault.seen = fault.signs(site, said) > signs
    # What was finished in the moment of the fault counts, even where the fault is a spoiled file.
    between = {**before, **fault.finished, **site.finished()}
    if wrong := site.told(seed, status, said):
        raise LostError(f"the exit status {status} does not tell: {wrong}")
    site.repair(fault)
    site.prepare(seed, None)
    if again := sweep_when_free(site, seed, said):
        raise LostError(f"the next sweep ended with {again}")
    after = site.finished()
    if gone := [key for key, value in between.items() if after.get(key) != value]:
        raise LostError(f"{len(gone)} finished points are lost or changed: {gone[0]}", len(gone))
    if missing := site.missing(seed):
        raise LostError(f"not all points of {missing}")
    if left := lingering(site):
        raise LostError(f"still there: {'; '.join(left)[:300]}")


def lingering(site: Site) -> list[str]:
    """What still runs when everything has had its time to end."""
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := site.running()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def sweep_when_free(site: Site, seed: int, said: list[str], fault: Fault | None = None) -> int | None:
    """The next sweep, as soon as the host lets it in; its exit status."""
    deadline = time.monotonic() + site.patience_seconds
    while site.held():
        if time.monotonic() > deadline:
            raise LostError("the host takes a sweep that is over for alive")
        time.sleep(0.5)
    return follow(site, seed, fault, said)


def follow(site: Site, seed: int, fault: Fault | None, said: list[str]) -> int | None:
    """Sweep, hear what is told, and let the fault strike at its moment, or at the first after it; the exit status."""
    sweeping = site.sweep(seed, fault)
    began = time.monotonic()
    due = began + fault.share * site.usual_seconds if fault and site.usual_seconds else None
    known = False
    try:
        while not sweeping.over:
            if time.monotonic() > began + site.patience_seconds:
                raise LostError(f"the sweep did not end within {site.patience_seconds:.0f} s; last: {said[-1:]}")
            if (line := sweeping.hear(0.05)) is not None:
                said.append(line)
                if fault and due is None and line == fault.moment:
                    due = time.monotonic() + fault.delay_seconds
                known = known and not line.startswith("kept")
            if fault and fault.strike and fault.struck_at is None and due is not None and time.monotonic() >= due:
                if not known:
                    fault.finished, known = {**site.finished()}, True
                if (done := fault.strike(site, sweeping.pid)) is None:
                    due = time.monotonic() + _LOOK_SECONDS
                else:
                    said.append(f"STRUCK {done}")
                    fault.struck_at = time.monotonic()
    except BaseException:
        # A sweep that went on would start engines behind our back.
        sweeping.kill()
        raise
    while (line := sweeping.hear(0)) is not None:
        said.append(line)
    return sweeping.status()
