"""What servers are found to be and to take, and connections that they close."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.load import measure, warmup
from benchmark.load.target import Target, TargetError, body_of, call, detect, load_of
from benchmark.load.wire.address import Wire, WireError, request_bytes
from benchmark.load.workload import Workload

from .fake import completion, plain, serving, stream
from .replay import CAPTURES, replay

MODELS = plain(b'{"object":"list","data":[{"id":"m","max_model_len":4096}]}')
MISSING = plain(b'{"detail":"Not Found"}', b"404 Not Found")


def endpoint(name):
    return (CAPTURES / "endpoints" / name).read_bytes().partition(b"\n")[2]


def tokens_asked(body):
    asked = json.loads(body)
    return asked.get("max_tokens") or asked["sampling_params"]["max_new_tokens"]


# F2.21: /get_server_info was renamed to /server_info; both are tried, and the one that works is kept.
@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_both_names_of_server_info(path):
    def answer(asked, head, body):
        if asked == path:
            return plain(endpoint("server_info.txt")), False
        if asked == "/v1/models":
            return plain(endpoint("v1_models.txt")), False
        if asked == "/generate":
            return stream(GENERATED), False
        return MISSING, False

    with serving(answer) as (url, _):
        found = measure.run(detect(Target(url)))
    assert (found.kind, found.route, found.info_path) == ("sglang", "generate", path)
    assert found.model == "/models/mini-moe"
    # From the captures: 8,192 tokens of context, at most 64 running requests.
    assert (found.info["context_length"], found.info["max_running_requests"]) == (8192, 64)
    # Nothing that may be private: paths, keys.
    assert not {"model_path", "api_key", "tokenizer_path"} & set(found.info)


GENERATED = b'{"text":"a","meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":32,"completion_tokens":8}}'


# F2.22: a key that is missing is said to be, not waited for.
def test_a_refused_key():
    with (
        serving(lambda *_: (plain(b'{"error":"no"}', b"401 Unauthorized"), False)) as (url, _),
        pytest.raises(TargetError, match=r"refuses the key \(HTTP 401 on /server_info\).*Authorization: Bearer KEY"),
    ):
        measure.run(detect(Target(url)))


def test_headers_go_with_every_request():
    heads = []

    def answer(path, head, body):
        heads.append(head)
        return (MODELS if path == "/v1/models" else completion(8) if path == "/v1/completions" else MISSING), False

    with serving(answer) as (url, _):
        measure.run(detect(Target(url, headers={"Authorization": "Bearer secret"})))
    assert all(b"Authorization: Bearer secret\r\n" in head for head in heads)


def test_a_server_that_takes_text_only_and_no_ignore_eos():
    """As transformers serve: 400 for ids, 422 for unknown fields."""

    def answer(path, head, body):
        if path == "/v1/models":
            return MODELS, False
        if path != "/v1/completions":
            return MISSING, False
        asked = json.loads(body)
        if not isinstance(asked["prompt"], str):
            return plain(b'{"detail":"prompt must be a string."}', b"400 Bad Request"), False
        if "ignore_eos" in asked:
            return plain(b'{"detail":"Unexpected fields"}', b"422 Unprocessable Entity"), False
        return completion(8), False

    with serving(answer) as (url, _):
        found = measure.run(detect(Target(url)))
    assert found.route == "completions"
    assert (found.abilities.token_ids, found.abilities.ignore_eos, found.abilities.stream_options) == (
        False,
        False,
        True,
    )


def test_no_route_gives_a_stream():
    with serving(lambda *_: (MISSING, False)) as (url, _), pytest.raises(TargetError) as error:
        measure.run(detect(Target(url)))
    assert "gives no stream. /v1/completions: HTTP 404: Not Found; /v1/chat/completions: HTTP 404" in str(error.value)


WORK = Workload(
    name="w",
    prompt_tokens=20,
    output_tokens=8,
    window_seconds=0.4,
    minimum_window_seconds=0.1,
    half_width=0.5,
    minimum_requests=4,
)


def openai_like(close):
    def answer(path, head, body):
        if path == "/v1/models":
            return MODELS, False
        return (completion(tokens_asked(body)), close) if path == "/v1/completions" else (MISSING, False)

    return answer


@pytest.mark.parametrize("close", [False, True])
def test_a_server_that_closes_after_every_stream(close):
    """As llama-server does, without saying so: the next request opens a new connection, and none counts as failed."""
    with serving(openai_like(close)) as (url, _):
        got = measure.run(measure.measure_point(Target(url), WORK, 3, telemetry=False))
    assert got.point.requests_failed == 0
    assert got.point.requests_completed > 6
    assert (got.about.client["reconnects"] > 0) is close


def test_a_kept_connection_that_closes_under_a_request_is_tried_once_more():
    seen = []

    def answer(path, head, body):
        if path == "/v1/models":
            return MODELS, False
        if path != "/v1/completions":
            return MISSING, False
        seen.append(path)
        # Request 4 finds its connection closed; that is no failure of the server.
        return None if len(seen) == 4 else (completion(tokens_asked(body)), False)

    with serving(answer) as (url, _):
        got = measure.run(measure.measure_point(Target(url), WORK, 1, telemetry=False))
    assert got.point.requests_failed == 0
    assert sum(row.retried for row in got.requests) == 1


def test_prompts_of_a_text_server_have_the_length_asked_for():
    """This server counts a token for every five characters, and eleven more for its template."""

    def answer(path, head, body):
        if path == "/v1/models":
            return MODELS, False
        if path != "/v1/chat/completions":
            return MISSING, False
        asked = json.loads(body)
        length = 11 + len(asked["messages"][0]["content"]) // 5
        token = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
        last = b'{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'
        usage = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (length, asked["max_tokens"])
        return stream(*[token] * asked["max_tokens"], last, usage), False

    work = Workload(**{**WORK.to_mapping(), "prompt_tokens": 300})
    with serving(answer) as (url, _):
        got = measure.run(measure.measure_point(Target(url, route="chat"), work, 2, telemetry=False))
    assert all(abs(row.prompt_tokens - 300) <= 2 for row in got.requests)
    assert not [flag for flag in got.point.flags if flag.id == "prompt_lengths"]


def test_a_corpus_tokenized_by_the_server():
    def answer(path, head, body):
        if path == "/server_info":
            return plain(b'{"tp_size":1,"version":"x"}'), False
        if path == "/tokenize":
            return plain(json.dumps({"tokens": list(range(2000)), "count": 2000}).encode()), False
        return (stream(GENERATED), False) if path == "/generate" else (MISSING, False)

    with serving(answer) as (url, _):
        found = measure.run(warmup.tokenization_of(Target(url), Workload(name="w", kind="text")))
    assert found.ids.tolist() == list(range(2000))


@pytest.mark.parametrize(
    ("loads", "running", "waiting"),
    [
        (endpoint("v1_loads.txt"), 0, 0),
        (b'{"loads":[{"num_running_reqs":3,"num_waiting_reqs":1},{"num_running_reqs":4,"num_waiting_reqs":0}]}', 7, 1),
    ],
)
def test_loads_over_all_ranks(loads, running, waiting):
    with serving(lambda path, *_: (plain(loads) if path == "/v1/loads" else MISSING, False)) as (url, _):
        found = measure.run(load_of(Target(url)))
    assert (found["running"], found["waiting"]) == (running, waiting)


def test_the_older_load_endpoint():
    with serving(lambda path, *_: (plain(endpoint("get_load.txt")) if path == "/get_load" else MISSING, False)) as (
        url,
        _,
    ):
        assert measure.run(load_of(Target(url)))["running"] == 0
    with serving(lambda *_: (MISSING, False)) as (url, _):
        assert measure.run(load_of(Target(url))) is None


def test_a_flush_that_does_nothing_is_seen():
    """The captured /flush_cache says 200 also when requests kept it from flushing; the marker tells."""

    def answer(path, head, body):
        if path == "/server_info":
            return plain(b'{"tp_size":1}'), False
        if path == "/flush_cache":
            return plain(endpoint("flush.txt")), False
        if path == "/generate":
            cached = GENERATED.replace(b'"completion_tokens":8', b'"completion_tokens":1,"cached_tokens":63')
            return stream(cached), False
        return MISSING, False

    with serving(answer) as (url, _):
        found = measure.run(warmup.flush_cache(Target(url)))
    assert (found.done, found.seen) == (False, True)
    assert "63 of 64" in found.detail


def test_bodies():
    target = Target("http://x", route="generate", model="m")
    assert json.loads(body_of(target, [1, 2], 5)) == {
        "input_ids": [1, 2],
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.0, "ignore_eos": True},
        "stream": True,
    }
    chat = json.loads(body_of(Target("http://x", route="chat", model="m"), "hi", 5))
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    # F1.5: usage is always asked for.
    assert chat["stream_options"] == {"include_usage": True}
    assert (chat["max_tokens"], chat["ignore_eos"], chat["model"]) == (5, True, "m")


@pytest.mark.parametrize(
    ("url", "first", "host"),
    [
        ("http://h:81", b"GET /v1/models HTTP/1.1", b"Host: h:81"),
        ("http://h/v1/", b"GET /v1/models HTTP/1.1", b"Host: h:80"),
        ("https://h/proxy/v1", b"GET /proxy/v1/models HTTP/1.1", b"Host: h:443"),
        ("http://[::1]:30000", b"GET /v1/models HTTP/1.1", b"Host: [::1]:30000"),
    ],
)
def test_addresses(url, first, host):
    lines = request_bytes(Wire.to(url), "GET", "/v1/models").split(b"\r\n")
    assert lines[:2] == [first, host]


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://h", "http://", "", "http://h:port"])
def test_addresses_that_are_none(url):
    with pytest.raises(WireError, match="no address of a server"):
        Wire.to(url)


def test_headers_cannot_smuggle_lines():
    with pytest.raises(WireError, match="line end"):
        request_bytes(Wire.to("http://h"), "GET", "/", headers={"A": "b\r\nC: d"})


def test_plain_calls():
    with serving(lambda *_: (plain(b"{}"), False)) as (url, asked):
        exchange = measure.run(call(Target(url), "POST", "/x", {"a": 1}))
    assert exchange.failure() is None
    assert asked == ["/x"]


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(["generate", "completions", "chat"]))
@settings(max_examples=80, deadline=None)
def test_whatever_a_server_sends_is_an_answer_or_a_failure(pieces, route):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    for raw in ([*pieces], [head, *pieces]):
        exchange = replay(b"", route, [piece for piece in raw if piece])
        assert exchange.failure()
