"""A mirror of huggingface.co for one small model, with the answers that huggingface_hub asks for.

`Hub(folder)` serves every file of a folder as the repository `tests/small` at commit COMMIT (`commit` is another, when
the folder's files have changed). The first answer with the
largest file breaks off in the middle, as a long download does: whoever fetches must go on from there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = "tests/small"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEXT_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub:
    """Serves while it is used as a context: `with Hub(folder) as hub: hub.address`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = COMMIT
        self.asked_from: list[int] = []
        """Byte at which each answer with content began."""
        self.cut = True
        hub = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        if path == f"/api/models/{REPOSITORY}/revision/{self.commit}":
            files = [{"rfilename": file.name, "size": file.stat().st_size} for file in sorted(self.folder.iterdir())]
            content = json.dumps({"id": REPOSITORY, "sha": self.commit, "siblings": files}).encode()
            self._send(request, 200, content, {"Content-Type": "application/json"}, body=body)
            return
        if path == f"/api/models/{REPOSITORY}/tree/{self.commit}":
            # What later versions of huggingface_hub ask in place of the list of siblings.
            files = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40}
                for file in sorted(self.folder.iterdir())
            ]
            self._send(request, 200, json.dumps(files).encode(), {"Content-Type": "application/json"}, body=body)
            return
        start, _, name = path.rpartition("/")
        if start == f"/{REPOSITORY}/resolve/{self.commit}" and (self.folder / name).is_file():
            self._file(request, (self.folder / name).read_bytes(), body=body)
            return
        self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)

    def _file(self, request: BaseHTTPRequestHandler, content: bytes, *, body: bool) -> None:
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": self.commit,
            "Accept-Ranges": "bytes",
        }
        wanted = request.headers.get("Range", "")
        begin = int(wanted.removeprefix("bytes=").partition("-")[0] or 0) if wanted else 0
        if not body:
            self._send(request, 200, content, headers, body=False)
            return
        self.asked_from.append(begin)
        if wanted:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        largest = max(file.stat().st_size for file in self.folder.iterdir())
        cut = self.cut and len(content) == largest
        if cut:
            self.cut = False
        self._send(request, 206 if wanted else 200, content[begin:], headers, body=True, cut=cut)

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        body: bool,
        cut: bool = False,
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if body:
            request.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            request.close_connection = True
