"""What a host asks its own engine over loopback."""

from __future__ import annotations

from typing import Any, Literal

import requests

from .settings import Settings

Health = Literal["refused", "starting", "healthy", "unhealthy"]

_SECONDS = 3.0
_GENERATE_SECONDS = 6.0


def base_url(settings: Settings) -> str:
    """The engine's address as seen from its own host (an engine on all addresses is asked over loopback)."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def health(settings: Settings) -> Health:
    try:
        status = requests.get(f"{base_url(settings)}/health", timeout=_SECONDS).status_code
    except requests.ConnectionError:
        return "refused"
    except requests.RequestException:
        return "unhealthy"
    return {200: "healthy", 503: "starting"}.get(status, "unhealthy")


def generates(settings: Settings) -> str | None:
    """One real token: None when it came, otherwise what went wrong. /health alone is green over a dead scheduler."""
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
    try:
        answer = requests.post(f"{base_url(settings)}/generate", json=body, timeout=_GENERATE_SECONDS)
        tokens = answer.json().get("meta_info", {}).get("completion_tokens") if answer.ok else None
    except (requests.RequestException, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None if tokens else f"HTTP {answer.status_code}: {answer.text[:200]}"


def server_info(settings: Settings) -> dict[str, Any]:
    """/server_info, or its older name; {} where neither answers."""
    return _json(settings, "/server_info") or _json(settings, "/get_server_info") or {}


def loads(settings: Settings) -> dict[str, Any]:
    """/v1/loads: memory and token capacity as the engine itself counts them; {} where it does not answer."""
    return _json(settings, "/v1/loads") or {}


def _json(settings: Settings, path: str) -> dict[str, Any] | None:
    try:
        answer = requests.get(f"{base_url(settings)}{path}", timeout=_SECONDS)
        found = answer.json() if answer.ok else None
    except (requests.RequestException, ValueError):
        return None
    return found if isinstance(found, dict) else None
