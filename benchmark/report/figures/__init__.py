"""The report's pictures, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence

from ..summary import Row
from . import latency, machine, speed
from .base import Picture


def draw(found: list[Row], drifts: Sequence[str] = ()) -> list[Picture]:
    """Every picture that a row can show; one with nothing to draw says why in its sentences.

    `drifts` are the decision's sentences about it.
    """
    return [
        speed.throughput(found),
        speed.throughput_over_ttft(found),
        speed.speed(found),
        speed.pareto(found),
        latency.ttft(found),
        latency.itl(found),
        machine.memory(found),
        machine.startup(found),
        machine.drift(found, drifts),
    ]
