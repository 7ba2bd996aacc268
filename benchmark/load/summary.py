"""The summary of a point: figures and flags, as they stand in the record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..campaign.record import Flag, Point
from .checks import flags
from .further import drifted
from .metrics import About, Figures, figures, tokens_per_event, whole_us
from .rows import RequestRow, read_all
from .statistics import distribution


def summarise(rows: list[RequestRow], about: About) -> Point:
    """The point: figures and flags."""
    found = figures(rows, about)
    point = _point(rows, about, found, flags(rows, about, found))
    return msgspec.structs.replace(point, flags=[*point.flags, *drifted(about.first, point)])


def _point(rows: list[RequestRow], about: About, found: Figures, noticed: list[Flag]) -> Point:
    seconds = found.window_seconds
    tpot = distribution(found.tpot)
    rate = found.output_tokens_per_second
    span = whole_us(rows)
    differs = not np.array_equal(found.first_content, found.ttft)
    client = dict(about.client)
    client["tokens_per_event"] = tokens_per_event(found.done)
    client["window_ended_by"] = about.ended_by
    if found.late.size:
        client["send_late_p99_seconds"] = float(np.percentile(found.late, 99))
    client["peak_output_tokens_per_second"] = found.peak_tokens_per_second

    def per_second(count: float | None) -> float | None:
        return count / seconds if count is not None and seconds > 0 else None

    return Point(
        workload=str(about.workload.get("name", "")),
        concurrency=about.concurrency,
        repeat=about.repeat,
        started_at=about.started_at,
        duration_seconds=(span[1] - span[0]) / 1e6,
        window_seconds=seconds,
        requests_completed=len(found.done),
        requests_failed=len(found.failed),
        prompt_tokens=sum(row.prompt_tokens or 0 for row in found.done),
        output_tokens=sum(row.counted_tokens for row in found.done),
        output_tokens_per_second=rate,
        output_tokens_per_second_half_width=found.half_width if rate and np.isfinite(found.half_width) else None,
        prompt_tokens_per_second=per_second(found.prompt_tokens_in_window),
        requests_per_second=per_second(found.requests_in_window),
        output_tokens_per_second_per_user=1 / tpot.p50 if tpot is not None and tpot.p50 > 0 else None,
        ttft_seconds=distribution(found.ttft),
        itl_seconds=distribution(found.itl, found.itl_requests),
        tpot_seconds=tpot,
        e2e_seconds=distribution(found.e2e),
        first_content_seconds=distribution(found.first_content) if differs else None,
        rate=about.rate,
        goodput_requests_per_second=per_second(found.good_requests),
        flags=noticed,
        errors=dict(Counter(row.error for row in found.failed).most_common(20)),
        client=client,
        server=about.server,
        telemetry=_with_energy_per_token(about.telemetry, found),
    )


def _with_energy_per_token(telemetry: dict[str, Any], found: Figures) -> dict[str, Any]:
    joules = telemetry.get("energy_joules")
    if joules is None or not found.output_tokens_per_second:
        return telemetry
    return {**telemetry, "energy_joules_per_token": joules / found.window_tokens}


def reanalyse(path: Path) -> Point:
    """The point again, from its file of requests.

    Raises:
        RowsError: the file cannot be read.
    """
    about, rows = read_all(path)
    point = summarise(rows, About.from_mapping(about))
    return msgspec.structs.replace(point, raw=path.name)
