"""Look in a real browser: numbers, gestures, sliders, links, and pictures good and bad."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from saccade.train.image_inputs import as_input
from saccade.train.inference import Predictor
from tests.serve.browsing import MARKS, Visit, bars, send, slide, text, wait_for_change
from tests.serve.conftest import encoded
from tests.serve.test_guards import SVG, bomb
from tests.serve.test_numbers import same_weights

pytestmark = MARKS


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
    page.wait_for_function("() => location.hash.includes('patch=3')")
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
    page.wait_for_function(
        "() => location.hash.includes('layer=0') && location.hash.includes('head=1')"
    )
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
    page.wait_for_function("() => location.hash.includes('picture=')")
    addresses.add(page.url)
    page.click("#picker >> text=Camera")
    page.wait_for_function("() => document.querySelector('dialog video')?.videoWidth > 0")
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
