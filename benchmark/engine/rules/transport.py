"""How the GPUs of a host reach each other: custom all-reduce, NCCL's P2P level, opt-in kernels."""

from __future__ import annotations

from collections.abc import Iterator

from ..verdict import Rule, Verdict
from .subject import Subject

_CUSTOM = Rule(
    "custom-all-reduce-pcie",
    "The custom all-reduce is off above two PCIe GPUs",
    "SGLang's own all-reduce wants NVLink between all GPUs, or exactly two GPUs. Above two PCIe GPUs it turns itself "
    "off and NCCL does the work. No flag forces it on.",
    "SGLang 0.5.23 distributed/device_communicators/custom_all_reduce_utils.py:489-498; 0.5.11 the same file, :462",
    "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, "
    "specify disable_custom_all_reduce=True explicitly.",
    "Add disable_custom_all_reduce: true to say so, and tune NCCL instead (NCCL_P2P_LEVEL: SYS).",
)
_CUSTOM_TWO = Rule(
    "custom-all-reduce-two-pcie",
    "Two PCIe GPUs: P2P is assumed, not tested",
    "With exactly two GPUs the custom all-reduce is used, and P2P is taken to work unless enable_p2p_check is set. "
    "Where IOMMU or ACS break P2P, the engine hangs or sums wrongly.",
    "SGLang 0.5.23 distributed/bootstrap.py:124; 0.5.11 model_executor/model_runner.py:1126; vllm-project/vllm#47751",
    None,
    "Add enable_p2p_check: true, or disable_custom_all_reduce: true.",
)
_LEVEL = Rule(
    "nccl-p2p-level-unset",
    "NCCL's default P2P level",
    "Unset, NCCL lets GPUs talk directly only behind common PCIe switches (PXB). Pairs across a host bridge or a "
    "socket go through host memory.",
    "NCCL 2.30.7 src/graph/paths.cc:243; docs/userguide/source/env.rst",
    "via SHM/direct/direct",
    "Add NCCL_P2P_LEVEL: SYS to the environment, and check that P2P works on the host.",
)
_VISIBLE = Rule(
    "visible-devices-uuid",
    "CUDA_VISIBLE_DEVICES as numbers",
    "The custom all-reduce reads the list with int(), which a UUID is not.",
    "SGLang 0.5.23 distributed/device_communicators/custom_all_reduce_utils.py:475",
    "ValueError: invalid literal for int() with base 10: 'GPU-...'",
    "Write the numbers of the GPUs, or add disable_custom_all_reduce: true.",
)
_IPC = Rule(
    "pcie-ipc-all-reduce",
    "FlashInfer's PCIe all-reduce",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 is an opt-in since 0.5.21, for groups of 2, 4 or 8 and bfloat16. Older "
    "releases ignore it.",
    "SGLang 0.5.23 environ.py:1539, distributed/device_communicators/pcie_ipc_ar.py",
    None,
    "Use it with tp_size 2, 4 or 8 on SGLang 0.5.21 or newer.",
)
_FUSION = Rule(
    "all-reduce-fusion-nvlink",
    "FlashInfer's fused all-reduce may stop a start on NVLink",
    "On two H200s with 0.5.11 a tp2 start went silent after [SymmDeviceMemory] while this was set up. It is on by "
    "itself on Hopper and data-center Blackwell, never on RTX GPUs.",
    "tests/captures/two-gpus; SGLang 0.5.23 arg_groups/overrides.py:987-1002",
    "[SymmDeviceMemory]",
    "Add enforce_disable_flashinfer_allreduce_fusion: true if the start goes silent.",
)

RULES = (_CUSTOM, _CUSTOM_TWO, _LEVEL, _VISIBLE, _IPC, _FUSION)


def check(subject: Subject) -> Iterator[Verdict]:
    """Verdicts on the links between the GPUs of one host."""
    layout, host = subject.layout, subject.host
    yield from _environment(subject)
    if host is None or layout.tp < 2:
        return
    off = subject.on("disable_custom_all_reduce")
    if subject.pcie_only and layout.tp > 2 and not off:
        yield _CUSTOM.verdict("note", f"tp {layout.tp} over PCIe: NCCL does the all-reduces, not the custom kernel.")
    # The custom kernel is for the GPUs of one node.
    if (
        subject.pcie_only
        and layout.tp == 2
        and layout.stage_nodes == 1
        and not off
        and not subject.on("enable_p2p_check")
    ):
        yield _CUSTOM_TWO.verdict("doubt", "tp 2 over PCIe uses the custom all-reduce without a test of P2P.")
    level_set = {"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"} & {str(key) for key in subject.environment}
    if subject.pcie_only and layout.gpus > 2 and not level_set:
        sentence = f"NCCL_P2P_LEVEL is unset: some pairs of the {layout.gpus} GPUs may go through host memory."
        yield _LEVEL.verdict("note", sentence)
    fused = subject.capability is not None and subject.capability[0] in (9, 10)
    if host.nvlink and fused and not subject.on("enforce_disable_flashinfer_allreduce_fusion"):
        yield _FUSION.verdict("note", f"tp {layout.tp} over NVLink sets up FlashInfer's fused all-reduce.")


def _environment(subject: Subject) -> Iterator[Verdict]:
    visible = str(subject.environment.get("CUDA_VISIBLE_DEVICES") or "")
    named = any(part.strip().upper().startswith(("GPU-", "MIG-")) for part in visible.split(","))
    if named and subject.layout.tp > 1 and not subject.on("disable_custom_all_reduce"):
        sentence = "CUDA_VISIBLE_DEVICES names GPUs by UUID, which the custom all-reduce cannot read."
        yield _VISIBLE.verdict("doubt", sentence)
    if subject.allows("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"):
        if not subject.since("0.5.21"):
            sentence = f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE is not read by SGLang {subject.release}."
            yield _IPC.verdict("note", sentence)
        elif subject.layout.tp not in (2, 4, 8):
            sentence = f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE works for tp 2, 4 and 8; tp is {subject.layout.tp}."
            yield _IPC.verdict("note", sentence)
