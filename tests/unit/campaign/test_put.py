"""The controller keeps a host's record, and asks for the requests that it has not."""

from __future__ import annotations

import base64
import io
import json

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec


def put(folder, monkeypatch, capsys, *points, requests=None) -> dict:
    """Without `requests` the record alone, else the answer of the host's verb `measure`."""
    said = rec.dump(a_record(points=list(points), outcome="measured")).decode()
    if requests is not None:
        carried = {name: base64.b64encode(content).decode() for name, content in requests.items()}
        said = json.dumps({"phase": "done", "record": said, "requests": carried})
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
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


def test_requests_that_come_with_the_record_are_kept_and_not_asked_for(tmp_path, monkeypatch, capsys):
    name = "requests-quick-c001.jsonl.zst"
    first = measured("2026-01-01T00:00:00Z")
    said = put(tmp_path, monkeypatch, capsys, first, requests={name: b"of the first"})
    assert said["missing"] == []
    raw = tmp_path / "c/h1/ep4" / ("f" * 64) / name
    assert raw.read_bytes() == b"of the first"
    put(tmp_path, monkeypatch, capsys, measured("2026-01-02T00:00:00Z"), requests={name: b"of the second"})
    assert raw.read_bytes() == b"of the second"


def test_an_invalid_point_of_a_record_begun_anew_takes_no_valid_ones_place(tmp_path, monkeypatch, capsys):
    """The host lost its record and measured again; the engine gave up in the point."""
    name = "requests-quick-c001.jsonl.zst"
    first = measured("2026-01-01T00:00:00Z")
    put(tmp_path, monkeypatch, capsys, first, requests={name: b"of the first"})
    folder = tmp_path / "c/h1/ep4" / ("f" * 64)
    died = rec.Flag(id="aborted", severity="invalid", message="Given up after 64 failed requests")
    invalid = msgspec.structs.replace(measured("2026-01-02T00:00:00Z"), flags=[died])
    assert put(tmp_path, monkeypatch, capsys, invalid, requests={name: b"of the second"})["missing"] == []
    (point,) = rec.load((folder / "record.json").read_bytes(), "it").points
    assert (point.started_at, point.valid) == ("2026-01-01T00:00:00Z", True)
    assert (folder / name).read_bytes() == b"of the first"
    # A valid one does, and an invalid one takes an invalid one's.
    put(tmp_path, monkeypatch, capsys, measured("2026-01-03T00:00:00Z"), requests={name: b"of the third"})
    (point,) = rec.load((folder / "record.json").read_bytes(), "it").points
    assert point.started_at == "2026-01-03T00:00:00Z"
    assert (folder / name).read_bytes() == b"of the third"


def test_only_files_that_the_record_names_are_kept(tmp_path, monkeypatch, capsys):
    carried = {"../../elsewhere": b"x", "record.json": b"x"}
    said = put(tmp_path, monkeypatch, capsys, measured("2026-01-01T00:00:00Z"), requests=carried)
    assert said["missing"] == ["requests-quick-c001.jsonl.zst"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        ".lock",
        ".record-copy.json",
        "record.json",
    ]
    assert rec.load((tmp_path / "c/h1/ep4" / ("f" * 64) / "record.json").read_bytes(), "it").points


RAW = "requests-quick-c001.jsonl.zst"
POINT = msgspec.structs.replace(a_point(1, 90.0), raw=RAW, started_at="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("raw", "requests", "words"),
    [
        (RAW, [1], "are no files"),
        (RAW, {RAW: 5}, "are no files"),
        (RAW, {RAW: "!!no base64"}, "came with no content"),
        ("record.json", {"record.json": "YWJj"}, "names a raw file that is none: 'record.json'"),
        (".record-copy.json", {}, "names a raw file that is none"),
        ("../requests-quick-c001.jsonl.zst", {}, "names a raw file that is none"),
        ("requests-" + "x" * 300 + ".jsonl.zst", {}, "names a raw file that is none"),
        ("requests-a\0b.jsonl.zst", {}, "names a raw file that is none"),
    ],
)
def test_a_host_that_tells_nonsense_of_its_requests_is_refused_in_a_sentence(
    tmp_path, monkeypatch, capsys, raw, requests, words
):
    record = a_record(points=[msgspec.structs.replace(POINT, raw=raw)], outcome="measured")
    said = json.dumps({"record": rec.dump(record).decode(), "requests": requests})
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    assert verbs.main(["--campaigns", str(tmp_path), "--campaign", "c", "put", "--host", "h1"]) == 2
    assert words in capsys.readouterr().err
    assert raw == RAW or not list(tmp_path.rglob("record.json"))


def test_a_record_of_endless_brackets_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"schema_version": 1, "plan": ' + "[" * 100_000))
    assert verbs.main(["--campaigns", str(tmp_path), "--campaign", "c", "put", "--host", "h1"]) == 2
    assert "is not a record" in capsys.readouterr().err
