"""What the suite counts as struck: what was seen to happen, not what was drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chaos_strikes
from chaos_faults import ENGINE_FAULTS, HOST_KINDS, KINDS, LADDER, LEAST_TOKENS, draw
from chaos_round import play
from chaos_site import CATALOGUE, Site

from benchmark.simulator.ledger import Ledger
from benchmark.simulator.settings import Settings as SimulatedSettings


class Over:
    """A sweep that tells its lines and is over."""

    pid = 1

    def __init__(self, lines: list[str], status: int) -> None:
        self._lines, self._status = lines, status

    def hear(self, seconds: float) -> str | None:
        return self._lines.pop(0) if self._lines else None

    @property
    def over(self) -> bool:
        return not self._lines

    def status(self) -> int:
        return self._status

    def kill(self) -> None: ...


class Told(Site):
    """A host on which nothing runs: the first sweep of a round tells `lines`, and leaves behind what `happens` does."""

    gpus, patience_seconds, usual_seconds = 2, 5.0, 0.0
    status = 1

    def __init__(self, folder: Path, lines: list[str] = (), happens: Any = None) -> None:
        super().__init__(folder, 1)
        self._lines, self._happens = lines, happens
        for part in ("log", "units"):
            (self.state / part).mkdir(parents=True)

    def prepare(self, seed: int, fault: Any) -> None: ...

    def sweep(self, seed: int, fault: Any) -> Over:
        if fault is None:
            return Over([], 0)
        if self._happens:
            self._happens(self)
        return Over([*self._lines], self.status)

    def told(self, seed: int, status: int | None, said: list[str]) -> str:
        return ""

    def repair(self, fault: Any) -> None: ...

    def held(self) -> bool:
        return False

    def missing(self, seed: int) -> list[str]:
        return []

    def running(self) -> list[str]:
        return []

    def end(self) -> None: ...

    def fill_controllers_disk(self, pid: int, seconds: float) -> None: ...


def every_moment() -> list[str]:
    """The lines of a sweep of all configurations."""
    lines = ["taken"]
    for name in sorted(CATALOGUE):
        lines += [f"begun {name}", f"ready {name}"]
        lines += [f"{when} {name} {rung}" for rung in LADDER for when in ("point", "kept")]
    return [*lines, "ending", "ended restored "]


def struck(site: Told, kind: str, seed: int = 8) -> bool:
    row = play(site, seed, kind)
    assert row["problem"] == ""
    return row["struck"]


def test_a_crash_at_a_token_is_drawn_within_what_every_engine_makes():
    # The engine's own answer and the probe, two passes of 1 and 2, two requests of the first point: ten of 8 tokens.
    assert LEAST_TOKENS == 8 * (1 + 1 + 2 * (1 + 2) + 2)
    for names in (sorted(CATALOGUE)[:2], sorted(CATALOGUE)[1:]):
        drawn = [int(draw(seed, "crash at a token", names, 2).detail.partition(":")[2]) for seed in range(1, 401)]
        assert min(drawn) >= 1
        assert max(drawn) <= LEAST_TOKENS
        # All of it is drawn from, the first point's too.
        assert sum(tokens > LEAST_TOKENS - 16 for tokens in drawn) > 40


@pytest.mark.parametrize("kind", sorted({*KINDS, *HOST_KINDS}))
def test_a_fault_waits_for_a_moment_that_a_sweep_has(kind):
    names = sorted(CATALOGUE)[:2]
    for seed in range(1, 401):
        fault = draw(seed, kind, names, 2)
        assert fault.victim in names
        told = fault.moment.split()
        assert told[0] in ("taken", "begun", "ready", "point", "kept")
        assert told[1:2] in ([], [fault.victim])
        assert told[2:] in ([], *([str(rung)] for rung in LADDER))


def test_what_is_drawn_beside_the_tokens_is_what_it_was():
    # As docs/chaos.md names round 71.
    fault = draw(71, "lying health", Site.names(71), 2)
    assert (fault.victim, fault.moment, fault.detail) == ("small_chunk", "taken", "lying_health:3")


@pytest.mark.parametrize("kind", ENGINE_FAULTS)
def test_a_fault_of_an_engine_is_struck_when_the_engine_wrote_it_down(tmp_path, kind):
    fault = ENGINE_FAULTS[kind].partition(":")[0]
    assert not struck(Told(tmp_path / "never"), kind)
    another = next(other.partition(":")[0] for other in ENGINE_FAULTS.values() if not other.startswith(fault))
    assert not struck(Told(tmp_path / "another", happens=lambda site: noted(site, another)), kind)
    site = Told(tmp_path / "fired", happens=lambda site: noted(site, fault))
    assert struck(site, kind)
    # What a round before left there is no sign of this one.
    site._happens = None
    assert not struck(site, kind)


def noted(site: Told, fault: str) -> None:
    SimulatedSettings(ledger=Path(site.simulated("")["SHARDSWEEP_SIMULATED_GPU"])).note_fault(fault)


def test_a_full_disk_of_the_controller_is_struck_when_a_write_was_refused(tmp_path):
    kind = "disk full on the controller"
    kept = ["taken", "point tp2 1", "kept tp2 1"]
    refused = ["taken", "no-record tp2 OSError: record.json cannot be written: File too large."]
    assert not struck(Told(tmp_path / "none", kept), kind)
    assert struck(Told(tmp_path / "one", refused), kind)
    assert struck(Told(tmp_path / "really", ["fatal: [here]: [Errno 28] No space left on device"]), kind)


def test_a_full_disk_of_ansible_is_struck_when_the_playbook_did_not_end_well(tmp_path, monkeypatch):
    kind = "disk full on the controller"
    # ansible-core 2.19, whose worker could not write: nothing that it tells is of a disk.
    lines = [*every_moment(), "[ERROR]: Unexpected Exception, this is probably a bug: process object is closed"]
    monkeypatch.setattr("chaos_faults.random.Random.uniform", lambda *_: 0.0)
    monkeypatch.setattr(Told, "fill_controllers_disk", lambda *_: "no byte more for 7 for 3.6 s")
    assert struck(Told(tmp_path / "dies", lines), kind)
    monkeypatch.setattr(Told, "status", 0)
    assert not struck(Told(tmp_path / "writes nothing", every_moment()), kind)


def test_a_full_disk_of_the_host_is_struck_when_a_write_was_refused(tmp_path):
    kind = "disk full on the host"

    def writes(name: str, text: str) -> Any:
        return lambda site: (site.state / name).write_text(text)

    log = "log/shardsweep-job.log"
    assert not struck(Told(tmp_path / "none", happens=writes(log, "Listening\n")), kind)
    assert struck(Told(tmp_path / "one", happens=writes(log, "OSError: [Errno 27] File too large\n")), kind)
    # A disk that is really full has no room for a log's line either.
    assert struck(Told(tmp_path / "really", happens=writes("../filler", "all that there was")), kind)


def test_what_the_suite_does_itself_is_struck_when_it_was_done(tmp_path, monkeypatch):
    # Its moment passes, and what it is about is not there.
    monkeypatch.setattr("chaos_faults.random.Random.uniform", lambda *_: 0.0)
    monkeypatch.setitem(chaos_strikes.VERBS, "kill", lambda settings, *what: None)
    assert not struck(Told(tmp_path / "nothing", every_moment()), "kill -9 engine")
    monkeypatch.setitem(chaos_strikes.VERBS, "kill", lambda settings, *what: "killed 7")
    assert struck(Told(tmp_path / "done", every_moment()), "kill -9 engine")


def test_faults_that_happened_are_told_oldest_first(tmp_path):
    ledger = Ledger(tmp_path / "gpus")
    assert ledger.faults() == []
    ledger.note_fault("leak")
    ledger.note_fault("crash_at_token")
    assert ledger.faults() == ["leak", "crash_at_token"]
    # It is nobody's memory.
    assert ledger.holders() == []
