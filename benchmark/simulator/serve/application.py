"""The web application: routes, the API key, and counting, around one engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from . import answers, status
from .engine import Engine

_OPEN_TO_ALL = ("/health", "/ready", "/metrics")
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


class Gate:
    """Asks for the API key where one is set, and counts requests and answers by route."""

    def __init__(self, app: Any, engine: Engine):
        self.app = app
        self.engine = engine
        arguments = engine.blueprint.arguments
        self.keys = {key for key in (arguments["api_key"], arguments["admin_api_key"]) if key}

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        known = path if path in PATHS else "other"
        requests, responses = self.engine.http_requests, self.engine.http_responses
        requests[known, method] = requests.get((known, method), 0) + 1

        async def counted(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                key = (known, method, message["status"])
                responses[key] = responses.get(key, 0) + 1
            await send(message)

        if self.keys and not path.startswith(_OPEN_TO_ALL) and not self._authorized(scope):
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, counted)
            return
        await self.app(scope, receive, counted)

    def _authorized(self, scope: Mapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return given.removeprefix("Bearer ") in self.keys


ROUTES: tuple[tuple[str, Callable[..., Awaitable[Any]], tuple[str, ...]], ...] = (
    ("/health", status.health, ("GET",)),
    ("/health_generate", status.health, ("GET",)),
    ("/model_info", status.model_info, ("GET",)),
    ("/get_model_info", status.model_info, ("GET",)),
    ("/server_info", status.server_info, ("GET",)),
    ("/get_server_info", status.server_info, ("GET",)),
    ("/v1/models", status.models, ("GET",)),
    ("/v1/loads", status.loads, ("GET",)),
    ("/get_load", status.get_load, ("GET",)),
    ("/flush_cache", status.flush_cache, ("GET", "POST")),
    ("/generate", answers.generate, ("POST", "PUT")),
    ("/v1/completions", answers.completions, ("POST",)),
    ("/v1/chat/completions", answers.chat_completions, ("POST",)),
)
PATHS = {path for path, _, _ in ROUTES} | {"/metrics"}


def build(engine: Engine, lifespan: Lifespan) -> Starlette:
    """The application; its state carries the engine."""
    routes = [Route(path, endpoint, methods=list(methods)) for path, endpoint, methods in ROUTES]
    if engine.blueprint.arguments["enable_metrics"]:
        routes.append(Route("/metrics", status.metrics, methods=["GET"]))
    application = Starlette(routes=routes, middleware=[Middleware(Gate, engine)], lifespan=lifespan)
    application.state.engine = engine
    return application
