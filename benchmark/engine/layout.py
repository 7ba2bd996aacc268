"""How a configuration spreads one model over GPUs: the widths that SGLang derives from its flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Backends that move tokens between expert-parallel ranks set ep_size to tp_size, whatever was asked
# (SGLang 0.5.23, arg_groups/overrides.py:1578-1620).
A2A_BACKENDS = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)

# Every spelling of a width that SGLang's command line has or had.
_SPELLINGS = {
    "tp": ("tp_size", "tensor_parallel_size", "tp"),
    "pp": ("pp_size", "pipeline_parallel_size", "pp"),
    "ep": ("ep_size", "expert_parallel_size", "ep"),
    "dp": ("dp_size", "data_parallel_size", "dp"),
    "attention_dp": ("attn_dp_size", "attention_data_parallel_size"),
    "dcp": ("dcp_size", "decode_context_parallel_size"),
    "attention_cp": ("attn_cp_size", "attention_context_parallel_size"),
    "moe_dp": ("moe_dp_size", "moe_data_parallel_size"),
    "nnodes": ("nnodes",),
}


@dataclass(frozen=True)
class Layout:
    """Widths of the parallel groups. Attention DP and EP divide the TP group; they add no GPUs."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1
    dp: int = 1
    nnodes: int = 1
    dcp: int = 1
    """Decode context parallelism: ranks that share one request's latent KV."""
    attention_cp: int = 1
    """Context parallelism of attention: it divides an attention group once more."""
    moe_dp: int = 1
    """Data parallelism of the experts: it divides an expert group once more."""

    @classmethod
    def from_engine(cls, engine: Mapping[str, Any], release: str = "") -> Layout:
        """Read the widths from a configuration's `engine` mapping.

        Both spellings of attention DP are understood: `attn_dp_size` (0.5.22 and later) and
        `dp_size` with `enable_dp_attention` (every release; deprecated since 0.5.22). A nonsensical
        combination still gives a layout; rules.py says what is wrong with it.

        Raises:
            ValueError: a width that is not a whole number.
        """
        del release  # no release gives one spelling two meanings
        widths = {name: _width(engine, keys) for name, keys in _SPELLINGS.items()}
        if engine.get("enable_dp_attention") and widths["attention_dp"] == 1:
            widths["attention_dp"], widths["dp"] = widths["dp"], 1
        if str(engine.get("moe_a2a_backend") or "none") in A2A_BACKENDS:
            widths["ep"] = widths["tp"]
        return cls(**widths)

    @property
    def gpus(self) -> int:
        """GPUs that the engine takes (server_args.py:581, compute_world_size)."""
        return self.tp * self.pp * self.dp

    @property
    def attention_tp(self) -> int:
        """Ranks that share one attention layer's heads; 0 if the widths do not nest."""
        return self.tp // self.attention_dp

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert's matrices; 0 if ep is larger than tp (the engine divides by it)."""
        return self.tp // self.ep

    @property
    def whole(self) -> bool:
        """Whether every width is positive and EP and attention DP divide the TP group."""
        widths = (self.tp, self.pp, self.ep, self.attention_dp, self.dp, self.nnodes, self.dcp)
        return min(widths) >= 1 and self.tp % self.ep == 0 and self.tp % self.attention_dp == 0

    @property
    def stage_nodes(self) -> int:
        """Nodes that one pipeline stage, so one tensor-parallel group, lies on (SGLang entrypoints/engine.py,
        _calculate_rank_ranges)."""
        return max(self.nnodes // self.pp, 1)

    def nodes_of_group(self, ranks: int) -> int:
        """Nodes that a group of so many neighbouring tensor-parallel ranks lies on."""
        return -(-ranks // max(1, self.tp // self.stage_nodes))

    def node_ranks(self, node: int) -> tuple[range, range]:
        """Pipeline stages and tensor-parallel ranks that a node runs (as `stage_nodes`)."""
        stages, ranks = max(self.pp // self.nnodes, 1), self.tp // self.stage_nodes
        stage, part = divmod(node, self.stage_nodes)
        return range(stages * stage, stages * (stage + 1)), range(ranks * part, ranks * (part + 1))

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Layers of each pipeline stage; the remainder goes to the last ones (distributed/utils.py:110)."""
        each, left = divmod(layers, self.pp)
        return tuple(each + (1 if stage >= self.pp - left else 0) for stage in range(self.pp))

    def name(self) -> str:
        """A catalogue name for the split, such as `tp4_pp2_ep4`."""
        parts = [f"tp{self.tp}"]
        parts += [f"pp{self.pp}"] if self.pp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"adp{self.attention_dp}"] if self.attention_dp > 1 else []
        parts += [f"dp{self.dp}"] if self.dp > 1 else []
        return "_".join(parts)


def _width(engine: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = engine.get(key)
        if value is not None and value is not False:
            try:
                return int(value)
            except (OverflowError, TypeError, ValueError):
                raise ValueError(f"{key} must be a whole number; it is {value!r}.") from None
    return 1


def gpu_places(engine: Mapping[str, Any], environment: Mapping[str, Any]) -> list[int] | None:
    """Indices (of NVML and nvidia-smi) of the GPUs that a configuration takes on a host.

    Args:
        engine: the configuration's flags.
        environment: of its process; CUDA_VISIBLE_DEVICES counts.

    Returns:
        None where they are named by UUID: any may be among them.
    """
    named = str(environment.get("CUDA_VISIBLE_DEVICES") or "")
    visible = [part.strip() for part in named.split(",") if part.strip()]
    if not all(part.isdecimal() for part in visible):
        return None
    layout = Layout.from_engine(engine)
    first, step = int(engine.get("base_gpu_id") or 0), int(engine.get("gpu_id_step") or 1)
    places = range(first, first + step * (layout.gpus // layout.nnodes), step)
    return [int(visible[place]) for place in places if place < len(visible)] if visible else list(places)
