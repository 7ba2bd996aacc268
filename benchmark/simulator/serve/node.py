"""A node that is not the first: it has ranks and no tokenizer, answers /health alone, and ends with the first.

SGLang 0.5.23, entrypoints/engine.py (launch_dummy_health_check_server; SIGTERM is logged and ignored there).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmark.simulator.launch import processes, texts
from benchmark.simulator.launch.launcher import Started

WATCH_SECONDS = 0.5


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path in ("/health", "/health_generate", "/ping")
        self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The real one is as quiet."""


def serve(started: Started) -> int:
    """Watches the ranks until one of them or the first node is gone; both end in SIGKILL."""
    arguments = started.blueprint.arguments
    signal.signal(
        signal.SIGTERM,
        lambda *_: texts.log(f"SIGTERM received. Node {started.blueprint.node} ends when the first node does."),
    )
    server = ThreadingHTTPServer((arguments["host"], int(arguments["port"])), _Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(WATCH_SECONDS)
        for pid in started.pids:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                texts.log(f"Scheduler or DataParallelController {pid} terminated with {code}")
                processes.kill_tree(started.sparing)
