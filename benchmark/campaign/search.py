"""In which order to try configurations, and when measurement allows to leave one early. Pure.

The plan orders; what was measured corrects it. A plan is wrong in families: if one pipeline split does better than
planned, the others will too. So each measured start moves the expectation of its relatives, and the next to try is the
one with the largest expected gain over the best so far. Nothing is ever excluded by a prediction: a configuration that
the budget leaves out is listed as deferred, with its chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

TRUSTED, WORTHLESS, REVERSED = 1.0, 0.0, -1.0
# How the plan may relate to the truth, and how likely each was before anything was measured.
_SLOPES = ((TRUSTED, 0.90), (WORTHLESS, 0.07), (REVERSED, 0.03))
# Standard deviations of the plan's error: (of a family, of one configuration beside its family), equally likely.
_ERRORS = ((0.05, 0.03), (0.15, 0.06), (0.3, 0.1), (0.3, 0.25), (0.6, 0.2), (0.6, 0.5))
# Of the plan's level as a whole: it does not change the order.
_LEVEL_ERROR = 0.7
_MEASURED_ERROR = 0.025
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Candidate:
    """A configuration to try: what the plan expects of it."""

    name: str
    family: tuple[str, ...]
    expected: float | None
    """The plan's value of the objective; None where the plan predicts no speed."""
    verdict: str = "runs"
    """`runs`, `doubtful` or `rejected`."""


@dataclass(frozen=True)
class Outlook:
    """What is expected of a candidate now: the mean and deviation of its logarithm, and what trying it may bring."""

    name: str
    mean: float
    deviation: float
    gain: float
    """Expected log gain over the best measured (expected improvement; Jones, Schonlau and Welch, 1998)."""
    chance: float | None
    """That it beats the best measured by more than 2 %; None while nothing is measured."""


_FAMILY_KEYS = ("pp_size", "pipeline_parallel_size", "moe_a2a_backend", "attention_backend", "quantization")
_ATTENTION_KEYS = ("attn_dp_size", "attention_data_parallel_size", "enable_dp_attention")
_TRANSPORT_KEYS = ("NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_PROTO")


def family_of(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes a plan's error common: pipeline depth, attention replicas or not, expert groups or not, transport."""
    engine, environment = configuration.get("engine") or {}, configuration.get("environment") or {}
    parts = [f"{key}={engine[key]}" for key in _FAMILY_KEYS if engine.get(key) not in (None, 1, "none")]
    replicas = [engine.get(key) for key in _ATTENTION_KEYS]
    if any(value is True or (isinstance(value, int) and value > 1) for value in replicas):
        parts.append("attention replicas")
    if (engine.get("ep_size") or engine.get("expert_parallel_size") or 1) != 1:
        parts.append("expert groups")
    parts += [f"{key}={environment[key]}" for key in _TRANSPORT_KEYS if environment.get(key)]
    return tuple(parts) or ("plain",)


def outlook(candidates: Sequence[Candidate], seen: Mapping[str, float], best: float | None = None) -> list[Outlook]:
    """What to expect of the candidates not yet in `seen`, the most promising first.

    `seen` maps names to measured values (more is better), `best` is the one to beat (by default the highest seen).
    Candidates whose speed the plan does not know are taken at the plan's middle.

    The model is a Gaussian process on logarithms: value = level + slope x plan + family + own, averaged over the
    possible slopes (the plan is right, says nothing, or is upside down) and error sizes, weighted by how well each
    explains what was measured.
    """
    known = [math.log(c.expected) for c in candidates if c.expected]
    middle = sum(known) / len(known) if known else 0.0
    plan = np.array([math.log(c.expected) if c.expected else middle for c in candidates])
    spread = plan - middle
    families = [c.family for c in candidates]
    kin = np.array([[_kinship(a, b) for b in families] for a in families])
    at = [i for i, c in enumerate(candidates) if c.name in seen]
    rest = [i for i, c in enumerate(candidates) if c.name not in seen]
    if not rest:
        return []
    values = np.array([math.log(seen[candidates[i].name]) for i in at])
    target = math.log(best) if best else (values.max() if len(values) else math.inf)
    mixture = [
        (weight, *_posterior(spread * slope, middle, kin, errors, at, rest, values))
        for slope, prior in _SLOPES
        for errors in _ERRORS
        for weight in (math.log(prior),)
    ]
    evidence = np.array([weight + fit for weight, _, _, fit in mixture])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    found = []
    for place, index in enumerate(rest):
        parts = [(w, m[place], s[place]) for w, (_, m, s, _) in zip(weights, mixture, strict=True)]
        found.append(_outlook(candidates[index], parts, target))
    return sorted(found, key=lambda o: (-o.gain, -o.mean, o.name))


def _kinship(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    """1 for the same family, the shared part of the traits for others."""
    union = set(a) | set(b)
    return len(set(a) & set(b)) / len(union) if a != b else 1.0


def _posterior(
    prior: np.ndarray,
    middle: float,
    kin: np.ndarray,
    errors: tuple[float, float],
    at: list[int],
    rest: list[int],
    values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """(means, deviations, log evidence) of the rest, given the values at `at`; one hypothesis about the plan."""
    family, own = errors
    covariance = _LEVEL_ERROR**2 + family**2 * kin + own**2 * np.eye(len(kin))
    if not at:
        deviations = np.sqrt(np.diag(covariance)[rest])
        return middle + prior[rest], deviations, 0.0
    among = covariance[np.ix_(at, at)] + _MEASURED_ERROR**2 * np.eye(len(at))
    across = covariance[np.ix_(rest, at)]
    lower = np.linalg.cholesky(among)
    surprise = np.linalg.solve(lower, values - middle - prior[at])
    gain = np.linalg.solve(lower, across.T)
    means = middle + prior[rest] + gain.T @ surprise
    variances = np.maximum(np.diag(covariance)[rest] - (gain**2).sum(axis=0), 1e-9)
    evidence = -0.5 * float(surprise @ surprise) - float(np.log(np.diag(lower)).sum())
    return means, np.sqrt(variances), evidence


def _outlook(candidate: Candidate, parts: list[tuple[float, float, float]], target: float) -> Outlook:
    mean = sum(w * m for w, m, _ in parts)
    variance = sum(w * (s * s + (m - mean) ** 2) for w, m, s in parts)
    starts = 0.5 if candidate.verdict == "doubtful" else 1.0
    if math.isinf(target):
        return Outlook(candidate.name, mean, math.sqrt(variance), starts * math.exp(mean), None)
    gain = sum(w * _improvement(m - target, s) for w, m, s in parts if w > 1e-6)
    chance = sum(w * (1 - _NORMAL.cdf((target + 0.02 - m) / s)) for w, m, s in parts if w > 1e-6)
    return Outlook(candidate.name, mean, math.sqrt(variance), float(starts * gain), float(starts * chance))


def _improvement(distance: float, deviation: float) -> float:
    """E[max(0, x)] of a normal x with this mean and deviation."""
    z = distance / deviation
    return distance * _NORMAL.cdf(z) + deviation * _NORMAL.pdf(z)
