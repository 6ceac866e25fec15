"""The page in a real browser: Chromium driven by Playwright, a real server behind it."""

import base64
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saccade.report import write_report
from saccade.serve import create_app
from saccade.serve.served import open_models
from saccade.train.image_inputs import as_input
from saccade.train.inference import Predictor
from tests.serve.conftest import encoded, listening
from tests.serve.test_guards import SVG, bomb
from tests.serve.test_numbers import same_weights

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
AXE = os.environ.get("SACCADE_AXE", "")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: make test-browser"),
    pytest.mark.skipif(not HAS_PLAYWRIGHT, reason="playwright is not installed"),
]
VIEWS = ("look", "learn", "measure", "compare")


@pytest.fixture(scope="module")
def server(runs: list[Path]) -> Iterator[str]:
    report = write_report(runs[0].parent, formats=["html"]).out / "report.html"
    with listening(create_app(open_models(runs), reports=[("both", report)])) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """One page, its console, and the requests that left this machine."""

    def __init__(self, browser: Any, server: str, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 900}, **options}
        self.context = browser.new_context(**options)
        self.page, self.server = self.context.new_page(), server
        self.console: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda line: self.console.append(f"{line.type}: {line.text}"))
        self.page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        self.page.on("request", self._request)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.server, "blob:", "data:")):
            self.foreign.append(request.url)

    def open(self, place: str = "#look") -> Any:
        self.page.goto("about:blank")
        self.page.goto(f"{self.server}/{place}")
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def errors(self) -> list[str]:
        return [line for line in self.console if line.startswith(("error", "warning"))]


@pytest.fixture
def visit(browser: Any, server: str) -> Iterator[Visit]:
    made = Visit(browser, server)
    yield made
    assert made.foreign == []
    made.context.close()


def text(page: Any, selector: str) -> str:
    found: str = page.text_content(selector)
    return " ".join(found.split())


def bars(page: Any, attention: str) -> dict[str, str]:
    rows = page.query_selector_all(f'[data-attention="{attention}"] .bars li')
    return {
        row.query_selector(".class").text_content(): row.query_selector(".p").text_content()
        for row in rows
    }


def send(page: Any, content: bytes, how: str) -> None:
    """Drop or paste a file, as the browser tells the page of one."""
    page.evaluate(
        """([content, how]) => {
          const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
          const data = new DataTransfer();
          data.items.add(new File([bytes], "a.png", {type: "image/png"}));
          const event = how === "drop"
            ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
          document.body.dispatchEvent(event);
        }""",
        [base64.b64encode(content).decode(), how],
    )


def slide(page: Any, name: str, value: float) -> None:
    page.eval_on_selector(
        f"#{name}",
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }",
        str(value),
    )


def wait_for_change(page: Any, selector: str, before: str) -> None:
    page.wait_for_function(
        "([s, b]) => document.querySelector(s).textContent.split(/\\s+/).join(' ').trim() !== b",
        arg=[selector, before],
    )


# ------------------------------------------------------------------- look


def test_the_first_view_needs_no_computation(visit: Visit) -> None:
    """It is what the server computed when it started; a benchmark measures how soon it is there."""
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.method))
    visit.open()
    assert set(asked) == {"GET"}
    assert text(visit.page, "#panels .verdict strong") != ""
    assert len(visit.page.query_selector_all("#panels canvas")) == 3
    assert visit.errors() == []


def test_every_number_is_that_of_the_library(
    visit: Visit, photo: bytes, runs: list[Path], tmp_path: Path
) -> None:
    page = visit.open("#look?layer=0&head=1")
    before = text(page, "#panels")
    send(page, photo, "drop")
    wait_for_change(page, "#panels", before)
    (tmp_path / "photo.png").write_bytes(photo)
    image = Image.open(tmp_path / "photo.png")
    predictor = Predictor(runs[0])
    picture = as_input(image, predictor.info)[None]
    rows = {}
    for attention in ("softmax", "taylor", "performer"):
        model = same_weights(runs[0], attention)
        with torch.no_grad():
            probability = model(picture)[0].softmax(0)
            tokens = model.embed(picture)
            weights = model.blocks[0].attn.attention_weights(model.blocks[0].norm1(tokens))
            names = predictor.info.class_names
            stages = [tokens]
            for block in model.blocks:
                stages.append(block(stages[-1]))
            lens = [model.forward_head(model.norm(s))[0].softmax(0) for s in stages]
        shown = bars(page, attention)
        assert shown == {name: f"{100 * probability[names.index(name)]:.2f} %" for name in shown}
        rows[attention] = weights[0, 1, 0]
        patches = rows[attention][1:]
        top = int(patches.argmax())
        caption = text(page, f'[data-attention="{attention}"] .caption')
        where = f"row {top // 4 + 1}, column {top % 4 + 1}"
        assert caption.startswith(f"most at {where}: {patches[top]:.4f}")
        assert f"class token {rows[attention][0]:.4f}" in caption
        gap = float((rows[attention] - rows["softmax"]).abs().sum() / 2)
        assert (f"differs by {gap:.4f}" in caption) == (attention != "softmax")
        column = ["softmax", "taylor", "performer"].index(attention) + 1
        for place, stage in enumerate(lens, start=1):
            cell = text(page, f".lenses tbody tr:nth-child({place}) td:nth-of-type({column})")
            best = int(stage.argmax())
            assert cell == f"{names[best]} {100 * stage[best]:.2f} %"
    highest = max(float(row[1:].max()) for row in rows.values())
    assert f"0{highest:.4f}weight" in re.sub(r"\s", "", text(page, "#legend"))


def test_hover_pin_and_keys(visit: Visit) -> None:
    page = visit.open("#look?layer=0")
    reading = text(page, "#reading-of")
    caption = text(page, "#panels .caption")
    box = page.query_selector("#panels canvas").bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    wait_for_change(page, "#reading-of", reading)
    assert "row 1, column 4" in text(page, "#reading-of")
    assert text(page, "#panels .caption") != caption
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    page.wait_for_function("location.hash.includes('patch=3')")
    page.mouse.move(1, 1)
    assert "row 1, column 4" in text(page, "#reading-of")
    page.focus("#picture")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert "row 2, column 3" in text(page, "#reading-of")
    page.keyboard.press("Escape")
    assert text(page, "#reading-of") == reading
    assert visit.errors() == []


@pytest.mark.parametrize(
    ("slider", "value", "part"),
    [
        ("layer", 1, "#panels .caption"),
        ("head", 2, "#panels .caption"),
        ("temperature", -1, "#panels [data-attention=softmax] .bars"),
        ("order", 0, "#panels [data-attention=taylor] .caption"),
    ],
)
def test_sliders_are_followed_live(visit: Visit, slider: str, value: float, part: str) -> None:
    page = visit.open()
    before, address = text(page, part), page.url
    slide(page, slider, value)
    wait_for_change(page, part, before)
    assert page.url != address
    assert visit.errors() == []


def test_order_zero_is_uniform_and_exact_is_softmax(visit: Visit) -> None:
    page = visit.open("#look?order=0")
    assert f"{1 / 17:.4f}" in text(page, "[data-attention=taylor] .caption")
    before = text(page, "[data-attention=taylor] .caption")
    slide(page, "order", 3)
    wait_for_change(page, "[data-attention=taylor] .caption", before)
    assert bars(page, "taylor") == bars(page, "softmax")
    assert text(page, "[data-attention=taylor] .caption").endswith("differs by 0.0000")


def test_rollout_difference_and_other_attentions(visit: Visit) -> None:
    page = visit.open()
    before = text(page, "#panels .caption")
    page.check("#rollout")
    wait_for_change(page, "#panels .caption", before)
    assert text(page, "#reading-of").startswith("Rollout")
    page.check("#difference")
    assert "less or more than the first map" in text(page, "#legend")
    page.select_option("[aria-label='Attention 2']", "taylorshift")
    page.wait_for_selector("[data-attention=taylorshift] canvas")
    assert "attentions=softmax%2Ctaylorshift%2Cperformer" in page.url
    page.click(".differ tbody tr:first-child td:nth-of-type(2) button")
    page.wait_for_function("location.hash.includes('layer=0') && location.hash.includes('head=1')")
    assert visit.errors() == []


def test_a_link_shows_the_same(visit: Visit, browser: Any, server: str, photo: bytes) -> None:
    page = visit.open("#look?temperature=0.5&order=1&layer=0&head=1&patch=5&difference=1")
    before = text(page, "#panels")
    send(page, photo, "drop")
    wait_for_change(page, "#panels", before)
    page.goto(page.url.replace("picture=", "patch=6&picture="))
    page.wait_for_selector("html[data-ready]")
    other = Visit(browser, server)
    place = page.url.removeprefix(f"{server}/")
    copied = other.open(place)
    for part in ("#panels", "#reading-of", "#legend", "#differ", "#lens"):
        assert text(copied, part) == text(page, part)
    other.context.close()


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_drop_and_paste(visit: Visit, how: str, photo: bytes) -> None:
    page = visit.open()
    before = text(page, "#panels")
    send(page, photo, how)
    wait_for_change(page, "#panels", before)
    assert "picture=" in page.url
    assert visit.errors() == []


def test_pick_photograph_and_draw(visit: Visit, photo: bytes) -> None:
    page = visit.open()
    file = {"name": "a.png", "mimeType": "image/png", "buffer": photo}
    addresses = {page.url}
    page.set_input_files("#look-file", files=[file])
    page.wait_for_function("location.hash.includes('picture=')")
    addresses.add(page.url)
    page.click("#picker >> text=Camera")
    page.wait_for_function("document.querySelector('dialog video')?.videoWidth > 0")
    page.click("text=Take the picture")
    page.wait_for_function("before => location.href !== before", arg=page.url)
    addresses.add(page.url)
    page.click("#picker >> text=Draw")
    box = page.query_selector("dialog canvas").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 200, steps=5)
    page.mouse.up()
    page.click("text=Use the drawing")
    page.wait_for_function("before => location.href !== before", arg=page.url)
    assert page.url not in addresses
    assert visit.errors() == []


BAD = {
    "corrupt": (encoded(Image.effect_noise((64, 64), 50))[:900], "cannot be read"),
    "20 MB": (b"\x89PNG" + bytes(20_000_000), "at most 10,000,000 bytes"),
    "bomb": (bomb(60_000, 60_000), "pixels"),
    "svg": (SVG, "not an image in a known format"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_in_words_and_the_page_goes_on(
    visit: Visit, name: str, photo: bytes
) -> None:
    content, words = BAD[name]
    page = visit.open()
    before = text(page, "#panels")
    send(page, content, "drop")
    page.wait_for_selector("#message:not([hidden])")
    assert words in text(page, "#message")
    assert page.get_attribute("#message", "role") == "alert"
    send(page, photo, "drop")
    wait_for_change(page, "#panels", before)
    page.wait_for_selector("#message", state="hidden")
    refused = [line for line in visit.errors() if "status of 4" not in line]
    assert refused == []


def test_a_picture_that_is_no_longer_kept(visit: Visit) -> None:
    page = visit.open("#look?picture=0123456789abcdef")
    assert "send it again" in text(page, "#message")


# ------------------------------------------------------------- other views


def test_the_walk_shows_the_tensors(visit: Visit, server: str) -> None:
    page = visit.open("#learn")
    page.wait_for_selector("#step-head .bars li")
    assert len(page.query_selector_all(".step math")) == 12
    shown = [row.text_content() for row in page.query_selector_all("[data-tensor=logits] .p")]
    picture = page.evaluate("fetch('/api/models').then((r) => r.json())")["models"][0]["samples"]
    walked = page.evaluate(
        "p => fetch(`/api/walk?picture=${p}`, {method: 'POST'}).then((r) => r.json())",
        picture[0]["picture"],
    )
    tensors = {own["name"]: own for step in walked["steps"] for own in step["tensors"]}
    assert shown == [f"{value:.4f}" for value in tensors["logits"]["values"][0]]
    for name in ("Q", "A", "MLP"):
        caption = text(page, f'[data-tensor="{name}"] figcaption')
        dims = " × ".join(map(str, tensors[name]["shape"]))
        assert caption.startswith(f"{name} {dims}, from")
    before = text(page, "#step-weights")
    slide(page, "block", 2)
    wait_for_change(page, "#step-weights", before)
    assert "Block 2 opens" in text(page, "#step-norm")
    page.click("#learn-picture .picture", position={"x": 5, "y": 5})
    page.wait_for_function("location.hash.includes('patch=0')")
    box = page.query_selector('[data-tensor="A"] canvas').bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.wait_for_selector("[data-tensor='A'] .at:has-text('row 1, column 1: ')")
    assert visit.errors() == []


def test_measure_draws_the_times_as_they_come(visit: Visit) -> None:
    page = visit.open("#measure?most=512")
    assert "NVIDIA H200" in text(page, "#view-measure")
    assert len(page.query_selector_all("#chart-h200 [data-form] .curve")) == 3
    assert "faster than softmax from 142 tokens on" in text(page, "#words-h200")
    page.click("#start")
    page.wait_for_selector("#start:has-text('Stop')")
    page.wait_for_selector("#chart-here [data-form=softmax] .dot")
    page.wait_for_selector("#start:has-text('Start again')", timeout=120_000)
    assert len(page.query_selector_all("#chart-here .dot")) == 12
    slide(page, "tokens", 8)
    assert "At 256 tokens" in text(page, "#words-here")
    page.check("[name=dim][value='64']", force=True)
    page.wait_for_function("location.hash.includes('dim=64')")
    assert "2,637" in text(page, "#words-h200")
    assert visit.errors() == []


def test_two_models_on_one_picture(visit: Visit, runs: list[Path], photo: bytes) -> None:
    page = visit.open("#compare")
    send(page, photo, "drop")
    page.wait_for_function("location.hash.includes('picture=')")
    page.wait_for_function(
        "[...document.querySelectorAll('[data-fact=latency]')].filter("
        "(e) => / m?s$/.test(e.textContent)).length === 2"
    )
    for run in runs:
        image = Image.open(BytesIO(photo))
        name, probability = Predictor(run).classes(image)[0]
        verdict = text(page, f'[data-model="{run.name}"] .verdict')
        assert verdict == f"{name} {100 * probability:.2f} %"
        summary = json.loads((run / "summary.json").read_text())
        accuracy = text(page, f'[data-model="{run.name}"] [data-fact=accuracy]')
        assert accuracy == f"{100 * summary['test_accuracy']:.2f} %"
    page.uncheck("#compare-models input[value=second]")
    page.wait_for_function("document.querySelectorAll('#compare-cards article').length === 1")
    frame = page.frame_locator("#compare-reports iframe")
    assert frame.locator("#summary").count() == 1
    page.select_option("#model", "second")
    page.click("nav >> text=Look")
    page.wait_for_selector("#view-look:not([hidden]) .lede:has-text('taylorshift')")


# ------------------------------------------------------- for every person


def test_keyboard_only(visit: Visit) -> None:
    """Tab reaches everything; the order is that of the page; no trap."""
    page = visit.open()
    reached: list[str] = []
    for _ in range(70):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(() => { const e = document.activeElement;"
                " return e.id || e.textContent.trim().slice(0, 20) || e.tagName; })()"
            )
        )
    for name in ("Skip to the content", "Look", "Measure", "share", "theme", "picture", "layer"):
        assert name in reached
    assert reached.index("picture") < reached.index("layer") < reached.index("rollout")
    page.focus("#layer")
    before = text(page, "#panels .caption")
    page.keyboard.press("ArrowLeft")
    wait_for_change(page, "#panels .caption", before)
    page.focus("nav [data-view=learn]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view-learn:not([hidden]) .step")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [360, 1280])
def test_no_view_is_too_wide(browser: Any, server: str, view: str, width: int) -> None:
    visit = Visit(browser, server, viewport={"width": width, "height": 740})
    page = visit.open(f"#{view}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.errors() == []
    visit.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.skipif(not Path(AXE).is_file(), reason="axe-core is not installed: make test-browser")
def test_no_serious_accessibility_fault(browser: Any, server: str, view: str, scheme: str) -> None:
    """axe-core from npm; the policy of the page does not let it in, so it is bypassed."""
    visit = Visit(browser, server, color_scheme=scheme, bypass_csp=True)
    page = visit.open(f"#{view}")
    page.wait_for_timeout(300)
    page.evaluate(Path(AXE).read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations'], iframes: false})")
    serious = [
        f"{own['id']}: {node['target']} {node['failureSummary']}"
        for own in found["violations"]
        if own["impact"] in {"serious", "critical"}
        for node in own["nodes"]
    ]
    assert serious == []
    visit.context.close()


def test_the_accessibility_check_finds_a_fault(browser: Any, server: str) -> None:
    if not Path(AXE).is_file():
        pytest.skip("axe-core is not installed: make test-browser")
    visit = Visit(browser, server, bypass_csp=True)
    page = visit.open("#look")
    page.evaluate("document.querySelector('label[for=layer]').remove()")
    page.evaluate(Path(AXE).read_text())
    found = page.evaluate("axe.run(document)")
    assert "label" in [own["id"] for own in found["violations"]]
    visit.context.close()


def test_theme_and_reduced_motion(browser: Any, server: str) -> None:
    visit = Visit(browser, server, reduced_motion="reduce", color_scheme="dark")
    page = visit.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(ground) != dark
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter((e) => {"
        " const s = getComputedStyle(e); return s.animationName !== 'none'"
        " || (s.transitionDuration !== '0s' && s.transitionProperty !== 'none'"
        " && s.transitionProperty !== 'all'); }).length"
    )
    assert moving == 0
    visit.context.close()


def test_what_the_policy_forbids_does_not_run(visit: Visit) -> None:
    """The comparator: an inline script and a foreign picture are seen and refused."""
    page = visit.open()
    page.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        " document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.2:9/x.png';"
        " document.body.append(i); })()"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.bad") is None
    assert sum("Content Security Policy" in line for line in visit.console) >= 2
    visit.foreign.clear()
