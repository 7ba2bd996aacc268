"""Every stream that two other servers sent: right values, however its bytes are cut."""

import ast
import json
import random
import re
from itertools import pairwise

import pytest

from .replay import CAPTURES, replay, replay_at

FOLDERS = ("llama-server", "transformers-serve", "transformers-serve-cb")


def streams():
    for folder in FOLDERS:
        for raw in sorted((CAPTURES / "other-servers" / folder).glob("*.raw")):
            request = raw.with_suffix(".request")
            if request.exists() and b'"stream": true' in request.read_bytes():
                yield pytest.param(raw, id=f"{folder}/{raw.stem}")


def plain_reading(raw: bytes) -> dict:
    """The answer read in the most pedestrian way: unchunk by hand, split at blank lines, parse every event."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    chunked = b"transfer-encoding: chunked" in head.lower()
    body, whole = b"", not chunked
    while chunked and rest:
        size, gap, rest = rest.partition(b"\r\n")
        if not gap:
            break
        length = int(size, 16)
        if length == 0:
            whole = True
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    events = [
        json.loads(line[6:])
        for line in (body if chunked else rest).split(b"\n")
        if line.startswith(b"data: ") and line not in (b"data: [DONE]", b"data: null")
    ]
    choices = [(event, choice) for event in events for choice in event.get("choices") or []]
    texts = [choice for _, choice in choices if choice.get("text") or (choice.get("delta") or {}).get("content")]
    # Usage beside a choice is that choice's; without one it is everything's.
    usages = {}
    for event in events:
        if event.get("usage"):
            index = event["choices"][0]["index"] if event["choices"] else "all"
            usages[index] = event["usage"]["completion_tokens"]
    reasons = [choice["finish_reason"] for _, choice in choices if choice.get("finish_reason")]
    return {
        "status": int(raw.split(b" ", 2)[1]) if raw else 0,
        "whole": whole,
        "text_events": len(texts),
        "tokens": usages.get("all", sum(usages.values())) if usages else None,
        "reason": reasons[-1] if reasons else None,
        "error": any("error" in event for event in events),
    }


def route_of(raw):
    return "chat" if b"/chat/" in raw.with_suffix(".request").read_bytes().split(b"\r\n", 1)[0] else "completions"


@pytest.mark.parametrize("raw", list(streams()))
def test_every_stream(raw):
    data = raw.read_bytes()
    true = plain_reading(data)
    draw = random.Random(raw.stem)
    cuts = sorted(draw.sample(range(len(data)), min(len(data) // 2, 300))) if data else []
    edges = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges) if b > a]
    for cut in ([data] if data else [], pieces):
        exchange = replay(data, route_of(raw), cut)
        answer = exchange.answer
        assert exchange.status == true["status"]
        if true["status"] == 200:
            assert len(answer.times) == true["text_events"]
            assert answer.completion_tokens == true["tokens"]
            assert answer.finish_reason == true["reason"]
        good = true["status"] == 200 and true["whole"] and not true["error"] and true["reason"] is not None
        assert (exchange.failure() is None) == good


# By hand, from the table in captures/other-servers/README.md:
# folder/name: (token events, completion tokens, finish reason, [DONE] seen, failure)
BY_HAND = {
    "llama-server/completions_stream": (15, 16, "length", True, None),
    "llama-server/completions_stream_temp1": (57, 64, "length", True, None),
    "llama-server/chat_stream": (11, None, "length", True, None),
    "llama-server/chat_stream_usage": (11, 16, "length", True, None),
    "llama-server/eos_natural": (1, 2, "stop", True, None),
    "llama-server/eos_min_tokens": (1, 2, "stop", True, None),
    "llama-server/eos_ignore_eos": (16, 16, "length", True, None),
    "llama-server/max_tokens_0": (1, 1, "length", True, None),
    # Two answers of four tokens each, each with a usage of its own.
    "llama-server/batch_prompt": (7, 8, "length", True, None),
    "llama-server/n_2": (6, 8, "length", True, None),
    "llama-server/disconnect": (5, None, None, False, "the connection closed before the answer was whole"),
    "llama-server/chat_overlong_stream": (0, None, None, False, "HTTP 400: request (9012 tokens) exceeds"),
    "llama-server/keepalive_1": (0, None, None, False, "the connection closed without an answer"),
    "transformers-serve/completions_stream": (12, 16, "length", False, None),
    "transformers-serve/chat_stream": (8, 16, "length", False, None),
    "transformers-serve/chat_max_tokens_1": (0, 1, "length", False, None),
    "transformers-serve/completions_overlong_stream": (0, 4, "length", False, None),
    "transformers-serve/http10": (3, 4, "length", False, None),
    "transformers-serve/max_tokens_0": (0, None, None, False, "error inside a 200: `max_new_tokens` must be greater"),
    "transformers-serve/completions_stream_ignore_eos": (0, None, None, False, "HTTP 422: Unexpected fields in the"),
    "transformers-serve-cb/poison_empty_prompt": (0, None, None, False, "error inside a 200: cannot reshape tensor"),
    "transformers-serve-cb/poison_after": (0, None, None, False, "HTTP 503: CB worker is dead"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    raw = CAPTURES / "other-servers" / f"{name}.raw"
    events, tokens, reason, done, failure = BY_HAND[name]
    data = raw.read_bytes()
    exchange = replay(data, route_of(raw), [data] if data else [])
    answer = exchange.answer
    assert (len(answer.times), answer.completion_tokens, answer.finish_reason) == (events, tokens, reason)
    assert answer.done_seen is done
    if failure is None:
        assert exchange.failure() is None
    else:
        assert re.match(re.escape(failure), exchange.failure())


def reads(raw):
    """(nanoseconds since the request was sent, bytes) of each read of a captured stream."""
    found: dict[int, bytes] = {}
    for line in raw.with_suffix(".lines.tsv").read_text().splitlines():
        at, _, text = line.partition("\t")
        if text.startswith(("b'", 'b"')):
            at_ns = round(float(at) * 1e9)
            found[at_ns] = found.get(at_ns, b"") + ast.literal_eval(text)
    return list(found.items())


# By hand, from the lines.tsv: microseconds of the head, of the first event with text, of the last one, of the end.
# Six requests at once: llama-server runs four and says nothing to the others; transformers serve runs one and answers
# all with a head at once.
TIMES_BY_HAND = {
    "llama-server/crowd_0": (3064, 23074, 210879, 210879),
    "llama-server/crowd_1": (2593, 23905, 199105, 199105),
    "llama-server/crowd_2": (2551, 22421, 191235, 191572),
    "llama-server/crowd_3": (2403, 22281, 206443, 206443),
    "llama-server/crowd_4": (210027, 210027, 288910, 288910),
    "llama-server/crowd_5": (209648, 209648, 288055, 288327),
    "transformers-serve/crowd_0": (11278, 22910, 411019, 411611),
    "transformers-serve/crowd_1": (20027, 833038, 1230118, 1230775),
    "transformers-serve/crowd_2": (20913, 1235163, 1649816, 1649816),
    "transformers-serve/crowd_3": (11443, 415488, 828118, 833623),
    "transformers-serve/crowd_4": (20768, 1656280, 2052773, 2053443),
    "transformers-serve/crowd_5": (19424, 2055891, 2432326, 2432911),
    "llama-server/chat_stream": (2284, 2503, 5255, 5848),
    "llama-server/chat_stream_usage": (3039, 3039, 4295, 5050),
    "transformers-serve/chat_stream": (8447, 39248, 56335, 59891),
    "transformers-serve/chat_stream_usage": (4758, 28433, 47624, 51371),
    "transformers-serve-cb/chat_stream": (8225, 22634, 45068, 49381),
    "transformers-serve-cb/chat_stream_usage": (11060, 12257, 41037, 45916),
}


@pytest.mark.parametrize("name", TIMES_BY_HAND)
def test_times_by_hand(name):
    """TTFT is the first event with text: not the head, which may come two seconds before, nor the role event."""
    raw = CAPTURES / "other-servers" / f"{name}.raw"
    pieces = reads(raw)
    assert b"".join(piece for _, piece in pieces) == raw.read_bytes()
    exchange = replay_at(pieces, route_of(raw))
    answer = exchange.answer
    found = (exchange.head_ns, answer.times[0], answer.times[-1], exchange.done_ns)
    assert [round(at_ns / 1000) for at_ns in found] == list(TIMES_BY_HAND[name])


@pytest.mark.parametrize("raw", list(streams()))
def test_the_times_of_every_stream(raw):
    """Each event with text has the time of the read that completed it."""
    pieces = reads(raw)
    body, expected, head = b"", [], None
    for at_ns, piece in pieces:
        body += piece
        if head is None and b"\r\n\r\n" in body:
            head = at_ns
        texts = plain_reading(body)["text_events"] if head is not None else 0
        expected += [at_ns] * (texts - len(expected))
    exchange = replay_at(pieces, route_of(raw))
    assert exchange.head_ns == head
    assert list(exchange.answer.times) == (expected if exchange.status == 200 else [])


def test_done_without_a_finish_reason_is_no_success():
    """llama-cpp-python cut a stream when a second request came: [DONE], no finish reason, no last chunk."""
    body = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    cut = head + b"%x\r\n%b\r\n" % (len(body), body)
    assert replay(cut, "completions").failure() == "the connection closed before the answer was whole"
    assert replay(cut + b"0\r\n\r\n", "completions").failure() == "the stream ended without a finish reason"


def test_an_empty_body_is_no_success():
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    assert replay(head + b"0\r\n\r\n", "completions").failure() == "the stream ended without a finish reason"


def test_several_events_in_one_read_share_its_time():
    event = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    exchange = replay(b"", "completions", [head, chunk, chunk * 3, chunk], closed=False)
    assert list(exchange.answer.times) == [2, 3, 3, 3, 4]
    assert exchange.shared_events == 2


def test_an_answer_that_is_no_http():
    assert "no HTTP/1.1" in replay(b"SSH-2.0-OpenSSH_9.2\r\n", "chat").failure()


def test_json_where_a_stream_was_asked_for():
    raw = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{"error":"no"}'[:-1]
    assert "something else came" in replay(raw, "chat").failure()
