"""The routes that generate: /generate, /v1/completions and /v1/chat/completions, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from benchmark.simulator.launch import texts

from . import formats, tokens
from .engine import Engine
from .request import Request, RequestError

Send = Callable[[dict[str, Any]], Awaitable[None]]
Stream = formats.GenerateStream | formats.CompletionStream | formats.ChatStream


class EventStream(Response):
    """Server-sent events of one or more requests; a client that goes away aborts them."""

    media_type = "text/event-stream"

    def __init__(self, engine: Engine, streams: Sequence[Stream], end: Callable[[], bytes]):
        super().__init__()
        del self.headers["content-length"]
        self.engine = engine
        self.streams = streams
        self.end = end
        """What comes between the last chunk and [DONE]."""

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(self._disconnected(receive))
        try:
            if len(self.streams) == 1:
                await self._follow(self.streams[0], send)
            else:
                await asyncio.gather(*(self._follow(stream, send) for stream in self.streams))
            if not any(stream.request.aborted for stream in self.streams):
                await send({"type": "http.response.body", "body": self.end() + formats.DONE, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            for stream in self.streams:
                self.engine.close(stream.request)

    async def _follow(self, stream: Stream, send: Send) -> None:
        request = stream.request
        while True:
            await request.progress(stream.seen)
            if request.aborted:
                return
            body = stream.chunk()
            if request.finish is not None:
                await send({"type": "http.response.body", "body": body + stream.tail(), "more_body": True})
                return
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _disconnected(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for stream in self.streams:
            self.engine.scheduler.abort(stream.request)


def _bad_request(message: str, code: int = 400) -> Response:
    return JSONResponse(formats.error_body(message, code), status_code=code)


async def _read(http: HttpRequest) -> dict[str, Any]:
    """The body as an object.

    Raises:
        RequestError: not JSON, or not an object.
    """
    try:
        body = orjson.loads(await http.body())
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("The body is not a JSON object.")
    return body


async def _finished(engine: Engine, http: HttpRequest, requests: Sequence[Request]) -> bool:
    """Waits for whole answers; False if the client went away before (the requests are aborted)."""

    async def everything() -> None:
        for request in requests:
            while request.finish is None:
                await request.progress(len(request.output))

    work = asyncio.ensure_future(everything())
    try:
        while not work.done():
            await asyncio.wait([work], timeout=1.0)
            if not work.done() and await http.is_disconnected():
                return False
        return not any(request.aborted for request in requests)
    finally:
        work.cancel()
        for request in requests:
            engine.close(request)


def _prompts(engine: Engine, body: Mapping[str, Any], text_key: str, ids_key: str) -> tuple[list, bool]:
    """(prompts as ids, whether there was a list of them).

    Raises:
        RequestError: no prompt, or not text and not ids.
    """
    value = body.get(ids_key)
    if value is None:
        value = body.get(text_key)
    if isinstance(value, str):
        return [engine.encode(value)], False
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return [value], False
    if isinstance(value, list) and value and all(isinstance(item, (str, list)) for item in value):
        prompts = [engine.encode(item) if isinstance(item, str) else item for item in value]
        if all(type(token) is int for prompt in prompts for token in prompt):
            return prompts, True
    raise RequestError(f"Either {text_key} or {ids_key} must be provided: text, token ids, or a list of them.")


async def generate(http: HttpRequest) -> Response:
    """POST /generate. Streamed text and ids are cumulative; a refused stream is HTTP 200 with an error event."""
    engine: Engine = http.app.state.engine
    stream = False
    try:
        body = await _read(http)
        stream = bool(body.get("stream"))
        prompts, many = _prompts(engine, body, "text", "input_ids")
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise RequestError("sampling_params must be one object.")
        requests = [
            engine.request(prompt, sampling, stream=stream, default_max=128, number=number)
            for number, prompt in enumerate(prompts)
        ]
        for request in requests:
            engine.submit(request)
    except RequestError as error:
        texts.log(f"[http_server] Error: {error}")
        if stream:
            event = b"data: " + orjson.dumps({"error": {"message": str(error)}}) + b"\n\n" + formats.DONE
            return Response(event, media_type="text/event-stream")
        return JSONResponse({"error": {"message": str(error)}}, status_code=400)
    if stream:
        arguments = engine.blueprint.arguments
        deltas = bool(arguments["incremental_streaming_output"] or arguments["stream_output"])
        streams = [
            formats.GenerateStream(request, deltas, number if many else None) for number, request in enumerate(requests)
        ]
        return EventStream(engine, streams, bytes)
    if not await _finished(engine, http, requests):
        return Response(status_code=499)
    logprobs = bool(body.get("return_logprob"))
    whole = [formats.generate_body(request, logprobs) for request in requests]
    return Response("[" + ",".join(whole) + "]" if many else whole[0], media_type="application/json")


async def _openai(http: HttpRequest, chat: bool) -> Response:
    engine: Engine = http.app.state.engine
    try:
        body = await _read(http)
        prompts, default_max = _openai_prompts(engine, body, chat)
        model = body.get("model")
        model = model if isinstance(model, str) else engine.model_name
        count = body.get("n") or 1
        if type(count) is not int or not 0 < count <= 64:
            raise RequestError("n must be between 1 and 64.")
        stream = bool(body.get("stream"))
        requests = [
            engine.request(prompt, body, stream=stream, default_max=default_max, number=number)
            for prompt in prompts
            for number in range(count)
        ]
        for request in requests:
            engine.submit(request)
    except RequestError as error:
        texts.log(f"[http_server] Error: {error}")
        full = str(error).startswith("The request queue is full")
        return _bad_request(str(error), 503 if full else 400)
    prompt_tokens = sum(map(len, prompts))
    if stream:
        return _openai_stream(engine, requests, body, model, prompt_tokens, chat)
    if not await _finished(engine, http, requests):
        return Response(status_code=499)
    answer = formats.openai_body(requests, model, prompt_tokens, _cached(engine, requests), chat)
    return Response(answer, media_type="application/json")


def _openai_prompts(engine: Engine, body: Mapping[str, Any], chat: bool) -> tuple[list, int | None]:
    if not chat:
        return _prompts(engine, body, "prompt", "prompt")[0], 16
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise RequestError("messages must be a list of at least one message.")
    return [tokens.encode_chat(messages, engine.blueprint.vocabulary)], None


def _cached(engine: Engine, requests: Sequence[Request]) -> int | None:
    if not engine.blueprint.arguments["enable_cache_report"]:
        return None
    return sum(request.cached for request in requests)


def _openai_stream(
    engine: Engine,
    requests: list[Request],
    body: Mapping[str, Any],
    model: str,
    prompt_tokens: int,
    chat: bool,
) -> Response:
    options = body.get("stream_options")
    with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    with_usage = with_usage or bool(engine.blueprint.arguments["stream_response_default_include_usage"])
    kind = formats.ChatStream if chat else formats.CompletionStream
    head = requests[0].id
    streams = [kind(request, model, index, head) for index, request in enumerate(requests)]

    def end() -> bytes:
        if not with_usage:
            return b""
        completion = sum(len(request.output) for request in requests)
        text = formats.usage(prompt_tokens, completion, _cached(engine, requests), chat)
        return formats.usage_chunk(head, int(requests[0].received), model, text, chat)

    return EventStream(engine, streams, end)


async def completions(http: HttpRequest) -> Response:
    """POST /v1/completions."""
    return await _openai(http, chat=False)


async def chat_completions(http: HttpRequest) -> Response:
    """POST /v1/chat/completions."""
    return await _openai(http, chat=True)
