"""A sweep takes a host and gives it back, or is relieved of it.

When nobody has renewed the lease for `lease_seconds` (the controller was killed, the network is gone), the guard, a
unit of the host itself, ends the sweep and brings back what the lease remembers.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from . import clock, kept, lease
from .managers import manager_for
from .services import GUARD_UNIT, JOB_UNIT, Manager
from .serving import serving_units
from .settings import HostError, Settings

_LOOK_SECONDS = 2.0
_WHY = "sweep"


def begin(settings: Settings, token: str, owner: str, after: str, yields: list[str], first: str = "") -> dict[str, Any]:
    """Take the host for a sweep, and remember what serves now.

    Args:
        first: on the second and further nodes of a configuration, ADDRESS:PORT at which they meet the first.

    Returns:
        {"previous": [units], "after"}.

    Raises:
        HostError: another sweep holds it.
    """
    manager = manager_for(settings)
    with lease.exclusive(settings):
        held = lease.current(settings)
        if held and held["token"] != token and (lease.alive(settings, held) or _rank_serves(settings, manager, held)):
            raise HostError(
                f"Another sweep holds this host: {held['owner']}, heard of {clock.since(held['renewed']):.0f} s ago. "
                f"Wait for it; a sweep that was killed lets go after {settings.lease_seconds:.0f} s of silence."
            )
        # An unfinished sweep left its own engine behind; what served before it is what is to come back.
        previous = held["previous"] if held else serving_units(settings, manager, yields)
        if not held:
            # A configuration that serves may be measured as well, with a unit that is not restarted by itself.
            kept.set_aside(settings, previous, _WHY)
        taken = {"token": token, "owner": owner, "after": after, "previous": previous, "began_at": time.time()}
        lease.take(settings, taken | ({"first": first} if first else {}))
    manager.start(GUARD_UNIT)
    return {"previous": previous, "after": after}


def end(settings: Settings, token: str, after: str | None = None) -> dict[str, Any]:
    """One step towards the sweep's end: `after` (the lease's own where None) decides what runs then.

    `previous` brings back what served, `stopped` leaves nothing, `winner` leaves what runs now (the caller has
    switched to it). Call again until "phase" is "restored" or "failed".
    """
    held = lease.current(settings)
    if held is not None and held["token"] != token and lease.alive(settings, held):
        # A sweep that was refused ends nothing of the one that holds the host.
        return {"phase": "restored", "serving": [], "failure": None}
    # A sweep that the guard took for dead, but that went on, has started engines since.
    held = held or lease.ended(settings, token)
    if held is None or after == "winner":
        lease.drop(settings)
        return {"phase": "restored", "serving": [], "failure": None}
    # A guard that finds its sweep's controller gone cannot know a winner: what served before is the safe answer.
    from .rollback import restore  # a sweep that begins restores nothing

    units = [] if (after or held["after"]) == "stopped" else held["previous"]
    kept.take_back(settings, units, _WHY)
    said = restore(settings, units, f"{token}-end")
    if said["phase"] != "restoring":
        lease.note_end(settings, held)
        lease.drop(settings, held)
        if not said["serving"]:
            manager_for(settings).release()
    return said


def guard(settings: Settings) -> None:
    """Watch over the lease until it ends; take the host back when its owner is silent."""
    manager = manager_for(settings)
    while True:
        lease.mend(settings)
        if (held := lease.current(settings)) is None:
            return
        # A point that was under way when the connection was lost goes on, to be collected later.
        silent = not lease.alive(settings, held) and not manager.state(JOB_UNIT).running
        if silent and not _rank_serves(settings, manager, held):
            while end(settings, held["token"])["phase"] == "restoring" and not lease.taken_since(settings, held):
                lease.renew(settings)
            continue
        time.sleep(_LOOK_SECONDS)


def _rank_serves(settings: Settings, manager: Manager, held: dict[str, Any]) -> bool:
    """Whether a rank of this host works for another's sweep: it runs, and the first node is where they met.

    The controller looks at the first node alone while it measures. That one has a guard of its own; when its engine is
    gone, the port at which the nodes met is closed, and the rank has nothing to work for, whether it ends or not.
    """
    first = held.get("first")
    return bool(first) and bool(serving_units(settings, manager, [])) and _open(str(first))


def _open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
