from __future__ import annotations

import io

import msgspec
import pytest
from builders import a_point, a_record
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmark.campaign import record as rec
from benchmark.campaign import turns
from benchmark.campaign.command import report_command
from benchmark.campaign.store import Campaign, StoreError


def test_a_record_comes_back_as_it_was(tmp_path):
    campaign = Campaign(tmp_path, "c")
    record = a_record(outcome="measured", points=[a_point(1, 10.0)])
    folder = campaign.put(record)
    assert folder == tmp_path / "c/h1/ep4" / ("f" * 64)
    assert campaign.records() == [record]


def test_nothing_of_another_fingerprint_is_overwritten_and_the_newest_counts(tmp_path):
    campaign = Campaign(tmp_path, "c")
    old = a_record(fingerprint="a" * 64)
    new = a_record(fingerprint="b" * 64, updated_at="2026-01-02T00:00:00Z")
    campaign.put(new)
    campaign.put(old)
    assert campaign.records() == [new]
    assert len(list(tmp_path.glob("c/h1/ep4/*/record.json"))) == 2


def test_all_starts_of_the_newest_inputs_count(tmp_path):
    campaign = Campaign(tmp_path, "c")
    old = a_record(fingerprint="a" * 64)
    starts = [a_record(fingerprint="b" * 64, start_number=n, updated_at=f"2026-01-0{n + 1}T00:00:00Z") for n in (1, 2)]
    for record in (*reversed(starts), old):
        campaign.put(record)
    assert campaign.records() == starts
    assert campaign.put(starts[1]) == tmp_path / "c/h1/ep4" / f"{'b' * 64}-s2"
    assert len(campaign.all_records()) == 3


def test_keys_that_this_version_does_not_know_survive(tmp_path):
    record = a_record(outcome="measured", points=[a_point(1, 10.0)])
    told = msgspec.json.decode(rec.dump(record)) | {"from_the_future": {"a": [1, None]}}
    read = rec.load(msgspec.json.encode(told))
    assert read.unknown == {"from_the_future": {"a": [1, None]}}
    again = msgspec.json.decode(rec.dump(msgspec.structs.replace(read, outcome="failed")))
    assert again["from_the_future"] == {"a": [1, None]}
    assert "unknown" not in again
    assert rec.load(rec.dump(read)) == read


def test_records_stand_in_the_order_of_the_campaign(tmp_path):
    campaign = Campaign(tmp_path, "c")
    campaign.open({"configurations": ["tp8", "ep4"], "host": "h1"})
    for name in ("ep4", "other", "tp8"):
        campaign.put(a_record(name=name))
    assert [record.configuration.name for record in campaign.records()] == ["tp8", "ep4", "other"]


def test_a_later_sweep_of_a_part_keeps_the_rest_listed(tmp_path):
    campaign = Campaign(tmp_path, "c")
    campaign.open({"configurations": ["tp8", "ep4"], "host": "h1", "model": "m"})
    campaign.open({"configurations": ["ep4"], "host": "h2", "model": "m"})
    about = campaign.about()
    assert about["configurations"] == ["tp8", "ep4"]
    assert about["hosts"] == ["h1", "h2"]


def test_a_broken_record_is_named_and_nothing_is_lost(tmp_path):
    campaign = Campaign(tmp_path, "c")
    path = campaign.put(a_record()) / "record.json"
    path.write_text('{"schema_version": 1, "half')
    with pytest.raises(StoreError, match=r"record\.json is not a record.*Move it away"):
        campaign.records()
    assert path.exists()


@pytest.mark.parametrize("mend", ["by the next sweep", "by the host's next record", "by nobody yet"])
def test_a_record_whose_copy_alone_is_left_is_not_lost(tmp_path, mend):
    """Killed after a broken record was set aside, before its copy took its place."""
    campaign, record = Campaign(tmp_path, "c"), a_record(outcome="measured", points=[a_point(1, 10.0)])
    path = campaign.put(record) / "record.json"
    path.rename(path.with_suffix(".broken"))
    if mend == "by the next sweep":
        campaign.set_aside_broken()
    if mend == "by the host's next record":
        campaign.put(a_record(outcome="skipped"))  # begun anew there
    assert path.exists() == (mend != "by nobody yet")
    assert [found.points for found in campaign.all_records()] == [record.points]


def test_a_record_that_was_moved_away_with_a_broken_copy_is_gone(tmp_path):
    campaign = Campaign(tmp_path, "c")
    path = campaign.put(a_record()) / "record.json"
    path.with_name(".record-copy.json").write_text("half")
    path.unlink()
    assert (campaign.set_aside_broken(), campaign.all_records()) == ([], [])


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    campaign = Campaign(tmp_path, "c")
    record = a_record()
    path = campaign.put(record) / "record.json"
    before = path.read_bytes()

    def no_room(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(StoreError, match="No space left on device"):
        campaign.put(msgspec.structs.replace(record, outcome="failed"))
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".record-copy.json", "record.json"]


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b"])
def test_a_campaign_stays_in_its_folder(tmp_path, name):
    with pytest.raises(StoreError, match="no campaign's name"):
        Campaign(tmp_path, name)


@pytest.mark.parametrize("field", ["host", "name", "fingerprint"])
def test_a_record_stays_in_its_folder(tmp_path, field):
    bad = {
        "host": "../../x",
        "name": "../x",
        "fingerprint": "../../x",
    }[field]
    with pytest.raises(StoreError, match="no name"):
        Campaign(tmp_path, "c").put(a_record(**{field: bad}))


def test_a_newer_record_is_refused_with_what_to_do():
    with pytest.raises(rec.RecordError, match=r"schema version 99.*Upgrade Shardsweep"):
        rec.load('{"schema_version": 99}')


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_wild_text_is_no_record(text):
    with pytest.raises(rec.RecordError):
        rec.load(text)


@pytest.mark.parametrize("spoiled", [b'{"token": 7}', b"[]", b"", b'{"host": "h2", "plan": 1}', b"\xff"])
def test_a_spoiled_sweep_of_one_host_keeps_nobody_elses_report(tmp_path, spoiled):
    campaign = Campaign(tmp_path, "c")
    asked = {"host": "h1", "plan": [], "fingerprints": {}, "asked": {"ladder": [1]}}
    campaign.open({})
    campaign.keep_sweep(turns.asked_for(msgspec.json.encode(asked)))
    other = tmp_path / "c/h2/sweep.json"
    other.parent.mkdir()
    other.write_bytes(spoiled)
    campaign.put(a_record(outcome="measured", points=[a_point(1, 10.0)]))
    assert [sweep.host for sweep in campaign.sweeps()] == ["h1"]
    assert report_command(tmp_path / "c", Console(file=io.StringIO())) == 0
    assert (tmp_path / "c/report.html").exists()
    assert campaign.set_aside_broken() == [other.with_suffix(".broken")]


def test_a_campaign_that_cannot_be_read_is_said_and_not_thrown(tmp_path):
    campaign, said = Campaign(tmp_path, "c"), io.StringIO()
    campaign.put(a_record(outcome="measured", points=[a_point(1, 10.0)]))
    (tmp_path / "c/campaign.json").write_bytes(b"[7]")
    assert report_command(tmp_path / "c", Console(file=said, width=400)) == 1
    assert "campaign.json is not JSON" in said.getvalue()
    assert campaign.set_aside_broken() == [tmp_path / "c/campaign.broken"]
