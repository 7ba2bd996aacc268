"""Rows made by hand."""

from __future__ import annotations

from array import array

from benchmark.load.metrics import About
from benchmark.load.rows import RequestRow

WORKLOAD = {"name": "w", "kind": "random_ids", "ignore_eos": True, "half_width": 0.01}


def row(index=0, sent=0, tokens=(), *, done=None, counts=None, source=None, **more) -> RequestRow:
    """A request; times in milliseconds. `tokens`: arrival of each token event, `counts`: tokens by then."""
    total = len(tokens) if counts is None else counts[-1] if counts else 0
    values = {
        "index": index,
        "first_wave": False,
        "intended_us": sent * 1000,
        "sent_us": sent * 1000,
        "head_us": None,
        "done_us": round(1000 * (done if done is not None else (tokens[-1] if tokens else sent))),
        "prompt_asked": 10,
        "output_asked": total,
        "prompt_tokens": 10,
        "output_tokens": total,
        "cached_tokens": 0,
        "finish_reason": "length",
        "error": None,
        "status": 200,
        "events": len(tokens) + 1,
        "shared_events": 0,
        "retried": 0,
        "first_content_us": round(1000 * tokens[0]) if tokens else None,
        "count_source": source or "one_each",
        "token_us": array("q", [round(1000 * at) for at in tokens]),
        "token_counts": array("q", counts or []),
    }
    return RequestRow(**{**values, **more})


def about(start=None, end=None, concurrency=1, **more) -> About:
    """A window in milliseconds, and what was observed."""
    workload = {**WORKLOAD, **more.pop("workload", {})}
    given_up = more.pop("given_up", False)
    found = About(workload=workload, concurrency=concurrency, **more)
    if start is not None:
        found.window_start_us, found.window_end_us, found.ended_by = start * 1000, end * 1000, "half_width"
    if given_up:
        found.ended_by = "failures"
    return found
