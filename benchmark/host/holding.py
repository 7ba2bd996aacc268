"""A sweep takes a host and gives it back, or is relieved of it.

When nobody has renewed the lease for `lease_seconds` (the controller was killed, the network is gone), the guard, a
unit of the host itself, ends the sweep and brings back what the lease remembers.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from typing import Any

from . import clock, kept, lease, promotion
from .managers import manager_for
from .services import GUARD_UNIT, JOB_UNIT, Manager
from .serving import serving_units
from .settings import HostError, Settings

_LOOK_SECONDS = 2.0
_PATIENCE_SECONDS = (1.0, 3.0, 10.0)
"""Between looks at a first node whose host does not answer; one that answers "refused" is believed at once."""
_AGAIN_SECONDS, _AGAIN_AT_MOST_SECONDS = 60.0, 900.0
"""Between two tries of a guard to give the host back, each twice as long as the one before."""
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
        if held and held["token"] != token and (why := sweep_refused(settings, first)):
            raise HostError(why)
        # An unfinished sweep left its own engine behind; what served before it is what is to come back.
        previous = held["previous"] if held else serving_units(settings, manager, yields)
        if not held:
            # A configuration that serves may be measured as well, with a unit that is not restarted by itself.
            kept.set_aside(settings, previous, _WHY)
        if lease.ended(settings, token) is None:
            lease.forget_ended(settings)
        taken = {"token": token, "owner": owner, "after": after, "previous": previous, "began_at": time.time()}
        lease.take(settings, taken | ({"first": first} if first else {}))
    manager.start(GUARD_UNIT)
    return {"previous": previous, "after": after}


def sweep_refused(settings: Settings, first: str = "") -> str | None:
    """Whose sweep keeps any other from this host; None: nobody's, or one that has been silent for too long.

    A rank that works for the first node `first` keeps no sweep away that has that one.
    """
    held = lease.current(settings)
    if held is None or not (
        lease.alive(settings, held)
        or (held.get("first") != first and _rank_serves(settings, manager_for(settings), held))
    ):
        return None
    return (
        f"Another sweep holds this host: {held['owner']}, heard of {clock.since(held['renewed']):.0f} s ago. "
        f"Wait for it; a sweep that was killed lets go after {settings.lease_seconds:.0f} s of silence."
    )


def claim(settings: Settings, sweep: str | None) -> None:
    """Go on only where the host is no other's.

    `sweep` is the token of the sweep that asks, "" for whoever is none; None for who gives the host back, and may. A
    sweep's own lease is renewed. One that was ended by the guard while its controller slept is taken again, unless
    somebody else has had the host since: a sweep, or whoever deployed or promoted something (`sweep` is "").

    Raises:
        HostError: another sweep holds the host, or this one does no longer.
    """
    if sweep is None:
        lease.renew(settings)
        return
    guarded = False
    with lease.exclusive(settings):
        held = lease.current(settings)
        mine = bool(sweep) and held is not None and held["token"] == sweep
        if held is not None and (not mine or held.get("ending")):
            guarded = not lease.alive(settings, held)
        elif mine:
            lease.keep(settings, held)
            return
        elif not sweep:
            lease.forget_ended(settings)
            return
        elif (own := lease.ended(settings, sweep)) is not None:
            lease.take(settings, own | {"began_at": time.time()})
            held, guarded = None, True
    if guarded:
        # After a boot, under supervisor, nobody else starts it.
        manager_for(settings).start(GUARD_UNIT)
    if held is not None:
        raise HostError(_held(settings, held, sweep, mine=mine))
    if not guarded:
        raise HostError(
            "This sweep holds the host no longer: it was silent for too long and somebody else has used the host since "
            "(a deployment, a promotion, another sweep), or it was stopped here (playbooks/stop.yml). Sweep again."
        )


def held_by(settings: Settings) -> str | None:
    """Whose sweep holds this host, and what to do then; None: nobody's."""
    held = lease.current(settings)
    return None if held is None else _held(settings, held, "", mine=False)


def _held(settings: Settings, held: dict[str, Any], sweep: str, *, mine: bool) -> str:
    if mine:
        return "This sweep was silent for too long, and the host is being given back. Sweep again."
    silence = clock.since(held.get("renewed"))
    heard = f"heard of {silence:.0f} s ago" if silence < float("inf") else "not heard of since the host was booted"
    if not lease.alive(settings, held):
        then = "The host is being given back: try again in a while"
    else:
        then = f"Wait for it (a sweep that was killed lets go after {settings.lease_seconds:.0f} s of silence)"
    if why := held.get("why"):
        then = f"The host could not be given back yet, and is tried again ({why}). Mend that"
    who = "Another sweep" if sweep else "A sweep"
    return f"{who} holds this host: {held['owner']}, {heard}. {then}, or end it: playbooks/stop.yml -e interrupt=true."


def end(settings: Settings, token: str, after: str | None = None) -> dict[str, Any]:
    """One step towards the sweep's end: `after` (the lease's own where None) decides what runs then.

    `previous` brings back what served, `stopped` leaves nothing, `winner` leaves what runs now (the caller has
    switched to it; what is promoted gets its unit back as it was). Call again until "phase" is "restored" or "failed".
    A lease that the guard is ending stays after a failure that may pass: the guard tries again.
    """
    held = lease.current(settings)
    if held is not None and held["token"] != token and lease.alive(settings, held):
        # A sweep that was refused ends nothing of the one that holds the host.
        return {"phase": "restored", "serving": [], "failure": None}
    # A sweep that the guard took for dead, but that went on, has started engines since.
    held = held or lease.ended(settings, token)
    if held is None or after == "winner":
        promotion.put_in_service(settings, manager_for(settings))
        lease.drop(settings)
        return {"phase": "restored", "serving": [], "failure": None}
    # A guard that finds its sweep's controller gone cannot know a winner: what served before is the safe answer.
    from .rollback import restore  # a sweep that begins restores nothing

    units = [] if (after or held["after"]) == "stopped" else held["previous"]
    kept.take_back(settings, units, _WHY)
    # A token of its own for each try: a switch that has failed stays failed.
    said = restore(settings, units, f"{token}-end{held.get('tries') or ''}", alone=True)
    failure = said.get("failure") or {}
    if said["phase"] == "failed" and held.get("ending") and failure.get("may_pass"):
        lease.note_failed(settings, held, str(failure.get("sentence")))
    elif said["phase"] != "restoring":
        lease.note_end(settings, held)
        lease.drop(settings, held)
        if not said["serving"]:
            manager_for(settings).release()
    return said


def guard(settings: Settings) -> None:
    """Watch over the lease until it ends; take the host back when its owner is silent.

    A service manager or a driver that does not answer, or a disk that is full for a while, is no reason to leave:
    nobody else would take the host back.
    """
    manager = manager_for(settings)
    while True:
        try:
            if _guarded(settings, manager):
                return
        except (HostError, OSError) as error:
            with contextlib.suppress(OSError):  # the log may lie on the disk that is full
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error} Looking again.\n")
                sys.stderr.flush()
        time.sleep(_LOOK_SECONDS)


def _guarded(settings: Settings, manager: Manager) -> bool:
    """One look of the guard; True: there is no sweep to watch over any more."""
    lease.mend(settings)
    if (held := lease.current(settings)) is None:
        return True
    # A point that was under way when the connection was lost goes on, to be collected later.
    silent = not lease.alive(settings, held) and not manager.state(JOB_UNIT).running
    if _waits(held):
        return False
    if held.get("ending") or (silent and not _rank_serves(settings, manager, held)):
        # Written down: it goes on where an error comes between, though it renews the lease while it is at it.
        lease.note_ending(settings, held)
        while end(settings, held["token"])["phase"] == "restoring" and not lease.taken_since(settings, held):
            lease.renew(settings, held["token"])
    return lease.current(settings) is None


def _waits(held: dict[str, Any]) -> bool:
    """Whether giving back has failed so lately that it is not tried again yet."""
    if not (tries := held.get("tries", 0)):
        return False
    pause = min(_AGAIN_SECONDS * 2.0 ** min(tries - 1, 10), _AGAIN_AT_MOST_SECONDS)
    return clock.since(held.get("tried")) < pause


def _rank_serves(settings: Settings, manager: Manager, held: dict[str, Any]) -> bool:
    """Whether a rank of this host works for another's sweep: it runs, and the first node is where they met.

    The controller looks at the first node alone while it measures. That one has a guard of its own; when its engine is
    gone, the port at which the nodes met is closed, and the rank has nothing to work for, whether it ends or not.
    """
    first = held.get("first")
    return bool(first) and bool(serving_units(settings, manager, [])) and _open(str(first))


def _open(address: str) -> bool:
    """Whether somebody listens there; a network that is away for a moment does not end what works for hours."""
    host, _, port = address.rpartition(":")
    for pause in (0.0, *_PATIENCE_SECONDS):
        time.sleep(pause)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS).close()
        except (ConnectionRefusedError, ValueError):
            return False
        except OSError:
            continue
        return True
    return False
