"""Number formats of weights: bytes of a matrix and of its scales, and which modules have which format."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Format:
    """How the numbers of one kind of matrix are stored."""

    name: str = "bf16"
    bits: int = 16
    group: int = 0
    """Inputs that share one scale; 0 without groups."""
    block: tuple[int, int] = (0, 0)
    """(outputs, inputs) that share one scale; (0, 0) without blocks."""
    scale_bytes: int = 0
    channel_scale: bool = False
    """One scale for each output."""

    @property
    def quantized(self) -> bool:
        return self.bits < 16

    def weight_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of an [outputs, inputs] matrix without its scales."""
        return outputs * inputs * self.bits // 8

    def scales(self, outputs: int, inputs: int) -> int:
        """Bytes of the scales of an [outputs, inputs] matrix."""
        if self.block[0]:
            return _ceil(outputs, self.block[0]) * _ceil(inputs, self.block[1]) * self.scale_bytes
        if self.group:
            return outputs * _ceil(inputs, self.group) * self.scale_bytes
        return outputs * self.scale_bytes if self.channel_scale else 0

    def total(self, outputs: int, inputs: int) -> int:
        """Bytes of an [outputs, inputs] matrix with its scales."""
        return self.weight_bytes(outputs, inputs) + self.scales(outputs, inputs)


BF16 = Format()


@dataclass(frozen=True)
class Formats:
    """The format of each kind of module of one model."""

    experts: Format = BF16
    shared: Format = BF16
    dense: Format = BF16
    attention: Format = BF16
    lm_head: Format = BF16
    linear_gates: Format = BF16
    """in_proj_b and in_proj_a of linear attention."""


PLAIN = Formats()

# One module of each kind, by the names that checkpoints and ignore lists use. The layer number is one
# that is neither first nor last, because some lists keep those in bf16.
_MODULES = {
    "experts": ("model.layers.5.mlp.experts.0.down_proj", "model.layers.5.block_sparse_moe.experts.0.w2"),
    "shared": ("model.layers.5.mlp.shared_experts.down_proj",),
    "dense": ("model.layers.0.mlp.down_proj",),
    "attention": ("model.layers.5.self_attn.o_proj",),
    "lm_head": ("lm_head",),
    "linear_gates": ("model.layers.5.linear_attn.in_proj_ba", "model.layers.5.linear_attn.in_proj_b"),
}
# Methods that never quantize the head (SGLang keeps ParallelLMHead as it is stored: bf16).
_CONTAINERS = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")


def read_formats(quantization: Mapping[str, Any] | None) -> Formats:
    """A config.json's `quantization_config` -> the format of each kind of module.

    Raises:
        ValueError: a method that is not known here.
    """
    if not quantization:
        return PLAIN
    main = _main_format(quantization)
    ignored: list[str] = []
    for key in _CONTAINERS:
        value = quantization.get(key)
        ignored += [value] if isinstance(value, str) else list(value or ())
    chosen: dict[str, Format] = {}
    for kind, names in _MODULES.items():
        keep = kind == "lm_head" or any(matches(ignored, name) for name in names)
        chosen[kind] = BF16 if keep else main
    return Formats(**chosen)


def matches(patterns: Iterable[str], module: str) -> bool:
    """Whether an ignore list names the module or a part that holds it.

    `re:` patterns are regular expressions (compressed-tensors), others are shell patterns (modelopt)
    or prefixes. The wrapper prefix of a multimodal model (`language_model.`) does not count.
    """
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
            continue
        plain = pattern.removeprefix("language_model.")
        if "*" in plain:
            if fnmatch.fnmatchcase(module, plain) or fnmatch.fnmatchcase(module, plain + ".*"):
                return True
        elif module == plain or module.startswith(plain + ".") or ("." + plain + ".") in module:
            return True
    return False


def _main_format(quantization: Mapping[str, Any]) -> Format:
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "").lower()
    algorithm = str(quantization.get("quant_algo") or "").upper()
    weights = _weights(quantization)
    if algorithm == "NVFP4" or method in ("nvfp4", "modelopt_fp4"):
        return Format("nvfp4", 4, group=int(weights.get("group_size") or 16), scale_bytes=1)
    if method == "mxfp4":
        return Format("mxfp4", 4, group=32, scale_bytes=1)
    if method == "fp8" or algorithm == "FP8":
        block = quantization.get("weight_block_size")
        if block:
            return Format("fp8", 8, block=(int(block[0]), int(block[1])), scale_bytes=4)
        return Format("fp8", 8)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(weights)
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        bits = int(quantization.get("bits") or quantization.get("w_bit") or 4)
        group = int(quantization.get("group_size") or quantization.get("q_group_size") or 128)
        return Format(f"int{bits}", bits, group=group, scale_bytes=2)
    raise ValueError(f"quantization method {method or quantization!r} is not known to the planner.")


def _weights(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description of the weights, wherever this method keeps it."""
    groups = quantization.get("config_groups") or {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if group.get("weights"):
            return group["weights"]
    return quantization.get("weights") or {}


def _compressed_tensors(weights: Mapping[str, Any]) -> Format:
    bits = int(weights.get("num_bits") or 8)
    kind = str(weights.get("type") or "int")
    strategy = str(weights.get("strategy") or "channel")
    group = int(weights.get("group_size") or 0) if strategy == "group" else 0
    if kind == "float" and bits == 8:
        block = weights.get("block_structure") if strategy == "block" else None
        if block:
            return Format("fp8", 8, block=(int(block[0]), int(block[1])), scale_bytes=4)
        return Format("fp8", 8, channel_scale=True, scale_bytes=4)
    if kind == "float" and bits == 4:
        return Format("nvfp4", 4, group=group or 16, scale_bytes=1)
    return Format(f"int{bits}", bits, group=group, scale_bytes=2, channel_scale=not group)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
