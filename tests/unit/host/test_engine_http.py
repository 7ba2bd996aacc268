"""What a host asks its engine: each answer, and none, has its meaning."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.host import engine_http, records
from benchmark.host.settings import Settings


@pytest.fixture
def engine(tmp_path):
    """A server of this test: {path: (status, body)}; what was sent to it lies in `asked`."""
    answers, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            asked.append((self.command, self.path, self.rfile.read(length).decode()))
            status, body = answers[self.path]
            if status is None:
                return  # hangs up without a word
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815  (http.server's name)

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = Settings(state=tmp_path, unit_directory=tmp_path, port=server.server_port)
    yield settings, answers, asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "health"),
    [(200, "healthy"), (503, "starting"), (500, "unhealthy"), (404, "unhealthy"), (None, "refused")],
)
def test_health_is_the_status(engine, status, health):
    settings, answers, _ = engine
    answers["/health"] = (status, "")
    assert engine_http.health(settings) == health


def test_nobody_at_the_port_is_refused(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        settings = Settings(state=tmp_path, unit_directory=tmp_path, port=unused.getsockname()[1])
        assert engine_http.health(settings) == "refused"
        assert engine_http.generates(settings).startswith("ConnectionRefusedError")
        assert engine_http.loads(settings) == {}


def test_whoever_listens_and_says_nothing_is_unhealthy(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_http, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Settings(state=tmp_path, unit_directory=tmp_path, port=silent.getsockname()[1])
        assert engine_http.health(settings) == "unhealthy"


def test_one_token_is_asked_for_and_has_to_come(engine):
    settings, answers, asked = engine
    answers["/generate"] = (200, json.dumps({"meta_info": {"completion_tokens": 1}}))
    assert engine_http.generates(settings) is None
    method, _, body = asked[0]
    assert method == "POST" and json.loads(body)["sampling_params"]["max_new_tokens"] == 1
    answers["/generate"] = (500, "scheduler gone")
    assert engine_http.generates(settings) == "HTTP 500: scheduler gone"
    answers["/generate"] = (401, "no: X-Api-Key: hunter2")
    assert engine_http.generates(settings) == "HTTP 401: no: X-Api-Key: REMOVED"
    answers["/generate"] = (200, "no JSON")
    assert "JSONDecodeError" in engine_http.generates(settings)


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["loads", "memory", "weight_gb", "meta_info", "token_capacity", "a"]), inner)
    ),
    max_leaves=8,
)


@given(anything)
def test_no_answer_of_the_engine_breaks_a_verb(answer):
    """As JSON may be: also NaN, and anything where something else is expected."""
    settings = Settings(state=Path("/nowhere"), unit_directory=Path("/nowhere"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_http, "_ask", lambda *_, **__: (200, json.dumps(answer).encode()))
        records.start_of(settings, {"started_at": 1000.0})
        assert engine_http.generates(settings) is None or isinstance(engine_http.generates(settings), str)
        assert isinstance(engine_http.server_info(settings), dict)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ('{"loads": [1]}', None),
        ('{"loads": {"a": 1}}', None),
        ('{"loads": [{"memory": {"weight_gb": NaN, "kv_cache_gb": 1.5}}]}', None),
        ('{"loads": [{"memory": {"weight_gb": Infinity}}]}', None),
        ('{"loads": [{"memory": {"weight_gb": true}}]}', None),
        ('{"loads": [{"memory": {"weight_gb": 70.5}}, {"memory": {"weight_gb": 1}}]}', int(70.5 * 2**30)),
    ],
)
def test_the_weights_are_what_the_engine_says_where_it_says_a_number(engine, text, bytes_):
    settings, answers, _ = engine
    answers["/v1/loads"] = (200, text)
    assert records.start_of(settings, {"started_at": 1000.0}).weights_bytes == bytes_


@pytest.mark.parametrize(("of_log", "kept"), [(2.70, 2.70), (2.38, 2.375), (None, 2.375)])
def test_the_stage_with_the_most_weights_counts(engine, of_log, kept):
    """The engine tells its first stage's 2.375 GiB; its log has 2.38 and 2.70 (docs/evidence/several-gpus, pp2)."""
    settings, answers, _ = engine
    answers["/v1/loads"] = (200, '{"loads": [{"memory": {"weight_gb": 2.375}}]}')
    figures = {} if of_log is None else {"weights_bytes": int(of_log * 2**30)}
    start = records.start_of(settings, {"started_at": 1000.0, "figures": figures})
    assert start.weights_bytes == int(kept * 2**30)


def test_an_answer_that_drips_does_not_outlast_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_http, "_SECONDS", 0.5)
    over = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        settings = Settings(state=tmp_path, unit_directory=tmp_path, port=listener.getsockname()[1])
        began = time.monotonic()
        assert engine_http.health(settings) == "unhealthy"
        assert time.monotonic() - began < 3
        over.set()


def test_an_answer_without_end_is_left(engine, monkeypatch):
    monkeypatch.setattr(engine_http, "_MOST_BYTES", 1000)
    settings, answers, _ = engine
    answers["/server_info"] = (200, json.dumps({"a": "x" * 999}))
    assert engine_http.server_info(settings) == {}
    answers["/server_info"] = (200, json.dumps({"a": "x" * 900}))
    assert engine_http.server_info(settings) == {"a": "x" * 900}


def test_an_older_engine_has_the_older_name_of_its_information(engine):
    settings, answers, _ = engine
    answers |= {"/server_info": (404, ""), "/get_server_info": (200, '{"version": "0.5.11"}')}
    assert engine_http.server_info(settings) == {"version": "0.5.11"}
