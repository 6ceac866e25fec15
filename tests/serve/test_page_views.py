"""Learn, Measure and Compare in a real browser, and the page for every person."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saccade.train.inference import Predictor
from tests.serve.browsing import AXE, MARKS, VIEWS, Visit, send, slide, text, wait_for_change

pytestmark = MARKS


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
    page.wait_for_function("() => location.hash.includes('patch=0')")
    page.hover('[data-tensor="A"] canvas', position={"x": 2, "y": 2})
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
    page.wait_for_function("() => location.hash.includes('dim=64')")
    assert "2,637" in text(page, "#words-h200")
    assert visit.errors() == []


def test_two_models_on_one_picture(visit: Visit, runs: list[Path], photo: bytes) -> None:
    page = visit.open("#compare")
    before = text(page, "#compare-cards")
    send(page, photo, "drop")
    wait_for_change(page, "#compare-cards .verdict", text(page, "#compare-cards .verdict"))
    assert text(page, "#compare-cards") != before
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-fact=latency]')].filter("
        "(e) => / [mµ]?s$/.test(e.textContent)).length === 2"
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
    page.wait_for_function("() => document.querySelectorAll('#compare-cards article').length === 1")
    frame = page.frame_locator("#compare-reports iframe")
    assert frame.locator("#summary").count() == 1
    page.select_option("#model", "second")
    page.click("nav >> text=Look")
    page.wait_for_selector("#view-look:not([hidden]) .lede:has-text('taylorshift')")


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
