"""Several engine starts of one configuration on a host: a record each, and which points belong to which start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import a_point

from benchmark.campaign import record as rec
from benchmark.engine import flags
from benchmark.host import preflight, records
from benchmark.host.settings import HostError, Settings, write_json


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(records.gpus, "gpus", lambda _: [])
    monkeypatch.setattr(records.engine_http, "loads", lambda _: {})
    monkeypatch.setattr(preflight, "for_record", lambda *_: {"gpus": [], "details": {}})
    return Settings(state=tmp_path, unit_directory=tmp_path / "units")


def context(number=1, ladder=(1, 8, 64)):
    return {
        "configuration": {"name": "ep4", "description": "", "engine": {"ep_size": 4}, "environment": {}},
        "arguments": ["--ep-size", "4"],
        "engine": {"name": "simulated", "version": "0.5.11"},
        "model": {"name": "m", "path": "m", "revision": ""},
        "workload": "quick",
        "ladder": list(ladder),
        "plan": {},
        "host": "h1",
        "further": {"first_again": False},
        "start_number": number,
    }


def read(answer) -> rec.Record:
    return rec.load(Path(answer["record"]).read_bytes())


def started(settings, key, at):
    records.started(settings, "ep4", key, {"started_at": at, "ready_seconds": 5.0})


def test_each_start_has_a_record_of_its_own(settings):
    first, second = records.begin(settings, context()), records.begin(settings, context(2, (64,)))
    assert second["fingerprint"] == first["fingerprint"]
    assert second["key"] == f"{first['key']}-s2"
    assert (read(first).start_number, read(second).start_number) == (1, 2)
    assert read(second).ladder == [64]
    known = records.fingerprints(settings, [context()])
    assert known["ep4"]["fingerprint"] == first["fingerprint"]


def test_what_the_host_gives_every_engine_makes_another_measurement(settings):
    """A transport switched off for the whole host is not measured by what was measured with it on."""
    with_p2p = records.begin(settings, context() | {"environment": {"CUDA_HOME": "/opt/cuda"}})
    without = records.begin(settings, context() | {"environment": {"NCCL_P2P_DISABLE": True}})
    assert with_p2p["fingerprint"] == records.begin(settings, context())["fingerprint"] != without["fingerprint"]
    assert read(without).fingerprint_of["environment"] == {"NCCL_P2P_DISABLE": "1"}


OWN = {"model_path": "/models/k2", "served_model_name": "k2", "host": "127.0.0.1", "port": 30000}


def of_the_engine(environment="venv-0.5.23-aaaaaaaa", revision="abc", **own):
    """The context of ep4 on a host of these settings."""
    own = OWN | own
    return context() | {
        "arguments": [word for line in flags.launch_lines({"ep_size": 4}, "0.5.23", own) for word in line],
        "engine": {"name": "sglang", "version": "0.5.23", "environment": environment},
        "model": {"name": own["served_model_name"], "path": own["model_path"], "revision": revision},
    }


@pytest.mark.parametrize(
    "own", [{"port": 30001}, {"host": "0.0.0.0"}, {"served_model_name": "kimi"}, {"model_path": "/data/models/k2"}]
)
def test_where_an_engine_listens_and_its_files_lie_is_the_same_measurement(settings, own):
    first = records.begin(settings, of_the_engine())
    assert records.begin(settings, of_the_engine(**own))["key"] == first["key"]
    # It is kept for show.
    assert {"/models/k2", "127.0.0.1", "30000"} <= set(read(first).configuration.arguments)
    assert read(first).model == rec.Model(name="k2", path="/models/k2", revision="abc")


@pytest.mark.parametrize(
    "changed",
    [
        of_the_engine("venv-0.5.23-bbbbbbbb"),
        of_the_engine("/opt/own/bin/python"),
        of_the_engine(revision="abd"),
        of_the_engine(revision="", model_path="/data/models/k2"),
    ],
)
def test_another_engine_environment_or_model_is_another_measurement(settings, changed):
    keys = {records.begin(settings, one)["key"] for one in (of_the_engine(), of_the_engine(revision=""), changed)}
    assert len(keys) == 3


def weights(size: int) -> bytes:
    """A safetensors file with one tensor of so many bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def test_weights_that_were_replaced_in_their_place_make_another_measurement(settings, tmp_path):
    """The inventory says nothing new; the host looks at the files as they are."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "mini"}')
    (model / "model.safetensors").write_bytes(weights(10))
    said = {"name": "m", "path": str(model), "revision": "as the fact told it once"}
    asked = context() | {"engine": {"name": "sglang", "version": "0.5.11"}, "model": said}
    before = records.begin(settings, asked)
    assert records.begin(settings, asked)["key"] == before["key"]
    (model / "model.safetensors").write_bytes(weights(12))
    after = records.begin(settings, asked)
    assert after["key"] != before["key"]
    assert records.fingerprints(settings, [asked])["ep4"]["fingerprint"] == after["fingerprint"]
    assert len(read(after).model.revision) == 64
    # Where there is no such folder, what was said counts.
    gone = records.begin(settings, asked | {"model": said | {"path": "/nowhere"}})
    assert read(gone).model.revision == "as the fact told it once"


def test_a_key_that_leads_elsewhere_is_refused(settings):
    for key in ("../x", "abc-s0", "abc-s2/..", ""):
        with pytest.raises(HostError, match="no record's name"):
            records.folder(settings, "ep4", key)


def test_an_engine_that_was_measured_cannot_be_a_second_start(settings):
    first = records.begin(settings, context())
    write_json(settings.state / "running.json", {"sglang-ep4": {"started_at": 1000.0}})
    # What serves may be measured as it is, once.
    assert first["start_anew"] is False
    started(settings, first["key"], 1000.0)
    records.add_point(settings, "ep4", first["key"], a_point(1, 10.0))
    assert records.begin(settings, context())["start_anew"] is False
    assert records.begin(settings, context(2))["start_anew"] is True
    write_json(settings.state / "running.json", {"sglang-ep4": {"started_at": 2000.0}})
    assert records.begin(settings, context(2))["start_anew"] is False


def test_a_record_that_went_on_says_which_points_belong_to_which_engine(settings):
    answer = records.begin(settings, context())
    started(settings, answer["key"], 1000.0)
    records.add_point(settings, "ep4", answer["key"], a_point(1, 10.0))
    # Cut off here; the sweep goes on with another engine, which dies before a point and is started again.
    answer = records.begin(settings, context())
    assert answer["measured"] == [1]
    started(settings, answer["key"], 2000.0)
    started(settings, answer["key"], 3000.0)
    records.add_point(settings, "ep4", answer["key"], a_point(8, 70.0))
    record = read(answer)
    assert [point.engine_started_at for point in record.points] == [
        "1970-01-01T00:16:40+00:00",
        "1970-01-01T00:50:00+00:00",
    ]
    assert [start.started_at for start in record.earlier_starts] == ["1970-01-01T00:16:40+00:00"]
    assert record.start.started_at == "1970-01-01T00:50:00+00:00"


def test_a_rung_that_cannot_win_is_left_and_the_record_is_complete(settings):
    answer = records.begin(settings, context())
    started(settings, answer["key"], 1000.0)
    records.add_point(settings, "ep4", answer["key"], a_point(1, 10.0))
    # 10 tokens a second at 1 allow at most 640 at 64: 600 may be beaten, 650 is within the noise of starts, 700 is not.
    assert records.leave(settings, "ep4", answer["key"], 8, 600.0, []) == ""
    assert records.leave(settings, "ep4", answer["key"], 8, 650.0, []) == ""
    assert records.leave(settings, "ep4", answer["key"], 8, 700.0, [8]) == ""
    why = records.leave(settings, "ep4", answer["key"], 8, 700.0, [])
    assert why == ("10 tokens a second at concurrency 1 allow at most 640 at 64, below the 700 that another reached.")
    assert records.leave(settings, "ep4", answer["key"], 64, 700.0, [])
    assert records.finish(settings, "ep4", answer["key"])["complete"] is True
    assert read(answer).left == rec.Left(rungs=[8, 64], reason=why)
    # With another ladder it is asked anew.
    assert records.begin(settings, context(ladder=(1, 8)))["complete"] is False


def test_above_a_rung_at_which_the_engine_gave_up_nothing_is_tried(settings):
    answer = records.begin(settings, context())
    started(settings, answer["key"], 1000.0)
    gave_up = rec.Flag(id="aborted", severity="invalid", message="Given up after 64 failed requests.")
    records.add_point(settings, "ep4", answer["key"], a_point(1, 10.0))
    records.add_point(settings, "ep4", answer["key"], a_point(8, 1.0, flags=[gave_up]))
    why = records.leave(settings, "ep4", answer["key"], 64, None, [64])
    assert why == "Concurrency 8 failed, so concurrency 64 would too."
    assert read(answer).left.may_be_best is False
    # The rung itself is tried again by a later sweep.
    assert records.leave(settings, "ep4", answer["key"], 8, None, []) == ""


def test_an_invalid_point_for_another_reason_ends_no_ladder(settings):
    answer = records.begin(settings, context())
    started(settings, answer["key"], 1000.0)
    compiled = rec.Flag(id="compiled", severity="invalid", message="A kernel was compiled inside the window.")
    records.add_point(settings, "ep4", answer["key"], a_point(8, 70.0, flags=[compiled]))
    assert records.leave(settings, "ep4", answer["key"], 64, None, []) == ""


def test_the_fact_is_of_the_start_that_has_the_whole_ladder(settings):
    first = records.begin(settings, context(ladder=(1, 8)))
    started(settings, first["key"], 1000.0)
    for rung, rate in ((1, 10.0), (8, 60.0)):
        records.add_point(settings, "ep4", first["key"], a_point(rung, rate))
    second = records.begin(settings, context(2, (8,)))
    started(settings, second["key"], 2000.0)
    records.add_point(settings, "ep4", second["key"], a_point(8, 62.0))
    facts = settings.state / "facts.d"
    told = records.finish(settings, "ep4", second["key"], facts)
    assert told["changed"] is True
    assert json.loads((facts / "sglang_ep4.fact").read_text()) == told["fact"]
    assert records.finish(settings, "ep4", second["key"], facts)["changed"] is False
    assert told["peak_output_tokens_per_second"] == 62.0
    assert told["fact"]["peak_output_tokens_per_second"] == 60.0
    assert told["fact"]["single_stream_tokens_per_second"] == 10.0
    assert told["fact"]["starts"] == 2
    assert told["fact"]["promoted"] is None
