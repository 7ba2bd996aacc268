"""Made-up campaigns whose truth is known, for measurements/search.py. Imports nothing of the project.

A landscape has configurations with a planned and a true throughput at each rung, some of which fail, on a host that may
drift. The plan's numbers come from a crude step-time model with random machine constants; the truth is the plan,
disturbed. Where a landscape replays a public grid, the truth is the grid and the plan is the grid disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

LADDER = (1, 4, 16, 32, 64, 128, 256)
START_MINUTES = 20.0
POINT_MINUTES = 2.0
START_NOISE = 0.02
POINT_NOISE = 0.005


@dataclass
class Configuration:
    """One configuration: its settings, and throughput at each rung as planned and in truth."""

    name: str
    engine: dict[str, Any]
    environment: dict[str, str]
    planned: np.ndarray
    true: np.ndarray
    fails_after_minutes: float | None = None


@dataclass
class Landscape:
    """Configurations of one host; the first is the baseline. `drift` is the log change an hour."""

    kind: str
    ladder: tuple[int, ...]
    configurations: list[Configuration]
    drift: float = 0.0
    start_noise: float = START_NOISE
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def grid_minutes(self) -> float:
        """One start and the whole ladder of each configuration."""
        return sum(self.minutes(c, len(self.ladder)) for c in self.configurations)

    def minutes(self, configuration: Configuration, points: int) -> float:
        failed = configuration.fails_after_minutes
        return failed if failed is not None else START_MINUTES + points * POINT_MINUTES

    @property
    def peaks(self) -> dict[str, float]:
        """True peak of each that runs."""
        return {c.name: float(c.true.max()) for c in self.configurations if c.fails_after_minutes is None}

    def start(self, name: str, rungs: tuple[int, ...], hours: float) -> dict[int, float] | None:
        """One engine start: throughput at each rung as measured; None if it fails."""
        configuration = next(c for c in self.configurations if c.name == name)
        if configuration.fails_after_minutes is not None:
            return None
        start = self.rng.normal(0, self.start_noise) + self.drift * hours
        at = [self.ladder.index(rung) for rung in rungs]
        noise = self.rng.normal(0, POINT_NOISE, len(rungs))
        return {r: float(configuration.true[i] * np.exp(start + e)) for r, i, e in zip(rungs, at, noise, strict=True)}


def generated(
    kind: str, rng: np.random.Generator, sigma: float = 0.3, *, own: float | None = None, count: int | None = None
) -> Landscape:
    """A host of eight GPUs with 20 to 36 configurations; the plan's error is `sigma` a family and `own` beside it."""
    count = count or int(rng.integers(20, 37))
    machine = _Machine(rng)
    found = [machine.planned(*split) for split in _splits(rng, count)]
    families = {_family(c): 0.0 for c in found}
    errors = {family: rng.normal(0, sigma) for family in families}
    tilts = {family: rng.normal(0, sigma / 4) for family in families}
    own = sigma / 3 if own is None else own
    place = np.linspace(-1, 1, len(LADDER))
    for c in found:
        error = errors[_family(c)] + rng.normal(0, own) + tilts[_family(c)] * place
        c.true = c.planned * np.exp(error)
    landscape = Landscape(kind, LADDER, found, rng=rng)
    if kind == "reversed":
        _reverse(landscape)
    if kind == "surprise":
        lucky = found[int(rng.integers(1, len(found)))]
        lucky.true = lucky.true * 2.5
    if kind == "failing":
        for c in found[1:]:
            if rng.random() < 0.25:
                c.fails_after_minutes = float(rng.uniform(2, START_MINUTES))
    if kind == "drift":
        landscape.drift = float(rng.choice([-1, 1])) * rng.uniform(0.002, 0.01)
    return landscape


def equals(rng: np.random.Generator, count: int = 8, start_noise: float = START_NOISE) -> Landscape:
    """Configurations that are all equally fast, with a plan that thinks otherwise."""
    found = [_Machine(rng).planned(*split) for split in _splits(rng, count)]
    curve = found[0].planned.copy()
    for c in found:
        c.true = curve.copy()
    return Landscape("equals", LADDER, found, start_noise=start_noise, rng=rng)


def replayed(cases: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Public grids: (id, rows of configuration and throughput) of those with three rows or more."""
    for case in yaml.safe_load(cases.read_text(encoding="utf-8")):
        rows = (case.get("observed") or {}).get("rows") or []
        told = [(str(r["config"]), float(r["value"])) for r in rows if isinstance(r.get("value"), int | float)]
        told = [(name, value) for name, value in told if value > 3]
        if case.get("kind") == "ranking" and len(told) >= 3:
            yield case["id"], told


def replay(rows: list[tuple[str, float]], rng: np.random.Generator, sigma: float = 0.3) -> Landscape:
    """A public grid as the truth at the top rung; the plan is the grid disturbed, each row by itself."""
    found = []
    for place, (_, value) in enumerate(rows):
        curve = value * np.array(LADDER) ** 0.6 / LADDER[-1] ** 0.6
        planned = curve * np.exp(rng.normal(0, sigma))
        found.append(Configuration(f"c{place}", {"row": place}, {}, planned, curve))
    return Landscape("replayed", LADDER, found, rng=rng)


def _reverse(landscape: Landscape) -> None:
    """The true order upside down: the best planned is the worst. Curves keep their shape."""
    found = landscape.configurations
    order = sorted(found, key=lambda c: c.planned.max())
    peaks = [c.planned.max() for c in order]
    for c, peak in zip(order, reversed(peaks), strict=True):
        c.true = c.planned * peak / c.planned.max() * np.exp(landscape.rng.normal(0, 0.05))


def _splits(rng: np.random.Generator, count: int) -> list[tuple[int, int, int, int, str]]:
    """(tp, pp, ep, attention replicas, transport): the plain split first, then others at random, each once."""
    every = [
        (tp, 8 // tp, ep, replicas, transport)
        for tp in (8, 4, 2, 1)
        for ep in (8, 4, 2, 1)
        for replicas in (8, 4, 2, 1)
        for transport in ("SYS", "PXB")
        if tp % ep == 0 and tp % replicas == 0
    ]
    first = (8, 1, 1, 1, "SYS")
    every.remove(first)
    chosen = rng.permutation(len(every))[: count - 1]
    return [first, *(every[i] for i in chosen)]


def _family(c: Configuration) -> tuple[Any, ...]:
    """What shares an error of the plan: the pipeline's depth, replicated attention, the transport."""
    return c.engine.get("pp_size", 1), c.engine.get("attn_dp_size", 1) > 1, c.environment["NCCL_P2P_LEVEL"]


class _Machine:
    """A crude machine: seconds of a decode step are weights read, attention, collectives and pipeline bubbles."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.weights = rng.uniform(0.006, 0.02)
        self.experts = rng.uniform(60, 200)
        self.attention = rng.uniform(2e-5, 2e-4)
        self.latency = {"SYS": rng.uniform(2e-5, 8e-5), "PXB": rng.uniform(4e-5, 2e-4)}
        self.token = {"SYS": rng.uniform(1e-7, 6e-7), "PXB": rng.uniform(2e-7, 2e-6)}
        self.narrow = rng.uniform(0.0, 0.15)
        self.balance = rng.uniform(0.0, 0.3)
        self.held = float(rng.uniform(40, 500))
        self.layers = 60

    def planned(self, tp: int, pp: int, ep: int, replicas: int, transport: str) -> Configuration:
        c = np.array(LADDER, dtype=float)
        micro = np.maximum(c / pp, 1)
        read = self.weights * (0.15 + 0.85 * (1 - np.exp(-micro * 8 / self.experts)))
        read = read * (1 + self.narrow * np.log2(tp / ep)) * (1 + self.balance * (ep > 1) / np.sqrt(micro))
        attention = self.attention * micro * 8 / (tp if replicas == 1 else tp * (0.7 + 0.3 / replicas))
        width = self.latency[transport] + self.token[transport] * micro * (1 + 0.3 * (replicas > 1))
        collectives = 2 * self.layers / pp * width * (tp - 1) / 8 * (1.6 if tp > 1 else 0)
        # A stage holds 1/pp of the layers on tp GPUs: what all eight read together is the same.
        step = read + attention / pp + collectives
        rates = np.minimum(c, micro * pp) / (step * np.where(c >= pp, 1.0, pp / c))
        # What the KV cache holds at once; above it requests wait, and the rate falls a little.
        held = self.held / (1 if replicas == 1 else 1 + 0.2 * np.log2(replicas))
        rates = np.where(c > held, np.interp(held, c, rates) * (held / c) ** 0.05, rates)
        engine: dict[str, Any] = {"tp_size": tp}
        engine |= {"pp_size": pp} if pp > 1 else {}
        engine |= {"ep_size": ep} if ep > 1 else {}
        engine |= {"attn_dp_size": replicas} if replicas > 1 else {}
        name = f"tp{tp}_pp{pp}_ep{ep}_dp{replicas}_{transport.lower()}"
        return Configuration(name, engine, {"NCCL_P2P_LEVEL": transport}, rates, rates.copy())
