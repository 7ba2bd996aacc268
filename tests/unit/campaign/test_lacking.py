"""Requests that a controller has not fetched when it is killed are named to the next sweep, of whole records too."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import msgspec
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec
from benchmark.campaign import turns
from benchmark.campaign.store import Campaign

RAW = "requests-quick-c001.jsonl.zst"


def asked_next(folder, monkeypatch, capsys, record: str = "") -> dict:
    monkeypatch.setattr("sys.stdin", io.StringIO(record))
    assert verbs.main(["--campaigns", str(folder), "--campaign", "c", "next", "--host", "h1"]) == 0
    return json.loads(capsys.readouterr().out)


def test_they_are_named_until_they_are_there(tmp_path, monkeypatch, capsys):
    campaign = Campaign(tmp_path, "c")
    said = {"host": "h1", "plan": [], "fingerprints": {}, "asked": {"ladder": [1], "confidence": "quick"}}
    campaign.open({})
    campaign.keep_sweep(turns.asked_for(json.dumps(said).encode()))
    point = msgspec.structs.replace(a_point(1, 90.0), raw=RAW)
    strange = msgspec.structs.replace(a_point(2, 90.0), raw="../../x")
    whole = a_record(points=[point, strange], outcome="measured", complete=True, ladder=[1])
    folder = campaign.put(whole)
    campaign.put(msgspec.structs.replace(whole, host=rec.Host(name="h2")))
    assert asked_next(tmp_path, monkeypatch, capsys)["lacking"] == [f"ep4/{'f' * 64}/{RAW}"]
    (folder / RAW).write_bytes(b"requests")
    assert asked_next(tmp_path, monkeypatch, capsys)["lacking"] == []


def test_those_of_a_point_that_was_measured_again_are_lacking_whichever_verb_brings_the_record(
    tmp_path, monkeypatch, capsys
):
    """`next` brings the record at a start's end, `put` after a point: the old requests are no answer to either."""
    campaign = Campaign(tmp_path, "c")
    said = {"host": "h1", "plan": [], "fingerprints": {}, "asked": {"ladder": [1], "confidence": "quick"}}
    campaign.open({})
    campaign.keep_sweep(turns.asked_for(json.dumps(said).encode()))
    died = rec.Flag(id="aborted", severity="invalid", message="Given up after 64 failed requests")
    first = msgspec.structs.replace(a_point(1, 9.0, flags=[died]), raw=RAW, started_at="2026-01-01T00:00:00Z")
    folder = campaign.put(a_record(points=[first], outcome="measured"))
    (folder / RAW).write_bytes(b"of the first")
    again = msgspec.structs.replace(a_point(1, 90.0), raw=RAW, started_at="2026-01-02T00:00:00Z")
    whole = a_record(points=[again], outcome="measured", complete=True, ladder=[1])
    told = asked_next(tmp_path, monkeypatch, capsys, rec.dump(whole).decode())
    assert told["lacking"] == [f"ep4/{'f' * 64}/{RAW}"]
    assert not (folder / RAW).exists()


def test_one_that_was_cut_off_on_its_way_is_fetched_anew(tmp_path, monkeypatch, capsys):
    """It comes under another name, and gets its own when it is whole and on disk."""
    campaign = Campaign(tmp_path, "c")
    point = msgspec.structs.replace(a_point(1, 90.0), raw=RAW)
    record = a_record(points=[point], outcome="measured", complete=True, ladder=[1])
    folder = campaign.put(record)
    (folder / f".{RAW}.part").write_bytes(b"req")  # and then the controller was killed

    def verb(name: str, said: str) -> dict:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        status = verbs.main(["--campaigns", str(tmp_path), "--campaign", "c", name, "--host", "h1"])
        return json.loads(capsys.readouterr().out) if status == 0 else {"status": status}

    assert verb("put", rec.dump(record).decode())["missing"] == [RAW]
    (folder / f".{RAW}.part").write_bytes(b"requests")
    flushed = []
    fsync = os.fsync
    monkeypatch.setattr(
        "os.fsync", lambda handle: flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink())) or fsync(handle)
    )
    assert verb("arrived", json.dumps({"folder": str(folder), "names": [RAW, "gone"]})) == {"kept": [RAW]}
    assert flushed == [str(folder / f".{RAW}.part"), str(folder)]
    assert (folder / RAW).read_bytes() == b"requests"
    assert verb("put", rec.dump(record).decode())["missing"] == []
    assert verb("arrived", json.dumps({"folder": str(folder), "names": ["../../../../../x"]})) == {"status": 2}
