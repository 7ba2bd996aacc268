"""A server measured by its address alone."""

from benchmark.campaign import record as rec
from benchmark.load import measure
from benchmark.load.rows import read_requests
from benchmark.load.url import measure_url

from .test_measure import WORK, reference


def test_a_record_and_its_files(tmp_path):
    seen, warmed = [], []
    with reference() as (_, url):
        record = measure.run(
            measure_url(
                url,
                workload=WORK,
                ladder=(1, 3),
                folder=tmp_path / "out",
                telemetry=False,
                on_point=seen.append,
                on_warm_up=warmed.append,
            )
        )
    assert [point.concurrency for point in record.points] == [1, 3]
    assert seen == record.points
    assert len(warmed) == 1
    assert record.complete
    assert rec.load((tmp_path / "out" / "record.json").read_bytes()) == record
    for point in record.points:
        assert len(read_requests(tmp_path / "out" / point.raw)) == point.requests_completed
    assert (record.engine.name, record.model.name) == ("sglang", "reference")


def test_any_other_server(tmp_path):
    with reference(kind="openai") as (_, url):
        record = measure.run(measure_url(url, workload=WORK, ladder=(2,), telemetry=False))
    assert record.engine.name == "other"
    assert record.points[0].output_tokens_per_second > 0
