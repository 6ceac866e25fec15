"""A local server with one data set that answers the datasets package's requests to the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

SET = "someone/digits"
REVISION = "a" * 40


class SmallHub(ThreadingHTTPServer):
    """Serves the files of a folder as the data set `SET` and records the responses.

    Attributes:
        sent: File name and number of bytes of every range request.
        revisions: Revisions that were requested by name.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.sent: list[tuple[str, int]] = []
        self.revisions: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "b" * 40}
            for file in sorted(self.server.root.iterdir())
        ]
        if found := re.fullmatch(rf"/api/datasets/{SET}(?:/revision/(\w+))?", path):
            self.server.revisions.add(found[1])
            self._answer(200, _encoded({"id": SET, "sha": REVISION, "siblings": []}))
        elif path == f"/api/datasets/{SET}/tree/{REVISION}":
            self._answer(200, _encoded(files))
        elif found := re.fullmatch(rf"/datasets/{SET}/resolve/\w+/(.+\.parquet)", path):
            self._send_part(self.server.root / found[1])
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def _send_part(self, file: Path) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = file.read_bytes()[first : last + 1]
        self.server.sent.append((file.name, len(part)))
        self._answer(206, part)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


@contextmanager
def small_hub(root: Path) -> Iterator[SmallHub]:
    """The hub, running until the end of the block."""
    hub = SmallHub(root)
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
