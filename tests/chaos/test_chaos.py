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

import run
from chaos_faults import KINDS, Fault, draw
from chaos_site import CATALOGUE, LADDER, Site

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepared(folder: Path, port: int) -> Site:
    site = Site(folder, port, {"lease_seconds": 1.5})
    site.state.mkdir(parents=True)
    site.set_clock(0)
    site.render()
    return site


def test_a_seed_draws_the_same_fault_again():
    names = sorted(CATALOGUE)[:2]
    for kind in KINDS:
        one, other = draw(7, kind, names), draw(7, kind, names)
        assert (one.victim, one.moment, one.delay_seconds, one.detail) == (
            other.victim,
            other.moment,
            other.delay_seconds,
            other.detail,
        )


def test_five_rounds_are_survived(tmp_path, capsys):
    kinds = ["kill -9 scheduler", "kill -9 controller", "memory held by others", "corrupt state", "lying health"]
    words = [word for kind in kinds for word in ("--kind", kind)]
    status = run.main([*words, "--rounds", "5", "--folder", str(tmp_path / "chaos"), "--port", str(free_port())])
    printed = capsys.readouterr().out
    assert status == 0, printed
    last = next(line for line in printed.splitlines() if line.startswith("all "))
    assert last.split() == ["all", "5", "5", "5", "0"]


def outcome(site: Site) -> dict[tuple[str, str], tuple[str, bool, list[tuple[int, int]]]]:
    """Of each record: outcome, completeness, and its points by concurrency and repeat."""
    return {
        (record.configuration.name, record.folder_name): (
            record.outcome,
            record.complete,
            sorted((point.concurrency, point.repeat) for point in record.points),
        )
        for record in site.campaign.all_records()
    }


def test_a_sweep_killed_ten_times_ends_as_one_that_was_left_alone(tmp_path):
    names, port, chance = sorted(CATALOGUE), free_port(), random.Random(10)
    alone = prepared(tmp_path / "alone", port)
    killed = prepared(tmp_path / "killed", port)
    try:
        assert run.sweep(alone, 0, names, [], None) == 0
        run.end(alone)
        said: list[str] = []
        kills = 0
        while kills < 10:
            fault = Fault("kill", "", "taken", chance.uniform(0.2, 5.0), act=_kill)
            before = killed.finished()
            status = run.sweep(killed, 0, names, said, fault)
            kills += status == -9
            after = killed.finished()
            assert {key: after.get(key) for key in before} == before
            if status == 0:
                break
        assert run.sweep_when_free(killed, 0, names, said) == 0, said
    finally:
        run.end(alone)
        run.end(killed)
    assert kills >= 5, "it was over before it was killed often"
    assert outcome(killed) == outcome(alone)
    assert {points for _, _, found in outcome(alone).values() for points in found} == {(rung, 1) for rung in LADDER}
    assert killed.running() == []


def _kill(site: Site, controller: int) -> str:
    os.kill(controller, signal.SIGKILL)
    return "killed"
