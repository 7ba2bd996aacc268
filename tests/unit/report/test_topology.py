"""Sockets and switches out of `nvidia-smi topo -m`."""

from __future__ import annotations

from pathlib import Path

from benchmark.report import topology
from benchmark.report.summary import rows
from tests.data.campaigns import made

CAPTURES = Path(__file__).parents[2] / "captures"


def test_a_real_matrix_of_one_gpu():
    raw = (CAPTURES / "host" / "nvidia-smi" / "topo.txt").read_text()
    assert topology.parse_matrix(raw) == [["X"]]


def test_eight_gpus_in_pairs_on_two_sockets():
    matrix = topology.parse_matrix(made.topology())
    assert matrix[0] == ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert topology.groups(matrix, ("PIX", "PXB")) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert topology.groups(matrix, ("PIX", "PXB", "PHB", "NODE")) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_is_no_matrix_gives_none():
    for raw in (None, 3, "", "GPU0\tGPU1", "GPU0\tX", "GPU0\t X \tWHAT\nGPU1\tWHAT\t X ", "GPU0\t X \tPIX"):
        assert topology.parse_matrix(raw) in ([], [["X"]])


def test_alike_hosts_are_one_view():
    records = [made.record("a", host=made.host("gpu1")), made.record("b", host=made.host("gpu2"))]
    (view,) = topology.hosts(rows(records, {}))
    assert view.name == "gpu1 and gpu2"
    assert view.sentence == "8 GPUs on 2 sockets, 4 PCIe branches."
    assert view.transports == (("every configuration", "P2P/CUMEM: 16 channels, SHM: 2 channels"),)
    assert view.sockets[0][1][0][0].link == "PCIe 5.0 x16"


def test_a_narrow_link_is_named_and_an_idle_generation_is_not():
    gpus = [
        {"index": 3, "name": "X", "pcie_width": 8, "pcie_width_max": 16, "pcie_generation": 1, "pcie_generation_max": 5}
    ]
    host = made.Host(name="gpu1", gpus=gpus)
    (view,) = topology.hosts(rows([made.record("a", host=host)], {}))
    assert view.sentence == "1 GPU. The link of GPU 3 is narrower than the card allows."
    assert view.sockets[0][1][0][0].link == "PCIe 5.0 x8"
