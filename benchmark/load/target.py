"""The server that is measured: where it is, what it speaks, what it can do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from .wire.address import Wire, WireError, request_bytes
from .wire.answers import ROUTES, reader
from .wire.connection import ask
from .wire.exchange import Exchange


class TargetError(Exception):
    """The server cannot be measured; the text says why and what to do."""


@dataclass(frozen=True)
class Abilities:
    """What requests to this server may hold; found out by trying (`detect`).

    Attributes:
        token_ids: prompts may be lists of token ids, and so have exact lengths.
        ignore_eos: answers can be made to have the length asked for.
        usage: a stream tells `usage` (asked for by `stream_options`).
        usage_each_event: `usage` with each event is asked for, since events and tokens differ in number.
    """

    token_ids: bool = True
    ignore_eos: bool = True
    stream_options: bool = True
    usage_each_event: bool = False


@dataclass(frozen=True)
class Target:
    """A running server.

    Attributes:
        base_url: such as http://127.0.0.1:30000
        route: generate, completions, chat, or auto (generate on SGLang, else completions).
        model: the name to ask for; None takes the first that the server lists.
        kind: sglang or openai; None until detected.
        info: what /server_info and /v1/models told, as far as it is used here.
    """

    base_url: str
    route: str = "auto"
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None
    abilities: Abilities | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    info_path: str | None = None

    @property
    def ready(self) -> bool:
        """Whether `detect` has been done."""
        return self.kind is not None and self.abilities is not None and self.route in ROUTES

    def request(self, wire: Wire, method: str, path: str, body: Any = None) -> bytes:
        """A whole request, with this target's headers."""
        return request_bytes(wire, method, path, b"" if body is None else orjson.dumps(body), dict(self.headers))


async def call(target: Target, method: str, path: str, body: Any = None, seconds: float = 15.0) -> Exchange:
    """One plain request to the server. Never raises for what the server does: see `Exchange.failure`."""
    wire = Wire.to(target.base_url)
    return await ask(wire, target.request(wire, method, path, body), seconds=seconds)


async def call_json(target: Target, method: str, path: str, body: Any = None, seconds: float = 15.0) -> Any:
    """The JSON answer of a plain request, or None if it failed or is no JSON."""
    exchange = await call(target, method, path, body, seconds)
    if exchange.failure():
        return None
    try:
        return orjson.loads(exchange.body)
    except orjson.JSONDecodeError:
        return None


async def detect(target: Target) -> Target:
    """The same target with kind, route, model and abilities found out, by asking and by two short answers.

    Raises:
        TargetError: nothing answers there, the key is refused, or no route gives a stream.
    """
    if target.ready:
        return target
    try:
        Wire.to(target.base_url)
    except WireError as error:
        raise TargetError(str(error)) from error
    target = await _detect_kind(target)
    target = await _detect_model(target)
    routes = [target.route]
    if target.route == "auto":
        routes = ["generate", "completions"] if target.kind == "sglang" else ["completions", "chat"]
    reasons = []
    for route in routes:
        found, why = await _try_route(dataclasses.replace(target, route=route))
        if found is not None:
            return found
        reasons.append(f"{ROUTES[route]}: {why}")
    raise TargetError(f"{target.base_url} gives no stream. {'; '.join(reasons)}")


async def _detect_kind(target: Target) -> Target:
    if target.kind is not None and target.info_path is not None:
        return target
    for path in ("/server_info", "/get_server_info"):
        exchange = await call(target, "GET", path)
        if exchange.status == 0:
            raise TargetError(f"{target.base_url} does not answer: {exchange.failure()}")
        if exchange.status in (401, 403):
            raise TargetError(
                f"{target.base_url} refuses the key (HTTP {exchange.status} on {path}): "
                "give the server's API key, as the header Authorization: Bearer KEY."
            )
        info = _mapping(exchange)
        if exchange.status == 200 and (
            "internal_states" in info or "max_total_num_tokens" in info or "tp_size" in info
        ):
            return dataclasses.replace(target, kind="sglang", info=_of_interest(info), info_path=path)
    return dataclasses.replace(target, kind=target.kind or "openai")


def _mapping(exchange: Exchange) -> dict[str, Any]:
    try:
        found = orjson.loads(exchange.body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_interest(info: dict[str, Any]) -> dict[str, Any]:
    """A few plain values; a server_info may hold keys and paths that belong in no record."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    names = (
        "version", "max_total_num_tokens", "max_running_requests", "context_length", "stream_interval", "tp_size",
        "pp_size", "ep_size", "dp_size", "chunked_prefill_size", "attention_backend", "kv_cache_dtype",
        "speculative_algorithm", "disable_radix_cache", "incremental_streaming_output", "page_size", "simulated",
        "decode_log_interval",
    )  # fmt: skip
    found = {name: info[name] for name in names if isinstance(info.get(name), (int, float, str, bool))}
    for name, inner in (
        ("max_total_num_tokens", "max_total_num_tokens"),
        ("max_running_requests", "effective_max_running_requests_per_dp"),
    ):
        if isinstance(state.get(inner), int):
            found.setdefault(name, state[inner])
    return found


async def _detect_model(target: Target) -> Target:
    listed = await call_json(target, "GET", "/v1/models")
    data = listed.get("data") if isinstance(listed, dict) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    info = dict(target.info)
    if isinstance(first.get("max_model_len"), int):
        info.setdefault("context_length", first["max_model_len"])
        info["context_length"] = first["max_model_len"]
    model = target.model or first.get("id") or "default"
    return dataclasses.replace(target, model=str(model), info=info)


async def _try_route(target: Target) -> tuple[Target | None, str]:
    """Two short answers: drop what the server refuses, until one works."""
    why = ""
    candidates = [Abilities(), Abilities(token_ids=False), Abilities(token_ids=False, ignore_eos=False),
                  Abilities(token_ids=False, ignore_eos=False, stream_options=False)]  # fmt: skip
    if target.route == "chat":
        candidates = candidates[1:]
    for abilities in candidates:
        candidate = dataclasses.replace(target, abilities=abilities)
        exchange = await try_once(candidate, list(range(300, 332)) if abilities.token_ids else "the way home " * 8, 8)
        failure = exchange.failure()
        if failure is None:
            return await _settled(candidate, exchange), ""
        why = failure
        if exchange.status not in (400, 422, 500):
            break
    return None, why


async def _settled(target: Target, exchange: Exchange) -> Target:
    """Ask for usage with each event if events and tokens differ in number and the server can tell."""
    answer, abilities = exchange.answer, target.abilities
    if target.route == "generate" or answer.completion_tokens in (None, len(answer.times)) or answer.counts:
        return target
    more = dataclasses.replace(target, abilities=dataclasses.replace(abilities, usage_each_event=True))
    again = await try_once(more, "the way home " * 8, 8)
    return more if again.failure() is None and len(again.answer.counts) == len(again.answer.times) > 0 else target


async def try_once(
    target: Target, prompt: list[int] | str, output_tokens: int, seconds: float = 120.0, keep_text: bool = False
) -> Exchange:
    """One streamed answer."""
    wire = Wire.to(target.base_url)
    body = body_of(target, prompt, output_tokens)
    request = request_bytes(wire, "POST", ROUTES[target.route], body, dict(target.headers))
    return await ask(wire, request, reader(target.route), seconds, keep_text)


def body_of(
    target: Target,
    prompt: list[int] | str | list[dict[str, Any]],
    output_tokens: int,
    *,
    ignore_eos: bool = True,
    temperature: float = 0.0,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON body of one streamed request: a prompt as ids, text, or messages (chat only)."""
    abilities = target.abilities or Abilities()
    if target.route == "generate":
        key = "text" if isinstance(prompt, str) else "input_ids"
        sampling = {"max_new_tokens": output_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
        return orjson.dumps({key: prompt, "sampling_params": sampling, "stream": True, **(extra or {})})
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": output_tokens,
        "temperature": temperature,
        "stream": True,
    }
    if abilities.stream_options:
        body["stream_options"] = {"include_usage": True}
        if abilities.usage_each_event:
            body["stream_options"]["continuous_usage_stats"] = True
    if ignore_eos and abilities.ignore_eos:
        body["ignore_eos"] = True
    if target.route == "chat":
        body["messages"] = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return orjson.dumps({**body, **(extra or {})})


async def wait_idle(target: Target, seconds: float = 60.0) -> bool:
    """Wait until an SGLang engine runs and queues nothing; False if it still does after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        loads = await load_of(target)
        if loads is None or (loads["running"] == 0 and loads["waiting"] == 0):
            return True
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.1)


async def load_of(target: Target) -> dict[str, Any] | None:
    """Requests running and waiting and tokens held, over all data-parallel ranks; None if the server tells not."""
    body = await call_json(target, "GET", "/v1/loads", seconds=5)
    if isinstance(body, dict) and isinstance(body.get("loads"), list):
        return _sum_loads(body["loads"], "num_running_reqs", "num_waiting_reqs", "num_used_tokens")
    body = await call_json(target, "GET", "/get_load", seconds=5)
    if isinstance(body, list):
        found = _sum_loads(body, "num_reqs", "num_waiting_reqs", "num_tokens")
        found["running"] -= found["waiting"]
        return found
    return None


def _sum_loads(ranks: list[Any], running: str, waiting: str, tokens: str) -> dict[str, Any]:
    ranks = [rank for rank in ranks if isinstance(rank, dict)]

    def total(key: str) -> float:
        return sum(rank[key] for rank in ranks if isinstance(rank.get(key), (int, float)))

    return {
        "running": total(running),
        "waiting": total(waiting),
        "tokens": total(tokens),
        "capacity": total("max_total_num_tokens") or None,
        "max_running": total("max_running_requests") or None,
    }
