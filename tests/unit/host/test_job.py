"""The measuring job against the reference server: what it does once a start, and what it leaves in the record."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from builders import a_record

from benchmark.campaign import record as rec
from benchmark.host import job, jobs, records
from benchmark.host.services import ServiceState
from benchmark.host.settings import HostError, Settings, read_json
from benchmark.load import summary
from benchmark.load.further import after_ladder
from benchmark.load.reference_server import ReferenceServer, Schedule
from benchmark.load.workload import Workload

FINGERPRINT = "f" * 64
WORK = Workload(
    name="w", prompt_tokens=20, output_tokens=10, window_seconds=0.4, minimum_window_seconds=0.1, minimum_requests=4,
    ramp_turnover=0.25, half_width=0.5,
)  # fmt: skip
HUGE = {**WORK.to_mapping(), "name": "huge", "prompt_tokens": 20_000_000}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host whose engine is the reference server, started at 1.0."""
    server = ReferenceServer(Schedule(tick_seconds=0.005, ttft_seconds=0.01))
    thread = threading.Thread(target=server.serve)
    thread.start()
    settings = Settings(state=tmp_path, unit_directory=tmp_path / "units", port=server.port)
    units = {"sglang-ep4": {"started_at": 1.0}}
    monkeypatch.setattr(job, "running", lambda _: units)
    monkeypatch.setattr(job, "manager_for", lambda _: SimpleNamespace(log=lambda unit: tmp_path / "engine.log"))
    monkeypatch.setattr(job, "_telemetry", lambda *_: False)
    # What a busy machine does to a window of a tenth of a second is not the matter here.
    monkeypatch.setattr(summary, "flags", lambda *_: [])
    path = records.folder(settings, "ep4", FINGERPRINT) / "record.json"
    path.parent.mkdir(parents=True)
    further = [point.to_mapping() for point in after_ladder(WORK, [1, 2], [{"workload": HUGE, "concurrency": 2}])]
    record = a_record(workload=WORK.to_mapping(), ladder=[1, 2], after_ladder=further)
    path.write_bytes(rec.dump(record))
    yield SimpleNamespace(settings=settings, server=server, units=units, record=lambda: rec.load(path.read_bytes()))
    server.stop = True
    thread.join(10)


def measure(host, concurrency, **more):
    spec = {"id": f"c{concurrency}", "configuration": "ep4", "fingerprint": FINGERPRINT, "workload": WORK.to_mapping()}
    jobs.write_json(host.settings.state / "job.json", spec | {"concurrency": concurrency, "ladder": [1, 2]} | more)
    job.run(host.settings)
    return jobs.read_json(host.settings.state / "job-result.json")


def test_warm_up_and_fixed_prompts_come_once_a_start(host):
    assert measure(host, 1)["phase"] == "done"
    record = host.record()
    assert len(record.accuracy["answers"]) == 8
    assert [burst["concurrency"] for burst in record.warm_up["last_pass"]] == [1, 2]
    seen = len(host.server.streams)
    measure(host, 2)
    again = host.record()
    assert (again.accuracy, again.warm_up) == (record.accuracy, record.warm_up)
    # The second point has neither: the answers of a pass alone are six.
    assert len(host.server.streams) - seen == again.points[1].requests_completed + 3
    host.units["sglang-ep4"]["started_at"] = 2.0
    measure(host, 1)
    assert host.record().warm_up != record.warm_up


def test_no_prompts_when_they_are_not_wanted(host):
    measure(host, 1, accuracy=False)
    assert host.record().accuracy == {}


def test_what_follows_the_ladder(host):
    """The first rung again, held against its first measurement; and what the engine cannot hold, as a gap."""
    for concurrency in (1, 2):
        measure(host, concurrency)
    assert [point["label"] for point in records.further_left(host.record())] == [
        "huge at concurrency 2",
        "w at concurrency 1 again",
    ]
    assert not records.is_complete(host.record())
    for other in host.record().after_ladder:
        assert measure(host, **other)["phase"] == "done"
    record = host.record()
    assert [(p.workload, p.concurrency, p.repeat, p.valid) for p in record.points] == [
        ("w", 1, 1, True), ("w", 2, 1, True), ("huge", 2, 1, False), ("w", 1, 2, True),
    ]  # fmt: skip
    assert "does not hold a request of 20,000,010" in record.points[2].flags[0].message
    assert records.is_complete(record)


def test_a_start_that_drifted_says_so(host):
    measure(host, 1)
    point = host.record().points[0]
    slow = msgspec.structs.replace(point, output_tokens_per_second=point.output_tokens_per_second / 3, flags=[])
    slow = msgspec.structs.replace(slow, output_tokens_per_second_half_width=0.001)
    records.add_point(host.settings, "ep4", FINGERPRINT, slow)
    measure(host, 1, repeat=2)
    assert "drifted" in {flag.id for flag in host.record().points[-1].flags}


@pytest.mark.parametrize(
    ("engine", "visible", "chosen"),
    [
        ({"tp_size": 4}, None, [0, 1, 2, 3]),
        ({"tp_size": 2, "pp_size": 2, "base_gpu_id": 4}, None, [4, 5, 6, 7]),
        ({"tp_size": 2}, "6,7,1", [6, 7]),
        ({"tp_size": 2}, "GPU-8a1b,GPU-77cd", None),
        ({"tp_size": 8, "nnodes": 2}, None, [0, 1, 2, 3]),
    ],
)
def test_the_gpus_of_a_configuration(engine, visible, chosen):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    configuration = rec.Configuration(name="x", engine=engine, environment=environment)
    assert job.chosen_gpus(msgspec.structs.replace(a_record(), configuration=configuration)) == chosen


def test_the_cost_of_a_point_is_in_its_progress(host):
    measure(host, 2)
    told = jobs.read_json(host.settings.state / "job-progress.json")["expected_seconds"]
    assert 0 < told["least"] <= told["most"] < 5
    assert told["text"].endswith(" s")


def test_a_rate_without_limits_is_refused_with_what_to_type():
    with pytest.raises(HostError, match=r"needs ttft_limit or tpot_limit .* \(sglang_benchmark_further, or -e rate="):
        records.further_of(WORK, [1, 2], {"points": [], "rate": 2.0})


def test_progress_does_not_wait_for_the_disk_and_a_result_does(tmp_path, monkeypatch):
    settings = Settings(state=tmp_path, unit_directory=tmp_path)
    flushed = []
    monkeypatch.setattr("os.fsync", flushed.append)
    jobs.report_progress(settings, {"phase": "window"})
    assert read_json(tmp_path / "job-progress.json") == {"phase": "window"}
    assert flushed == []
    jobs.report(settings, "a", "done")
    assert flushed


def test_a_small_file_of_requests_goes_with_its_point_and_a_large_one_is_fetched(host, monkeypatch):
    monkeypatch.setattr(
        jobs, "manager_for", lambda _: SimpleNamespace(state=lambda unit: ServiceState(unit=unit, activity="inactive"))
    )
    measure(host, 1)
    (point,) = host.record().points
    raw = Path(records.folder(host.settings, "ep4", FINGERPRINT)) / point.raw
    spec = jobs.current(host.settings)
    carried = jobs.measure(host.settings, spec)["requests"]
    assert {name: base64.b64decode(content) for name, content in carried.items()} == {raw.name: raw.read_bytes()}
    raw.write_bytes(bytes(600 << 10))
    assert jobs.measure(host.settings, spec)["requests"] == {}
