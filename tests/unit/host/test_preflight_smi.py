"""nvidia-smi's own prints as data: captures of H200 hosts, and the matrix of a healthy 8-GPU PCIe host."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmark.host.preflight import smi

CAPTURES = Path(__file__).parents[2] / "captures"
ONE, TWO = CAPTURES / "host/nvidia-smi", CAPTURES / "two-gpus"


def matrix_of_a_pcie_host() -> str:
    """ASUS ESC8000A, 8 x RTX PRO 6000, two sockets, pairs on a switch (public log of local-inference-lab/rtx6kpro).

    Escape codes around the header, two tabs before the last column, an incomplete list of CPUs: as printed there.
    """
    names = "\t".join(f"GPU{n}" for n in range(8))
    text = f"\t\x1b[4m{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    for row in range(8):
        cells = []
        for column in range(8):
            if row == column:
                cells.append(" X ")
            elif row // 2 == column // 2:
                cells.append("PIX")
            else:
                cells.append("NODE" if row // 4 == column // 4 else "SYS")
        cpus = "0-63,128-191" if row < 4 else "64-127,192-238"
        text += f"GPU{row}\t" + "\t".join(cells) + f"\t{cpus}\t{row // 4}\t\tN/A\n"
    return text + "\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single PCIe bridge\n"


def test_the_query_of_one_h200():
    (row,) = smi.rows((ONE / "query.csv").read_text())
    assert (row.index, row.text("name"), row.bus) == ("0", "NVIDIA H200", "0000:00:06.0")
    assert row.number("memory.total") == 143771
    assert row.number("power.limit") == 700.0
    assert row.number("pcie.link.width.max") == 16
    assert row.text("compute_cap") == "9.0"
    assert row.number("power.default_limit") is None  # was not asked for


def test_the_query_of_two_h200():
    rows = smi.rows((TWO / "query.csv").read_text())
    assert [row.bus for row in rows] == ["0000:00:06.0", "0000:00:07.0"]


def test_cells_that_tell_nothing():
    text = "index, mig.mode.current, memory.used [MiB]\n0, [N/A], [GPU requires reset]\n1, [Not Supported], 12 MiB\n"
    first, second = smi.rows(text)
    assert first.text("mig.mode.current") is None
    assert first.number("memory.used") is None
    assert second.number("memory.used") == 12


def test_a_field_that_an_older_driver_lacks():
    said = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
    assert smi.unknown_field(said) == "clocks_event_reasons.active"
    assert smi.unknown_field("No devices were found") is None


def test_the_matrix_of_one_and_of_two_gpus():
    one, two = (smi.topology((folder / "topo.txt").read_text()) for folder in (ONE, TWO))
    assert one == smi.Topology([["X"]], ["0-15"], ["0"])
    assert two == smi.Topology([["X", "NV18"], ["NV18", "X"]], ["0-31", "0-31"], ["0", "0"])
    assert two.kinds == ["NV18"]


def test_the_matrix_of_a_pcie_host():
    found = smi.topology(matrix_of_a_pcie_host())
    assert found.links[0] == ["X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert found.links[4] == ["SYS", "SYS", "SYS", "SYS", "X", "PIX", "NODE", "NODE"]
    assert found.cpus[4] == "64-127,192-238"
    assert found.numa == ["0"] * 4 + ["1"] * 4
    assert found.kinds == ["PIX", "NODE", "SYS"]


def test_network_cards_are_no_gpus():
    text = (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tPHB\tSYS\t0-15\t0\t\tN/A\n"
        "GPU1\tPHB\t X \tPIX\t0-15\t1\t\tN/A\n"
        "NIC0\tSYS\tPIX\t X \t\t\t\t\n"
        "\nLegend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    assert smi.topology(text) == smi.Topology([["X", "PHB"], ["PHB", "X"]], ["0-15", "0-15"], ["0", "1"])


def test_a_matrix_with_a_hole_is_none():
    assert smi.topology(matrix_of_a_pcie_host().replace("NODE", "????")) is None
    assert smi.topology("No devices were found\n") is None


def test_p2p_of_one_and_of_two_gpus():
    assert smi.peers((ONE / "p2p.txt").read_text()) == [["X"]]
    # The capture holds three prints one after the other; the first counts.
    assert smi.peers((TWO / "p2p.txt").read_text()) == [["X", "OK"], ["OK", "X"]]


def test_long_answer_of_a_real_card():
    told = smi.details((ONE / "smi_q.txt").read_text())
    fields = told["0000:00:06.0"]
    assert fields["BAR1 Memory Usage/Total"] == "262144 MiB"
    assert fields["FB Memory Usage/Total"] == "143771 MiB"
    assert fields["GPU Recovery Action"] == "None"
    # A second block of power readings says N/A; it has a title of its own.
    assert fields["GPU Power Readings/Current Power Limit"] == "700.00 W"
    assert smi.megabytes("262144 MiB") == 262144
    assert smi.megabytes("N/A") is None


def test_bus_ids():
    assert smi.bus_id("00000000:C1:00.0") == "0000:c1:00.0"
    assert smi.bus_id("0000:06:00.0") == "0000:06:00.0"


@given(st.text(max_size=400))
def test_wild_text_is_never_an_error(text):
    smi.rows(text)
    smi.details(text)
    matrix = smi.peers(text)
    assert matrix is None or all(len(row) == len(matrix) for row in matrix)
    found = smi.topology(text)
    assert found is None or all(len(row) == len(found.links) for row in found.links)


@given(
    st.lists(st.sampled_from(["\t", "GPU0", "GPU1", " X ", "SYS", "OK", "X", "\n", "\x1b[4m", "NIC0", ""]), max_size=40)
)
def test_wild_matrices_are_never_an_error(parts):
    text = "".join(parts)
    found, matrix = smi.topology(text), smi.peers(text)
    assert found is None or {len(row) for row in found.links} == {len(found.links)}
    assert matrix is None or {len(row) for row in matrix} == {len(matrix)}
