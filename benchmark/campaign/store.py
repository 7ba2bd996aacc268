"""The campaign folder on the controller: records, raw requests, and what is written from them.

    campaigns/NAME/campaign.json  decision.json  report.html  report.md  results.csv
    campaigns/NAME/HOST/sweep.json
    campaigns/NAME/HOST/CONFIG/FINGERPRINT/record.json  .record-copy.json  requests-WORKLOAD-c064.jsonl.zst
    campaigns/NAME/HOST/CONFIG/FINGERPRINT-s2/...  the second engine start

A file is written whole, flushed to disk and moved into place; nothing of another fingerprint is ever overwritten.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..durable import flush_names
from . import record as rec

if TYPE_CHECKING:
    from .turns import HostSweep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RAW = re.compile(r"requests-[\w-]+\.jsonl\.zst")
_LONGEST_NAME = 200
"""Bytes of a raw file's name: with what it is called on its way it is still one of a file."""
_COPY = ".record-copy.json"  # hidden: a report lists what lies beside a record
MOST_BYTES = 64 << 20
"""More than any record: what comes from a host is bounded."""


class StoreError(rec.CampaignError):
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
            return msgspec.json.decode((self.folder / "campaign.json").read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {"name": self.name}
        except msgspec.MsgspecError as error:
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
        folder = self.folder_of(record)
        with self.locked():
            known = self._known(folder)
            content = rec.dump(with_points_of(record, known) if known else record)
            self.write(folder / "record.json", content)
            self.write(folder / _COPY, content)
        return folder

    def known(self, record: rec.Record) -> rec.Record | None:
        """What is kept here of the same start; None where nothing is, or nothing that can be read."""
        return self._known(self.folder_of(record))

    def _known(self, folder: Path) -> rec.Record | None:
        path = folder / "record.json"
        try:
            return rec.load(path.read_bytes(), str(path))
        except FileNotFoundError:
            pass  # nothing yet, or somebody was killed between setting it aside and putting its copy there
        except rec.RecordError:
            _set_aside(path)
        return self._restored(path)

    def _restored(self, path: Path) -> rec.Record | None:
        """A record from its copy; None where that cannot be read either."""
        try:
            content = path.with_name(_COPY).read_bytes()
            record = rec.load(content, str(path))
        except (FileNotFoundError, rec.RecordError):
            return None
        self.write(path, content)
        return record

    def set_aside_broken(self) -> list[Path]:
        """Move away what cannot be read, and put a record's copy in its place, or let its host send it again.

        Returns:
            Where what was broken lies now.
        """
        from .turns import SweepError, kept_sweep

        moved = []
        with self.locked():
            for path in sorted(self.folder.glob("*/*/*/record.json")):
                try:
                    rec.load(path.read_bytes(), str(path))
                except rec.RecordError:
                    moved.append(_set_aside(path))
            for copy in sorted(self.folder.glob(f"*/*/*/{_COPY}")):
                if not (path := copy.with_name("record.json")).exists():
                    self._restored(path)
            for path in sorted(self.folder.glob("*/sweep.json")):
                try:
                    kept_sweep(path.read_bytes())
                except SweepError:
                    moved.append(_set_aside(path))
            try:
                self.about()
            except StoreError:
                moved.append(_set_aside(self.folder / "campaign.json"))
        return moved

    def records(self) -> list[rec.Record]:
        """All starts of each configuration on each host that share the newest inputs, in the campaign's order.

        Raises:
            StoreError: a record cannot be read; it is named, none is lost.
        """
        sets: dict[tuple[str, str], dict[str, list[rec.Record]]] = {}
        for found in self.all_records():
            by_fingerprint = sets.setdefault((found.host.name, found.configuration.name), {})
            by_fingerprint.setdefault(found.fingerprint, []).append(found)
        newest = [max(found.values(), key=lambda starts: max(r.updated_at for r in starts)) for found in sets.values()]
        order = {name: place for place, name in enumerate(self.about().get("configurations", []))}

        def place(record: rec.Record) -> tuple[str, int, int]:
            return record.host.name, order.get(record.configuration.name, len(order)), record.start_number

        return sorted((record for starts in newest for record in starts), key=place)

    def all_records(self, *, skip_broken: bool = False) -> list[rec.Record]:
        """Every record, those of earlier inputs too.

        Raises:
            StoreError: a record cannot be read; it is named, none is lost. Not with `skip_broken`.
        """
        found = []
        for path in sorted(self.folder.glob("*/*/*/record.json")):
            try:
                found.append(rec.load(path.read_bytes(), str(path)))
            except rec.RecordError as error:
                if skip_broken:
                    continue
                raise StoreError(f"{error} Move it away to write the report without it.") from error
        for copy in sorted(self.folder.glob(f"*/*/*/{_COPY}")):
            if not copy.with_name("record.json").exists():
                with contextlib.suppress(rec.RecordError):
                    found.append(rec.load(copy.read_bytes(), str(copy)))
        return found

    def folder_of(self, record: rec.Record) -> Path:
        return self.folder / record.host.name / record.configuration.name / record.folder_name

    def sweeps(self) -> list[HostSweep]:
        """The last sweep of each host, as far as it has come; without one whose file was spoiled, which its next sweep
        sets aside."""
        from .turns import SweepError, kept_sweep  # keeping a record needs nothing of it

        found = []
        for path in sorted(self.folder.glob("*/sweep.json")):
            with contextlib.suppress(SweepError):
                found.append(kept_sweep(path.read_bytes()))
        return found

    def sweep(self, host: str) -> HostSweep:
        """The sweep of one host.

        Raises:
            StoreError: none was opened.
        """
        from .turns import kept_sweep

        path = self.folder / host / "sweep.json"
        if not path.exists():
            raise StoreError(f"There is no sweep of {host} at {path}; open it first.")
        return kept_sweep(path.read_bytes())

    def keep_sweep(self, sweep: HostSweep) -> None:
        if not _NAME.fullmatch(sweep.host):
            raise StoreError(f"'{sweep.host}' is no host's name.")
        self.write(self.folder / sweep.host / "sweep.json", _json(sweep))

    def keep_requests(self, record: rec.Record, files: dict[str, str]) -> None:
        """Keep raw files of a record's points that came with it: {name: content in base64}. None is replaced.

        Raises:
            StoreError: a content is not base64.
        """
        named = {point.raw for point in record.points}
        for name in named.intersection(files):
            path = self.raw_file(record, name)
            if path.exists():
                continue
            try:
                content = base64.b64decode(files[name], validate=True)
            except ValueError as error:
                raise StoreError(f"{name} of {record.configuration.name} came with no content: {error}.") from error
            self.write(path, content)

    def raw_file(self, record: rec.Record, name: str) -> Path:
        """Where a point's raw file lies.

        Raises:
            StoreError: its name leads elsewhere, or is another file's.
        """
        if not is_raw_name(name):
            raise StoreError(f"The record of {record.configuration.name} names a raw file that is none: {name[:80]!r}.")
        return self.folder_of(record) / name

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
                flush_names(path.parent)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror}. What was there before is still there."
            ) from error

    def arrived(self, path: Path) -> bool:
        """Give a raw file that was fetched as `part_of(path)` its name, once it is on disk; False: it was not fetched.

        Raises:
            StoreError: it would lie outside the campaign's folder.
        """
        part = part_of(path)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise StoreError(f"{path} is not below {self.folder}.")
        try:
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            part.replace(path)
            flush_names(path.parent)
        except FileNotFoundError:
            return False
        return True

    def report_age(self) -> float:
        """Seconds since the report was written; infinite where there is none, or one of a time to come."""
        try:
            age = time.time() - (self.folder / "report.html").stat().st_mtime
        except FileNotFoundError:
            return math.inf
        return age if age >= 0 else math.inf

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Several hosts of one sweep write here at once; the lock dies with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def is_raw_name(name: str | None) -> bool:
    """Whether a point's raw file may be called so: it comes from a host, and becomes a path."""
    return bool(name) and bool(_RAW.fullmatch(name)) and len(name.encode()) <= _LONGEST_NAME


def part_of(path: Path) -> Path:
    """What a raw file is called on its way: a controller that is killed leaves it, and it is fetched anew."""
    return path.with_name(f".{path.name}.part")


def _set_aside(path: Path) -> Path:
    return path.replace(path.with_suffix(".broken"))


def with_points_of(record: rec.Record, known: rec.Record) -> rec.Record:
    """A host that lost its record begins it anew; what was measured before stays until it is measured again.

    An invalid point is no measurement: a valid one of before stays in its place.
    """
    before = {_place(point): point for point in known.points if point.valid}
    here = {_place(point) for point in record.points if point.valid or _place(point) not in before}
    further = [point for place, point in before.items() if place not in here]
    own = [point for point in record.points if _place(point) in here]
    return msgspec.structs.replace(record, points=[*own, *further]) if further else record


def _place(point: rec.Point) -> tuple[str, int, int]:
    return point.workload, point.concurrency, point.repeat


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1) + b"\n"
