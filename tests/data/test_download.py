"""Downloads from a local HTTP server that can simulate failures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from saccade.data.fetch import download, fetch
from saccade.data.sources import SOURCES, Archive
from saccade.errors import DataError
from tests.data.test_sources import MNIST, idx_files
from tests.waiting import wait_until

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; the path selects a failure."""

    def do_GET(self) -> None:
        server: Server = self.server  # type: ignore[assignment]
        server.requests.append((self.path, self.headers.get("Range")))
        server.gate.wait(timeout=20)
        if self.path in server.files:
            return self._send(server.files[self.path], 0)
        if self.path == "/missing":
            return self.send_error(404)
        start = 0
        if (wanted := self.headers.get("Range")) and self.path != "/no-range":
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= len(CONTENT):
                return self.send_error(416)
        breaks = self.path == "/breaks" and start == 0
        return self._send(CONTENT, start, cut=300_000 if breaks else None)

    def _send(self, content: bytes, start: int, cut: int | None = None) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:cut])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []
        self.files: dict[str, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_arrives_whole_and_is_not_repeated(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = tmp_path / "deep" / "file"
    download(server.url("/file"), path, MD5, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    download(server.url("/file"), path, MD5)
    assert len(server.requests) == 1
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_an_interrupted_download_is_resumed(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(DataError, match=r"broke after 300000 of 1024000 bytes"):
        download(server.url("/breaks"), path, MD5)
    assert not path.exists()
    download(server.url("/breaks"), path, MD5)
    assert path.read_bytes() == CONTENT
    assert server.requests[-1] == ("/breaks", "bytes=300000-")


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(b"x" * 500)
    download(server.url("/no-range"), path, MD5)
    assert path.read_bytes() == CONTENT


def test_a_complete_partial_file_needs_no_download(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(server.url("/file"), tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_content_with_a_wrong_checksum_is_deleted(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"checksum mismatch: expected md5 0000.*, got {MD5}"):
        download(server.url("/file"), tmp_path / "file", "0000")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_or_server_is_a_one_line_error(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the server answers 404") as missing:
        download(server.url("/missing"), tmp_path / "file", MD5)
    with pytest.raises(DataError, match="refused") as refused:
        download("http://127.0.0.1:9/file", tmp_path / "file", MD5)
    for error in (missing, refused):
        assert "\n" not in str(error.value)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from saccade.data.fetch import download
from saccade.errors import FullDiskError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
try:
    download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
except FullDiskError as error:
    print(error)
"""


def test_a_full_disk_is_a_one_line_error_and_leaves_no_file(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, server.url("/file"), str(tmp_path / "x"), MD5]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"cannot write {tmp_path}/x.part: File too large\n", "")
    assert list(tmp_path.iterdir()) == []


def mnist_on(server: Server) -> list[tuple[str, str, str]]:
    """Serve a small MNIST; return names, addresses and checksums of its archives."""
    files = idx_files(zipped=True)
    server.files = {f"/mnist/{name}": content for name, content in files.items()}
    return [
        (name, server.url(f"/mnist/{name}"), hashlib.md5(content).hexdigest())
        for name, content in files.items()
    ]


FETCH = """
import json, sys
from dataclasses import replace
from saccade.data.fetch import fetch
from saccade.data.sources import SOURCES, Archive
archives = tuple(Archive(name, (url,), md5) for name, url, md5 in json.loads(sys.argv[1]))
source = replace(SOURCES["mnist"], sha256=None, npm=None, archives=archives)
print(fetch(source, force="force" in sys.argv, tell=lambda what: print(what, flush=True)).origin)
"""


@pytest.mark.parametrize("word", ["", "force"])
def test_the_second_of_two_fetches_waits(server: Server, tmp_path: Path, word: str) -> None:
    command = [sys.executable, "-c", FETCH, json.dumps(mnist_on(server)), word]
    environment = os.environ | {"SACCADE_DATA": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    server.gate.clear()
    with start() as first:
        wait_until(lambda: server.requests, first)
        with start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another process that fetches mnist\n"
            server.gate.set()
            assert first.communicate() == second.communicate() == ("official archive\n", None)
    assert len(server.requests) == (8 if word else 4)


def test_leftovers_of_killed_fetches_are_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    for name in ("mnist", "cifar10"):
        (tmp_path / f".{name}.safetensors.{'0a' * 16}").touch()
    archives = tuple(Archive(name, (url,), md5) for name, url, md5 in mnist_on(server))
    fetch(replace(MNIST, archives=archives))
    left = [path.name for path in tmp_path.glob(".*") if path.suffix != ".lock"]
    assert left == [f".cifar10.safetensors.{'0a' * 16}"]


def test_fetch_takes_the_second_address_and_cleans_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    archives = tuple(
        Archive(name, (server.url("/missing"), url), md5) for name, url, md5 in mnist_on(server)
    )
    found = fetch(replace(MNIST, archives=archives))
    assert found.origin == "official archive"
    assert not found.verified
    assert (found.num_train, found.num_test) == (5, 2)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_fetch_gives_every_source_s_reason(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    source = replace(
        SOURCES["fashion_mnist"],
        archives=(Archive("x", (server.url("/missing"),), MD5),),
        folders=(tmp_path,),
    )
    with pytest.raises(DataError, match=r"cannot fetch fashion_mnist: local copy .* answers 404"):
        fetch(source)
