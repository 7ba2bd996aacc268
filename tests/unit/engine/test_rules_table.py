"""The engine's rules: a table of configurations, valid and invalid, by model, host and release.

What each case expects was read from the engine's source, from a captured start, or from the public report named in
its comment; none was copied from what the code said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmark.engine import nccl
from benchmark.engine.hardware import find_host
from benchmark.engine.models import from_config, load_model
from benchmark.engine.rules import check, room, rules
from benchmark.engine.verdict import SEVERITIES

PRO = "8x RTX PRO 6000 Blackwell"
KIMI = "kimi-k2.6"
# What the campaign's configurations share.
BASE = {
    "mem_fraction_static": 0.88,
    "context_length": 32768,
    "attention_backend": "triton",
    "trust_remote_code": True,
    "grammar_backend": "none",
}
LEVEL = {"NCCL_P2P_LEVEL": "SYS"}


def fp8(**fields: Any) -> dict[str, Any]:
    """A config.json of a block-quantized (128 x 128) mixture of experts with grouped-query attention."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 6144,
        "intermediate_size": 8192,
        "num_hidden_layers": 62,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 160,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2560,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    } | fields


CODER_480B_FP8 = fp8()
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
HYBRID_FP8 = load_model("qwen3.5-397b-a17b").config | {"quantization_config": BLOCKS}
DENSE_FP8 = fp8(
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    num_experts=None,
    intermediate_size=25600,
    num_attention_heads=64,
)
# 1408 / 8 = 176 is not a multiple of the group of 32.
INT4_1408 = fp8(
    moe_intermediate_size=1408,
    num_experts=128,
    quantization_config={
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
            }
        },
    },
)
AWQ_1408 = INT4_1408 | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
# A shared expert that is never put among the routed ones: 1280 / 4 = 320 (sgl-project/sglang#26107 is of this kind).
SHARED_1280_FP8 = fp8(
    architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", shared_expert_intermediate_size=1280
)


@dataclass(frozen=True)
class Case:
    """One configuration and every reject it must have; its doubts and notes must be there among others."""

    name: str
    engine: dict[str, Any]
    expect: dict[str, str] = field(default_factory=dict)
    model: Any = KIMI
    host: str | None = PRO
    release: str = "0.5.23"
    environment: dict[str, Any] = field(default_factory=lambda: dict(LEVEL))


def rejects(*ids: str) -> dict[str, str]:
    return dict.fromkeys(ids, "reject")


def doubts(*ids: str) -> dict[str, str]:
    return dict.fromkeys(ids, "doubt")


def notes(*ids: str) -> dict[str, str]:
    return dict.fromkeys(ids, "note")


CAMPAIGN = (
    Case("tp8", {"tp_size": 8}, notes("custom-all-reduce-pcie")),
    Case("pp8", {"pp_size": 8}, notes("pipeline-overlap")),
    Case("ep8", {"tp_size": 8, "ep_size": 8, "max_running_requests": 64}),
    Case("tp4ep2 uses four of eight GPUs", {"tp_size": 4, "ep_size": 2}, notes("unused-gpus")),
    Case(
        "tp2ep4",
        {"tp_size": 2, "ep_size": 4},
        rejects("ep-larger-than-tp") | doubts("custom-all-reduce-two-pcie") | notes("unused-gpus"),
    ),
    Case("ep8_tuned", {"tp_size": 8, "ep_size": 8, "num_continuous_decode_steps": 8}, notes("dead-flag")),
    Case("ep8_tuned in 0.5.11", {"tp_size": 8, "num_continuous_decode_steps": 8}, notes("dead-flag"), release="0.5.11"),
    Case("ep4", {"tp_size": 8, "ep_size": 4}),
    Case("ep8_eplb", {"tp_size": 8, "ep_size": 8, "enable_eplb": True}, notes("eplb-one-host")),
    Case(
        "ep8_eplb in 0.5.11: static dispatch is the default",
        {"tp_size": 8, "ep_size": 8, "enable_eplb": True},
        doubts("eplb-dispatch"),
        release="0.5.11",
    ),
)

WIDTHS = (
    Case("tp4 pp2 ep4", {"tp_size": 4, "pp_size": 2, "ep_size": 4}, notes("pipeline-overlap")),
    Case("tp8 ep3", {"tp_size": 8, "ep_size": 3}, rejects("ep-divides-tp")),
    Case("tp16 on eight GPUs", {"tp_size": 16}, rejects("world-size")),
    Case("tp8 pp2 on eight GPUs", {"tp_size": 8, "pp_size": 2}, rejects("world-size")),
    Case("two replicas of tp8 on eight GPUs", {"tp_size": 8, "dp_size": 2}, rejects("world-size")),
    Case("attention DP adds no GPUs", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, release="0.5.21"),
    Case("tp8 from GPU 4 on", {"tp_size": 8, "base_gpu_id": 4}, rejects("world-size")),
    Case("tp4 on every second GPU", {"tp_size": 4, "gpu_id_step": 2}, notes("unused-gpus")),
    Case("tp0", {"tp_size": 0}, rejects("width-positive")),
    Case(
        "tp8 with four GPUs visible",
        {"tp_size": 8},
        rejects("world-size"),
        environment=LEVEL | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    ),
    Case("tp4 with four GPUs visible", {"tp_size": 4}, environment=LEVEL | {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
    Case("tp16 on two nodes of eight", {"tp_size": 16, "nnodes": 2}),
    Case("tp8 pp2 on two nodes of eight", {"tp_size": 8, "pp_size": 2, "nnodes": 2}, notes("pipeline-overlap")),
    Case(
        "tp4 pp2 on four nodes: each stage on two",
        {"tp_size": 4, "pp_size": 2, "nnodes": 4},
        notes("pipeline-overlap", "unused-gpus"),
    ),
    Case("tp32 on two nodes of eight", {"tp_size": 32, "nnodes": 2}, rejects("world-size")),
    Case("tp2 over two nodes has no custom all-reduce", {"tp_size": 2, "nnodes": 2}, notes("unused-gpus")),
    Case("tp8 on three nodes", {"tp_size": 8, "nnodes": 3}, rejects("nodes-divide-world")),
    # 4 x 3 ranks on 2 nodes: one stage each (3 // 2), and the third is nobody's.
    Case(
        "tp4 pp3 on two nodes",
        {"tp_size": 4, "pp_size": 3, "nnodes": 2},
        rejects("nodes-cut-stages") | notes("pipeline-overlap", "unused-gpus"),
    ),
    Case(
        "replicas over nodes",
        {"tp_size": 8, "dp_size": 2, "nnodes": 2},
        rejects("replicas-over-nodes"),
    ),
    Case("attention DP 4", {"tp_size": 8, "attn_dp_size": 4}),
    Case("attention DP 3", {"tp_size": 8, "attn_dp_size": 3}, rejects("attention-dp-divides-tp")),
    Case(
        "attention DP in the old spelling",
        {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True},
        notes("attention-dp-deprecated"),
    ),
    Case(
        "attention DP of one", {"tp_size": 8, "enable_dp_attention": True}, notes("attention-dp-off"), release="0.5.11"
    ),
    Case(
        "replicas and attention DP",
        {"tp_size": 4, "dp_size": 2, "attn_dp_size": 2},
        rejects("replicas-with-attention-dp"),
    ),
    Case("moe_dense_tp_size 8 since 0.5.13", {"tp_size": 8, "moe_dense_tp_size": 8}),
    Case(
        "moe_dense_tp_size 8 before",
        {"tp_size": 8, "moe_dense_tp_size": 8},
        rejects("moe-dense-tp-size"),
        release="0.5.12.post1",
    ),
    Case("dp_lm_head without attention DP", {"tp_size": 8, "enable_dp_lm_head": True}, notes("dp-lm-head")),
    Case(
        "dp_lm_head with replicas",
        {"tp_size": 4, "dp_size": 2, "enable_dp_lm_head": True},
        rejects("dp-lm-head"),
    ),
    Case("context parallelism 3 of 8", {"tp_size": 8, "attn_cp_size": 3}, rejects("context-parallel")),
    Case("expert data parallelism", {"tp_size": 8, "moe_dp_size": 2, "attn_cp_size": 2, "ep_size": 4}),
    Case(
        "expert data parallelism that does not fill tp",
        {"tp_size": 8, "moe_dp_size": 2, "attn_cp_size": 2, "ep_size": 2},
        rejects("context-parallel"),
    ),
    Case(
        "expert data parallelism with stages",
        {"tp_size": 4, "pp_size": 2, "moe_dp_size": 2, "attn_cp_size": 2},
        rejects("pipeline-context-parallel"),
    ),
    Case("dcp 3", {"tp_size": 8, "dcp_size": 3}, rejects("context-parallel")),
    # vllm-project/recipes, Qwen3.8-2.4T: 64 attention heads are not divisible by 12; nor are 2048 and 163840.
    Case(
        "64 heads over 12",
        {"tp_size": 12},
        rejects("heads-divide", "expert-width-divides"),
        host="16x RTX PRO 6000 Blackwell",
    ),
    Case(
        "64 heads over 12, and the vocabulary, before 0.5.22",
        {"tp_size": 12},
        rejects("heads-divide", "expert-width-divides", "vocabulary-divides"),
        host="16x RTX PRO 6000 Blackwell",
        release="0.5.21",
    ),
    Case("4 KV heads over 8 repeat", {"tp_size": 8}, model="qwen3-30b-a3b"),
    # 48 heads over 12, 8 KV heads: neither 8 % 12 nor 12 % 8 is 0.
    Case(
        "8 KV heads over 12",
        {"tp_size": 12},
        rejects("kv-heads-divide"),
        model=fp8(quantization_config=None, moe_intermediate_size=3072),
        host="16x RTX PRO 6000 Blackwell",
    ),
)

EXPERTS = (
    Case("384 experts in 16 groups", {"tp_size": 16, "ep_size": 16}, host="16x H200"),
    # 128 experts + 2 redundant = 130 in 8 groups: 2 left over.
    Case(
        "redundant experts that do not fit",
        {"tp_size": 8, "ep_size": 8, "ep_num_redundant_experts": 2},
        rejects("experts-divide-ep"),
        model="qwen3-30b-a3b",
    ),
    Case(
        "redundant experts that fit", {"tp_size": 8, "ep_size": 8, "ep_num_redundant_experts": 8}, model="qwen3-30b-a3b"
    ),
    Case(
        "tp above the experts",
        {"tp_size": 16},
        rejects("tp-larger-than-experts"),
        model=fp8(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=2048, quantization_config=None),
        host="16x H100",
    ),
    # models/mixtral.py has no such check.
    Case("tp above the experts of a model that takes it", {"tp_size": 16}, model="mixtral-8x7b", host="16x H100"),
    Case(
        "gates of linear attention narrower than a block",  # sgl-project/sglang#19045
        {"tp_size": 8},
        doubts("quantization-block-mlp"),
        model=HYBRID_FP8,
        host="8x H20",
        release="0.5.11",
    ),
    Case(
        "gates of linear attention left unquantized",
        {"tp_size": 8},
        model=HYBRID_FP8 | {"quantization_config": BLOCKS | {"modules_to_not_convert": ["re:.*in_proj_(a|b)$"]}},
        host="8x H20",
        release="0.5.11",
    ),
    Case("ep of a dense model", {"tp_size": 8, "ep_size": 8}, notes("ep-without-experts"), model="llama-3.1-70b"),
    # 2560 / 3 leaves 1; 151936 is padded to 151936 = 64 x 2374, and 2374 / 3 leaves 1.
    Case(
        "an expert's width that leaves a rest",
        {"tp_size": 3},
        rejects("expert-width-divides", "vocabulary-divides"),
        model=fp8(num_attention_heads=96, num_key_value_heads=3, quantization_config=None),
        release="0.5.21",
    ),
    # vllm-project/vllm#25292: 768 / 4 = 192.
    Case("Qwen3-30B FP8 tp4", {"tp_size": 4}, rejects("quantization-block"), model="qwen3-30b-a3b-fp8"),
    Case("Qwen3-30B FP8 tp2", {"tp_size": 2, "enable_p2p_check": True}, model="qwen3-30b-a3b-fp8"),
    Case("Qwen3-30B FP8 tp4 ep2", {"tp_size": 4, "ep_size": 2}, model="qwen3-30b-a3b-fp8"),
    # sgl-project/sglang#8344: 2560 / 8 = 320.
    Case(
        "Qwen3-Coder-480B FP8 tp8", {"tp_size": 8}, rejects("quantization-block"), model=CODER_480B_FP8, host="8x H20"
    ),
    Case("Qwen3-Coder-480B FP8 tp8 ep2", {"tp_size": 8, "ep_size": 2}, model=CODER_480B_FP8, host="8x H20"),
    # kvcache-ai/ktransformers#2036: 1536 / 8 = 192, 1536 / 4 = 384; rtx6kpro runs tp8 ep8.
    Case("MiniMax-M2.7 tp8", {"tp_size": 8}, rejects("quantization-block"), model="minimax-m2.7", host="8x H200"),
    Case("MiniMax-M2.7 tp4", {"tp_size": 4}, notes("unused-gpus"), model="minimax-m2.7", host="8x H200"),
    Case("MiniMax-M2.5 tp8 ep8", {"tp_size": 8, "ep_size": 8}, model="minimax-m2.5"),
    # 2560 / 2 = 1280 is whole, 1280 / 2 = 640 too; 1280 / 4 = 320 is not.
    Case(
        "a shared expert that is cut inside a block",
        {"tp_size": 4, "ep_size": 4},
        rejects("quantization-block-mlp"),
        model=SHARED_1280_FP8,
    ),
    Case("a shared expert in whole blocks", {"tp_size": 2, "disable_custom_all_reduce": True}, model=SHARED_1280_FP8),
    # 25600 / 16 = 1600 = 12.5 blocks; 25600 / 8 = 3200 = 25 blocks.
    Case("dense FP8 tp16", {"tp_size": 16}, rejects("quantization-block-mlp"), model=DENSE_FP8, host="16x L40S"),
    Case("dense FP8 tp8", {"tp_size": 8}, model=DENSE_FP8),
    Case("INT4 experts cut inside a group", {"tp_size": 8}, rejects("quantization-group"), model=INT4_1408),
    Case("INT4 experts in whole groups", {"tp_size": 8, "ep_size": 8}, model=INT4_1408),
    Case("AWQ experts cut inside a group", {"tp_size": 8}, doubts("quantization-group"), model=AWQ_1408),
    Case("Kimi INT4 tp8: 256 is 8 groups", {"tp_size": 8, "ep_size": 1}),
    Case(
        "DeepEP with INT4 experts",
        {"tp_size": 8, "ep_size": 4, "moe_a2a_backend": "deepep"},
        rejects("a2a-int4") | notes("a2a-forces-ep"),
    ),
    Case("DeepEP over PCIe", {"tp_size": 8, "moe_a2a_backend": "deepep"}, doubts("a2a-pcie"), model="qwen3-235b-a22b"),
    Case(
        "FlashInfer all-to-all without attention DP",
        {"tp_size": 8, "moe_a2a_backend": "flashinfer"},
        rejects("a2a-flashinfer"),
        model="qwen3-235b-a22b",
        host="8x H200",
    ),
    Case(
        "FlashInfer all-to-all with attention DP",
        {"tp_size": 8, "attn_dp_size": 8, "moe_a2a_backend": "flashinfer"},
        model="qwen3-235b-a22b",
        host="8x H200",
    ),
    Case(
        "FlashInfer all-to-all in 0.5.11 wants its runner",
        {"tp_size": 8, "moe_a2a_backend": "flashinfer"},
        rejects("a2a-flashinfer"),
        model="qwen3-235b-a22b",
        host="8x H200",
        release="0.5.11",
    ),
    Case(
        "flashinfer_cutlass with ep 2 of 8",
        {"tp_size": 8, "ep_size": 2, "moe_runner_backend": "flashinfer_cutlass"},
        rejects("flashinfer-runner-ep"),
    ),
    Case("flashinfer_cutlass with ep 8 of 8", {"tp_size": 8, "ep_size": 8, "moe_runner_backend": "flashinfer_cutlass"}),
    Case(
        "flashinfer_cutlass with fp8",
        {"tp_size": 8, "moe_runner_backend": "flashinfer_cutlass", "quantization": "fp8"},
        rejects("flashinfer-runner-quantization"),
        model="qwen3-235b-a22b",
    ),
    Case(
        "cutlass with fp8 and ep",
        {"tp_size": 8, "ep_size": 8, "moe_runner_backend": "cutlass", "quantization": "fp8"},
        rejects("cutlass-fp8-ep"),
        model="qwen3-235b-a22b",
    ),
    Case(
        "gpt-oss on triton_kernel with ep",
        {"tp_size": 4, "ep_size": 4, "moe_runner_backend": "triton_kernel"},
        rejects("triton-kernel-ep"),
        model="gpt-oss-120b",
    ),
    Case("EPLB with one group", {"tp_size": 8, "enable_eplb": True}, rejects("eplb-needs-ep")),
    Case(
        "static dispatch since 0.5.17",
        {"tp_size": 8, "ep_size": 8, "enable_eplb": True, "ep_dispatch_algorithm": "static"},
        rejects("eplb-dispatch"),
        release="0.5.17",
    ),
    Case("dynamic dispatch", {"tp_size": 8, "ep_size": 8, "enable_eplb": True, "ep_dispatch_algorithm": "dynamic"}),
    Case("two-batch overlap alone", {"tp_size": 8, "enable_two_batch_overlap": True}, rejects("two-batch-overlap")),
    Case("two-batch overlap, attention DP", {"tp_size": 8, "attn_dp_size": 4, "enable_two_batch_overlap": True}),
    Case(
        "two-batch overlap, attention DP, 0.5.11",
        {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True, "enable_two_batch_overlap": True},
        rejects("two-batch-overlap"),
        release="0.5.11",
    ),
)

STAGES = (
    Case("Kimi K2.6 before it was known", {"tp_size": 8}, rejects("model-release"), release="0.5.8.post1"),
    # sgl-project/sglang#18434, #18925, #19503.
    Case("Kimi K2.6 in stages, 0.5.9", {"tp_size": 4, "pp_size": 2}, rejects("pipeline-support"), release="0.5.9"),
    Case("Kimi K2.6 in stages, 0.5.10", {"tp_size": 4, "pp_size": 2}, release="0.5.10.post1"),
    Case("Kimi K2.6 in stages, 0.5.10 may be early", {"pp_size": 8}, doubts("pipeline-support"), release="0.5.10"),
    Case("Kimi K2 in stages, 0.5.4", {"pp_size": 8}, model="kimi-k2", release="0.5.4.post3"),
    Case("9 stages for 8 layers", {"pp_size": 9}, rejects("pipeline-layers"), model="k2-slice", host="16x H200"),
    Case("8 stages for 8 layers", {"pp_size": 8}, model="k2-slice"),
    Case(
        "a partition of 60 layers",
        {"pp_size": 2},
        rejects("pipeline-partition"),
        environment=LEVEL | {"SGLANG_PP_LAYER_PARTITION": "30,30"},
    ),
    Case("a partition of 61 layers", {"pp_size": 2}, environment=LEVEL | {"SGLANG_PP_LAYER_PARTITION": "31,30"}),
    Case(
        "a partition for three stages",
        {"pp_size": 2},
        rejects("pipeline-partition"),
        environment=LEVEL | {"SGLANG_PP_LAYER_PARTITION": "20,20,21"},
    ),
    Case(
        "stages with EAGLE, 0.5.11",
        {"pp_size": 8, "speculative_algorithm": "EAGLE"},
        rejects("pipeline-speculative"),
        release="0.5.11",
    ),
    Case(
        "stages with EAGLE, 0.5.23", {"pp_size": 8, "speculative_algorithm": "EAGLE"}, rejects("pipeline-speculative")
    ),
    Case(
        "stages with EAGLE and its switch",
        {"pp_size": 8, "speculative_algorithm": "EAGLE"},
        environment=LEVEL | {"SGLANG_ENABLE_PP_SPEC": "1"},
    ),
    Case("stages with NGRAM", {"pp_size": 8, "speculative_algorithm": "NGRAM"}, rejects("pipeline-speculative")),
    Case("stages with xgrammar", {"pp_size": 8, "grammar_backend": "xgrammar"}, notes("pipeline-grammar")),
)

COMMANDS = (
    Case("a release between two known ones", {"tp_size": 8}, notes("release-unknown"), release="0.5.14"),
    Case("a newer release", {"tp_size": 8}, notes("release-unknown"), release="0.5.99"),
    Case("an older release", {"tp_size": 8}, doubts("release-unknown"), model="kimi-k2", release="0.4.1"),
    Case("no release at all", {"tp_size": 8}, doubts("release-unknown"), release="main"),
    Case("a flag that no release has", {"tp_size": 8, "no_such_flag": 1}, rejects("command-line")),
    Case(
        "a backend that was removed",
        {"tp_size": 8, "attention_backend": "cutlass_mla"},
        rejects("command-line"),
        host="8x B200",
    ),
    Case(
        "the same backend before", {"tp_size": 8, "attention_backend": "cutlass_mla"}, host="8x B200", release="0.5.19"
    ),
    Case("two spellings of one flag", {"tp_size": 8, "tensor_parallel_size": 4}, rejects("command-line")),
    Case("graph limit, 0.5.13", {"tp_size": 8, "cuda_graph_max_bs": 64}, release="0.5.13.post1"),
    Case("graph limit, 0.5.19 takes both", {"tp_size": 8, "cuda_graph_max_bs": 64}, release="0.5.19"),
    Case("old graph limit, 0.5.20", {"tp_size": 8, "cuda_graph_max_bs": 64}, rejects("flag-renamed"), release="0.5.20"),
    Case(
        "new graph limit, 0.5.13",
        {"tp_size": 8, "cuda_graph_max_bs_decode": 64},
        rejects("flag-renamed"),
        release="0.5.13.post1",
    ),
    Case("new graph limit, 0.5.20", {"tp_size": 8, "cuda_graph_max_bs_decode": 64}, release="0.5.20"),
    Case("new attention DP in 0.5.21", {"tp_size": 8, "attn_dp_size": 4}, rejects("flag-renamed"), release="0.5.21"),
    Case("--pp is ambiguous", {"tp_size": 4, "pp": 2}, rejects("flag-prefix")),
    Case("--tp is no flag", {"tp": 8}, rejects("flag-prefix")),
    Case("a width that is no number", {"tp_size": "eight"}, rejects("command-line")),
)

SETTINGS = (
    Case("a fraction that is no number", {"tp_size": 8, "mem_fraction_static": "nan"}, rejects("mem-fraction-range")),
    Case("a fraction above one", {"tp_size": 8, "mem_fraction_static": 1.2}, rejects("mem-fraction-range")),
    # 0.758 x 94.3 GiB is less than Kimi's 71.8 GiB a GPU.
    Case("no fraction for Kimi", {"tp_size": 8, "mem_fraction_static": None}, doubts("mem-fraction-unset")),
    Case("no fraction for a small model", {"tp_size": 8, "mem_fraction_static": None}, model="llama-3.1-8b"),
    Case("chunk of whole pages", {"tp_size": 8, "chunked_prefill_size": 8192, "page_size": 64}),
    Case("chunk of broken pages", {"tp_size": 8, "chunked_prefill_size": 1000, "page_size": 64}, rejects("chunk-page")),
    # 4096 / 8 = 512 is whole; 2000 / 8 = 250 is not a multiple of 4.
    Case(
        "chunk broken by attention DP",
        {"tp_size": 8, "attn_dp_size": 8, "chunked_prefill_size": 2000, "page_size": 4},
        rejects("chunk-page"),
    ),
    Case("no chunks", {"tp_size": 8, "chunked_prefill_size": -1, "page_size": 64}),
    Case(
        "four requests for eight groups",
        {"tp_size": 8, "attn_dp_size": 8, "max_running_requests": 4},
        rejects("running-requests"),
    ),
    Case("a colon in the name", {"tp_size": 8, "served_model_name": "kimi:k2"}, rejects("served-name-colon")),
    Case(
        "a colon before it was refused",
        {"tp_size": 8, "served_model_name": "a:b"},
        model="kimi-k2",
        release="0.5.4.post3",
    ),
    Case("context beyond the model", {"tp_size": 8, "context_length": 300000}, doubts("context-length")),
    Case("Kimi without its code", {"tp_size": 8, "trust_remote_code": False}, doubts("trust-remote-code")),
    Case(
        "64 graphs for 256 requests",
        {"tp_size": 8, "cuda_graph_max_bs_decode": 64, "max_running_requests": 256},
        notes("graph-limit"),
    ),
    Case(
        "graphs off and limited",
        {"tp_size": 8, "disable_cuda_graph": True, "cuda_graph_max_bs_decode": 64},
        notes("graph-off"),
    ),
    Case(
        "compile without padding",
        {"tp_size": 8, "enable_torch_compile": True, "disable_cuda_graph_padding": True},
        rejects("compile-padding"),
    ),
    Case(
        "compile without padding, 0.5.11",
        {"tp_size": 8, "enable_torch_compile": True, "disable_cuda_graph_padding": True},
        doubts("compile-padding"),
        release="0.5.11",
    ),
    Case(
        "mixed chunk with EAGLE, 0.5.11",
        {"tp_size": 8, "enable_mixed_chunk": True, "speculative_algorithm": "EAGLE"},
        rejects("mixed-chunk-speculative"),
        release="0.5.11",
    ),
    Case("fa3 on Blackwell", {"tp_size": 8, "attention_backend": "fa3"}, rejects("attention-backend-gpu")),
    Case("fa3 on Hopper", {"tp_size": 8, "attention_backend": "fa3"}, host="8x H200"),
    Case(
        "trtllm_mla on Hopper",
        {"tp_size": 8, "attention_backend": "trtllm_mla"},
        rejects("attention-backend-gpu"),
        host="8x H200",
    ),
    Case("trtllm_mla on Blackwell", {"tp_size": 8, "attention_backend": "trtllm_mla"}),
    Case(
        "trtllm_mla without MLA",
        {"tp_size": 8, "attention_backend": "trtllm_mla"},
        rejects("attention-backend-model"),
        model="qwen3-235b-a22b",
    ),
    Case("trtllm_mha with MLA", {"tp_size": 8, "attention_backend": "trtllm_mha"}, rejects("attention-backend-model")),
    Case(
        "trtllm_mha prefill on RTX, 0.5.18",
        {"tp_size": 8, "attention_backend": "trtllm_mha"},
        rejects("attention-backend-gpu"),
        model="qwen3-235b-a22b",
        release="0.5.18",
    ),
    Case(
        "trtllm_mha prefill on RTX, 0.5.19",
        {"tp_size": 8, "attention_backend": "trtllm_mha"},
        model="qwen3-235b-a22b",
        release="0.5.19",
    ),
    Case("flashmla on RTX", {"tp_size": 8, "attention_backend": "flashmla"}, doubts("attention-backend-kernels")),
    # rtx6kpro models/glm5.md: accepted, and wrong.
    Case(
        "fp8 cache with flashinfer on RTX",
        {"tp_size": 8, "attention_backend": "flashinfer", "kv_cache_dtype": "fp8_e4m3"},
        doubts("fp8-kv-flashinfer"),
        model="glm-5-nvfp4",
    ),
    # gpustack docs/performance-lab/glm-4.x/a100.md.
    Case("FP8 weights on A100", {"tp_size": 8}, doubts("weights-gpu"), model="glm-4.5-fp8", host="8x A100"),
    # docs/evidence/h200-one-gpu: "Cannot find the config file for awq".
    Case(
        "awq of a bf16 checkpoint",
        {"quantization": "awq"},
        rejects("quantization-settings"),
        model="mini-moe",
        host="1x H200",
        release="0.5.11",
    ),
    Case(
        "fp8 of a bf16 checkpoint",
        {"tp_size": 8, "quantization": "fp8"},
        notes("quantization-online"),
        model="qwen3-235b-a22b",
    ),
    Case("the checkpoint's own method", {"tp_size": 8, "quantization": "compressed-tensors"}),
    Case(
        "awq of an INT4 checkpoint of another kind",
        {"tp_size": 8, "quantization": "awq"},
        doubts("quantization-mismatch"),
    ),
)

LINKS = (
    Case("tp2 over PCIe", {"tp_size": 2}, doubts("custom-all-reduce-two-pcie"), model="qwen3-30b-a3b"),
    Case("tp2 over PCIe with a check", {"tp_size": 2, "enable_p2p_check": True}, model="qwen3-30b-a3b"),
    Case("tp2 over NVLink", {"tp_size": 2}, notes("all-reduce-fusion-nvlink"), model="mini-moe", host="2x H200"),
    Case("no P2P level", {"tp_size": 8}, notes("nccl-p2p-level-unset"), environment={}),
    Case("GPUs by UUID", {"tp_size": 1}, model="mini-moe", environment={"CUDA_VISIBLE_DEVICES": "GPU-1b2c"}),
    Case(
        "two GPUs by UUID",
        {"tp_size": 2, "enable_p2p_check": True},
        doubts("visible-devices-uuid"),
        model="mini-moe",
        environment={"CUDA_VISIBLE_DEVICES": "GPU-1b2c,GPU-3d4e"},
    ),
    Case(
        "PCIe IPC all-reduce before 0.5.21",
        {"tp_size": 8},
        notes("pcie-ipc-all-reduce"),
        environment=LEVEL | {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"},
        release="0.5.20",
    ),
    Case(
        "NCCL's level in lower case", {"tp_size": 8}, rejects("nccl-level-word"), environment={"NCCL_P2P_LEVEL": "sys"}
    ),
)

CONTRADICTIONS = (
    Case(
        "a hierarchy of caches without the first",
        {"tp_size": 8, "enable_hierarchical_cache": True, "disable_radix_cache": True},
        rejects("settings-contradict"),
    ),
    Case("a hierarchy of caches", {"tp_size": 8, "enable_hierarchical_cache": True}),
    Case(
        "multiplexing with chunks",
        {"tp_size": 8, "enable_pdmux": True, "disable_overlap_schedule": True},
        rejects("settings-contradict"),
    ),
    Case(
        "multiplexing",
        {"tp_size": 8, "enable_pdmux": True, "disable_overlap_schedule": True, "chunked_prefill_size": -1},
    ),
    Case(
        "priorities and another policy",
        {"tp_size": 8, "enable_priority_scheduling": True, "schedule_policy": "lpm"},
        rejects("settings-contradict"),
    ),
    Case("priorities", {"tp_size": 8, "enable_priority_scheduling": True}),
    Case("a window's share above 1", {"tp_size": 8, "swa_full_tokens_ratio": 1.5}, rejects("settings-contradict")),
    Case("a window's share", {"tp_size": 8, "swa_full_tokens_ratio": 1.0}),
    Case("sparse caches of another model", {"tp_size": 8, "enable_hisparse": True}, rejects("settings-contradict")),
    Case(
        "sparse caches",
        {"tp_size": 8, "enable_hisparse": True, "disable_radix_cache": True},
        model="deepseek-v3.2",
        host="8x H200",
        environment={},
    ),
    Case("GPUs from -1", {"tp_size": 8, "base_gpu_id": -1}, rejects("settings-contradict")),
    Case("GPUs in steps of 0", {"tp_size": 8, "gpu_id_step": 0}, rejects("settings-contradict")),
)

CASES = CONTRADICTIONS + CAMPAIGN + WIDTHS + EXPERTS + STAGES + COMMANDS + SETTINGS + LINKS


def verdicts_of(case: Case) -> list:
    shape = load_model(case.model) if isinstance(case.model, str) else from_config(case.model, "model")
    configuration = {"name": "case", "engine": BASE | case.engine, "environment": case.environment}
    return check(configuration, shape, find_host(case.host) if case.host else None, case.release)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_table(case: Case) -> None:
    found = verdicts_of(case)
    shown = [(verdict.severity, verdict.rule, verdict.sentence) for verdict in found]
    expected_rejects = {rule for rule, severity in case.expect.items() if severity == "reject"}
    assert {verdict.rule for verdict in found if verdict.severity == "reject"} == expected_rejects, shown
    for rule, severity in case.expect.items():
        assert (severity, rule) in {(verdict.severity, verdict.rule) for verdict in found}, shown
    doubtful = {rule for rule, severity in case.expect.items() if severity == "doubt"}
    assert {verdict.rule for verdict in found if verdict.severity == "doubt"} == doubtful, shown


def test_every_rule_has_a_case() -> None:
    """A rule that no case reaches is not tested. NCCL's have a table of their own."""
    reached = {verdict.rule for case in CASES for verdict in verdicts_of(case)}
    # In test_rules.py, for the shapes do not tell the tower's heads; in test_ask_parser.py and test_nodes.py, for hosts
    # are asked.
    out_of_reach = {"vision-heads-divide", "engine-arguments", "nodes-there"}
    out_of_reach |= {rule.id for rule in room.RULES}  # memory's own, in test_plan.py
    assert {rule.id for rule in rules()} - {rule.id for rule in nccl.RULES} - out_of_reach <= reached


def test_table_is_large_and_has_both_kinds() -> None:
    invalid = [case for case in CASES if "reject" in case.expect.values()]
    assert len(invalid) >= 30
    assert len(CASES) - len(invalid) >= 30
    assert len({case.release for case in CASES}) >= 8


def test_verdicts_are_sentences_with_a_source_and_a_way_out() -> None:
    for case in CASES:
        found = verdicts_of(case)
        grades = [SEVERITIES.index(verdict.severity) for verdict in found]
        assert grades == sorted(grades), "the gravest first"
        for verdict in found:
            assert verdict.sentence[-1] in ".'" and "\n" not in verdict.sentence, verdict
            assert verdict.source and verdict.advice, verdict


@pytest.mark.parametrize(
    ("name", "engine", "model", "release", "message"),
    [
        ("0 groups", {"attn_dp_size": 0}, KIMI, "0.5.23", "--attn-dp-size must be positive (got 0)."),
        ("-1 groups", {"attn_dp_size": -1}, KIMI, "0.5.23", "--attn-dp-size must be positive (got -1)."),
        (
            "both kinds",
            {"attn_dp_size": 2, "dp_size": 2, "tp_size": 4},
            KIMI,
            "0.5.23",
            "--dp-size 2 with --attn-dp-size 2: data-parallel replicas combined with attention data parallelism are "
            "not supported.",
        ),
        (
            "context groups",
            {"attn_cp_size": 4, "attn_dp_size": 4},
            "qwen3-235b-a22b",
            "0.5.23",
            "tp_size must be divisible by attn_dp_size * attn_cp_size",
        ),
        ("an ep", {"ep_size": 3}, CODER_480B_FP8, "0.5.11", "tp_size 8 must be divisible by ep_size 3"),
        ("an ep of no blocks", {"ep_size": 3}, KIMI, "0.5.11", "AssertionError (assert self.cpu_group is not None)"),
    ],
)
def test_messages_are_the_engines_own(name, engine, model, release, message) -> None:
    found = verdicts_of(Case(name, {"tp_size": 8} | engine, {}, model=model, release=release))
    assert message in {verdict.engine_message for verdict in found}, found
