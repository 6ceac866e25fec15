"""Trained tiny models, the application around them, and pictures of every kind."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from saccade.report import render_report
from saccade.serve import create_app
from saccade.serve.served import open_models
from saccade.train import train
from tests.serve.browsing import CHROMIUM, FLAGS, Visit
from tests.train.tiny_runs import tiny

SIZES = ("model.overrides.depth=2", "model.overrides.patch_size=2")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of two layers: `first` with softmax, `second` with TaylorShift."""
    folder = tmp_path_factory.mktemp("serve")
    for name, attention in (("first", "softmax"), ("second", "taylorshift")):
        config = tiny("train.epochs=2", f"model.attention={attention}", *SIZES)
        train(config, folder / name, quiet=True)
    return [folder / "first", folder / "second"]


@pytest.fixture(scope="session")
def app(runs: list[Path]) -> FastAPI:
    return create_app(open_models(runs))


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    """Requests as a browser on this machine sends them; errors come as answers."""
    return TestClient(app, base_url="http://localhost:8000", raise_server_exceptions=False)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


@pytest.fixture(scope="session")
def photo() -> bytes:
    """A picture that is not square, in color."""
    image = Image.effect_noise((60, 40), 80).convert("RGB")
    image.paste((200, 30, 30), (20, 5, 40, 35))
    return encoded(image)


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """A real server in a thread; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", server_header=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def server(runs: list[Path]) -> Iterator[str]:
    report = render_report(runs[0].parent)
    with listening(create_app(open_models(runs), reports=[("both", report)])) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, server: str) -> Iterator[Visit]:
    made = Visit(browser, server)
    yield made
    assert made.foreign == []
    made.context.close()
