"""A few rounds of the chaos suite, and a sweep that is killed ten times."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chaos_round
import run
from chaos_controller import InProcess
from chaos_faults import FAKETIME, HOST_KINDS, KINDS, LADDER, Fault, draw
from chaos_site import CATALOGUE, LIBFAKETIME, Site

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Impatient(InProcess):
    """A site whose host soon takes a silent sweep for dead, and that always has the same two configurations."""

    def names(self, seed: int) -> list[str]:
        return sorted(CATALOGUE)[:2]

    def prepare(self, seed: int, fault: Fault | None) -> None:
        self.limits = {"lease_seconds": 3.5}
        self.set_clock(0)
        self.render()


def test_a_seed_draws_the_same_fault_again():
    names = sorted(CATALOGUE)[:2]
    for kind in {*KINDS, FAKETIME, *HOST_KINDS}:
        one, other = draw(7, kind, names, 2), draw(7, kind, names, 2)
        assert (one.victim, one.moment, one.delay_seconds, one.share, one.detail) == (
            other.victim,
            other.moment,
            other.delay_seconds,
            other.share,
            other.detail,
        )


# `make chaos`, which CI runs, has all kinds.
@pytest.mark.long
def test_five_rounds_are_survived(tmp_path, capsys):
    kinds = ["kill -9 scheduler", "kill -9 controller", "memory held by others", "corrupt state", "lying health"]
    words = [word for kind in kinds for word in ("--kind", kind)]
    status = run.main([*words, "--rounds", "5", "--folder", str(tmp_path / "chaos"), "--port", str(free_port())])
    printed = capsys.readouterr().out
    assert status == 0, printed
    last = next(line for line in printed.splitlines() if line.startswith("all "))
    # A fault may come when there is nothing left to strike, as at the very end of a sweep.
    rounds, struck, survived, lost = map(int, last.split()[1:])
    assert (rounds, survived, lost) == (5, 5, 0)
    assert struck >= 3


@pytest.mark.skipif(LIBFAKETIME is None, reason="libfaketime is not installed here (apt-get install libfaketime)")
def test_a_clock_set_below_python_is_survived(tmp_path, capsys):
    words = ["--kind", FAKETIME, "--rounds", "1", "--seed", "21", "--folder", str(tmp_path / "chaos")]
    status = run.main([*words, "--port", str(free_port())])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert next(line for line in printed.splitlines() if line.startswith("all ")).split() == ["all", *"1110"]


@pytest.mark.long
def test_three_rounds_of_the_real_playbooks_are_survived(tmp_path, capsys):
    kinds = ["kill -9 controller", "connection lost for a while", "corrupt record"]
    words = [word for kind in kinds for word in ("--kind", kind)]
    words += ["--playbooks", "--rounds", "3", "--folder", str(tmp_path / "chaos"), "--port", str(free_port())]
    status = run.main(words)
    printed = capsys.readouterr().out
    assert status == 0, printed
    last = next(line for line in printed.splitlines() if line.startswith("all "))
    # A fault at the very end of a sweep may come too late to strike.
    assert [last.split()[1], *last.split()[3:]] == ["3", "3", "0"]


def outcome(site: Site) -> dict[tuple[str, str], dict[str, object]]:
    """All of a record that does not say when or how fast: a sweep that was killed may not differ in any of it."""
    return {
        (record.configuration.name, record.folder_name): {
            "outcome": record.outcome,
            "complete": record.complete,
            "failure": record.failure,
            "ladder": record.ladder,
            "configuration": record.configuration,
            "engine": record.engine,
            "model": record.model,
            "workload": record.workload,
            "points": sorted((point.workload, point.concurrency, point.repeat) for point in record.points),
        }
        for record in site.campaign.all_records()
    }


@pytest.mark.long
def test_a_sweep_killed_ten_times_ends_as_one_that_was_left_alone(tmp_path):
    port, chance = free_port(), random.Random(10)
    alone, killed = Impatient(tmp_path / "alone", port), Impatient(tmp_path / "killed", port)
    try:
        alone.open()
        assert chaos_round.follow(alone, 0, None, []) == 0
        alone.end()
        killed.open()
        said: list[str] = []
        kills = 0
        while kills < 10:
            before = killed.finished()
            # With half of the points there it is killed as soon as it has begun, or it would be over before the tenth.
            delay = chance.uniform(0.2, 3.0) if len(before) < len(LADDER) else 0.0
            fault = Fault("kill -9 controller", "", "taken", delay, strike=_kill)
            status = chaos_round.sweep_when_free(killed, 0, said, fault)
            assert status == -signal.SIGKILL, "it was over before it was killed"
            kills += 1
            after = killed.finished()
            assert {key: after.get(key) for key in before} == before
        assert chaos_round.sweep_when_free(killed, 0, said) == 0, said
    finally:
        alone.end()
        killed.end()
    assert kills == 10
    assert outcome(killed) == outcome(alone)
    points = [point for found in outcome(alone).values() for point in found["points"]]
    assert points == [("short", rung, 1) for _ in range(2) for rung in LADDER]
    assert killed.running() == []


def _kill(site: Site, controller: int) -> str:
    os.kill(controller, signal.SIGKILL)
    return "killed"
