"""The site: every page is in the navigation, every link and picture leads somewhere, no error."""

import importlib.util
import re
import shutil
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
WIDTHS = {"desktop": 1280, "phone": 390}


@pytest.fixture(scope="module")
def make_site():
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(make_site, tmp_path_factory):
    """The site, built from the pages as they are."""
    out = tmp_path_factory.mktemp("site") / "site"
    make_site.build(out)
    return out


class Page(HTMLParser):
    """The links, pictures, ids and outside addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.needed: list[str] = []
        self.ids: set[str] = {"", "__top"}
        self.without_alt: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("img", "script", "source") and "src" in found:
            self.needed.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.needed.append(found["href"])
        if tag == "img" and not found.get("alt"):
            self.without_alt.append(found.get("src", ""))


@pytest.fixture(scope="module")
def pages(site):
    found = [path for path in site.glob("**/*.html") if "results" not in path.parts]
    return {
        path: Page(path.read_text(encoding="utf-8")) for path in found if path.name != "404.html"
    }


def broken(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Links, pictures and anchors that lead nowhere."""
    found = []
    for path, page in pages.items():
        here = f"http://site/{path.relative_to(site)}"
        for link in [*page.links, *page.needed]:
            address, anchor = urldefrag(urljoin(here, link))
            if urlparse(address).netloc != "site":
                continue
            target = site / unquote(urlparse(address).path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].ids if target in pages else {unquote(anchor)}
            if not target.exists() or unquote(anchor) not in anchors:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def test_no_link_is_broken(site, pages):
    assert len(pages) > 50
    assert broken(site, pages) == []


def test_broken_links_are_found(site, pages):
    path = site / "index.html"
    planted = (
        '<a href="nowhere.html">x</a><img src="gone.png"><a href="docs/results.html#none">y</a>'
    )
    assert len(broken(site, pages | {path: Page(planted)})) >= 3


def test_pictures_are_described_and_nothing_comes_from_outside(pages):
    assert {path: page.without_alt for path, page in pages.items() if page.without_alt} == {}
    assert [link for page in pages.values() for link in page.needed if "://" in link] == []


def test_every_page_is_in_the_navigation(make_site):
    listed = {page for _, pages in make_site.navigation() for page in pages}
    written = {path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.md")}
    assert written - listed == set()
    assert {page for page in listed if not (ROOT / page).exists()} == set()


def test_llms_txt_lists_every_page(site, make_site):
    text = (site / "llms.txt").read_text()
    assert text.startswith("# saccade\n\n> ")
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", text, flags=re.MULTILINE)
    assert listed == [str(page) for _, pages in make_site.navigation() for page in pages]
    assert all((site / page).exists() for page in listed)


@pytest.fixture(scope="module")
def address(site):
    """Where a server on this machine shows the site."""
    handler = partial(Quiet, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Print nothing."""


def failure(request: Any) -> list[str]:
    """A failed request; one that ended because the browser went to the next page is none."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.failure}: {request.url}"]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_in_a_browser(address, site, pages, width):
    """No console error, no failed or outside request, no picture missing, no sideways scrolling."""
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport={"width": WIDTHS[width], "height": 800})
        tab.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("requestfailed", lambda request: faults.extend(failure(request)))
        tab.on(
            "request",
            lambda r: (
                None if r.url.startswith((address, "data:", "blob:")) else faults.append(r.url)
            ),
        )
        for path in list(pages)[list(WIDTHS).index(width) :: 2]:
            tab.goto(f"{address}/{path.relative_to(site)}", wait_until="load")
            seen = tab.evaluate(
                "() => [document.documentElement.scrollWidth - window.innerWidth,"
                " [...document.images].filter(i => i.complete && !i.naturalWidth).length]"
            )
            if seen != [0, 0] and (seen[0] > 0 or seen[1]):
                faults.append(f"{path.relative_to(site)}: {seen}")
        browser.close()
    assert faults == []


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_search_finds_and_the_theme_changes(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(address)
        ground = "() => getComputedStyle(document.body).backgroundColor"
        light = tab.evaluate(ground)
        tab.locator("label[for=__palette_1]:visible").click()
        tab.wait_for_function(f"({ground})() !== {light!r}")
        tab.keyboard.press("/")
        tab.keyboard.type("random features", delay=20)
        tab.get_by_text("Random features").first.wait_for()
        browser.close()
