"""Raw requests: written, read, and summed up again."""

import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.load.measure import PointResult
from benchmark.load.rows import RowsError, read_requests, write_requests
from benchmark.load.summary import reanalyse, summarise

from .made import about, row


def test_round_trip(tmp_path):
    rows = [
        row(0, 5, (100, 200, 250)),
        row(1, 7, (100, 300), counts=[3, 5], source="reported", first_wave=True),
        row(2, 9, error="HTTP 503: busy", output_tokens=None, prompt_tokens=None, first_content_us=None),
        row(3, 9, (11,), counts=[], source="unknown", intended_us=-4, details={"queue_time": 0.5}),
    ]
    path = tmp_path / "requests-w-c002.jsonl.zst"
    write_requests(path, rows)
    assert read_requests(path) == rows
    assert not list(tmp_path.glob("*.part"))


def test_a_file_is_on_disk_before_it_has_its_name_and_its_folder_after(tmp_path, monkeypatch):
    path, told = tmp_path / "requests.jsonl.zst", []
    fsync = os.fsync

    def noted(handle):
        told.append((str(Path(f"/proc/self/fd/{handle}").readlink()), path.exists()))
        fsync(handle)

    monkeypatch.setattr("os.fsync", noted)
    write_requests(path, [row(0, 0, range(1, 4))])
    assert told == [(f"{path}.part", False), (str(tmp_path), True)]
    assert len(read_requests(path)) == 1


def test_the_summary_from_the_file_is_the_same(tmp_path):
    rows = [row(i, 31 * i, range(31 * i + 50, 31 * i + 900, 17)) for i in range(30)]
    found = about(100, 1500, concurrency=8, client={"cpu_share": 0.2}, server={"kind": "sglang"})
    path = tmp_path / "requests.jsonl.zst"
    PointResult(summarise(rows, found), rows, found).write(path)
    again = reanalyse(path)
    assert again.raw == "requests.jsonl.zst"
    import msgspec

    assert msgspec.structs.replace(again, raw=None) == summarise(rows, found)


@given(st.lists(st.integers(0, 10**9), max_size=50))
@settings(max_examples=30, deadline=None)
def test_any_times_survive(tmp_path_factory, times):
    times = sorted(times)
    path = tmp_path_factory.mktemp("rows") / "r.jsonl.zst"
    made = row(0, 0, [at / 1000 for at in times])
    write_requests(path, [made])
    assert read_requests(path) == [made]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "line 1"),
        (b'{"format": 99}\n', "format 99"),
        (b'{"format": 1, "about": {}}\n{"index": 1}\n', "line 2"),
        (b'{"format": 1, "about": {}}\nnonsense\n', "line 2"),
    ],
)
def test_damaged_files_say_where(tmp_path, text, says):
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(zstandard.compress(text))
    with pytest.raises(RowsError, match=says):
        read_requests(path)


def test_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "r.jsonl.zst"
    write_requests(path, [row(i, 0, range(1, 400)) for i in range(50)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RowsError, match=r"r\.jsonl\.zst"):
        read_requests(path)
    with pytest.raises(RowsError, match="cannot be read"):
        read_requests(tmp_path / "none")
