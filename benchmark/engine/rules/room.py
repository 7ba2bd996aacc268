"""Memory as rules: what `--explain` says of a start that ends for want of it. memory.py finds out whether it does."""

from __future__ import annotations

from ..verdict import Rule

_WEIGHTS = Rule(
    "will-not-fit",
    "The weights must fit on the GPUs",
    "Every tensor of every rank is counted, with its scales and what is replicated, against what is free once CUDA and "
    "the communicators stand. Only tp x pp divides the weights; expert parallelism divides the tensor-parallel group "
    "and attention DP makes copies.",
    "tests/captures/failures/oom_weights.log; SGLang 0.5.11 and 0.5.23 layers/, models/",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...",
    "Use more GPUs (tp_size x pp_size), a smaller or a quantized checkpoint, or -e plan=off to see it fail.",
)
_KV = Rule(
    "no-kv-room",
    "mem_fraction_static must leave room for a KV cache",
    "Weights and cache share mem_fraction_static of what was free before the load. What the weights leave of it is the "
    "cache, and none is an error.",
    "SGLang 0.5.11 model_executor/pool_configurator.py:44; 0.5.23 mem_cache/kv_cache_configurator.py:3040",
    "Not enough memory. Please try to increase --mem-fraction-static.",
    "Raise mem_fraction_static into the range that the plan names.",
)
_GRAPHS = Rule(
    "no-graph-room",
    "mem_fraction_static must leave room beside the cache",
    "The request table, decode graphs, workspaces and, in older releases, a draft lie outside mem_fraction_static, and "
    "are allocated after the cache.",
    "tests/captures/failures/graph_oom.log; SGLang 0.5.11 mem_cache/memory_pool.py:376, "
    "model_executor/cuda_graph_runner.py",
    "Capture cuda graph failed: CUDA out of memory.",
    "Lower mem_fraction_static into the range that the plan names, or context_length, or max_running_requests.",
)

RULES = (_WEIGHTS, _KV, _GRAPHS)

OF_STAGE = {"weights": _WEIGHTS.id, "kv": _KV.id, "graphs": _GRAPHS.id}
"""Where a start ends (MemoryFailure.stage) -> the rule that explains it."""
