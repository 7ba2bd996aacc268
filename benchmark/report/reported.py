"""Campaigns that others reported: figures without records, shown beside a user's own and never ranked with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..campaign.record import Record
from .summary import Row, mapping

_FOLDER = Path(__file__).parent / "reference"
MARK = "reported, not measured here"


class UnknownReferenceError(ValueError):
    """There is no shipped reference campaign of that name."""


@dataclass(frozen=True)
class Reported:
    """A reported campaign. Speeds are output tokens a second; None where nothing was reported."""

    name: str
    title: str
    about: str
    model: str
    hardware: str
    matches: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def names() -> list[str]:
    """The reference campaigns that are shipped."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load(name: str) -> Reported:
    """A shipped reference campaign.

    Raises:
        UnknownReferenceError: there is none of that name; the text lists those there are.
    """
    if name not in names():
        raise UnknownReferenceError(f"There is no reported campaign '{name}'; shipped are {', '.join(names())}.")
    told = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    keys = ("name", "title", "about", "model", "hardware", "matches")
    return Reported(
        **{key: told[key] for key in keys}, configurations=tuple(told["configurations"]), notes=tuple(told["notes"])
    )


def beside(records: list[Record]) -> list[Reported]:
    """The reported campaigns of the same model on the same kind and number of GPUs as any of these records."""
    return [r for r in map(load, names()) if any(_matches(r, record) for record in records)]


def _matches(reported: Reported, record: Record) -> bool:
    cards = [str(mapping(gpu).get("name") or "") for gpu in record.host.gpus]
    return (
        _plain(reported.matches["model"]) in _plain(record.model.name)
        and len(cards) == reported.matches["gpus"]
        and all(_plain(reported.matches["gpu"]) in _plain(card) for card in cards)
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def pairs(reported: Reported, found: list[Row]) -> list[tuple[Mapping[str, Any], Row | None]]:
    """Each reported configuration with the user's row of the same name, if there is one."""
    rows = {row.configuration: row for row in reversed(found)}
    return [(told, rows.get(told["name"])) for told in reported.configurations]
