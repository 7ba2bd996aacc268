"""The campaign folder on the controller: records, raw requests, and what is written from them.

    campaigns/NAME/campaign.json  report.html report.md results.csv
    campaigns/NAME/HOST/CONFIG/FINGERPRINT/record.json  requests-WORKLOAD-c064.jsonl.zst

A file is written whole, flushed to disk and moved into place; nothing of another fingerprint is ever overwritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from . import record as rec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MOST_BYTES = 64 << 20
"""More than any record: what comes from a host is bounded."""


class StoreError(Exception):
    """The campaign folder cannot take or give what was asked; the text says what and where."""


class Campaign:
    """One campaign's folder."""

    def __init__(self, campaigns: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise StoreError(f"'{name}' is no campaign's name: use letters, digits, dots, dashes and underscores.")
        self.name = name
        self.folder = campaigns / name

    def about(self) -> dict[str, Any]:
        """campaign.json: {"name", "model", "configurations": [in the order of the catalogue], ...}."""
        try:
            return msgspec.json.decode((self.folder / "campaign.json").read_bytes())
        except FileNotFoundError:
            return {"name": self.name}
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.folder}/campaign.json is not JSON: {error}. Delete it and sweep again.") from error

    def open(self, about: dict[str, Any]) -> None:
        """Note what the campaign is. Configurations and hosts of earlier sweeps of it stay listed."""
        with self.locked():
            known = self.about()
            for key, new in (("configurations", about.pop("configurations", [])), ("hosts", [about.pop("host", None)])):
                about[key] = list(dict.fromkeys([*known.get(key, []), *(name for name in new if name)]))
            self.write(self.folder / "campaign.json", _json({**known, **about, "name": self.name}))

    def put(self, record: rec.Record) -> Path:
        """Keep a record; returns its folder. An older state of the same fingerprint is replaced by a newer one."""
        for part in (record.host.name, record.configuration.name, record.fingerprint):
            if not _NAME.fullmatch(part):
                raise StoreError(f"The record of '{record.configuration.name}' has a part that is no name: '{part}'.")
        folder = self.folder / record.host.name / record.configuration.name / record.fingerprint
        with self.locked():
            self.write(folder / "record.json", rec.dump(record))
        return folder

    def records(self) -> list[rec.Record]:
        """The newest record of each configuration on each host, in the campaign's order.

        Raises:
            StoreError: a record cannot be read; it is named, none is lost.
        """
        newest: dict[tuple[str, str], rec.Record] = {}
        for path in sorted(self.folder.glob("*/*/*/record.json")):
            try:
                found = rec.load(path.read_bytes(), str(path))
            except rec.RecordError as error:
                raise StoreError(f"{error} Move it away to write the report without it.") from error
            key = (found.host.name, found.configuration.name)
            if key not in newest or found.updated_at > newest[key].updated_at:
                newest[key] = found
        order = {name: place for place, name in enumerate(self.about().get("configurations", []))}
        return sorted(newest.values(), key=lambda r: (r.host.name, order.get(r.configuration.name, len(order))))

    def folder_of(self, record: rec.Record) -> Path:
        return self.folder / record.host.name / record.configuration.name / record.fingerprint

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole or not at all, flushed to disk.

        Raises:
            StoreError: the folder cannot be written (no room, no right).
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                Path(name).chmod(0o644)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror}. What was there before is still there."
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Several hosts of one sweep write here at once; the lock dies with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1) + b"\n"
