"""Files of a host's state, cut off, spoiled or of another version: every verb goes on or says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import a_record
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from benchmark.campaign import record as rec
from benchmark.campaign.store import Campaign, StoreError
from benchmark.host import clock, holding, jobs, lease, preflight, promotion, records, rollback, switch, watch
from benchmark.host.processes import Process
from benchmark.host.services import ServiceState
from benchmark.host.settings import HostError, Settings, read_json

UNIT, KEY = "sglang-ep4", "0" * 64
SPEC = {"configuration": "ep4", "fingerprint": KEY, "workload": "quick", "concurrency": 64, "repeat": 1}
HELD = {"token": "t", "owner": "me", "after": "previous", "previous": [UNIT], "began_at": 1.0}
START = {"configuration": "ep4", "fingerprint": KEY, "started_at": 1.0, "began": clock.mark(), "log_offset": 0}
FILES = {
    "lease.json": HELD | {"renewed": clock.mark()},
    "lease-copy.json": HELD | {"renewed": clock.mark()},
    "switch.json": {
        "token": "t", "configuration": "ep4", "fingerprint": KEY, "boot": clock.boot(), "began": clock.mark(),
        "changed": True, "stopped": [], "progress": {}, "start": START, "failure": None, "phase": "starting",
        "waiting_for": None,
    },
    "running.json": {UNIT: START},
    "job.json": SPEC | {"id": "mine", "tries": 1, "asked": clock.mark()},
    "job-result.json": {"id": "mine", "phase": "failed", "failure": "why", "at": clock.mark()},
    "job-progress.json": {"phase": "measuring", "completed": 1, "output_tokens_per_second": 1.0},
    "job-watch.json": {"job": "mine", "seen": ["measuring", 1, None], "moved": clock.mark(), "configuration": "ep4"},
    "restore.json": {"token": "t", "began_at": 1.0},
    "promoted.json": {
        "now": {"configuration": "ep4", "fingerprint": KEY, "at": "2026-01-01T00:00:00Z"},
        "before": {"units": [UNIT], "fingerprints": {UNIT: KEY}, "at": "2026-01-01T00:00:00Z"},
    },
    "host.json": {"gpus": [{"bus_id": "1"}], "checks": [{"verdict": "ok"}], "communication": {"allreduce": []}},
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spoiled(draw) -> dict[str, bytes]:
    """Some of the files as they are written, one of them cut off, overwritten, or with values of other kinds."""
    files = {name: json.dumps(content).encode() for name, content in FILES.items() if draw(st.booleans())}
    name = draw(st.sampled_from(sorted(FILES)))
    whole = json.dumps(FILES[name]).encode()
    match draw(st.sampled_from(["cut", "noise", "other", "value", "deep"])):
        case "cut":
            files[name] = whole[: draw(st.integers(0, len(whole)))]
        case "noise":
            files[name] = draw(st.binary(max_size=64))
        case "other":
            files[name] = json.dumps(draw(JSON)).encode()
        case "deep":
            files[name] = b'{"token":' + b"[" * 100_000
        case "value":
            content = dict(FILES[name])
            content[draw(st.sampled_from(sorted(content)))] = draw(JSON)
            files[name] = json.dumps(content).encode()
    return files


class Units:
    """A manager of one unit, which does not run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, activity="inactive")

    def log(self, unit: str) -> Path:
        return self.folder / unit

    def units(self) -> list[str]:
        return [UNIT]

    def processes(self, unit: str) -> list[Process]:
        return []

    def start(self, unit: str) -> None: ...

    def stop(self, unit: str) -> None: ...

    def reload(self) -> None: ...

    def release(self) -> None: ...


def goes_on(verb) -> None:
    """It may refuse, in words; nothing else may come of a spoiled file."""
    try:
        verb()
    except HostError as refusal:
        assert str(refusal)


@pytest.fixture
def host(tmp_path, monkeypatch):
    manager = Units(tmp_path)
    for module in (holding, jobs, promotion, rollback, switch):
        monkeypatch.setattr(module, "manager_for", lambda _: manager)
    monkeypatch.setattr(holding, "_LOOK_SECONDS", 0)
    monkeypatch.setattr("benchmark.host.engine_http.health", lambda _: "refused")
    return Settings(
        state=tmp_path, unit_directory=tmp_path / "units", nvidia_smi=["false"], free_seconds=0, stop_seconds=0
    )


VERBS = {
    "lease": lambda host: (lease.current(host), lease.renew(host), lease.mend(host)),
    "sweep-begin": lambda host: holding.begin(host, "new", "me", "previous", []),
    "sweep-end": lambda host: holding.end(host, "t"),
    "guard's look": lambda host: (held := lease.current(host)) and lease.alive(host, held),
    "switch": lambda host: switch.switch(host, "ep4", KEY, "new", yields=[], seconds=0),
    "death": lambda host: switch.death(host, "ep4"),
    "restore": lambda host: rollback.restore(host, [UNIT], "new", seconds=0),
    "measure": lambda host: jobs.measure(host, SPEC | {"id": "mine"}, seconds=0),
    "watch": lambda host: watch.failure(host, "ep4"),
    "promote": lambda host: promotion.promote(host, "ep4", KEY, {}),
    "roll-back": lambda host: (promotion.roll_back(host), promotion.rolled_back(host)),
    "since": lambda host: promotion.since(host, "ep4"),
    "for-record": lambda host: preflight.for_record(host, [{"bus_id": "1"}]),
    "remember": lambda host: preflight.remember(host, {"gpus": []}),
}


@pytest.mark.parametrize("verb", sorted(VERBS))
@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=spoiled())
def test_no_verb_breaks_on_a_spoiled_file(host, verb, files):
    for old in host.state.glob("*.json"):
        old.unlink()
    for name, content in files.items():
        (host.state / name).write_bytes(content)
    record = records.folder(host, "ep4", KEY) / "record.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(rec.dump(a_record(outcome="measured")))
    goes_on(lambda: VERBS[verb](host))


@examples(max_examples=100, deadline=None)
@given(mark=JSON)
def test_what_is_no_mark_is_long_ago(mark):
    assert clock.since(mark) == float("inf")
    assert clock.since({"boot": clock.boot(), "seconds": mark}) >= 0 or isinstance(mark, (int, float))


@examples(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_file_that_is_no_object_is_as_if_it_were_absent(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("state") / "x.json"
    path.write_bytes(content)
    assert isinstance(read_json(path, {}), dict)


RECORD = rec.dump(a_record(outcome="measured"))


@examples(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()) | st.data())
def test_a_spoiled_record_of_a_host_comes_back_from_its_copy_or_is_begun_anew(host, content):
    if not isinstance(content, bytes):
        content = RECORD[: content.draw(st.integers(0, len(RECORD) - 2))]
    folder = records.folder(host, "ep4", KEY)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_bytes(content)
    (folder / "record-copy.json").write_bytes(RECORD)
    assert records.opened(host, "ep4", KEY) == rec.load(RECORD, "here")
    (folder / "record.json").write_bytes(content)
    (folder / "record-copy.json").write_bytes(content)
    goes_on(lambda: records.opened(host, "ep4", KEY))


@examples(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_spoiled_files_of_a_campaign_are_set_aside_and_the_rest_can_be_read(tmp_path_factory, content):
    campaign = Campaign(tmp_path_factory.mktemp("campaigns"), "c")
    kept = a_record(outcome="measured")
    folder = campaign.put(kept)
    for path in (folder / "record.json", campaign.folder / "campaign.json", Path(folder.parents[1], "sweep.json")):
        path.write_bytes(content)
    campaign.set_aside_broken()
    assert campaign.records() == [kept]
    try:
        campaign.about()
    except StoreError as refusal:
        assert "campaign.json" in str(refusal)
