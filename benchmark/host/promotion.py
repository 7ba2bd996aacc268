"""What was put into service for good, and what served before it, so that the way back is one command."""

from __future__ import annotations

import time
from typing import Any

from . import forms, kept
from .managers import manager_for
from .services import Manager, configuration_of, engine_unit
from .serving import running, serving_units
from .settings import HostError, Settings, read_json, write_json

_PROMOTED = "promoted.json"
_UNNOTED = "promotion-begun.json"
"""What served before a promotion that has not been noted yet."""
_WHY = "promotion"
_NOTHING: dict[str, Any] = {"units": [], "fingerprints": {}}
_IN_SERVICE = "promoted"


def promoted(settings: Settings) -> dict[str, Any]:
    """{"now": {"configuration", "fingerprint", "at"} or None, "before": {"units", "fingerprints", "at"} or None}."""
    return read_json(settings.state / _PROMOTED, {"now": None, "before": None}, forms.Promoted)


def since(settings: Settings, name: str) -> str | None:
    """Since when a configuration is in service for good; None if it is not."""
    now = promoted(settings)["now"] or {}
    return now["at"] if now.get("configuration") == name else None


def prepare(settings: Settings, name: str, fingerprint: str, yields: list[str]) -> dict[str, Any]:
    """Before a switch to `name`: keep what serves, unless that is what is to serve.

    Returns:
        What is kept, {"units", "fingerprints", "at"}; where nothing else serves, what was kept by a promotion that came
        to serve and was not noted, or {}.
    """
    units = serving_units(settings, manager_for(settings), yields)
    known = running(settings)
    fingerprints = {
        unit: known[unit]["ready_fingerprint"] for unit in units if known.get(unit, {}).get("ready_fingerprint")
    }
    if not units or (units == [engine_unit(name)] and fingerprints == {engine_unit(name): fingerprint}):
        return _unnoted(settings, name, fingerprint) if units else {}
    kept.set_aside(settings, units, _WHY)
    before = {"units": units, "fingerprints": fingerprints, "at": _now()}
    begun = {"configuration": name, "fingerprint": fingerprint, "before": before, "began_at": time.time()}
    write_json(settings.state / _UNNOTED, begun)
    return before


def _unnoted(settings: Settings, name: str, fingerprint: str) -> dict[str, Any]:
    """Of a promotion to the same that was begun, unless another engine was started here since."""
    begun = read_json(settings.state / _UNNOTED, form=forms.PromotionBegun)
    if begun is None or (begun["configuration"], begun["fingerprint"]) != (name, fingerprint):
        return {}
    others = [start for unit, start in running(settings).items() if unit != engine_unit(name)]
    if any(start.get("started_at", 0) > begun["began_at"] for start in others):
        return {}
    return begun["before"]


def promote(settings: Settings, name: str, fingerprint: str, before: dict[str, Any]) -> dict[str, Any]:
    """Note that `name` is in service for good; `before` is what `prepare` answered. As `promoted`, with "changed"."""
    known = promoted(settings)
    now = known["now"] or {}
    if (now.get("configuration"), now.get("fingerprint")) == (name, fingerprint):
        return known | {"changed": False}
    told = {
        "now": {"configuration": name, "fingerprint": fingerprint, "at": _now()},
        "before": before or known["before"],
    }
    kept.set_aside(settings, [engine_unit(name)], _IN_SERVICE)
    write_json(settings.state / _PROMOTED, told)
    (settings.state / _UNNOTED).unlink(missing_ok=True)
    return told | {"changed": True}


def put_in_service(settings: Settings, manager: Manager) -> None:
    """Give what is promoted and runs now its files as it was promoted: a sweep starts it with others, under which its
    service manager does not start it again by itself."""
    now = promoted(settings)["now"] or {}
    unit = engine_unit(now.get("configuration", ""))
    start = running(settings).get(unit, {})
    if now and start.get("ready_fingerprint") == now["fingerprint"] and manager.state(unit).running:
        kept.take_back(settings, [unit], _IN_SERVICE)
        kept.put_back(settings, manager, unit)


def roll_back(settings: Settings, *, spread: bool = False) -> dict[str, Any]:
    """Make ready what served before: its units get their files back when they are restored.

    `spread`: what is promoted is spread over several hosts, of which one where nothing served before goes back to that.

    Returns:
        {"units": what to restore, "configuration": of them the one of ours or None, "leaving": the promoted one}.

    Raises:
        HostError: nothing was promoted here, or nothing served before it.
    """
    known = promoted(settings)
    before = known["before"]
    if known["now"] is None:
        raise HostError("Nothing was promoted on this host, so there is nothing to roll back.")
    if not before and spread:
        before = _NOTHING
    if not before:
        name = known["now"]["configuration"]
        raise HostError(f"Nothing served before {name} was promoted. To stop it: playbooks/stop.yml.")
    kept.take_back(settings, before["units"], _WHY)
    last = running(settings)
    for unit, fingerprint in before["fingerprints"].items():
        last[unit] = last.get(unit, {}) | {"ready_fingerprint": fingerprint}
    write_json(settings.state / "running.json", last)
    ours = [name for unit in before["units"] if (name := configuration_of(unit))]
    return {
        "units": before["units"],
        "configuration": ours[0] if ours else None,
        "leaving": known["now"]["configuration"],
    }


def rolled_back(settings: Settings) -> dict[str, Any]:
    """Note that what served before serves again; there is nothing further back."""
    known = promoted(settings)
    before = known["before"] or _NOTHING
    ours = [unit for unit in before["units"] if configuration_of(unit)]
    now = None
    if ours:
        now = {
            "configuration": configuration_of(ours[0]),
            "fingerprint": before["fingerprints"].get(ours[0], ""),
            "at": _now(),
        }
    told = {"now": now, "before": None}
    kept.set_aside(settings, ours[:1], _IN_SERVICE)
    write_json(settings.state / _PROMOTED, told)
    return told


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
