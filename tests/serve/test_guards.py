"""What is refused, in words, before it can do harm."""

import io
import struct
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from saccade.errors import ConfigError
from saccade.serve import Settings, create_app
from saccade.serve.guard import POLICY
from saccade.serve.served import open_models
from saccade.train.image_inputs import as_input
from tests.serve.conftest import encoded

TOKEN = "a-token-of-some-length"


def detail(response: Any) -> str:
    found: str = response.json()["detail"]
    assert "Traceback" not in found
    return found


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1_000_000))
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
BAD = {
    "nothing": (b"", 422, "is empty"),
    "text": (b"hello", 415, "not an image in a known format"),
    "svg": (SVG, 415, "not an image in a known format"),
    "pdf": (b"%PDF-1.7\n", 415, "not an image in a known format"),
    "cut": (encoded(Image.effect_noise((64, 64), 50))[:900], 422, "cannot be read"),
    "bomb": (bomb(60_000, 60_000), 413, "pixels"),
    "many pixels": (bomb(5001, 5000), 413, "at most 25,000,000 pixels, got 5,001 x 5,000"),
    "many bytes": (b"\x89PNG" + bytes(20_000_000), 413, "at most 10,000,000 bytes"),
    "tiff": (encoded(Image.new("L", (8, 8)), "TIFF"), 415, "must be in one of"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("path", ["/api/predict", "/api/pictures", "/api/explain", "/api/walk"])
def test_a_bad_picture_is_told_in_words(client: TestClient, name: str, path: str) -> None:
    content, status, words = BAD[name]
    response = client.post(path, content=content)
    if path == "/api/pictures" and name == "cut":
        assert response.status_code == 200  # the header is right; pixels are read when needed
        return
    assert response.status_code == status, response.text
    assert words in detail(response)


def test_a_bomb_is_refused_before_it_is_decoded(client: TestClient) -> None:
    def peak() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    before = peak()
    assert client.post("/api/predict", content=bomb(60_000, 60_000)).status_code == 413
    assert peak() - before < 100_000  # KiB; decoded it would take 3.6 GB


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_accepted_formats(client: TestClient, kind: str) -> None:
    content = encoded(Image.effect_noise((30, 20), 60).convert("RGB"), kind)
    kept = client.post("/api/pictures", content=content)
    assert kept.status_code == 200
    assert kept.json() | {"id": ""} == {"id": "", "width": 30, "height": 20, "format": kind}
    shown = client.get(f"/api/pictures/{kept.json()['id']}")
    assert shown.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(shown.content)).size == (8, 8)


def test_exif_orientation_is_obeyed(client: TestClient, app: FastAPI) -> None:
    upright = Image.linear_gradient("L").convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show
    turned = encoded(upright.rotate(90), "PNG", exif=exif)
    answers = [client.post("/api/predict", content=c).json() for c in (encoded(upright), turned)]
    assert answers[0]["classes"] == answers[1]["classes"]
    plain = client.post("/api/predict", content=encoded(upright.rotate(90))).json()
    assert plain["classes"] != answers[0]["classes"]


def test_pictures_are_forgotten_oldest_first(runs: list[Path], photo: bytes) -> None:
    app = create_app(open_models(runs[:1]), Settings(kept_bytes=2 * len(photo)))
    client = TestClient(app, base_url="http://localhost")
    noise = [encoded(Image.effect_noise((60, 40), 90).convert("RGB")) for _ in range(4)]
    names = [client.post("/api/pictures", content=own).json()["id"] for own in noise]
    assert client.get(f"/api/pictures/{names[-1]}").status_code == 200
    response = client.post("/api/predict", params={"picture": names[0]})
    assert response.status_code == 404
    assert "send it again" in detail(response)
    samples = client.get("/api/models").json()["models"][0]["samples"]
    for sample in samples:
        assert client.get(f"/api/pictures/{sample['picture']}").status_code == 200


def test_a_sample_is_the_test_picture(client: TestClient, app: FastAPI, runs: list[Path]) -> None:
    from saccade.explain.images import Album
    from saccade.runs import RunFolder
    from saccade.train.inference import Predictor

    predictor = Predictor(runs[0])
    album = Album(RunFolder.open(runs[0]), predictor.info)
    for sample in client.get("/api/models").json()["models"][0]["samples"]:
        pixels, label = album.look_up(sample["name"])
        assert predictor.info.class_names[label] == sample["label"]
        expected = predictor.classes(as_input(pixels, predictor.info))
        answer = client.post("/api/predict", params={"picture": sample["picture"]}).json()
        for own, (name, p) in zip(answer["classes"], expected, strict=True):
            assert own["name"] == name
            assert own["probability"] == pytest.approx(p, abs=1e-6)


@pytest.mark.parametrize(
    ("params", "status", "words"),
    [
        ({"model": "frist"}, 404, "did you mean 'first'?"),
        ({"attention": "softmx"}, 422, "did you mean 'softmax'?"),
        ({"order": "3"}, 422, "order must be '0', '1', '2' or 'exact', got '3'"),
        ({"temperature": "0"}, 422, "temperature must be greater than or equal to 0.1, got '0'"),
        ({"temperature": "nan"}, 422, "temperature must be"),
        ({"layer": "2"}, 422, "layer must be from 0 to 1, got 2"),
        ({"head": "9"}, 422, "head must be from 0 to 1, got 9"),
        ({"query": "99"}, 422, "query must be from 0 to 16, got 99"),
        ({"layer": "x"}, 422, "layer must be a valid integer"),
        ({"picture": "nope"}, 404, "not kept"),
        ({"attention": ["softmax"] * 9}, 422, "attention must be"),
    ],
)
def test_a_bad_argument_is_named(
    client: TestClient, photo: bytes, params: dict[str, Any], status: int, words: str
) -> None:
    response = client.post("/api/explain", params=params, content=photo)
    assert response.status_code == status, response.text
    assert words in detail(response)


def test_unknown_pages(client: TestClient) -> None:
    for path in ("/nope", "/page/nope.js", "/page/..%2Fapp.py", "/reports/0", "/docs", "/redoc"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8000", 421),
        ("192.168.1.5:8000", 421),
        ("", 421),
        ("[::1", 421),
        ("localhost:80:80", 421),
    ],
)
def test_the_host_header_must_name_this_server(client: TestClient, host: str, status: int) -> None:
    for path in ("/", "/api/models", "/healthz"):
        assert client.get(path, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:9999"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_other_origins_cannot_send(
    client: TestClient, photo: bytes, headers: dict[str, str], status: int
) -> None:
    for path in ("/api/predict", "/api/pictures"):
        assert client.post(path, content=photo, headers=headers).status_code == status
    allowed = client.options("/api/predict", headers=headers).headers
    assert not [name for name in allowed if name.startswith("access-control")]


def test_listening_elsewhere_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ConfigError, match="token must be given"):
            Settings(host)
        assert Settings(host, token=TOKEN).token == TOKEN
    with pytest.raises(ConfigError, match="at least 16"):
        Settings("0.0.0.0", token="short")


def test_every_request_needs_the_token(runs: list[Path], photo: bytes) -> None:
    app = create_app(open_models(runs[:1]), Settings("0.0.0.0", token=TOKEN))
    client = TestClient(app, base_url="http://192.168.1.5:8000", follow_redirects=False)
    for path in ("/", "/api/models", "/metrics", "/page/app.js", "/api/openapi.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}x"}).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.post("/api/predict", content=photo).status_code == 401
    assert client.get("/healthz").status_code == 200
    first = client.get("/", params={"token": TOKEN, "x": "1"})
    assert (first.status_code, first.headers["location"]) == (303, "/?x=1")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=Strict" in first.headers["set-cookie"]
    assert client.post("/api/predict", content=photo).status_code == 200  # by the cookie
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for path in ("/", "/api/models", "/nope", "/page/app.js", "/healthz"):
        headers = client.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_nothing_is_written_and_no_path_is_told(
    client: TestClient, runs: list[Path], photo: bytes
) -> None:
    """An audit hook sees every file that Python opens."""
    written: list[str] = []
    is_watching = threading.Event()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not is_watching.is_set():
            return
        name, mode, flags = arguments
        if (isinstance(mode, str) and set(mode) & set("wax+")) or flags & 3:
            written.append(str(name))

    sys.addaudithook(watch)
    is_watching.set()
    try:
        answers = [
            client.post(path, content=content).text
            for path in ("/api/predict", "/api/explain", "/api/walk", "/api/pictures")
            for content in (photo, SVG, photo[:200], b"", encoded(Image.new("RGB", (1500, 1500))))
        ]
        answers += [client.get(path).text for path in ("/api/models", "/metrics", "/nope", "/")]
    finally:
        is_watching.clear()
    assert written == []
    for text in answers:
        assert str(runs[0].parent) not in text
        assert str(Path(torch.__file__).parent) not in text
        assert str(Path.home()) not in text
