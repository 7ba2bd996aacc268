"""Requests that a controller has not fetched when it is killed are named to the next sweep, of whole records too."""

from __future__ import annotations

import io
import json

import msgspec
from builders import a_point, a_record

from benchmark.campaign import __main__ as verbs
from benchmark.campaign import record as rec
from benchmark.campaign import turns
from benchmark.campaign.store import Campaign

RAW = "requests-quick-c001.jsonl.zst"


def asked_next(folder, monkeypatch, capsys) -> dict:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
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
