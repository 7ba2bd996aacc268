"""The proxy of docs/security.md, in front of a server on loopback: who has a key is served, nobody else."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time

import pytest
import requests
from conftest import ROOT, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl"),
]


class Engine(http.server.BaseHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def proxy(tmp_path):
    engine, port = free_port(), free_port()
    Engine.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", engine), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = tmp_path / "sglang"
    keys.mkdir()
    (keys / "keys.map").write_text('"Bearer right-key"  alice;\n')
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    files = ["-keyout", str(keys / "key.pem"), "-out", str(keys / "cert.pem")]
    subprocess.run([*certificate, *files], check=True, capture_output=True)
    text = (ROOT / "docs/proxy/nginx.conf").read_text()
    for old, new in (
        ("/etc/nginx/sglang", str(keys)),
        ("/var/log/nginx/sglang.log", str(tmp_path / "sglang.log")),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:30001", f"127.0.0.1:{engine}"),
    ):
        assert old in text
        text = text.replace(old, new)
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    subprocess.run(["nginx", "-t", "-c", str(whole), "-p", str(tmp_path)], check=True, capture_output=True)
    running = subprocess.Popen(["nginx", "-c", str(whole), "-p", str(tmp_path), "-g", "daemon off;"])
    url = f"https://127.0.0.1:{port}"
    for _ in range(100):
        try:
            ssl.get_server_certificate(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.05)
    yield url, tmp_path
    os.kill(running.pid, signal.SIGTERM)
    running.wait(10)
    server.shutdown()


def ask(url: str, key: str | None = None) -> requests.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return requests.get(url, headers=headers, verify=False, timeout=5)


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_only_who_has_a_key_reaches_the_engine_and_only_what_clients_need(proxy):
    url, folder = proxy
    assert ask(f"{url}/v1/models").status_code == 401
    assert ask(f"{url}/v1/models", "wrong-key").status_code == 401
    assert Engine.seen == []
    served = ask(f"{url}/v1/models", "right-key")
    assert (served.status_code, served.text) == (200, "/v1/models")
    assert "Authorization" not in Engine.seen[0]
    assert ask(f"{url}/flush_cache", "right-key").status_code == 404
    assert ask(f"{url}/server_info", "right-key").status_code == 404
    log = (folder / "sglang.log").read_text()
    assert " alice GET /v1/models 200" in log
    assert "right-key" not in log
