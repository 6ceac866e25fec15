"""The page of examples/web in real Chromium: the same logits as Python, and no outside request."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saccade.export import OnnxClassifier, export_onnx
from tests.export.models import image_model
from tests.waiting import PATIENCE_S

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
WEB = ROOT / "examples" / "web"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """onnxruntime-web: from the example's own folder, or from npm."""
    dist = Path("node_modules") / "onnxruntime-web" / "dist"
    if (WEB / dist).is_dir():
        return WEB / dist
    folder = tmp_path_factory.mktemp("npm")
    shutil.copy(WEB / "package.json", folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"npm cannot install onnxruntime-web here: {error}")
    return folder / dist


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    own: dict[str, tuple[str, dict[str, Any]]] = {
        "softmax": ("softmax", {"img_size": 32}),
        "taylor": ("taylor", {"img_size": (24, 32)}),
        "gray": ("performer", {"img_size": 32, "in_chans": 1}),
    }
    found = {}
    for name, (attention, options) in own.items():
        model = image_model(attention, class_names=tuple("abcde"), **options)
        found[name] = export_onnx(model, folder / f"{name}.onnx").path
    return found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photographs are smooth: waves of several sizes, larger and smaller than the input."""
    folder = tmp_path_factory.mktemp("pictures")
    found = []
    for number, (width, height) in enumerate([(32, 32), (200, 131), (57, 300), (20, 9)]):
        y, x = np.mgrid[:height, :width]
        waves = [np.sin(x / (5 + c) + number) * np.cos(y / (7 + 2 * c)) for c in range(3)]
        pixels = (127 + 120 * np.stack(waves, -1)).astype(np.uint8)
        found.append(folder / f"{number}.png")
        Image.fromarray(pixels).save(found[-1])
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def address(models: dict[str, Path], runtime: Path, request: Any) -> Iterator[str]:
    """The example's own server, started as a user starts it."""
    words = [models[request.param], "--runtime", runtime, "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, WEB / "serve.py", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    killer = threading.Timer(PATIENCE_S, server.kill)
    killer.start()
    assert server.stdout is not None
    yield server.stdout.readline().split()[0]
    killer.cancel()
    server.kill()
    server.communicate()


@pytest.mark.parametrize("address", ["softmax", "taylor", "gray"], indirect=True)
def test_the_page_agrees_with_python(
    address: str, browser: Any, models: dict[str, Path], pictures: list[Path], request: Any
) -> None:
    model = OnnxClassifier(models[request.node.callspec.params["address"]])
    page = browser.new_page()
    told: list[str] = []
    outside: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda sent: outside.append(sent.url))
    page.goto(address)
    page.wait_for_selector("#image:enabled", timeout=1000 * PATIENCE_S)
    for picture in pictures:
        page.evaluate("() => document.body.removeAttribute('data-logits')")
        page.set_input_files("#image", str(picture))
        page.wait_for_selector("body[data-logits]", timeout=1000 * PATIENCE_S)
        found = np.array(json.loads(page.get_attribute("body", "data-logits")))
        expected = model.logits(model.prepare(picture)[None])[0]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        first = page.inner_text("#result tbody tr:first-child td:first-child")
        assert first == model.classify(picture)[0][0]
    text = pictures[0].with_suffix(".txt")
    text.write_text("no image")
    page.set_input_files("#image", str(text))
    page.locator("#status", has_text="cannot be classified").wait_for()
    assert page.is_hidden("#result")
    assert told == []
    assert {url for url in outside if not url.startswith((address, "data:"))} == set()
    page.close()


def test_python_without_torch(models: dict[str, Path], pictures: list[Path]) -> None:
    words = [models["softmax"], pictures[0], pictures[1]]
    program = (
        "import runpy, sys; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__'); assert 'torch' not in sys.modules"
    )
    script = ROOT / "examples" / "onnx" / "classify.py"
    done = subprocess.run(
        [sys.executable, "-c", program, str(script), *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    best, probability = OnnxClassifier(models["softmax"]).classify(pictures[0])[0]
    assert done.stdout.startswith(f"{pictures[0]}  {best} {probability:.3f}")
    assert len(done.stdout.splitlines()) == 2
