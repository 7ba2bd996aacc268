"""Records and points as tests need them, everything but what a test is about filled in."""

from __future__ import annotations

from benchmark.campaign import record as rec


def a_record(name="ep4", host="h1", fingerprint="f" * 64, updated_at="2026-01-01T00:00:00Z", **more) -> rec.Record:
    fields = {
        "fingerprint": fingerprint,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": updated_at,
        "configuration": rec.Configuration(name=name),
        "host": host if isinstance(host, rec.Host) else rec.Host(name=host),
        "engine": rec.Engine(name="simulated", version="0.5.11"),
        "model": rec.Model(name="m"),
        "outcome": "skipped",
    }
    return rec.Record(**(fields | more))


def a_point(concurrency: int, rate: float, **more) -> rec.Point:
    fields = {
        "workload": "quick",
        "concurrency": concurrency,
        "started_at": "2026-01-01T00:00:00Z",
        "duration_seconds": 1.0,
        "window_seconds": 1.0,
        "requests_completed": 1,
        "requests_failed": 0,
        "prompt_tokens": 1,
        "output_tokens": 1,
        "output_tokens_per_second": rate,
    }
    return rec.Point(**(fields | more))
