"""The communication check: NCCL's own lines, hangs named as hangs, verdicts. Ranks without torch are stood in for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.hardware import find_host
from benchmark.host import communication as check
from benchmark.host.communication import __main__ as runner
from benchmark.host.communication import group, nccl_log, verdict
from benchmark.host.preflight import smi
from benchmark.host.settings import HostError, Settings, read_json, write_json

# Format strings of NCCL's source, and lines of public logs (nccl#1817).
LINES = """\
gpu1:884:1022 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
gpu1:884:1022 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
gpu1:884:1022 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 1.
gpu1:884:1022 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu1:884:1022 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
gpu1:885:1023 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC
gpu1:885:1023 [1] NCCL INFO Channel 00 : 1[1] -> 2[2] via SHM/direct/direct
gpu1:886:1024 [2] NCCL INFO Channel 00/0 : 2[2] -> 3[3] [receive] via NET/Socket/0
gpu1:886:1024 [2] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer
gpu1:887:1025 [3] NCCL WARN Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes
gpu1:887:1025 [3] NCCL INFO Connected all rings
"""


def test_transports_in_the_words_of_nccl():
    log = nccl_log.read(LINES.splitlines())
    assert log.transports == {"P2P/CUMEM": 2, "P2P/IPC": 1, "SHM": 1, "NET": 1, "P2P/direct": 1}
    assert log.pairs == {"0-1": "P2P/IPC", "1-2": "SHM", "2-3": "NET", "6-7": "P2P/direct"}
    assert log.environment == ["NCCL_P2P_LEVEL set by environment to SYS", "NCCL_SHM_DISABLE set by environment to 1"]
    assert log.warnings == ["Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes"]
    assert log.version == "2.28.9"


DATA = Path(__file__).parents[2] / "data/nccl"


@pytest.mark.parametrize(
    ("name", "kind"), [("p2p_cumem", "P2P/CUMEM"), ("p2p_ipc", "P2P/IPC"), ("shm", "SHM"), ("net", "NET")]
)
def test_real_lines_of_two_gpus(name, kind):
    log = nccl_log.read((DATA / f"{name}.log").read_text().splitlines())
    assert log.transports == {kind: 4}
    assert log.pairs == {"0-1": kind}
    assert log.version == "2.28.9"
    assert "NCCL_NVLS_ENABLE set by environment to 0" in log.environment
    assert log.warnings == []


def test_a_real_answer_of_two_gpus():
    text = (DATA / "p2p_cumem.log").read_text()
    result = group.result(request(), [text, '@{"stage": "done"}'], [0, 0], False, 9.0)
    assert (result.outcome, result.backend, result.torch, result.nccl) == ("ok", "nccl", "2.11.0+cu130", "2.28.9")
    assert [size["bytes"] for size in result.sizes] == [1 << 10, 32 << 10, 256 << 10, 1 << 20, 16 << 20, 256 << 20]
    # One token of Kimi K2 is 7168 values of two bytes.
    assert (result.steps[0]["tokens"], result.steps[0]["bytes"]) == (1, 14336)
    assert all(step["graph"] and step["all_reduces"] == 123 for step in result.steps)
    assert [check.verdict for check in verdict.judge("base", [result])] == ["ok", "ok"]


@given(st.text(max_size=300))
def test_wild_logs_are_never_an_error(text):
    nccl_log.read(text.splitlines())


# Ranks that stand in: what they print is what ranks.py prints.

GOOD = """
import json, os
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def tell(**said): print("@" + json.dumps(said), flush=True)
tell(stage="import")
tell(stage="group", torch="2.11.0", backend="nccl", nccl="2.28.9")
print(f"h:1:2 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {(rank + 1) % count}[0] via P2P/CUMEM", flush=True)
tell(stage="first all-reduce")
if rank == 0:
    tell(size={"bytes": 1024, "rounds": 10, "seconds": 2e-5})
    tell(size={"bytes": 268435456, "rounds": 10, "seconds": 0.01})
    tell(step={"tokens": 1, "bytes": 14336, "all_reduces": 123, "graph": True, "seconds": 0.00246,
               "all_reduce_seconds": 2e-5})
print(os.environ.get("NCCL_GRAPH_FILE", "no graph file"), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
tell(stage="done")
"""
HANGS = GOOD.replace('tell(stage="first all-reduce")', 'tell(stage="first all-reduce")\nimport time; time.sleep(60)')
ONE_FAILS = GOOD.replace(
    'tell(stage="first all-reduce")',
    'tell(stage="first all-reduce")\nif rank == 1: raise RuntimeError("NCCL error: unhandled system error")\n'
    "import time; time.sleep(60)",
)
WRONG = GOOD.replace('tell(stage="done")', 'tell(stage="wrong data"); import sys; sys.exit(4)')
NO_TORCH = 'import sys; print(\'@{"stage": "no torch"}\', flush=True); sys.exit(3)'


def ranks(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "ranks.py"
    script.write_text(text)
    return script


def request(**more) -> group.Request:
    return group.Request(**({"python": sys.executable, "ranks": 2, "gpus": [0, 7], "seconds": 20.0} | more))


def test_a_group_that_talks(tmp_path):
    result = group.run(request(), tmp_path / "logs", ranks(tmp_path, GOOD))
    assert (result.outcome, result.stage, result.backend, result.nccl) == ("ok", "done", "nccl", "2.28.9")
    assert result.transports == {"P2P/CUMEM": 2}
    small, large = result.sizes
    assert small["seconds"] == 2e-5
    # 256 MiB in 10 ms; with two ranks each link carries 2 (2 - 1) / 2 = 1 times that.
    assert large["bandwidth_bytes_per_second"] == pytest.approx(26_843_545_600)
    assert large["bus_bandwidth_bytes_per_second"] == pytest.approx(26_843_545_600)
    first, second = verdict.judge("ep8", [result])
    assert first.id == "communication_2"
    assert first.verdict == "ok"
    assert first.seen == (
        "ep8: 2 ranks on GPU 0, 7, nccl: 20 us at 1 KiB, 26.8 GB/s a link at 256 MiB, "
        "123 of 1 token in one CUDA graph 2.46 ms"
    )
    assert (second.id, second.verdict, second.seen) == ("transport", "ok", "ep8: P2P/CUMEM 2 channels")


def test_bus_bandwidth_of_eight_ranks(tmp_path):
    result = group.run(request(ranks=8, gpus=list(range(8))), tmp_path / "logs", ranks(tmp_path, GOOD))
    # nccl-tests: 2 (8 - 1) / 8 = 1.75 times the message's own.
    assert result.sizes[1]["bus_bandwidth_bytes_per_second"] == pytest.approx(1.75 * 26_843_545_600)


def test_ranks_that_write_more_than_8_mib_are_heard_to_their_end(tmp_path):
    more = 'for _ in range(9000): print("gpu1:7:9 [0] NCCL INFO " + "x" * 1000)\n'
    result = group.run(
        request(), tmp_path / "logs", ranks(tmp_path, GOOD.replace("if rank == 0:", more + "if rank == 0:"))
    )
    assert (result.outcome, result.stage, len(result.sizes)) == ("ok", "done", 2)
    assert result.transports == {"P2P/CUMEM": 2}


def test_a_hang_is_named_as_one(tmp_path):
    began = time.monotonic()
    result = group.run(request(seconds=1.5), tmp_path / "logs", ranks(tmp_path, HANGS))
    assert time.monotonic() - began < 8
    assert (result.outcome, result.stage) == ("hang", "first all-reduce")
    (told,) = verdict.judge("ep8", [result])
    assert told.verdict == "fail"
    assert "communication hang" in told.seen
    assert "in the first all-reduce" in told.seen
    for word in ("ACS", "IOMMU", "setpci", "iommu=off"):
        assert word in told.mend


def test_nothing_is_left_of_a_hang(tmp_path):
    script = ranks(tmp_path, HANGS)
    group.run(request(seconds=1.0), tmp_path / "logs", script)
    assert not [file for file in Path("/proc").glob("[0-9]*/cmdline") if str(script) in _reads(file)]


def _reads(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_a_rank_that_fails_is_not_called_a_hang(tmp_path):
    began = time.monotonic()
    result = group.run(request(seconds=30.0), tmp_path / "logs", ranks(tmp_path, ONE_FAILS))
    assert time.monotonic() - began < 15
    assert result.outcome == "failed"
    assert result.error == "rank 1: RuntimeError: NCCL error: unhandled system error"


def test_data_that_is_wrong(tmp_path):
    result = group.run(request(), tmp_path / "logs", ranks(tmp_path, WRONG))
    assert result.outcome == "wrong"
    assert verdict.judge("ep8", [result])[0].verdict == "fail"


def test_an_engine_without_torch(tmp_path):
    result = group.run(request(), tmp_path / "logs", ranks(tmp_path, NO_TORCH))
    assert verdict.judge("ep8", [result])[0].verdict == "unknown"


@pytest.mark.parametrize("user", [None, "nobody"])
def test_before_the_installation_nothing_is_held_against_the_host(tmp_path, user):
    script = ranks(tmp_path, GOOD)
    result = group.run(request(python="/opt/nowhere/bin/python", user=user), tmp_path / "logs", script)
    (told,) = verdict.judge("host", [result])
    assert (told.verdict, told.mend) == ("unknown", "Run playbooks/install.yml first.")
    assert told.seen == "host: 2 ranks on GPU 0, 7: the engine's Python is not there: /opt/nowhere/bin/python"


def test_a_graph_file_of_all_gpus_is_kept_from_a_pair(tmp_path):
    graph = {"NCCL_GRAPH_FILE": "/etc/graph.xml"}
    group.run(request(environment=graph, whole=False), tmp_path / "pair", ranks(tmp_path, GOOD))
    group.run(request(environment=graph, whole=True), tmp_path / "all", ranks(tmp_path, GOOD))
    assert "no graph file 0,7" in (tmp_path / "pair/rank-0.log").read_text()
    assert "/etc/graph.xml 0,7" in (tmp_path / "all/rank-0.log").read_text()


def a_result(**more) -> group.Result:
    known = {"outcome": "ok", "ranks": 8, "gpus": list(range(8)), "stage": "done", "seconds": 30.0, "backend": "nccl"}
    return group.Result(**(known | more))


@pytest.mark.parametrize(
    ("transports", "expected"),
    [
        ({"P2P/CUMEM": 16}, "ok"),
        ({"P2P/IPC": 8}, "ok"),
        ({"SHM": 8, "P2P/CUMEM": 8}, "warning"),
        ({"NET": 2}, "fail"),
        ({}, "unknown"),
    ],
)
def test_verdict_on_transports(transports, expected):
    assert verdict.judge("ep8", [a_result(transports=transports)])[-1].verdict == expected


def test_small_shared_memory_is_said_to_be_the_cause():
    failed = a_result(outcome="failed", stage="group", error="failed to extend /dev/shm/nccl-03v824 to 4194660 bytes")
    assert "remount" in verdict.judge("ep8", [failed])[0].mend


def test_torch_that_does_not_come_up_is_no_communication_hang():
    check_ = verdict.judge("ep8", [a_result(outcome="hang", stage="import")])[0]
    assert "communication hang" not in check_.seen


# What is run


def links(count: int, a: int, b: int) -> smi.Topology:
    """All GPUs below one switch, but for a pair that is farthest apart."""
    told = [["X" if row == column else "PIX" for column in range(count)] for row in range(count)]
    if count > 1:
        told[a][b] = told[b][a] = "SYS"
    return smi.Topology(told, [], [])


def spec(*environments: dict[str, str]) -> check.Spec:
    return check.Spec(python="/p", runs=[check.Run(name=f"c{n}", environment=e) for n, e in enumerate(environments)])


def test_a_pair_and_then_all():
    (planned,) = check.plan(spec({"NCCL_P2P_LEVEL": "SYS", "HF_TOKEN": "secret", "PATH": "/x"}), 8, links(8, 0, 5))
    pair, everyone = planned.requests
    assert (pair.gpus, pair.ranks, pair.whole) == ([0, 5], 2, False)
    assert (everyone.gpus, everyone.ranks, everyone.whole) == (list(range(8)), 8, True)
    assert pair.environment == {"NCCL_P2P_LEVEL": "SYS", "PATH": "/x"}  # no secrets reach the plan's file


def test_only_the_gpus_that_the_environment_leaves_are_taken():
    far = links(8, 0, 7)
    far.links[5][6] = far.links[6][5] = "NODE"
    runs = [check.Run(name="tp4", environment={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, engine={"tp_size": 4})]
    (planned,) = check.plan(check.Spec(python="/p", runs=runs, model="kimi-k2.6"), 8, far, find_host("8x H200"))
    # Farthest apart of those; and all of those, which are not the host's.
    assert [(request.gpus, request.whole) for request in planned.requests] == [([5, 6], False), ([4, 5, 6, 7], False)]
    assert check.plan(spec({"CUDA_VISIBLE_DEVICES": "3"}), 8, far) == []
    # By UUID, in the order that is said; without a matrix the ends.
    uuids = [f"GPU-{place}f" for place in range(8)]
    (planned,) = check.plan(spec({"CUDA_VISIBLE_DEVICES": "GPU-6,GPU-2f,GPU-3"}), 8, None, None, uuids)
    assert [request.gpus for request in planned.requests] == [[2, 6], [6, 2, 3]]


def test_the_messages_are_those_of_the_configurations():
    """Kimi K2.6: 7,168 wide, 123 all-reduces; rungs, and the chunk of 8,192 that an RTX PRO 6000 has by default."""
    engines = {"tp8": {"tp_size": 8}, "tp4_pp2": {"tp_size": 4, "pp_size": 2, "chunked_prefill_size": 2048}}
    runs = [check.Run(name=name, engine=engine) for name, engine in engines.items()]
    asked = check.Spec(python="/p", runs=runs, model="kimi-k2.6", release="0.5.11", ladder=(1, 64))
    (planned,) = check.plan(asked, 8, links(8, 0, 5), find_host("8x RTX PRO 6000 Blackwell"))
    assert planned.name == "tp8, tp4_pp2"
    # The pair that is farthest apart; pp2's stages of four, which are GPUs 0 to 3 first; all.
    assert [request.gpus for request in planned.requests] == [[0, 5], [0, 1, 2, 3], list(range(8))]
    assert {(r.tokens, r.hidden, r.all_reduces) for r in planned.requests} == {((1, 64, 2048, 8192), 7168, 123)}


def test_a_pipeline_without_an_all_reduce_is_tried_with_those_of_tensor_parallelism():
    runs = [check.Run(name="pp8", engine={"pp_size": 8})]
    asked = check.Spec(python="/p", runs=runs, model="kimi-k2.6", release="0.5.11", ladder=(1,))
    (planned,) = check.plan(asked, 8, links(8, 0, 5), find_host("8x RTX PRO 6000 Blackwell"))
    assert {(r.tokens, r.hidden, r.all_reduces) for r in planned.requests} == {((1, 8192), 7168, 123)}


def test_a_model_that_is_not_known_is_taken_for_kimi_k2():
    (planned,) = check.plan(spec({}), 2, links(2, 0, 1), find_host("2x H200"))
    assert [(r.tokens, r.hidden, r.all_reduces) for r in planned.requests] == [((1, 8, 64, 256, 8192), 7168, 123)]


def test_equal_environments_are_tried_once():
    planned = check.plan(spec({"NCCL_DEBUG": "WARN"}, {}, {"NCCL_DEBUG": "WARN"}), 2, links(2, 0, 1))
    assert [p.name for p in planned] == ["c0, c2", "c1"]
    assert [len(p.requests) for p in planned] == [1, 1]
    assert planned[0].requests[0].whole


def test_one_gpu_has_nobody_to_talk_to():
    assert check.plan(spec({}), 1, links(1, 0, 0)) == []


def test_without_a_gpu_gloo_is_used():
    (planned,) = check.plan(spec({}), 0, links(0, 0, 1))
    assert [(r.backend, r.ranks, r.gpus) for r in planned.requests] == [("gloo", 2, []), ("gloo", 4, [])]


def test_after_a_hang_of_the_pair_not_all_are_tried(tmp_path):
    planned = check.Planned(name="ep8", requests=[request(seconds=1.0), request(ranks=4, gpus=[0, 1, 2, 3])])
    write_json(tmp_path / check.PLAN, {"token": "t", "planned": msgspec.to_builtins([planned])})
    runner.main(tmp_path, ranks(tmp_path, HANGS))
    result = read_json(tmp_path / check.RESULT)
    assert result["token"] == "t"
    assert [r["outcome"] for r in result["runs"][0]["results"]] == ["hang"]
    assert [c["verdict"] for c in result["checks"]] == ["fail"]


def test_what_the_plan_of_a_configuration_can_use(tmp_path):
    """Each configuration's own NCCL variables stand with what was measured in them."""
    planned = [
        check.Planned(
            name="ep8", requests=[request(environment={"NCCL_P2P_LEVEL": "SYS", "PATH": os.environ["PATH"]})]
        ),
        check.Planned(name="ep8_shm", requests=[request(environment={"NCCL_P2P_DISABLE": "1"})]),
    ]
    write_json(tmp_path / check.PLAN, {"token": "t", "planned": msgspec.to_builtins(planned)})
    runner.main(tmp_path, ranks(tmp_path, GOOD))
    one = {"group": 2, "bytes": 14336, "seconds": 2e-5}
    assert read_json(tmp_path / check.RESULT)["allreduce"] == [
        one | {"environment": {"NCCL_P2P_LEVEL": "SYS"}},
        one | {"environment": {"NCCL_P2P_DISABLE": "1"}},
    ]


# The verb


def settings(tmp_path: Path, engine: str = "sglang") -> Settings:
    return Settings(
        state=tmp_path, unit_directory=tmp_path, manager="supervisor", nvidia_smi=["/nowhere"], engine=engine
    )


ASKED = {"python": sys.executable, "runs": [{"name": "host", "environment": {}}], "seconds": 20.0}


def test_a_simulated_engine_has_nothing_to_send(tmp_path):
    answer = check.communication(settings(tmp_path, "simulated"), ASKED, "t")
    assert answer["phase"] == "done"
    assert answer["checks"][0]["verdict"] == "unknown"


@pytest.mark.parametrize("asked", [{}, {"python": "/p", "runs": []}, {"python": "/p", "runs": [{"nom": 1}]}])
def test_what_makes_no_sense_is_refused(tmp_path, asked):
    with pytest.raises(HostError):
        check.communication(settings(tmp_path), asked, "t")


def test_a_second_check_waits_for_the_first(tmp_path):
    from benchmark.host import processes

    state = {"token": "first", "pid": os.getpid(), "started": processes.started_at(os.getpid())}
    write_json(tmp_path / check.FOLDER / check.STATE, state)
    with pytest.raises(HostError, match="Another communication check"):
        check.communication(settings(tmp_path), ASKED, "second")


def test_a_check_that_broke_says_where_to_look(tmp_path):
    folder = tmp_path / check.FOLDER
    write_json(folder / check.STATE, {"token": "t", "pid": 2**22 + 1, "started": 1.0})
    (folder / "check.log").write_text("Traceback\nKeyError: 'x'\n")
    answer = check.communication(settings(tmp_path), ASKED, "t")
    assert answer["phase"] == "failed"
    assert "KeyError: 'x'" in answer["error"]


def test_an_engine_without_torch_end_to_end(tmp_path):
    """This Python has no torch in the project's own environment; where it has, the check simply runs."""
    here = settings(tmp_path)
    for _ in range(20):
        answer = check.communication(here, ASKED, "t", seconds=3.0)
        if answer["phase"] != "running":
            break
    assert answer["phase"] == "done"
    assert answer["checks"][0]["id"] == "communication_2"
    assert read_json(tmp_path / "host.json")["communication"]["runs"][0]["name"] == "host"
