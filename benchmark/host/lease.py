"""A sweep's hold on a host: a lock that dies with its owner, because each verb of the owner renews it."""

from __future__ import annotations

import time
from typing import Any

from .settings import Settings, read_json, write_json

_LEASE = "lease.json"


def current(settings: Settings) -> dict[str, Any] | None:
    """{"token", "owner", "after", "previous": [units], "began_at", "renewed_at"}, or None when no sweep holds us."""
    return read_json(settings.state / _LEASE)


def take(settings: Settings, lease: dict[str, Any]) -> None:
    write_json(settings.state / _LEASE, lease | {"renewed_at": time.time()})


def renew(settings: Settings) -> None:
    held = current(settings)
    if held:
        take(settings, held)


def drop(settings: Settings) -> None:
    (settings.state / _LEASE).unlink(missing_ok=True)


def alive(settings: Settings, held: dict[str, Any]) -> bool:
    return time.time() - held["renewed_at"] < settings.lease_seconds
