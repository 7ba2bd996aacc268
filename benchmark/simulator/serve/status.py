"""The routes that tell about the engine: health, information, loads, metrics, and flushing the cache."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import time
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from benchmark.simulator.launch import texts
from benchmark.simulator.launch.arguments import json_text
from benchmark.simulator.launch.texts import GIB

from . import metrics as prometheus
from .engine import Engine

HEALTH_TIMEOUT_SECONDS = 20.0
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def _json(content: Any, code: int = 200) -> Response:
    return Response(json_text(content), status_code=code, media_type="application/json")


def _engine(http: HttpRequest) -> Engine:
    return http.app.state.engine


async def health(http: HttpRequest) -> Response:
    """GET /health and /health_generate: 200 only if one token can be made now."""
    engine = _engine(http)
    if "lying_health" in engine.settings.faults:
        return Response(status_code=200)
    if engine.status != "Up":
        return Response(status_code=503)
    request = engine.request([1], {"max_new_tokens": 1, "temperature": 0}, stream=False, default_max=1)
    request.probe = True
    engine.submit(request)
    try:
        await asyncio.wait_for(request.progress(1), HEALTH_TIMEOUT_SECONDS)
    except TimeoutError:
        texts.log(
            f"Health check failed. Server couldn't get a response from detokenizer for last "
            f"{int(HEALTH_TIMEOUT_SECONDS)} seconds."
        )
        return Response(status_code=503)
    finally:
        engine.close(request)
    return Response(status_code=200)


async def model_info(http: HttpRequest) -> Response:
    """GET /model_info, and its old name."""
    engine = _engine(http)
    _warn_of_old_name(http, "/get_model_info", "/model_info")
    arguments = engine.blueprint.arguments
    return _json(
        {
            "model_path": arguments["model_path"],
            "tokenizer_path": arguments["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": _model_type(engine.blueprint.architecture),
            "architectures": [engine.blueprint.architecture],
        }
    )


def _model_type(architecture: str) -> str:
    """`DeepseekV3ForCausalLM` -> `deepseek_v3`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", architecture.partition("For")[0]).lower()


def _memory(engine: Engine) -> dict[str, Any]:
    blueprint = engine.blueprint
    pool = engine.token_capacity * blueprint.kv_bytes_per_token
    return {
        "weight": blueprint.weights_bytes / GIB,
        "kvcache": pool / GIB,
        "token_capacity": engine.token_capacity,
        "graph": (blueprint.graph_bytes if blueprint.graph_batches else 0) / GIB,
    }


def resolved_arguments(engine: Engine) -> dict[str, Any]:
    """Every setting with the values that the engine settled on. Keys stand in it as in the real answer."""
    blueprint = engine.blueprint
    return dict(blueprint.arguments.values) | blueprint.resolved()


async def server_info(http: HttpRequest) -> Response:
    """GET /server_info, and its old name: every argument, and what the schedulers say of themselves."""
    engine = _engine(http)
    _warn_of_old_name(http, "/get_server_info", "/server_info")
    arguments = resolved_arguments(engine)
    memory = _memory(engine)
    state = arguments | {
        "last_gen_throughput": engine.scheduler.counters.throughput,
        "memory_usage": {key: value if key == "token_capacity" else round(value, 2) for key, value in memory.items()},
        "effective_max_running_requests_per_dp": engine.blueprint.running_per_rank,
    }
    scheduler_info = {
        "status": "ready",
        "max_total_num_tokens": engine.token_capacity,
        "max_req_input_len": engine.longest_input,
    }
    return _json(
        arguments | scheduler_info | {"internal_states": [state], "version": engine.release, "simulated": True}
    )


async def models(http: HttpRequest) -> Response:
    """GET /v1/models."""
    engine = _engine(http)
    card = {
        "id": engine.model_name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": engine.model_name,
        "parent": None,
        "max_model_len": engine.blueprint.context_length,
    }
    return _json({"object": "list", "data": [card]})


async def loads(http: HttpRequest) -> Response:
    """GET /v1/loads: what runs and waits, and where the memory went (GiB, though it says gb)."""
    engine = _engine(http)
    scheduler, counters = engine.scheduler, engine.scheduler.counters
    running, waiting = scheduler.running_requests(), len(scheduler.waiting)
    used = scheduler.used_tokens()
    pending = sum(request.length() for request in scheduler.waiting)
    usage = round(used / max(1, scheduler.limits.capacity), 4)
    memory = _memory(engine)
    seen = counters.cached + counters.prefilled
    throughput = round(counters.throughput, 2) if running else 0.0
    load = {
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_used_tokens": used,
        "num_total_tokens": used + pending,
        "max_total_num_tokens": engine.token_capacity,
        "token_usage": usage,
        "gen_throughput": throughput,
        "cache_hit_rate": round(counters.cached / seen, 4) if seen else 0.0,
        "utilization": round(running / max(1, scheduler.limits.running), 4),
        "max_running_requests": engine.blueprint.running_per_rank,
        "memory": {
            "weight_gb": round(memory["weight"], 3),
            "kv_cache_gb": round(memory["kvcache"], 3),
            "graph_gb": round(memory["graph"], 3),
            "token_capacity": engine.token_capacity,
        },
        "disaggregation": {
            "mode": "null",
            "prefill_prealloc_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0},
        "num_total_reqs": running + waiting,
    }
    aggregate = {
        "total_running_reqs": running,
        "total_waiting_reqs": waiting,
        "total_reqs": running + waiting,
        "total_used_tokens": used,
        "total_tokens": used + pending,
        "avg_token_usage": usage,
        "avg_throughput": throughput,
        "avg_utilization": load["utilization"],
    }
    return _json(
        {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": engine.release,
            "dp_rank_count": engine.blueprint.pools,
            "loads": [_share(load, number, engine.blueprint.pools) for number in range(engine.blueprint.pools)],
            "aggregate": aggregate,
        }
    )


def _share(load: dict[str, Any], number: int, pools: int) -> dict[str, Any]:
    """One attention-DP rank's part of what runs and waits; requests go round."""
    counts = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_tokens", "num_total_reqs")
    return load | {key: load[key] // pools + (number < load[key] % pools) for key in counts}


async def get_load(http: HttpRequest) -> Response:
    """GET /get_load, the old form of /v1/loads."""
    _warn_of_old_name(http, "/get_load", "/v1/loads")
    scheduler = _engine(http).scheduler
    load = {
        "dp_rank": None,
        "num_reqs": scheduler.running_requests() + len(scheduler.waiting),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_tokens": scheduler.used_tokens(),
        "num_pending_tokens": sum(request.length() for request in scheduler.waiting),
        "ts_tic": time.perf_counter(),
    }
    return _json([load])


async def flush_cache(http: HttpRequest) -> Response:
    """GET or POST /flush_cache: 400, and nothing done, while requests run or wait."""
    scheduler = _engine(http).scheduler
    if scheduler.flush():
        texts.log("Cache flushed successfully!", scheduler.prefix)
        return PlainTextResponse(_FLUSHED)
    texts.log(
        f"Cache not flushed because there are pending requests. #queue-req: {len(scheduler.waiting)}, "
        f"#running-req: {len(scheduler.running)}",
        scheduler.prefix,
    )
    return PlainTextResponse(_FLUSHED.partition("\n")[2], status_code=400)


async def metrics(http: HttpRequest) -> Response:
    """GET /metrics, with --enable-metrics only."""
    return Response(
        prometheus.exposition(_engine(http), os.getpid()),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


def _warn_of_old_name(http: HttpRequest, old: str, new: str) -> None:
    if http.url.path == old:
        texts.log(
            f"Endpoint '{old}' is deprecated and will be removed in a future version. Please use '{new}' instead."
        )
