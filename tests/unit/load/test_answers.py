"""What the events of an answer say: public reports (F1) and SGLang's own streams."""

import json

import pytest

from benchmark.load.wire.answers import Answer, counts_per_event, error_text, read_generate, read_openai

from .replay import CAPTURES, http, replay


def read(route, *events):
    """Events (mappings, or raw bytes) at 1, 2, 3 ... seconds, in nanoseconds."""
    answer = Answer()
    take = read_generate if route == "generate" else read_openai
    for second, event in enumerate(events, start=1):
        take(
            answer,
            event if isinstance(event, bytes) else json.dumps(event, separators=(",", ":")).encode(),
            second * 10**9,
        )
    return answer


def chat(delta, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def usage(tokens, **more):
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens, **more}}


# F1.1 (sglang#23949): reasoning counts as output, and the first content is told apart.
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_output(key):
    answer = read(
        "chat",
        chat({"role": "assistant", "content": ""}),
        chat({key: "a"}),
        chat({"content": "b"}),
        chat({}, "stop"),
        usage(2),
    )
    assert list(answer.times) == [2 * 10**9, 3 * 10**9]
    assert answer.first_content_ns == 3 * 10**9


def test_text_is_both():
    answer = Answer(keep_text=True)
    for event in (chat({"reasoning_content": "a"}), chat({"content": "b"}), chat({"content": None}, "stop")):
        read_openai(answer, json.dumps(event).encode(), 1)
    assert answer.text == "ab"


# F1.3 (vllm#3759): a role event, or one whose texts are empty or null, is no token.
@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "reasoning_content": None},
        {"reasoning_content": "", "content": ""},
        {"content": None, "tool_calls": None},
    ],
)
def test_events_without_text_are_no_tokens(delta):
    answer = read("chat", chat(delta), chat({"content": "x"}))
    assert list(answer.times) == [2 * 10**9]


def test_a_tool_call_is_output():
    answer = read("chat", chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}))
    assert list(answer.times) == [10**9]


# F1.4 (sglang#5451): the usage event has no choices.
def test_usage_event_without_choices():
    answer = read("chat", chat({"content": "x"}), usage(42))
    assert answer.completion_tokens == 42
    assert len(answer.times) == 1


# F1.5 (sglang PR#24266): without usage the number of tokens is not known; max_tokens is never taken for it.
def test_without_usage_tokens_are_unknown():
    answer = read("chat", chat({"content": "x"}), chat({"content": "y"}, "stop"))
    assert answer.completion_tokens is None
    assert counts_per_event(answer)[1] == "unknown"


# F1.6 (llama-benchy#11), F1.20: ten events with 45 accepted tokens are 45 tokens.
def test_tokens_come_from_usage_not_from_events():
    answer = read("chat", *[chat({"content": "x"})] * 10, chat({}, "length"), usage(45))
    counts, source = counts_per_event(answer)
    assert (answer.completion_tokens, source) == (45, "interpolated")
    assert len(counts) == 10
    assert counts[-1] == 45


def test_usage_with_each_event_gives_exact_counts():
    events = [chat({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": n}) for n in (2, 5, 6)]
    answer = read("chat", *events, chat({}, "length"), usage(6))
    assert counts_per_event(answer) == (answer.counts, "reported")
    assert list(answer.counts) == [2, 5, 6]


# F1.8 (sglang PR#36272): a parser holds the text back; usage still tells.
def test_one_late_event_with_many_tokens():
    answer = read("chat", chat({"content": "whole answer"}), chat({}, "tool_calls"), usage(6400))
    assert answer.completion_tokens == 6400
    assert answer.finish_reason == "tool_calls"


# F1.10 (vllm#57519): an error inside a 200.
@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": "broken"}, "broken"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
    ],
)
@pytest.mark.parametrize("route", ["generate", "completions", "chat"])
def test_error_events(route, event, text):
    exchange = replay(http(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"), route)
    assert exchange.failure() == f"error inside a 200: {text}"


def test_an_error_after_tokens_is_a_failure():
    body = b"data: " + json.dumps(chat({"content": "x"}, "stop")).encode() + b'\n\ndata: {"error":"late"}\n\n'
    assert replay(http(body), "chat").failure() == "error inside a 200: late"


def test_abort_is_a_failure():
    event = {
        "text": "",
        "meta_info": {"finish_reason": {"type": "abort", "message": "client gone"}, "completion_tokens": 3},
    }
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    assert replay(http(body), "generate").failure() == "error inside a 200: client gone"


# F1.16: cached tokens are kept, in whichever place they stand.
def test_cached_tokens():
    assert read("chat", usage(1, prompt_tokens_details={"cached_tokens": 8})).cached_tokens == 8
    meta = {"finish_reason": None, "completion_tokens": 1, "prompt_tokens": 9, "cached_tokens": 7}
    answer = read("generate", {"text": "a", "meta_info": {**meta, "finish_reason": {"type": "length"}}})
    assert (answer.cached_tokens, answer.prompt_tokens) == (7, 9)


def test_generate_with_several_tokens_an_event():
    events = [{"text": "x" * n, "meta_info": {"finish_reason": None, "completion_tokens": n}} for n in (1, 4, 4, 5)]
    answer = read("generate", *events)
    assert list(answer.times) == [10**9, 2 * 10**9, 4 * 10**9]
    assert list(answer.counts) == [1, 4, 5]


def test_text_that_looks_like_json_deceives_nobody():
    text = '"completion_tokens":99,"finish_reason":null,"usage":{'
    event = {"text": text, "meta_info": {"completion_tokens": 1, "finish_reason": None}, "more": text}
    assert list(read("generate", event).counts) == [1]
    answer = read(
        "chat", chat({"content": text}), chat({"content": '"finish_reason":"stop"'}), chat({}, "length"), usage(2)
    )
    assert (len(answer.times), answer.finish_reason) == (2, "length")


def test_spaces_after_colons():
    events = [json.dumps(event).encode() for event in (chat({"content": "x"}), chat({}, "stop"), usage(1))]
    answer = read("chat", *events)
    assert (len(answer.times), answer.finish_reason, answer.completion_tokens) == (1, "stop", 1)


def test_rubbish_is_an_error_and_no_exception():
    for payload in (b"", b"{", b"[1]", b"\xff", b'{"choices":3}', b'{"choices":[7]}', b'{"choices":[{"delta":[]}]}'):
        for route in ("generate", "chat"):
            read(route, payload)


def test_a_null_event_says_nothing():
    assert read("completions", b"null").error is None


# Streams of SGLang 0.5.11, as captured. First and last token, in seconds since the request, from the files.
CAPTURED = {
    "generate": ("generate", 12, 2, 0.0105, 0.0251, 12),
    "generate_ids": ("generate", 12, 4, 0.0103, 0.0256, 12),
    "completions": ("completions", 12, 2, 0.1131, 0.1275, 12),
    "chat": ("chat", 12, 9, 0.1224, 0.1366, 12),
}


def captured_pieces(name):
    """Lines with their arrival in nanoseconds."""
    for line in (CAPTURES / "stream" / f"{name}.sse").read_text().splitlines()[1:]:
        at, _, text = line.partition(" ")
        yield round(float(at) * 1e9), text.encode() + b"\n"


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_streams_of_sglang(name):
    route, tokens, prompt, first, last, events = CAPTURED[name]
    from benchmark.load.wire.sse import EventSplitter

    answer, splitter = Answer(), EventSplitter()
    take = read_generate if route == "generate" else read_openai
    for at, line in captured_pieces(name):
        for payload in splitter.feed(line):
            take(answer, payload, at)
    assert (answer.completion_tokens, answer.prompt_tokens, answer.finish_reason) == (tokens, prompt, "length")
    assert len(answer.times) == events
    assert answer.times[0] == round(first * 1e9)
    assert answer.times[-1] == round(last * 1e9)
    assert answer.done_seen
    assert counts_per_event(answer)[1] == ("reported" if route == "generate" else "one_each")


def test_captured_over_long_prompt_on_generate():
    body = b"".join(line for _, line in captured_pieces("too_long"))
    failure = replay(http(body), "generate").failure()
    assert failure == (
        "error inside a 200: The input (9001 tokens) is longer than the model's context length (8192 tokens)."
    )


def test_captured_over_long_prompt_on_the_openai_route():
    text = (CAPTURES / "stream" / "too_long_oai.sse").read_text().removeprefix("# HTTP 400 ")
    exchange = replay(http(text.encode(), b"application/json", b"400 Bad Request"), "completions")
    assert exchange.failure() == (
        "HTTP 400: The input (9001 tokens) is longer than the model's context length (8192 tokens)."
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"m","code":1}}', "m"),
        (b'{"error":"s"}', "s"),
        (b'{"detail":"d"}', "d"),
        (b'{"detail":[{"msg":"first","loc":[]},{"msg":"second"}]}', "first"),
        (b"Internal Server Error", "Internal Server Error"),
        (b"", "no text"),
    ],
)
def test_shapes_of_errors(body, text):
    assert error_text(body) == text


def test_a_servers_word_of_a_failure_is_told_without_the_secret_in_it():
    body = b'{"error": {"message": "no such key: Authorization: Bearer hunter2-planted"}}'
    raw = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert replay(raw, "generate").failure() == "HTTP 401: no such key: Authorization: REMOVED"
