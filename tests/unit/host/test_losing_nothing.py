"""What kills, spoiled files and impatient callers leave behind: leases, points, records, and who is in the way."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import threading

import msgspec
import pytest
from builders import a_point, a_record

from benchmark.campaign import record as rec
from benchmark.campaign.store import Campaign
from benchmark.host import clock, gpus, holding, jobs, lease, processes, records, rollback, stop
from benchmark.host import switch as switching
from benchmark.host.services import GUARD_UNIT, JOB_UNIT, ServiceState
from benchmark.host.settings import HostError, Settings, read_json, write_json

KEY = "0" * 64
RUBBISH = [b"", b"null", b"[]", b'{"token": 7, "previous": "none"}', b"\xff\x00"]
SPEC = {"configuration": "ep4", "fingerprint": KEY, "workload": "quick", "concurrency": 64, "repeat": 1}
HELD = {"token": "t", "owner": "me", "after": "previous", "previous": ["sglang-ep4"], "began_at": 1.0}


@pytest.fixture
def settings(tmp_path):
    return Settings(state=tmp_path, unit_directory=tmp_path / "units", lease_seconds=30, free_seconds=0)


class Units:
    """A manager of units that a test says run; what is started is noted."""

    def __init__(self, *running: str) -> None:
        self.running, self.started, self.stopped = set(running), [], []

    pid: int | None = None

    def state(self, unit: str) -> ServiceState:
        return ServiceState(unit=unit, activity="active" if unit in self.running else "inactive", pid=self.pid)

    def start(self, unit: str) -> None:
        self.started.append(unit)

    def stop(self, unit: str) -> None:
        self.stopped.append(unit)

    def log(self, unit: str):
        return self.folder / unit

    def units(self) -> list[str]:
        return []


class TestLease:
    @pytest.mark.parametrize("rubbish", RUBBISH)
    def test_a_spoiled_one_still_tells_what_served(self, settings, rubbish):
        lease.take(settings, HELD)
        (settings.state / "lease.json").write_bytes(rubbish)
        assert lease.current(settings)["previous"] == ["sglang-ep4"]
        lease.mend(settings)
        assert read_json(settings.state / "lease.json")["previous"] == ["sglang-ep4"]
        lease.drop(settings)
        assert lease.current(settings) is None

    def test_one_that_a_full_disk_did_not_take_whole_is_not_taken(self, settings, monkeypatch):
        written = lease.write_json

        def full(path, value):
            if path.name == "lease.json":
                raise OSError(errno.ENOSPC, "No space left on device")
            written(path, value)

        monkeypatch.setattr(lease, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            lease.take(settings, HELD)
        assert holding.held_by(settings) is None
        # The next sweep of a host that is held keeps what served before that one.
        monkeypatch.setattr(lease, "write_json", written)
        lease.take(settings, HELD)
        monkeypatch.setattr(lease, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            lease.take(settings, HELD | {"token": "next"})
        assert (lease.current(settings)["token"], lease.current(settings)["previous"]) == ("t", ["sglang-ep4"])

    @pytest.mark.parametrize("jump", [-86400, 86400])
    def test_a_clock_that_is_set_neither_ends_nor_keeps_it(self, settings, monkeypatch, jump):
        lease.take(settings, HELD)
        import time

        now = time.time()
        monkeypatch.setattr("time.time", lambda: now + jump)
        assert lease.alive(settings, lease.current(settings))
        silent = lease.current(settings)
        silent["renewed"]["seconds"] -= 31
        assert not lease.alive(settings, silent)

    def test_a_second_sweep_is_refused_by_name(self, settings, monkeypatch):
        monkeypatch.setattr(holding, "manager_for", lambda _: Units())
        lease.take(settings, HELD)
        with pytest.raises(HostError, match="Another sweep holds this host: me, heard of 0 s ago"):
            holding.begin(settings, "another", "you", "previous", [])

    def test_a_sweep_that_takes_the_host_while_the_last_is_being_ended_keeps_it(self, settings, monkeypatch):
        """The guard stops the engine of a sweep that is silent; meanwhile the next one takes the host."""
        manager = Units()
        manager.units, manager.release = list, lambda: None
        monkeypatch.setattr(holding, "manager_for", lambda _: manager)
        monkeypatch.setattr(holding, "_LOOK_SECONDS", 0)
        lease.take(settings, HELD)
        silent = lease.current(settings)
        silent["renewed"]["seconds"] -= 31
        write_json(settings.state / "lease.json", silent)
        steps = []

        def restored(settings, units, token, **_):
            steps.append(token)
            if len(steps) == 1:
                holding.begin(settings, "next", "you", "previous", [])
            return {"phase": "restored", "serving": []}

        monkeypatch.setattr("benchmark.host.rollback.restore", restored)
        assert holding.end(settings, "t")["phase"] == "restored"
        assert lease.current(settings)["token"] == "next"
        assert lease.current(settings)["previous"] == ["sglang-ep4"]
        # Its own end is another matter.
        assert holding.end(settings, "next")["phase"] == "restored"
        assert steps == ["t-end", "next-end"]
        assert lease.current(settings) is None

    def test_a_sweep_that_was_taken_for_dead_and_went_on_still_ends_what_it_started(self, settings, monkeypatch):
        """A host that was booted ends its sweep; a controller that waited for it goes on with the next start."""
        manager, steps = Units(), []
        manager.release = lambda: None
        monkeypatch.setattr(holding, "manager_for", lambda _: manager)
        said = {"phase": "restored", "serving": []}
        monkeypatch.setattr("benchmark.host.rollback.restore", lambda _, units, *__, **___: steps.append(units) or said)
        lease.take(settings, HELD)
        holding.end(settings, "t")
        assert lease.current(settings) is None
        holding.end(settings, "t", "previous")
        assert steps == [["sglang-ep4"], ["sglang-ep4"]]
        # Nor does it end what is another's.
        holding.end(settings, "somebody else's", "previous")
        holding.end(settings, "t", "winner")
        assert len(steps) == 2


class TestWhoseHostItIs:
    """A laptop sleeps, its sweep is taken for dead, a colleague's takes the host, the laptop wakes."""

    @pytest.fixture
    def manager(self, settings, monkeypatch):
        manager = Units()
        for module in (holding, jobs, switching):
            monkeypatch.setattr(module, "manager_for", lambda _: manager)
        return manager

    def age(self, settings, seconds):
        held = lease.current(settings)
        held["renewed"]["seconds"] -= seconds
        write_json(settings.state / "lease.json", held)

    def renewed(self, settings):
        return lease.current(settings)["renewed"]["seconds"]

    def test_a_sweep_that_comes_back_touches_nothing_of_the_next_ones(self, settings, manager):
        lease.take(settings, HELD | {"token": "colleague's", "owner": "bob"})
        self.age(settings, 10)
        before = self.renewed(settings)
        with pytest.raises(HostError, match="Another sweep holds this host: bob, heard of 10 s ago"):
            switching.switch(settings, "ep4", KEY, "x", yields=[], seconds=0, sweep="the laptop's")
        with pytest.raises(HostError, match="bob"):
            jobs.measure(settings, SPEC | {"id": "mine", "sweep": "the laptop's"}, seconds=0)
        with pytest.raises(HostError, match="bob"):
            rollback.restore(settings, [], "x", sweep="the laptop's")
        assert self.renewed(settings) == before
        assert (manager.started, manager.stopped) == ([], [])

    def test_a_sweep_renews_its_own(self, settings, manager):
        lease.take(settings, HELD)
        self.age(settings, 25)
        before = self.renewed(settings)
        holding.claim(settings, "t")
        assert self.renewed(settings) >= before + 25

    @pytest.mark.parametrize("sweep", ["", "the laptop's"])
    def test_what_is_silent_is_given_back_first(self, settings, manager, sweep):
        """Also where no guard runs any more, as after a boot under supervisor."""
        lease.take(settings, HELD)
        self.age(settings, 31)
        with pytest.raises(HostError, match=r"holds this host: me, .* being given back: try again"):
            holding.claim(settings, sweep)
        assert manager.started == [GUARD_UNIT]

    def test_nobody_deploys_into_a_sweep(self, settings, manager):
        holding.claim(settings, "")
        lease.take(settings, HELD)
        with pytest.raises(HostError, match=r"A sweep holds this host: me.*playbooks/stop.yml -e interrupt=true"):
            switching.switch(settings, "ep4", KEY, "x", yields=[], seconds=0, sweep="")
        assert holding.held_by(settings).startswith("A sweep holds this host: me")

    def test_a_sweep_that_slept_goes_on_where_nobody_took_the_host(self, settings, manager):
        lease.note_end(settings, HELD | {"ending": True})
        holding.claim(settings, "t")
        held = lease.current(settings)
        assert (held["token"], held["previous"], held.get("ending")) == ("t", ["sglang-ep4"], None)
        assert manager.started == [GUARD_UNIT]

    def test_but_not_while_its_guard_gives_the_host_back(self, settings, manager):
        lease.take(settings, HELD)
        lease.note_ending(settings, lease.current(settings))
        with pytest.raises(HostError, match="being given back"):
            switching.switch(settings, "ep4", KEY, "x", yields=[], seconds=0, sweep="t")

    def test_nor_after_it_was_stopped_on_purpose(self, settings, manager):
        lease.note_end(settings, HELD)
        lease.take(settings, HELD)
        lease.forget(settings)
        with pytest.raises(HostError, match="holds the host no longer"):
            holding.claim(settings, "t")

    def test_nor_after_somebody_deployed_or_swept(self, settings, manager, monkeypatch):
        """The guard gave the host back; ep8 was deployed then. The laptop wakes: it neither measures nor restores."""
        manager.release = lambda: None
        monkeypatch.setattr("benchmark.host.rollback.restore", lambda *_, **__: pytest.fail("it stops what serves"))
        lease.note_end(settings, HELD)
        holding.claim(settings, "")
        with pytest.raises(HostError, match="somebody else has used the host since"):
            holding.claim(settings, "t")
        assert holding.end(settings, "t", "previous") == {"phase": "restored", "serving": [], "failure": None}
        assert lease.current(settings) is None
        # A sweep whose winner serves now is no less somebody else.
        lease.note_end(settings, HELD)
        holding.begin(settings, "colleague's", "bob", "winner", [])
        holding.end(settings, "colleague's", "winner")
        with pytest.raises(HostError, match="somebody else has used the host since"):
            holding.claim(settings, "t")


class TestPoints:
    def begun(self, settings, monkeypatch, *running: str, points=()) -> Units:
        path = records.folder(settings, "ep4", KEY) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(rec.dump(a_record(points=list(points), outcome="measured")))
        manager = Units(*running)
        manager.folder = settings.state
        monkeypatch.setattr(jobs, "manager_for", lambda _: manager)
        return manager

    def test_a_controller_that_comes_back_takes_the_point_that_is_under_way(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, "sglang-ep4", JOB_UNIT)
        write_json(settings.state / "job.json", SPEC | {"id": "of the controller that died"})
        answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)
        assert (answer["phase"], manager.started) == ("running", [])
        jobs.report(settings, "of the controller that died", "failed", "as it went")
        assert jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)["failure"] == "as it went"

    def test_another_point_under_way_is_not_meddled_with(self, settings, monkeypatch):
        self.begun(settings, monkeypatch, "sglang-ep4", JOB_UNIT)
        write_json(settings.state / "job.json", SPEC | {"id": "other", "concurrency": 1})
        with pytest.raises(HostError, match="Another point is being measured here: other"):
            jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)

    def test_a_killed_load_generator_is_started_once_more_and_not_twice(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, "sglang-ep4")
        write_json(settings.state / "job.json", SPEC | {"id": "mine"})
        assert jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)["phase"] == "running"
        assert manager.started == [JOB_UNIT]
        answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)
        assert (answer["phase"], manager.started) == ("failed", [JOB_UNIT])
        assert "ended twice without a result" in answer["failure"]

    def test_no_half_of_a_secret_stays_where_its_log_is_cut(self, settings, monkeypatch):
        """The cut falls on each of its characters in turn."""
        secret = "hunter2-Planted"
        self.begun(settings, monkeypatch, "sglang-ep4")
        write_json(settings.state / "job.json", SPEC | {"id": "mine", "tries": 2})
        for after in range(560, 600):
            log = f'TargetError: {{"api_key": "{secret}"}}' + "y" * after + "\n"
            (settings.state / JOB_UNIT).write_text(log)
            answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)
            assert answer["failure"].endswith("y" * after)
            assert not any(secret[n : n + 4] in answer["failure"] for n in range(len(secret) - 3))

    def test_a_dead_engine_ends_the_point_at_once(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, JOB_UNIT)
        write_json(settings.state / "job.json", SPEC | {"id": "mine"})
        answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=5)
        assert answer["phase"] == "failed"
        assert "The engine ended" in answer["failure"]
        assert manager.stopped == [JOB_UNIT]

    def test_an_engine_that_is_restarted_by_hand_ends_the_point(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, "sglang-ep4")
        manager.pid = 100
        manager.start = manager.running.add
        assert jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)["phase"] == "running"
        manager.pid = 200
        answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)
        assert answer["phase"] == "failed"
        assert "started again past these tools" in answer["failure"]
        assert manager.stopped == [JOB_UNIT]
        # The next point is of the new process.
        manager.running.discard(JOB_UNIT)
        assert jobs.measure(settings, SPEC | {"id": "next"}, seconds=0)["phase"] == "running"

    def test_a_point_that_takes_too_long_is_ended_and_named(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, "sglang-ep4", JOB_UNIT)
        asked = clock.mark()
        asked["seconds"] -= 61
        write_json(settings.state / "job.json", SPEC | {"id": "mine", "asked": asked})
        spec = SPEC | {"id": "mine", "limit_seconds": 60}
        answer = jobs.measure(settings, spec | {"limit_seconds": 100}, seconds=0)
        assert (answer["phase"], manager.stopped) == ("running", [])
        answer = jobs.measure(settings, spec, seconds=0)
        assert (answer["phase"], answer["kind"], answer["may_pass"]) == ("failed", "point_too_slow", False)
        assert (
            "longer than sglang_benchmark_point_seconds (60 s). It was measured at concurrency 64" in answer["failure"]
        )
        assert manager.stopped == [JOB_UNIT]

    def test_a_point_whose_result_was_lost_is_not_measured_again(self, settings, monkeypatch):
        manager = self.begun(settings, monkeypatch, "sglang-ep4", points=[a_point(64, 7000.0)])
        write_json(settings.state / "job.json", SPEC | {"id": "mine", "workload": "quick"})
        answer = jobs.measure(settings, SPEC | {"id": "mine"}, seconds=0)
        assert (answer["phase"], manager.started) == ("done", [])


class TestRecords:
    @pytest.mark.parametrize("rubbish", RUBBISH)
    def test_a_spoiled_record_comes_back_from_its_copy(self, settings, rubbish):
        path = records.folder(settings, "ep4", KEY) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(rec.dump(a_record(points=[], outcome="measured")))
        records.add_point(settings, "ep4", KEY, a_point(64, 7000.0))
        path.write_bytes(rubbish)
        assert [point.concurrency for point in records.opened(settings, "ep4", KEY).points] == [64]
        assert path.with_suffix(".broken").read_bytes() == rubbish

    def test_a_point_that_is_added_while_a_verb_writes_the_record_is_not_lost(self, settings, monkeypatch):
        """A sweep is begun again while the load generator of the one before ends its point: two processes."""
        path = records.folder(settings, "ep4", KEY) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(rec.dump(a_record(points=[], outcome="measured")))
        write, adding = (
            records._write,
            threading.Thread(target=records.add_point, args=(settings, "ep4", KEY, a_point(64, 7000.0))),
        )

        def write_slowly(path, record):
            if threading.current_thread() is threading.main_thread():
                adding.start()
                # Long enough to read what is about to be replaced, if nothing keeps it from that.
                adding.join(0.5)
            write(path, record)

        monkeypatch.setattr(records, "_write", write_slowly)
        records.note(settings, "ep4", KEY, warm_up={"seconds": 1.0})
        adding.join()
        record = records.opened(settings, "ep4", KEY)
        assert [point.concurrency for point in record.points] == [64]
        assert record.warm_up == {"seconds": 1.0}

    def test_what_a_host_has_lost_the_controller_keeps(self, tmp_path):
        campaign = Campaign(tmp_path, "c")
        campaign.put(a_record(points=[a_point(1, 90.0), a_point(64, 7000.0)], outcome="measured"))
        campaign.put(a_record(points=[a_point(1, 91.0)], outcome="measured"))
        (record,) = campaign.all_records()
        assert [(p.concurrency, p.output_tokens_per_second) for p in record.points] == [(1, 91.0), (64, 7000.0)]

    @pytest.mark.parametrize("rubbish", RUBBISH)
    def test_a_spoiled_record_of_the_controller_comes_back_from_its_copy_or_its_host(self, tmp_path, rubbish):
        campaign = Campaign(tmp_path, "c")
        record = a_record(points=[a_point(1, 90.0)], outcome="measured")
        path = campaign.put(record) / "record.json"
        path.write_bytes(rubbish)
        assert campaign.set_aside_broken() == [path.with_suffix(".broken")]
        assert campaign.all_records() == [record]
        path.write_bytes(rubbish)
        path.with_name(".record-copy.json").write_bytes(rubbish)
        assert campaign.set_aside_broken() == [path.with_suffix(".broken")]
        assert campaign.all_records() == []
        campaign.put(record)
        assert campaign.all_records() == [record]


class TestBlocked:
    def step(self, settings):
        progress: dict = {}
        for _ in range(3):
            waiting = stop.stop_step(settings, Units(), ["sglang-ep4"], progress)
        return waiting

    def test_by_a_process_on_a_gpu_which_is_left_alone(self, settings, monkeypatch):
        held = gpus.Gpu(
            index=3, name="G", uuid="GPU-3", bus_id="1", memory_bytes=96 << 30, used_bytes=40 << 30, driver="580"
        )
        killed = []
        monkeypatch.setattr(processes, "kill", killed.extend)
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(gpus, "gpus", lambda _: [held])
        holder = gpus.Holder(pid=4242424, command="python train.py", bytes=40 << 30, uuid="GPU-3")
        monkeypatch.setattr(gpus, "holders", lambda _: [holder])
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        with pytest.raises(stop.StuckError) as stuck:
            self.step(settings)
        assert str(stuck.value) == "Blocked by pid 4242424: python train.py: GPU memory is held (GPU 3 40.0 GiB)."
        assert (stuck.value.kind, stuck.value.may_pass) == ("blocked_by_others", True)
        assert killed == []

    def test_by_a_rank_of_before_that_waits_in_the_kernel(self, settings, monkeypatch):
        """Its reboot ends it, and the configuration in whose switch it was met was never started."""
        monkeypatch.setattr(stop, "_KILL_SECONDS", 0.0)
        monkeypatch.setattr(processes, "kill", lambda _: None)
        rank = processes.Process(4242424, "sglang", "sglang::scheduler_TP0")
        monkeypatch.setattr(Units, "processes", lambda *_: [rank], raising=False)
        with pytest.raises(stop.StuckError) as stuck:
            self.step(settings)
        assert (stuck.value.kind, stuck.value.may_pass) == ("process_survives", True)
        assert str(stuck.value).startswith("Blocked by pid 4242424 (sglang): sglang::scheduler_TP0, which is still")

    def test_not_by_what_is_on_gpus_that_the_configuration_does_not_take(self, settings, monkeypatch):
        """A colleague trains on GPU 3; a configuration of GPUs 0 and 1 starts, one of 2 and 3 does not."""
        devices = [
            gpus.Gpu(index=n, name="G", uuid=f"GPU-{n}", bus_id="1", memory_bytes=96 << 30, used_bytes=u, driver="580")
            for n, u in enumerate((0, 0, 0, 40 << 30))
        ]
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(gpus, "gpus", lambda _: devices)
        monkeypatch.setattr(gpus, "holders", lambda _: [])
        monkeypatch.setattr(processes, "gpu_openers", processes.Openers)
        manager = Units()
        manager.folder = settings.state
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        monkeypatch.setattr(switching, "manager_for", lambda _: manager)

        def switched(name, places, token):
            return switching.switch(settings, name, KEY, token, yields=[], seconds=0.3, gpus=places)

        assert switched("pair", [0, 1], "a")["phase"] == "starting"
        assert switched("other", [2, 3], "b")["failure"]["kind"] == "memory_leaked"
        assert switched("unknown", None, "c")["failure"]["kind"] == "memory_leaked"
        # What ours has used is to be free after its stop, whatever comes next; what it has not is not ours to judge.
        assert switching._judged(settings, None, ["sglang-pair"], None) == [0, 1]
        assert switching._judged(settings, "next", ["sglang-pair"], [2]) == [0, 1, 2]
        assert switching._judged(settings, "next", ["vllm"], [2]) is None
        assert switching._judged(settings, None, [], None) == []

    def test_by_memory_that_an_earlier_stop_did_not_see_free(self, settings, monkeypatch):
        """GPU 0 leaks what an engine of GPUs 0 and 1 had; GPU 3, a colleague's, was never ours."""
        used = {0: 8 << 30, 1: 0, 3: 40 << 30}

        def devices(_):
            return [
                gpus.Gpu(
                    index=n, name="G", uuid=f"GPU-{n}", bus_id="1", memory_bytes=96 << 30, used_bytes=u, driver="580"
                )
                for n, u in used.items()
            ]

        manager, serving, listed = Units(), ["sglang-ep4"], []
        manager.folder = settings.state
        monkeypatch.setattr(manager, "processes", lambda _: [], raising=False)
        monkeypatch.setattr(manager, "release", lambda: None, raising=False)
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(processes, "gpu_openers", processes.Openers)
        monkeypatch.setattr(gpus, "gpus", devices)
        monkeypatch.setattr(gpus, "holders", lambda _: listed)
        for module in (switching, rollback):
            monkeypatch.setattr(module, "manager_for", lambda _: manager)
        monkeypatch.setattr(switching, "serving_units", lambda *_: serving)
        write_json(settings.state / "running.json", {"sglang-ep4": {"configuration": "ep4", "gpus": [0, 1]}})
        tokens = iter("abcdefghij")

        def stopped():
            said = switching.switch(settings, None, "", next(tokens), yields=[], seconds=0.3, proof=False)
            return said["failure"]["sentence"] if said["failure"] else said["phase"]

        leaked = "GPU memory is held (GPU 0 8.0 GiB), and no process shows it or has the GPU open."
        assert stopped() == leaked
        serving.clear()
        assert stopped() == leaked
        # It is no reason to keep the host, nor other GPUs; and it is not forgotten over either.
        assert rollback.restore(settings, [], "back")["phase"] == "restored"
        said = switching.switch(settings, "other", KEY, "start", yields=[], seconds=0.3, gpus=[1])
        assert said["phase"] == "starting"
        assert stopped() == leaked
        # Seen free it is done; who takes the GPU then is a stranger.
        used[0] = 0
        assert stopped() == "stopped"
        used[0] = 40 << 30
        assert stopped() == "stopped"
        # Of a unit that does not say which it took, what nvidia-smi lists as somebody's is not laid to it.
        used[0] = 8 << 30
        listed.append(gpus.Holder(pid=4242424, command="python train.py", bytes=40 << 30, uuid="GPU-3"))
        serving.append("vllm")
        assert "Blocked by pid 4242424" in stopped()
        serving.clear()
        assert stopped() == leaked
        # A boot frees everything.
        monkeypatch.setattr(clock, "boot", lambda: "another")
        assert stopped() == "stopped"

    def test_by_memory_that_nvidia_smi_did_not_tell_of_before(self, settings, monkeypatch):
        manager, serving = Units(), ["sglang-ep4"]
        monkeypatch.setattr(manager, "processes", lambda _: [], raising=False)
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(processes, "gpu_openers", processes.Openers)
        monkeypatch.setattr(switching, "manager_for", lambda _: manager)
        monkeypatch.setattr(switching, "serving_units", lambda *_: serving)
        broken = msgspec.structs.replace(settings, nvidia_smi=["false"])
        said = switching.switch(broken, None, "", "a", yields=[], seconds=0, proof=False)
        assert (said["phase"], said["untold"]) == ("stopped", "nvidia-smi failed (exit 1): it said nothing.")
        serving.clear()
        held = gpus.Gpu(
            index=0, name="G", uuid="GPU-0", bus_id="1", memory_bytes=96 << 30, used_bytes=8 << 30, driver="580"
        )
        monkeypatch.setattr(gpus, "gpus", lambda _: [held])
        monkeypatch.setattr(gpus, "holders", lambda _: [])
        said = switching.switch(settings, None, "", "b", yields=[], seconds=0.3, proof=False)
        assert said["failure"]["kind"] == "memory_leaked"

    def test_a_strangers_secret_is_not_told(self, settings, monkeypatch):
        held = gpus.Gpu(
            index=3, name="G", uuid="GPU-3", bus_id="1", memory_bytes=96 << 30, used_bytes=40 << 30, driver="580"
        )
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(gpus, "gpus", lambda _: [held])
        stranger = subprocess.Popen([sys.executable, "-c", "input()", "--api-key", "hunter2"], stdin=subprocess.PIPE)
        other = gpus.Holder(pid=4242424, command="train HF_TOKEN=hunter2", bytes=1, uuid="GPU-3")
        here = gpus.Holder(pid=stranger.pid, command="python", bytes=1, uuid="GPU-3")
        monkeypatch.setattr(gpus, "holders", lambda _: [other, here])
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        try:
            with pytest.raises(stop.StuckError) as stuck:
                self.step(settings)
        finally:
            stranger.communicate(b"\n")
        told = str(stuck.value) + str(stuck.value.evidence)
        assert "hunter2" not in told
        assert "--api-key REMOVED" in told and "HF_TOKEN=REMOVED" in told

    def test_memory_that_no_process_holds_is_leaked(self, settings, monkeypatch):
        held = gpus.Gpu(
            index=0, name="G", uuid="GPU-0", bus_id="1", memory_bytes=96 << 30, used_bytes=8 << 30, driver="580"
        )
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(gpus, "gpus", lambda _: [held])
        monkeypatch.setattr(gpus, "holders", lambda _: [])
        monkeypatch.setattr(processes, "gpu_openers", processes.Openers)
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        with pytest.raises(stop.StuckError) as stuck:
            self.step(settings)
        assert stuck.value.kind == "memory_leaked"
        assert "nvidia-smi --gpu-reset -i 0" in stuck.value.advice

    def test_by_a_process_that_nvidia_smi_does_not_list(self, settings, monkeypatch, tmp_path):
        """Minors in another order than indices: GPU 0 is /dev/nvidia1."""
        held = [
            gpus.Gpu(
                index=n, name="G", uuid=f"GPU-{n}", bus_id=f"00000000:0{6 + n}:00.0", memory_bytes=96 << 30,
                used_bytes=8 << 30, driver="580",
            )
            for n in (0, 1)
        ]  # fmt: skip
        for bus, minor in (("0000:06:00.0", 1), ("0000:07:00.0", 0)):
            (tmp_path / "gpus" / bus).mkdir(parents=True)
            (tmp_path / "gpus" / bus / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {minor}\n")
        monkeypatch.setattr(gpus, "_DRIVERS_GPUS", tmp_path / "gpus")
        monkeypatch.setattr(processes, "_GPU_FILE", re.compile(rf"{tmp_path}/nvidia(\d+)"))
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(gpus, "gpus", lambda _: held)
        monkeypatch.setattr(gpus, "holders", lambda _: listed)
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        command = [sys.executable, "-c", "input()", "train", "--api-key", "hunter2"]
        with (tmp_path / "nvidia1").open("w") as device:
            stranger = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[device.fileno()])

        def stuck(*places):
            with pytest.raises(stop.StuckError) as raised:
                stop.stop_step(settings, Units(), [], {"gone_at": 0}, list(places))
            return raised.value

        try:
            listed = []
            unlisted = stuck(0)
            named = f"pid {stranger.pid} ({processes.describe(stranger.pid).user}): {sys.executable} -c input() train"
            assert (unlisted.kind, unlisted.may_pass) == ("blocked_by_others", True)
            assert str(unlisted).startswith(f"Blocked by {named}")
            assert "hunter2" not in str(unlisted)
            assert "(GPU 0 8.0 GiB). On GPU 0 nvidia-smi lists no process" in str(unlisted)
            # Where it lists one, a monitor that has the GPU open is not blamed; nor for another GPU's memory.
            listed = [gpus.Holder(pid=4242424, command="python train.py", bytes=8 << 30, uuid="GPU-0")]
            assert str(stuck(0)) == "Blocked by pid 4242424: python train.py: GPU memory is held (GPU 0 8.0 GiB)."
            monkeypatch.setattr(processes, "_unseen", lambda: "")
            assert stuck(1).kind == "memory_leaked"
            # What cannot be looked at is not taken for gone.
            monkeypatch.setattr(processes, "_unseen", lambda: "what other users' processes have open only root sees")
            hidden = stuck(1)
            assert hidden.kind == "blocked_by_others"
            assert str(hidden) == (
                "GPU memory is held (GPU 1 8.0 GiB), and by whom cannot be seen: nvidia-smi lists no process, and what "
                "other users' processes have open only root sees."
            )
            assert "fuser -v /dev/nvidia*" in hidden.advice
        finally:
            stranger.communicate(b"\n")

    def test_not_by_the_drivers_own_programs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(processes, "_GPU_FILE", re.compile(rf"{tmp_path}/nvidia(\d+)"))
        with (tmp_path / "nvidia0").open("w") as device:
            options = {"executable": sys.executable, "stdin": subprocess.PIPE, "pass_fds": [device.fileno()]}
            daemon, tool, other = (
                subprocess.Popen([name, "-c", "input()"], **options)
                for name in ("/usr/bin/nvidia-persistenced", "nvidia-smi", "watch-nvidia-smi")
            )
        try:
            assert [process.pid for process in processes.gpu_openers().minors] == [other.pid]
        finally:
            for each in (daemon, tool, other):
                each.communicate(b"\n")

    def test_by_gpus_that_do_not_tell_only_where_proof_is_asked_for(self, settings, monkeypatch):
        broken = msgspec.structs.replace(settings, nvidia_smi=["false"])
        monkeypatch.setattr(processes, "port_holders", lambda _: [])
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        manager = Units("sglang-ep4")
        monkeypatch.setattr(switching, "manager_for", lambda _: manager)
        monkeypatch.setattr(switching, "serving_units", lambda *_: ["sglang-ep4"])

        def stopped():
            return switching.switch(broken, None, "", "a", yields=[], seconds=0, proof=False)

        # Not while processes are left.
        assert (stopped()["phase"], manager.stopped) == ("stopping", ["sglang-ep4"])
        manager.running.clear()
        gone = stopped()
        assert (gone["phase"], gone["untold"]) == ("stopped", "nvidia-smi failed (exit 1): it said nothing.")
        with pytest.raises(HostError, match="nvidia-smi failed"):
            stop.stop_step(broken, manager, ["sglang-ep4"], {})

    def test_by_a_process_at_the_port(self, settings, monkeypatch):
        at_port = processes.Process(77, "alice", "nginx")
        monkeypatch.setattr(processes, "port_holders", lambda _: [at_port])
        monkeypatch.setattr(Units, "processes", lambda *_: [], raising=False)
        with pytest.raises(stop.StuckError) as stuck:
            self.step(settings)
        assert str(stuck.value) == "Blocked by pid 77 (alice): nginx, which listens on port 30001."
        assert stuck.value.may_pass


def test_a_mark_survives_being_written_down(settings):
    write_json(settings.state / "mark.json", clock.mark())
    assert clock.since(read_json(settings.state / "mark.json")) < 5
