"""The controller keeps a host's record, and asks for the requests that it has not."""

from __future__ import annotations

import io
import json

import msgspec
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec


def put(folder, monkeypatch, capsys, *points) -> dict:
    record = a_record(points=list(points), outcome="measured")
    monkeypatch.setattr("sys.stdin", io.StringIO(rec.dump(record).decode()))
    assert verbs.main(["--campaigns", str(folder), "--campaign", "c", "put", "--host", "h1"]) == 0
    return json.loads(capsys.readouterr().out)


def measured(started_at: str) -> rec.Point:
    return msgspec.structs.replace(a_point(1, 90.0), raw="requests-quick-c001.jsonl.zst", started_at=started_at)


def test_requests_are_asked_for_once_and_again_when_their_point_was_measured_again(tmp_path, monkeypatch, capsys):
    first = put(tmp_path, monkeypatch, capsys, measured("2026-01-01T00:00:00Z"))
    assert first["missing"] == ["requests-quick-c001.jsonl.zst"]
    raw = tmp_path / "c/h1/ep4" / ("f" * 64) / "requests-quick-c001.jsonl.zst"
    raw.write_bytes(b"of the first")
    assert put(tmp_path, monkeypatch, capsys, measured("2026-01-01T00:00:00Z"))["missing"] == []
    again = measured("2026-01-02T00:00:00Z")
    assert put(tmp_path, monkeypatch, capsys, again)["missing"] == [raw.name]
    # A controller that is killed before it has fetched them asks again.
    assert put(tmp_path, monkeypatch, capsys, again)["missing"] == [raw.name]
