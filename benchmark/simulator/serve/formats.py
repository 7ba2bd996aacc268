"""Answers as the engine writes them. Streamed chunks are put together by hand: there are thousands a second."""

from __future__ import annotations

import json
import time
from typing import Any

from .request import Request

DONE = b"data: [DONE]\n\n"


def quoted(text: str) -> str:
    """A string as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _finish(request: Request) -> str:
    return "null" if request.finish is None else json.dumps(request.finish, separators=(",", ":"))


def _cached_details(request: Request) -> str:
    return f'{{"device":{request.cached},"host":0}}' if request.cached else "null"


def meta_info(request: Request, count: int, first: bool, last: bool) -> str:
    """The `meta_info` of /generate as JSON text, for an answer of `count` tokens so far."""
    text = (
        f'{{"id":"{request.id}","finish_reason":{_finish(request) if last else "null"},'
        f'"prompt_tokens":{len(request.prompt)},"weight_version":"default",'
        f'"total_retractions":{request.retractions},"queue_time":0.0,"prefill_waiting_latency":null,'
        f'"prefill_launch_latency":null,"reasoning_tokens":0,"completion_tokens":{count},'
        f'"cached_tokens":{request.cached},"cached_tokens_details":{_cached_details(request)},"dp_rank":null'
    )
    if last:
        decoding = request.finished - request.first_token
        rate = (count - 1) / decoding if decoding > 0 and count > 1 else 0.0
        text += (
            f',"e2e_latency":{request.finished - request.received},"request_received_ts":{request.received},'
            f'"api_server_dispatch_finish_ts":{request.dispatched},'
            f'"response_sent_to_client_ts":{request.first_token},"request_finished_ts":{request.finished},'
            f'"inference_time":{request.finished - request.dispatched},"decode_throughput":{rate}'
        )
    elif first:
        text += f',"response_sent_to_client_ts":{time.time()}'
    return text + "}"


class GenerateStream:
    """Chunks of /generate: text and ids since the beginning, or (`deltas`) since the last chunk."""

    def __init__(self, request: Request, deltas: bool, index: int | None = None):
        self.request = request
        self.deltas = deltas
        self.index = "" if index is None else f',"index":{index}'
        self.seen = 0
        self._text = ""
        self._ids = ""

    def chunk(self) -> bytes:
        """Everything announced since the last call."""
        request = self.request
        end, last = request.announced, request.finish is not None
        new_text = "".join(request.pieces[self.seen : end])
        new_ids = ",".join(map(str, request.output[self.seen : end]))
        if self.deltas or not self.seen:
            self._text, self._ids = new_text, new_ids
        else:
            self._text += new_text
            self._ids += f",{new_ids}" if new_ids else ""
        first, self.seen = self.seen == 0, end
        return (
            f'data: {{"text":"{self._text}","output_ids":[{self._ids}],'
            f'"meta_info":{meta_info(request, end, first, last)}{self.index}}}\n\n'
        ).encode()

    def tail(self) -> bytes:
        """What follows the last chunk."""
        return b""


def generate_body(request: Request, logprobs: bool = False) -> str:
    """A whole answer of /generate as JSON text; `logprobs` come as the engine's: [log-probability, id, null]."""
    ids = ",".join(map(str, request.output))
    text = quoted("".join(request.pieces))
    meta = meta_info(request, len(request.output), False, True)
    if logprobs:
        told = ",".join(f"[{logprob(token)},{token},null]" for token in request.output)
        meta = f'{meta[:-1]},"output_token_logprobs":[{told}]}}'
    return f'{{"text":{text},"output_ids":[{ids}],"meta_info":{meta}}}'


def logprob(token: int) -> float:
    """A log-probability that goes with a token: -0.01 to -0.26, as of a model that is sure of its text."""
    return -0.01 * (1 + token % 26)


def finish_fields(request: Request) -> tuple[str, str]:
    """(finish_reason, matched_stop) of the OpenAI dialect, as JSON text."""
    finish = request.finish or {}
    return json.dumps(finish.get("type")), json.dumps(finish.get("matched"))


def usage(prompt: int, completion: int, cached: int | None, chat: bool) -> str:
    """The `usage` object as JSON text; `cached` is None unless the engine reports its cache."""
    details = "null" if cached is None else f'{{"cached_tokens":{cached}}}'
    middle = f'"prompt_tokens_details":{details},' if chat or cached is not None else ""
    return (
        f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion},'
        f'"completion_tokens":{completion},{middle}"reasoning_tokens":0}}'
    )


class CompletionStream:
    """Chunks of /v1/completions."""

    def __init__(self, request: Request, model: str, index: int = 0, head: str | None = None):
        self.request = request
        self.seen = 0
        answer_id = head or request.id
        self._head = (
            f'data: {{"id":"{answer_id}","object":"text_completion","created":{int(request.received)},'
            f'"model":{quoted(model)},"choices":[{{"index":{index},"text":"'
        )

    def chunk(self) -> bytes:
        """Everything announced since the last call."""
        request = self.request
        end = request.announced
        text = "".join(request.pieces[self.seen : end])
        self.seen = end
        reason, matched = finish_fields(request)
        return (
            f'{self._head}{text}","logprobs":null,"finish_reason":{reason},"matched_stop":{matched}}}],'
            '"usage":null}\n\n'
        ).encode()

    def tail(self) -> bytes:
        """What follows the last chunk."""
        return b""


class ChatStream:
    """Chunks of /v1/chat/completions: the role first, the finish reason in a chunk of its own."""

    def __init__(self, request: Request, model: str, index: int = 0, head: str | None = None):
        self.request = request
        self.seen = 0
        answer_id = head or request.id
        self._head = (
            f'data: {{"id":"{answer_id}","object":"chat.completion.chunk","created":{int(request.received)},'
            f'"model":{quoted(model)},"choices":[{{"index":{index},"delta":{{"reasoning_content":null'
        )

    def chunk(self) -> bytes:
        """Everything announced since the last call."""
        request = self.request
        end = request.announced
        text = "".join(request.pieces[self.seen : end])
        first, self.seen = self.seen == 0, end
        tail = '"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
        content = f'{self._head},"content":"{text}{tail}' if text or end else ""
        role = f'{self._head},"role":"assistant","content":"{tail}' if first else ""
        return (role + content).encode()

    def tail(self) -> bytes:
        """What follows the last chunk."""
        reason, matched = finish_fields(self.request)
        return (f'{self._head}}},"logprobs":null,"finish_reason":{reason},"matched_stop":{matched}}}]}}\n\n').encode()


def usage_chunk(answer_id: str, created: int, model: str, usage_text: str, chat: bool) -> bytes:
    """The last chunk, asked for with `include_usage`: no choices, only the usage."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    return (
        f'data: {{"id":"{answer_id}","object":"{kind}","created":{created},"model":{quoted(model)},'
        f'"choices":[],"usage":{usage_text}}}\n\n'
    ).encode()


def openai_body(requests: list[Request], model: str, prompt_tokens: int, cached: int | None, chat: bool) -> str:
    """A whole answer of /v1/completions or /v1/chat/completions as JSON text, one choice a request."""
    choices = []
    for index, request in enumerate(requests):
        reason, matched = finish_fields(request)
        text = quoted("".join(request.pieces))
        content = (
            f'"message":{{"role":"assistant","content":{text},"reasoning_content":null,"tool_calls":null}}'
            if chat
            else f'"text":{text}'
        )
        choices.append(
            f'{{"index":{index},{content},"logprobs":null,"finish_reason":{reason},"matched_stop":{matched}}}'
        )
    first = requests[0]
    completion = sum(len(request.output) for request in requests)
    return (
        f'{{"id":"{first.id}","object":"{"chat.completion" if chat else "text_completion"}",'
        f'"created":{int(first.received)},"model":{quoted(model)},"choices":[{",".join(choices)}],'
        f'"usage":{usage(prompt_tokens, completion, cached, chat)},"metadata":{{"weight_version":"default"}}}}'
    )


def error_body(message: str, code: int, kind: str = "BadRequestError") -> dict[str, Any]:
    """An error of the OpenAI routes."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}
