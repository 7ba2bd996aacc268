"""What the rules look at: one configuration, resolved, with its layout, model, host and release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..flags import release_at_least
from ..hardware import Host
from ..layout import A2A_BACKENDS, Layout
from ..models import ModelShape
from ..nccl import visible_gpus

# Backends that leave ep_size alone (0.5.23 arg_groups/overrides.py:1578 lists those that force it).
_LEAVES_EP = frozenset({"ascend_tp"})
_ALSO_FORCES_EP = frozenset({"flashinfer_megamoe"})


@dataclass(frozen=True)
class Subject:
    """One configuration under examination. Keys of `engine` have their main spelling."""

    engine: Mapping[str, Any]
    environment: Mapping[str, Any]
    layout: Layout
    shape: ModelShape | None
    host: Host | None
    release: str
    """A release whose command line is known."""
    exact: bool = True
    """Whether that is the release that was asked for, not its nearest older neighbour."""

    def since(self, release: str) -> bool:
        """Whether the engine is this release or newer."""
        return release_at_least(self.release, release)

    def on(self, key: str) -> bool:
        """Whether a switch is given."""
        return self.engine.get(key) is True

    def given(self, key: str) -> bool:
        """Whether a setting is given at all."""
        return self.engine.get(key) not in (None, False)

    def word(self, key: str, default: str = "") -> str:
        """A setting that is a word."""
        value = self.engine.get(key)
        return default if value is None or isinstance(value, bool) else str(value)

    def number(self, key: str) -> float | None:
        """A setting that is a finite number; None if it is not given or is none."""
        value = self.engine.get(key)
        if value is None or isinstance(value, bool):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    def whole_number(self, key: str, default: int = 1) -> int:
        """A setting that is a whole number, or the engine's default."""
        number = self.number(key)
        return int(number) if number is not None and number == int(number) else default

    def allows(self, variable: str) -> bool:
        """Whether a variable of the environment says yes, as SGLang reads it."""
        return str(self.environment.get(variable, "")).strip().lower() in ("1", "true", "yes", "y", "on")

    @property
    def a2a(self) -> str:
        """The all-to-all backend; `none` without."""
        return self.word("moe_a2a_backend", "none")

    @property
    def a2a_forces_ep(self) -> bool:
        return self.a2a in _ALSO_FORCES_EP or (self.a2a in A2A_BACKENDS and self.a2a not in _LEAVES_EP)

    @property
    def redundant_experts(self) -> int:
        return self.whole_number("ep_num_redundant_experts", 0)

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert's matrices; 0 if the widths do not nest."""
        return self.layout.moe_tp // max(1, self.whole_number("moe_dp_size"))

    @property
    def attention_tp(self) -> int:
        """Ranks that share one layer's heads; 0 if the widths do not nest."""
        return self.layout.attention_tp // max(1, self.whole_number("attn_cp_size"))

    @property
    def gpus_there(self) -> int | None:
        """GPUs that the engine can see, over all nodes; None without a host."""
        if self.host is None:
            return None
        nodes = max(self.host.nodes, self.layout.nnodes, 1)
        visible = self.visible_gpus
        return (self.host.count if visible is None else min(visible, self.host.count)) * nodes

    @property
    def visible_gpus(self) -> int | None:
        """GPUs that CUDA_VISIBLE_DEVICES names on each node; None if it is not set."""
        return visible_gpus(self.environment)

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the GPUs: (12, 0) for RTX PRO 6000 Blackwell."""
        return self.host.gpu.compute_capability if self.host else None

    @property
    def pcie_only(self) -> bool:
        """Whether the GPUs reach each other over PCIe alone."""
        return self.host is not None and not self.host.nvlink


def gpus(count: int) -> str:
    """`1 GPU`, `8 GPUs`."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
