"""A sweep's hold on a host: a lock that dies with its owner, because each verb of the owner renews it.

What the lease remembers (what served before) can be had from nowhere else, so a copy of it lies beside it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from . import clock, forms
from .settings import Settings, locked, read_json, write_json

_LEASE, _COPY, _ENDED, _LOCK = "lease.json", "lease-copy.json", "lease-ended.json", "lease"

_OF_ITS_END = ("ending", "tries", "tried", "why")


def current(settings: Settings) -> dict[str, Any] | None:
    """{"token", "owner", "after", "previous": [units], "began_at", "renewed_at", "renewed", "first": where the first
    of several nodes is met, on the others, "ending": its guard gives the host back, "tries": how often that failed,
    "tried": when last, "why"}; None: no sweep."""
    return _read(settings, _LEASE) or _read(settings, _COPY)


@contextlib.contextmanager
def exclusive(settings: Settings) -> Iterator[None]:
    """Between looking at the lease and taking it nobody else does."""
    with locked(settings, _LOCK):
        yield


def take(settings: Settings, lease: dict[str, Any]) -> None:
    """Take the host; the caller has looked whose it is, within `exclusive`. Where the disk is full, it is not taken."""
    free = current(settings) is None
    try:
        for name in (_COPY, _LEASE):
            write_json(settings.state / name, _renewed(lease))
    except OSError:
        if free:
            _remove(settings)
        raise


def renew(settings: Settings, token: str | None = None) -> None:
    """Renew the lease; only this sweep's where a token is given.

    Not one that could not be given back: it falls silent though its guard is at it, so that the next sweep may take it.
    """
    with exclusive(settings):
        if (held := current(settings)) and token in (None, held["token"]) and not held.get("tries"):
            keep(settings, held)


def keep(settings: Settings, held: dict[str, Any]) -> None:
    """Write a lease as renewed now; within `exclusive`."""
    write_json(settings.state / _LEASE, _renewed(held))


def note_ending(settings: Settings, held: dict[str, Any]) -> None:
    """From now on its sweep may do nothing here but end: the host is being given back.

    Once: noted again and again it would seem alive to the next sweep where giving back fails each time.
    """
    with exclusive(settings):
        if not held.get("ending") and not taken_since(settings, held):
            take(settings, held | {"ending": True})


def note_failed(settings: Settings, held: dict[str, Any], why: str) -> None:
    """The host could not be given back, for a reason that may pass: it is to be tried again, unless it was let go."""
    with exclusive(settings):
        now = current(settings)
        if now is None or taken_since(settings, held):
            return
        told = now | {"tries": now.get("tries", 0) + 1, "tried": clock.mark(), "why": why}
        for name in (_COPY, _LEASE):
            write_json(settings.state / name, told)


def mend(settings: Settings) -> None:
    """Where only the copy can be read: the owner has not been silent, the file is broken."""
    if _read(settings, _LEASE) is None:
        renew(settings)


def drop(settings: Settings, held: dict[str, Any] | None = None) -> None:
    """Let go; of this lease only where one is given, and not of one that was taken since."""
    with exclusive(settings):
        if held is not None and taken_since(settings, held):
            return
        _remove(settings)


def forget(settings: Settings) -> None:
    """Let go for good: the sweep that holds the host, or held it last, does not come back."""
    drop(settings)
    forget_ended(settings)


def forget_ended(settings: Settings) -> None:
    """Somebody else has the host now: the sweep that was ended last takes it no more, and brings back nothing."""
    (settings.state / _ENDED).unlink(missing_ok=True)


def note_end(settings: Settings, held: dict[str, Any]) -> None:
    """Remember a lease that was ended, perhaps by the guard while its sweep is only slow or the host was booted."""
    told = {key: value for key, value in held.items() if key not in _OF_ITS_END}
    write_json(settings.state / _ENDED, told | {"ended": clock.mark()})


def ended(settings: Settings, token: str) -> dict[str, Any] | None:
    """The lease that was ended last, where it was this sweep's."""
    held = _read(settings, _ENDED)
    return held if held and held["token"] == token else None


def ended_at(settings: Settings) -> Any:
    """The clock's mark of when a lease was last ended here; None: never."""
    return (_read(settings, _ENDED) or {}).get("ended")


def alive(settings: Settings, held: dict[str, Any]) -> bool:
    return clock.since(held.get("renewed")) < settings.lease_seconds


def taken_since(settings: Settings, held: dict[str, Any]) -> bool:
    """Whether a sweep has taken the host since `held` was looked at: another one, or the same one once more."""
    now = current(settings)
    return now is not None and now.get("began_at") != held.get("began_at")


def _remove(settings: Settings) -> None:
    # The copy first: one that is left alone would be taken for a lease.
    for name in (_COPY, _LEASE):
        (settings.state / name).unlink(missing_ok=True)


def _renewed(lease: dict[str, Any]) -> dict[str, Any]:
    return lease | {"renewed_at": time.time(), "renewed": clock.mark()}


def _read(settings: Settings, name: str) -> dict[str, Any] | None:
    return read_json(settings.state / name, form=forms.Lease)
