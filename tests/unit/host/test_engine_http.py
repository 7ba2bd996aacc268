"""What a host asks its engine: each answer, and none, has its meaning."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmark.host import engine_http
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
    answers["/generate"] = (200, "no JSON")
    assert "JSONDecodeError" in engine_http.generates(settings)


def test_an_older_engine_has_the_older_name_of_its_information(engine):
    settings, answers, _ = engine
    answers |= {"/server_info": (404, ""), "/get_server_info": (200, '{"version": "0.5.11"}')}
    assert engine_http.server_info(settings) == {"version": "0.5.11"}
