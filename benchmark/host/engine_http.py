"""What a host asks its own engine over loopback.

By the standard library: a verb asks one or two questions, and a client library costs more to load than to use.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
import threading
from typing import Any, Literal

from ..engine.secrets import masked
from .settings import Settings

Health = Literal["refused", "starting", "healthy", "unhealthy"]

_SECONDS = 3.0
_GENERATE_SECONDS = 6.0
_MOST_BYTES = 4 << 20
"""Of an answer; /server_info of a large engine has some tens of KiB."""


def base_url(settings: Settings) -> str:
    """The engine's address as seen from its own host (an engine on all addresses is asked over loopback)."""
    host = _host(settings)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def health(settings: Settings) -> Health:
    try:
        status, _ = _ask(settings, "GET", "/health")
    except ConnectionError:
        return "refused"
    except (OSError, http.client.HTTPException):
        return "unhealthy"
    return {200: "healthy", 503: "starting"}.get(status, "unhealthy")


def generates(settings: Settings) -> str | None:
    """One real token: None when it came, otherwise what went wrong. /health alone is green over a dead scheduler."""
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
    try:
        status, text = _ask(settings, "POST", "/generate", body, seconds=_GENERATE_SECONDS)
        told = json.loads(text) if status < 400 else None
        tokens = _of(_of(told, "meta_info"), "completion_tokens")
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return None if _number(tokens) and tokens else masked(f"HTTP {status}: {text[:200].decode(errors='replace')}")


def server_info(settings: Settings) -> dict[str, Any]:
    """/server_info, or its older name; {} where neither answers."""
    return _json(settings, "/server_info") or _json(settings, "/get_server_info") or {}


def loads(settings: Settings) -> dict[str, Any]:
    """/v1/loads: memory and token capacity as the engine itself counts them; {} where it does not answer."""
    return _json(settings, "/v1/loads") or {}


def memory(settings: Settings) -> dict[str, float]:
    """The first rank's memory, as /v1/loads tells it: those of {"weight_gb", "kv_cache_gb", "graph_gb",
    "token_capacity"} that are numbers."""
    told = loads(settings).get("loads")
    first = told[0] if isinstance(told, list) and told else None
    named = _of(first, "memory")
    return {key: value for key, value in named.items() if _number(value)} if isinstance(named, dict) else {}


def _of(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _number(value: Any) -> bool:
    """Whether it is a size or a count: JSON as Python reads it has NaN and Infinity too."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e15
    )


def _json(settings: Settings, path: str) -> dict[str, Any] | None:
    try:
        status, text = _ask(settings, "GET", path)
        found = json.loads(text) if status < 400 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _host(settings: Settings) -> str:
    return "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host


def _ask(
    settings: Settings, method: str, path: str, body: Any = None, *, seconds: float | None = None
) -> tuple[int, bytes]:
    """(status, body) of one request on a connection of its own.

    Raises:
        ConnectionError: nobody listens, or whoever does hangs up.
        OSError, HTTPException: no whole answer in time, one that is too long, or one that is not HTTP.
    """
    seconds = seconds or _SECONDS
    connection = http.client.HTTPConnection(_host(settings), settings.port, timeout=seconds)
    over = threading.Event()
    connection.connect()
    # The socket's own limit is one between two bytes: an answer that drips would outlast it.
    limit = threading.Timer(seconds, _hang_up, (connection.sock, over))
    limit.daemon = True
    limit.start()
    try:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise http.client.HTTPException(f"the answer is longer than {_MOST_BYTES >> 20} MiB")
        if over.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} s")
        return answer.status, text
    except (OSError, http.client.HTTPException):
        if over.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} s") from None
        raise
    finally:
        limit.cancel()
        connection.close()


def _hang_up(connected: socket.socket, over: threading.Event) -> None:
    over.set()
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
