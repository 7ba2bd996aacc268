"""A host's own communication check in the plan: measured all-reduces instead of assumed ones."""

import json
from pathlib import Path

import pytest

from benchmark.engine.communication import allreduce_seconds
from benchmark.engine.hardware import allreduce_rows, find_host
from benchmark.engine.layout import Layout
from benchmark.engine.models import load_model
from benchmark.engine.step import StepModel
from benchmark.engine.sweep import known_host, plan

DATA = Path(__file__).resolve().parents[2] / "data" / "nccl"
H200 = [{"name": "NVIDIA H200"}] * 2
# A model with Kimi K2's width; 61 layers, so 123 all-reduces a step.
KIMI = load_model("kimi-k2.6")


def rows(log):
    """The steps that rank 0 of the check told, as the host keeps them."""
    told = [json.loads(line[1:]) for line in (DATA / log).read_text().splitlines() if line.startswith("@")]
    return [
        {"group": 2, "bytes": row["step"]["bytes"], "seconds": row["step"]["all_reduce_seconds"]}
        for row in told
        if "step" in row
    ]


def test_the_check_times_what_the_plan_counts():
    """123 all-reduces of one token took 2.038 ms over two H200s by P2P, and 5.296 ms for 256 tokens."""
    host = find_host("2x H200", allreduce=allreduce_rows(rows("p2p_cumem.log")))
    step = StepModel(KIMI, Layout(tp=2), {"tp_size": 2}, host, "0.5.11")
    for tokens, measured in ((1, 2.038e-3), (256, 5.296e-3)):
        calls = [call for call in step.collectives(tokens) if call.kind == "all_reduce"]
        assert sum(call.count for call in calls) == 123
        total = sum(allreduce_seconds(host, 2, call.bytes).expected * call.count for call in calls)
        assert total == pytest.approx(measured, rel=0.001)


def test_a_sweeps_plan_uses_what_its_host_measured():
    catalogue = {"two": {"engine": {"tp_size": 2, "mem_fraction_static": 0.7}}}
    setting = {
        "release": "0.5.11",
        "model": "mini-moe",
        "gpus": H200,
        "workload": {"prompt_tokens": 512, "output_tokens": 128},
        "ladder": [1],
    }

    def tpot(allreduce):
        [entry] = plan("two", catalogue, None, setting | {"allreduce": allreduce})
        return entry["plan"]["speed"]["ladder"][0]["tpot"]

    shm, p2p, assumed = tpot(rows("shm.log")), tpot(rows("p2p_cumem.log")), tpot([])
    # 12 layers: 25 all-reduces, and the gather of logits counts as half a one.
    one = {log: rows(log)[0]["seconds"] for log in ("shm.log", "p2p_cumem.log")}
    assert shm["expected"] - p2p["expected"] == pytest.approx(25.5 * (one["shm.log"] - one["p2p_cumem.log"]), rel=0.05)
    assert p2p["expected"] != assumed["expected"]


def test_each_configuration_is_planned_with_its_own_transport():
    """On two H200s one all-reduce of a token took 16.6 us by P2P; through host memory it is another table."""
    both = [row | {"environment": {"NCCL_NVLS_ENABLE": "0"}} for row in rows("p2p_cumem.log")]
    shm = {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
    both += [row | {"environment": shm} for row in rows("shm.log")]
    host = find_host("2x H200", allreduce=allreduce_rows(both), environment=(("NCCL_NVLS_ENABLE", "0"),))
    assumed = allreduce_seconds(find_host("2x H200"), 2, 14336)
    for log, environment in (
        ("p2p_cumem.log", {}),
        ("p2p_cumem.log", {"NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1"}),  # these move no byte
        ("shm.log", {"NCCL_P2P_DISABLE": True}),
    ):
        told = next(row["seconds"] for row in rows(log) if row["bytes"] == 14336)
        assert allreduce_seconds(host.under(environment), 2, 14336).expected == pytest.approx(told)
    # Nothing was measured so.
    assert allreduce_seconds(host.under({"NCCL_ALGO": "Tree"}), 2, 14336) == assumed
    assert allreduce_seconds(host.under({"NCCL_NVLS_ENABLE": ""}), 2, 14336) == assumed
    # Rows of earlier versions do not say in which environment: they count for all.
    older = find_host("2x H200", allreduce=allreduce_rows(rows("shm.log"))).under({"NCCL_ALGO": "Tree"})
    assert len(older.allreduce) == len(rows("shm.log"))


@pytest.mark.parametrize(
    "damaged", [None, "fast", [None], [{"group": 2}], [{"group": 1, "bytes": 9, "seconds": 1e-5}],
                [{"group": 2, "bytes": 9, "seconds": float("nan")}], [{"group": 2, "bytes": 9, "seconds": -1}],
                [{"group": 2, "bytes": 9, "seconds": 1e-5, "environment": 7}]],
)  # fmt: skip
def test_damaged_rows_are_left_out(damaged):
    assert allreduce_rows(damaged) == ()


EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence" / "h200-one-gpu" / "campaigns"
ENGINE = {"mem_fraction_static": 0.7, "max_running_requests": 256, "disable_piecewise_cuda_graph": True}
CATALOGUE = {"one": {"engine": ENGINE}}
SETTING = {
    "release": "0.5.11",
    "model": "mini-moe",
    "gpus": [{"name": "NVIDIA H200"}],
    "workload": {"prompt_tokens": 512, "output_tokens": 128},
    "ladder": [1, 8],
}


def test_a_sweeps_plan_is_corrected_by_its_hosts_campaigns():
    [entry] = plan("one", CATALOGUE, None, SETTING | {"campaigns": str(EVIDENCE), "host": "h200"})
    assert entry["plan"]["calibrated_on"].endswith("12 starts, 42 measurements")
    for other in ({"campaigns": str(EVIDENCE), "host": "gpu1"}, {"campaigns": str(EVIDENCE), "simulated": True}, {}):
        [entry] = plan("one", CATALOGUE, None, SETTING | other)
        assert entry["plan"]["calibrated_on"] is None


def test_the_slowest_slot_of_a_host_counts():
    told = [{"name": "NVIDIA L40S", "pcie_generation_max": generation} for generation in (4, 3)]
    assert known_host(told).pcie_generation == 3
    assert known_host([{"name": "NVIDIA L40S"}]).pcie_generation == 4
