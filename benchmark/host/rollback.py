"""The way back: what served before serves again, as it did."""

from __future__ import annotations

import time
from typing import Any

from . import kept, lease
from .managers import manager_for
from .services import configuration_of
from .serving import note_start, running
from .settings import HostError, Settings, read_json, write_json
from .switch import switch


def restore(
    settings: Settings,
    units: list[str],
    token: str,
    *,
    seconds: float = 5.0,
    sweep: str | None = None,
    alone: bool = False,
) -> dict[str, Any]:
    """One step towards these units serving again, as they last did; call again until "restored" or "failed".

    Args:
        sweep: as `switch` takes it.
        alone: this host goes back by itself. A further node's rank is started then, and not waited for: it answers when
            its first node does, which may be never.

    Returns:
        {"phase": "restoring" | "restored" | "failed", "serving": [units], "waiting_for", "failure", "seconds"}.

    Raises:
        HostError: two of our engines cannot serve at once; or a sweep holds the host, and not the one that asks.
    """
    manager = manager_for(settings)
    # A unit of somebody else's may be called like ours; only one that we rendered is switched to.
    rendered = set(manager.units())
    ours = [unit for unit in units if configuration_of(unit) and unit in rendered]
    others = [unit for unit in units if unit not in ours]
    if len(ours) > 1:
        raise HostError(f"{' and '.join(ours)} cannot both serve: each takes the GPUs. Restore one of them.")
    began = read_json(settings.state / "restore.json", {})
    if began.get("token") != token:
        began = {"token": token, "began_at": time.time()}
        if ours:
            kept.put_back(settings, manager, ours[0])
        write_json(settings.state / "restore.json", began)
    name = configuration_of(ours[0]) if ours else None
    last = running(settings).get(ours[0], {}) if ours else {}
    fingerprint, kept_as = last.get("ready_fingerprint", ""), {"node": last.get("node", 0), "gpus": last.get("gpus")}
    # What an earlier stop did not see free is for the next stop to tell: it keeps no host from being given back.
    said = switch(settings, name, fingerprint, token, yields=[], seconds=seconds, sweep=sweep, earlier=False, **kept_as)
    answer = {key: said[key] for key in ("waiting_for", "failure", "seconds")}
    if alone and last.get("node", 0) and said["phase"] == "starting" and manager.state(ours[0]).running:
        note_start(settings, ours[0], said["start"] | {"ready_fingerprint": fingerprint})
    elif said["phase"] in ("stopping", "starting"):
        return answer | {"phase": "restoring", "serving": units}
    for unit in others:
        manager.start(unit)
    if not units and lease.current(settings) is None:
        manager.release()
    phase = "failed" if said["phase"] == "failed" else "restored"
    return answer | {"phase": phase, "serving": units if phase == "restored" else others}
