"""What a host asks its own engine over loopback.

By the standard library: a verb asks one or two questions, and a client library costs more to load than to use.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Literal

from ..engine.secrets import masked
from .settings import Settings

Health = Literal["refused", "starting", "healthy", "unhealthy"]

_SECONDS = 3.0
_GENERATE_SECONDS = 6.0


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
        tokens = json.loads(text).get("meta_info", {}).get("completion_tokens") if status < 400 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None if tokens else masked(f"HTTP {status}: {text[:200].decode(errors='replace')}")


def server_info(settings: Settings) -> dict[str, Any]:
    """/server_info, or its older name; {} where neither answers."""
    return _json(settings, "/server_info") or _json(settings, "/get_server_info") or {}


def loads(settings: Settings) -> dict[str, Any]:
    """/v1/loads: memory and token capacity as the engine itself counts them; {} where it does not answer."""
    return _json(settings, "/v1/loads") or {}


def _json(settings: Settings, path: str) -> dict[str, Any] | None:
    try:
        status, text = _ask(settings, "GET", path)
        found = json.loads(text) if status < 400 else None
    except (OSError, http.client.HTTPException, ValueError):
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
        OSError, HTTPException: no answer in time (seconds without a byte), or one that is not HTTP.
    """
    connection = http.client.HTTPConnection(_host(settings), settings.port, timeout=seconds or _SECONDS)
    try:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
