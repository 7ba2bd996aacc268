"""The engine's counters in Prometheus's text format, under the names and labels of the real ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from .engine import Engine
from .histogram import Histogram

Sample = tuple[Mapping[str, str], float]


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{key}="{escaped(value)}"' for key, value in sorted(labels.items()))


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP sglang:{name} {help_text}", f"# TYPE sglang:{name} {kind}"]
    return lines + [f"sglang:{name}{{{_labels(labels)}}} {float(value)}" for labels, value in samples]


def _histogram(name: str, help_text: str, labels: Mapping[str, str], values: Histogram) -> list[str]:
    lines = [f"# HELP sglang:{name} {help_text}", f"# TYPE sglang:{name} histogram"]
    lines.append(f"sglang:{name}_sum{{{_labels(labels)}}} {values.sum}")
    lines += [
        f"sglang:{name}_bucket{{{_labels({**labels, 'le': bound})}}} {float(count)}"
        for bound, count in values.cumulative()
    ]
    lines.append(f"sglang:{name}_count{{{_labels(labels)}}} {float(values.count)}")
    return lines


def exposition(engine: Engine, pid: int) -> str:
    """All families. The token counters move only when a request ends, as the real ones do."""
    scheduler, counters, blueprint = engine.scheduler, engine.scheduler.counters, engine.blueprint
    plain = {"engine_type": "unified", "model_name": engine.model_name}
    ranked = plain | {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    eager = counters.decode_steps - counters.graph_steps
    lines = _family(
        "cuda_graph_passes_total",
        "counter",
        "Total number of forward passes categorized by CUDA graph.",
        [
            (ranked | {"mode": "decode_cuda_graph"}, counters.graph_steps),
            (ranked | {"mode": "decode_none"}, eager),
            (ranked | {"mode": "prefill_none"}, counters.prefill_steps),
        ],
    )
    lines += _family(
        "realtime_tokens_total",
        "counter",
        "Total number of tokens processed (updated on each log interval). "
        "mode: prefill_compute, prefill_cache, decode.",
        [
            (ranked | {"mode": "prefill_compute"}, counters.prefilled),
            (ranked | {"mode": "decode"}, counters.generated),
            (ranked | {"mode": "prefill_cache"}, counters.cached),
        ],
    )
    lines += _family(
        "process_cpu_seconds_total",
        "counter",
        "Total CPU time consumed by this process (user + system)",
        [({"component": "tokenizer"}, time.process_time())],
    )
    lines += _http(engine)
    for name, help_text, value in (
        ("prompt_tokens_total", "Number of prefill tokens processed.", counters.finished_prompt),
        ("generation_tokens_total", "Number of generation tokens processed.", counters.finished_generated),
        ("num_requests_total", "Number of requests processed.", counters.e2e.count),
        ("num_aborted_requests_total", "Number of requests aborted.", counters.aborted),
    ):
        lines += _family(name, "counter", help_text, [(plain, value)])
    lines += _family(
        "cached_tokens_total",
        "counter",
        "Number of cached prompt tokens by source (device/host/storage).",
        [(plain | {"cache_source": "device"}, counters.cached)],
    )
    capacity, used = engine.token_capacity, scheduler.used_tokens()
    seen = counters.cached + counters.prefilled
    gauges = {
        "max_total_num_tokens": capacity,
        "page_size": 1,
        "context_len": blueprint.context_length,
        "num_running_reqs": scheduler.running_requests(),
        "num_queue_reqs": len(scheduler.waiting),
        "gen_throughput": counters.throughput if scheduler.running else 0.0,
        "cache_hit_rate": counters.cached / seen if seen else 0.0,
        "token_usage": used / max(1, capacity),
        "num_used_tokens": used,
        "kv_available_tokens": capacity - used - scheduler.cache.evictable,
        "kv_evictable_tokens": scheduler.cache.evictable,
        "kv_used_tokens": used,
        "utilization": scheduler.running_requests() / max(1, scheduler.limits.running),
    }
    for name, value in gauges.items():
        lines += _family(name, "gauge", f"{name} of the engine.", [(ranked, value)])
    lines += _family(
        "num_retracted_reqs", "gauge", "The number of retracted requests.", [(ranked | {"pid": str(pid)}, 0)]
    )
    lines += _histogram(
        "time_to_first_token_seconds", "Histogram of time to first token in seconds.", plain, counters.ttft
    )
    lines += _histogram(
        "e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", plain, counters.e2e
    )
    return "\n".join(lines) + "\n"


def _http(engine: Engine) -> list[str]:
    requests = [({"endpoint": path, "method": method}, count) for (path, method), count in engine.http_requests.items()]
    responses = [
        ({"endpoint": path, "method": method, "status_code": str(code)}, count)
        for (path, method, code), count in engine.http_responses.items()
    ]
    return _family(
        "http_requests_total", "counter", "Total number of HTTP requests by endpoint and method", requests
    ) + _family(
        "http_responses_total",
        "counter",
        "Total number of HTTP responses by endpoint and status code",
        responses,
    )
