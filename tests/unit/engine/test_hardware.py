from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.hardware import GIB, GPUS, UnknownHardware, find_gpu, find_host, from_nvidia_smi

CAPTURES = Path(__file__).parents[2] / "captures"


def test_eight_rtx_pro_6000():
    host = find_host("8x RTX PRO 6000 Blackwell")
    assert (host.count, host.nvlink, host.pcie_generation, host.gpu.compute_capability) == (8, False, 5, (12, 0))
    # 97,887 MiB less the 636 that nvidia-smi -q calls reserved: the 94.97 GiB that PyTorch reports.
    assert round(host.gpu.usable_bytes / GIB, 2) == 94.97


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("H100 80GB", "H100 80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA H20-3e", "H20-3e"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A800 80GB"),
        ("NVIDIA A800 80GB PCIe", "A800 80GB PCIe"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_that_tools_and_people_use(text, name):
    assert find_gpu(text).name == name


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_each_gpu_is_found_by_its_own_name(gpu):
    assert find_gpu(gpu.name) is gpu
    assert gpu.usable_bytes < gpu.memory_mib * 1024**2 + 1
    assert gpu.bf16_flops <= gpu.fp8_flops <= gpu.fp4_flops


def test_one_h200_has_no_link_and_two_have_nvlink():
    assert not find_host("1x H200").nvlink
    assert find_host("2 x H200").nvlink
    assert not find_host("2x H200", nvlink=False).nvlink


@pytest.mark.parametrize("text", ["RTX PRO 6000", "0x H200", "eight H200", "", "8x", "4x H250"])
def test_what_is_not_a_host_is_refused_in_words(text):
    with pytest.raises(UnknownHardware, match=r"Write a count and a GPU|is not in the table"):
        find_host(text)


def test_a_captured_query():
    host = from_nvidia_smi((CAPTURES / "two-gpus" / "query.csv").read_text())
    assert (host.count, host.gpu.name, host.gpu.memory_mib, host.pcie_generation) == (2, "H200", 143771, 5)
    # 139.80 GiB is the capacity that PyTorch told on this very GPU.
    assert round(host.gpu.usable_bytes / GIB, 2) == 139.80


def test_cells_without_a_number_fall_back_to_the_table():
    text = "name, memory.total [MiB], pcie.link.gen.max\nNVIDIA L40S, [N/A], [Not Supported]\n"
    host = from_nvidia_smi(text)
    assert (host.gpu.memory_mib, host.pcie_generation) == (46068, 4)


def test_unlike_gpus_are_refused():
    with pytest.raises(UnknownHardware, match="unlike GPUs"):
        from_nvidia_smi("name\nNVIDIA H200\nNVIDIA L40S\n")


@given(st.text())
def test_wild_text_is_refused_in_words(text):
    for read in (from_nvidia_smi, find_host):
        with pytest.raises(UnknownHardware):
            read(text)
