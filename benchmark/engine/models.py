"""A HuggingFace config.json -> the shape of the model: what the planner needs to know, and no more."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from . import json_file
from .formats import PLAIN, Formats, read_formats

MOST_LAYERS = 10_000


class UnknownModel(ValueError):  # noqa: N818  (the name is the interface)
    """A model that the planner does not know; the text says why and what is known."""


@dataclass(frozen=True)
class Vision:
    """A vision tower (ViT) and its projector."""

    layers: int
    hidden: int
    intermediate: int
    merge: int = 4
    """Patches that the projector joins into one token."""
    heads: int = 0
    """0 where the config does not tell."""
    named_layers: int = 24
    """What the engine finds under `num_hidden_layers` of its vision config; 24 where that has another name."""


@dataclass(frozen=True)
class LinearAttention:
    """Gated delta-net layers of a hybrid model."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int = 4


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, in numbers of its config.json. Widths are elements, not bytes."""

    name: str
    architecture: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention: str = "gqa"
    """`mla` (one latent vector a token, the same on every rank) or `gqa`."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    """Sparse attention (DSA) keeps an index key beside the latent vector; 0 without."""
    index_topk: int = 0
    """Cached tokens that a query of sparse attention reads; 0: all."""
    attention_bias: bool = False
    attention_gate: bool = False
    """The query projection also makes an output gate of the same width (Qwen3.5)."""
    qk_norm: bool = False
    sliding_layers: int = 0
    linear: LinearAttention | None = None
    intermediate: int = 0
    """Width of a dense MLP."""
    moe: tuple[bool, ...] = ()
    """For each layer, whether its MLP is a mixture of experts."""
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    """Width of all shared experts together."""
    expert_bias: bool = False
    router_bits: int = 16
    tied: bool = False
    max_positions: int = 32768
    rope_positions: int = 32768
    """Rows of the rotary table."""
    mtp_layers: int = 0
    formats: Formats = PLAIN
    vision: Vision | None = None
    quantization: str = ""
    taken_for: str = ""
    """The model type whose arithmetic is used for an architecture that is not known; empty if it is known."""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The config.json that it was read from."""

    def overridden(self, engine: Mapping[str, Any]) -> ModelShape:
        """The shape that the engine builds with --json-model-override-args: each setting replaces the config's own.

        Raises:
            ValueError: the text is no JSON object (the engine fails on it too).
            UnknownModel: the changed config cannot be understood.
        """
        given = engine.get("json_model_override_args")
        if not given or not self.config:
            return self
        changes = json.loads(given) if isinstance(given, str) else given
        if not isinstance(changes, Mapping):
            raise ValueError(f"json_model_override_args is no JSON object: {given!r}.")
        return from_config({**self.config, **changes}, self.name) if changes else self

    @property
    def moe_layers(self) -> int:
        return sum(self.moe)

    @property
    def attention_layers(self) -> int:
        """Layers that keep a KV cache."""
        return self.layers - (self.linear.layers if self.linear else 0)

    @property
    def cache_quantization(self) -> str:
        """The KV cache format that a ModelOpt checkpoint asks for: `FP8`, `NVFP4` or none.

        SGLang 0.5.11 layers/quantization/modelopt_quant.py:446-462 and 1194-1233; other methods say nothing of it.
        """
        text = self.config.get("text_config") or {}
        found = self.config.get("quantization_config") or text.get("quantization_config") or {}
        if not found.get("quant_algo"):
            return ""
        scheme = found.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("type") == "float":
            return {8: "FP8", 4: "NVFP4"}.get(scheme.get("num_bits"), "")
        named = str(scheme or found.get("kv_cache_quant_algo") or "").strip().upper()
        return {"FLOAT8": "FP8", "FP4": "NVFP4", "FLOAT4": "NVFP4"}.get(named, named)

    @property
    def multimodal(self) -> bool:
        return self.vision is not None


@functools.cache
def _shipped() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("data", "models.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


def shipped_models() -> tuple[str, ...]:
    """Names that load_model knows without a file."""
    return tuple(_shipped())


def shipped_shape(name: str) -> ModelShape | None:
    """The shipped shape of this name, however it is capitalized; None if there is none."""
    found = _find_shipped(name)
    return _shipped_shape(found) if found else None


def load_model(source: str | os.PathLike[str]) -> ModelShape:
    """A config.json, a folder that holds one, or a shipped name such as `kimi-k2.6` -> its shape.

    Raises:
        UnknownModel: no such file or name, not JSON, or an architecture that is not known.
    """
    text = os.fspath(source)
    if shipped := shipped_shape(text):
        return shipped
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise UnknownModel(
            f"{text} is neither a config.json, a folder with one, nor a shipped shape. "
            f"Shipped: {', '.join(shipped_models())}."
        )
    try:
        config = json_file.read(path)
    except (OSError, ValueError) as error:
        raise UnknownModel(f"{path} cannot be read as JSON: {error}.") from error
    if isinstance(config, dict) and not config.get("quantization_config"):
        config |= _separate_quantization(path.parent)
    return from_config(config, path.parent.name or path.stem)


def _separate_quantization(folder: Path) -> dict[str, Any]:
    """What older checkpoints say of their quantization beside config.json, where the engine looks too."""
    for file, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq"), ("hf_quant_config.json", "")):
        try:
            found = json_file.read(folder / file)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return {"quantization_config": {"quant_method": method} | found.get("quantization", found)}
    return {}


def _find_shipped(text: str) -> str | None:
    """`moonshotai/Kimi-K2.6`, `Kimi-K2.6` and `kimi-k2.6` are one name; a path that exists is a path."""
    name = text.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in _shipped() or ("/" in text and Path(text).exists()):
        return None
    return name


@functools.cache
def _shipped_shape(name: str) -> ModelShape:
    return from_config(_shipped()[name]["config"], name)


def from_config(config: Mapping[str, Any], name: str = "model") -> ModelShape:
    """A config.json as a mapping -> its shape.

    Raises:
        UnknownModel: an architecture that is not known, or a field that is missing or malformed.
    """
    if not isinstance(config, Mapping):
        raise UnknownModel(f"The config.json of {name} is not a JSON object.")
    try:
        return _read(config, name)
    except UnknownModel:
        raise
    except KeyError as error:
        raise UnknownModel(f"The config.json of {name} has no {error.args[0]}.") from error
    except (AttributeError, OverflowError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UnknownModel(f"The config.json of {name} cannot be understood: {error}.") from error


def _read(config: Mapping[str, Any], name: str) -> ModelShape:
    text = dict(config.get("text_config") or config)
    architectures = config.get("architectures") or text.get("architectures") or ""
    architecture = architectures if isinstance(architectures, str) else str(next(iter(architectures), ""))
    kind = str(text.get("model_type") or "")
    builder = _BUILDERS.get(kind) or _BUILDERS.get(_TYPE_OF_ARCHITECTURE.get(architecture, ""))
    if builder is None:
        raise UnknownModel(
            f"{name}: architecture {architecture or kind or '(none given)'} is not known to the planner, "
            f"so nothing is predicted for it. Known model types: {', '.join(sorted(_BUILDERS))}."
        )
    if not 0 < int(text["num_hidden_layers"]) <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {text['num_hidden_layers']}")
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    shape = builder(text, name, architecture)
    if min(shape.layers, shape.hidden, shape.vocab, shape.heads, shape.kv_heads, shape.head_dim) < 1:
        raise ValueError("a size is not positive")
    if shape.intermediate < 0 or min(shape.moe_intermediate, shape.intermediate or 1) < (1 if shape.experts else 0):
        raise ValueError("an MLP has no width")
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "")
    formats = read_formats(quantization)
    taken_for = kind if architecture and architecture not in _ARCHITECTURES else ""
    vision = _vision(config)
    return replace(shape, formats=formats, vision=vision, quantization=method, taken_for=taken_for, config=config)


def _vision(config: Mapping[str, Any]) -> Vision | None:
    vision = config.get("vision_config")
    if not vision:
        return None
    first = next((vision[k] for k in ("vt_num_hidden_layers", "num_hidden_layers", "depth") if k in vision), 0)
    hidden = int(vision.get("vt_hidden_size") or vision.get("hidden_size") or 0)
    intermediate = int(vision.get("vt_intermediate_size") or vision.get("intermediate_size") or 4 * hidden)
    heads = next((vision[k] for k in ("vt_num_attention_heads", "num_attention_heads", "num_heads") if k in vision), 0)
    # The engine's class for Kimi's `vt_` names has the plain ones (configs/kimi_k25.py:45).
    named = int(vision.get("vt_num_hidden_layers") or vision.get("num_hidden_layers") or 24)
    return Vision(int(first), hidden, intermediate, heads=int(heads), named_layers=named) if first and hidden else None


def _base(text: Mapping[str, Any], name: str, architecture: str, **more: Any) -> ModelShape:
    heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
    head_dim = int(text.get("head_dim") or hidden // max(1, heads))
    positions = int(text.get("max_position_embeddings") or 32768)
    fields: dict[str, Any] = {
        "layers": int(text["num_hidden_layers"]),
        "hidden": hidden,
        "vocab": int(text["vocab_size"]),
        "heads": heads,
        "kv_heads": int(text.get("num_key_value_heads") or heads),
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "attention_bias": bool(text.get("attention_bias")),
        "intermediate": int(text.get("intermediate_size") or 0),
        "tied": bool(text.get("tie_word_embeddings")),
        "max_positions": positions,
        "rope_positions": positions,
        "rope_dim": int(head_dim * float(text.get("partial_rotary_factor") or 1.0)),
        "mtp_layers": int(text.get("num_nextn_predict_layers") or 0),
    }
    return ModelShape(name=name, architecture=architecture, **(fields | more))


def _dense(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    bias = bool(text.get("attention_bias", text.get("model_type") == "qwen2"))
    qk_norm = text.get("model_type") == "qwen3"
    shape = _base(text, name, architecture, attention_bias=bias, qk_norm=qk_norm)
    return replace(shape, moe=(False,) * shape.layers)


def _experts(text: Mapping[str, Any]) -> int:
    keys = ("n_routed_experts", "num_experts", "num_local_experts")
    return next((int(text[key]) for key in keys if text.get(key)), 0)


def _moe(text: Mapping[str, Any], name: str, architecture: str, **more: Any) -> ModelShape:
    """A decoder with experts; which layers have them is told by one of four fields."""
    layers = int(text["num_hidden_layers"])
    step = int(
        text.get("moe_layer_freq") or text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or 1
    )
    first = int(text.get("first_k_dense_replace") or 0)
    plain = set(text.get("mlp_only_layers") or ())
    counts_from_zero = "moe_layer_freq" in text or "first_k_dense_replace" in text
    width = int(text.get("moe_intermediate_size") or text["intermediate_size"])
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    shared = shared or int(text.get("n_shared_experts") or 0) * width
    fields: dict[str, Any] = {
        "moe": tuple(
            i >= first and i not in plain and (i if counts_from_zero else i + 1) % step == 0 for i in range(layers)
        ),
        "experts": _experts(text),
        "experts_per_token": int(text["num_experts_per_tok"]),
        "moe_intermediate": width,
        "shared_intermediate": shared,
    }
    shape = _base(text, name, architecture, **(fields | more))
    if not shape.experts or not 0 < shape.experts_per_token <= shape.experts:
        raise ValueError(f"{shape.experts_per_token} experts a token of {shape.experts}")
    return shape


def _mla(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    """DeepSeek V2 and V3, Kimi K2, GLM-5: multi-head latent attention."""
    nope, rope = int(text["qk_nope_head_dim"]), int(text["qk_rope_head_dim"])
    build = _moe if _experts(text) else _dense
    shape = build(text, name, architecture)
    return replace(
        shape,
        attention="mla",
        head_dim=nope + rope,
        nope_dim=nope,
        rope_dim=rope,
        v_head_dim=int(text["v_head_dim"]),
        q_lora_rank=int(text.get("q_lora_rank") or 0),
        kv_lora_rank=int(text["kv_lora_rank"]),
        index_heads=int(text.get("index_n_heads") or 0),
        index_dim=int(text.get("index_head_dim") or 0),
        index_topk=int(text.get("index_topk") or 0),
    )


def _qwen_moe(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    return _moe(text, name, architecture, qk_norm=text.get("model_type") == "qwen3_moe")


def _glm_moe(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    # SGLang keeps this router in float32 (models/glm4_moe.py, Glm4MoeGate).
    return _moe(text, name, architecture, qk_norm=bool(text.get("use_qk_norm")), router_bits=32)


def _minimax(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    # Router in float32 (models/minimax_m2.py); norms over the whole query and key.
    return _moe(text, name, architecture, qk_norm=True, router_bits=32)


def _gpt_oss(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    layers = text.get("layer_types")
    kinds = layers if isinstance(layers, Mapping) else {k: list(layers or ()).count(k) for k in set(layers or ())}
    sliding = int(kinds.get("sliding_attention", int(text["num_hidden_layers"]) // 2))
    return _moe(text, name, architecture, attention_bias=True, sliding_layers=sliding, expert_bias=True)


def _llama4(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    """Three layers of chunked attention to one of full (SGLang 0.5.11 configs/model_config.py:1546-1572)."""
    width, layers = int(text["intermediate_size"]), int(text["num_hidden_layers"])
    return _moe(
        text,
        name,
        architecture,
        sliding_layers=layers - layers // 4,
        moe_intermediate=width,
        shared_intermediate=width,
        intermediate=int(text.get("intermediate_size_mlp") or width),
    )


def _hybrid(text: Mapping[str, Any], name: str, architecture: str) -> ModelShape:
    """Qwen3-Next and Qwen3.5: three gated delta-net layers to one of full attention."""
    layers, every = int(text["num_hidden_layers"]), int(text.get("full_attention_interval") or 4)
    linear = LinearAttention(
        layers=layers - layers // every,
        key_heads=int(text["linear_num_key_heads"]),
        value_heads=int(text["linear_num_value_heads"]),
        key_dim=int(text["linear_key_head_dim"]),
        value_dim=int(text["linear_value_head_dim"]),
        convolution=int(text.get("linear_conv_kernel_dim") or 4),
    )
    build = _moe if _experts(text) else _dense
    return replace(build(text, name, architecture), linear=linear, attention_gate=True, qk_norm=True)


_BUILDERS = {
    "deepseek_v2": _mla,
    "deepseek_v3": _mla,
    "deepseek_v32": _mla,
    "glm4_moe": _glm_moe,
    "glm_moe_dsa": _mla,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _mla,
    "llama": _dense,
    "llama4_text": _llama4,
    "minimax_m2": _minimax,
    "mistral": _dense,
    "mixtral": _moe,
    "qwen2": _dense,
    "qwen2_moe": _qwen_moe,
    "qwen3": _dense,
    "qwen3_5_moe_text": _hybrid,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _hybrid,
}
_TYPE_OF_ARCHITECTURE = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "KimiK25ForConditionalGeneration": "kimi_k2",
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
# Architectures whose tensors were read in the engine's source. Another one of a known model type is taken for it, in
# doubt.
_ARCHITECTURES = frozenset(_TYPE_OF_ARCHITECTURE) | {
    "Glm4MoeForCausalLM",
    "GlmMoeDsaForCausalLM",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "MiniMaxM2ForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
}
