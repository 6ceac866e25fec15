"""Driving the page in Chromium: visits, gestures, and what is read off the page."""

import base64
import importlib.util
import os
import shutil
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = os.environ.get("SACCADE_AXE", "")
"""The file axe.min.js of axe-core; `make test-browser` sets it."""
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
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: make test-browser"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]
VIEWS = ("look", "learn", "measure", "compare")


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
        """([content, how, size]) => {
          const start = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
          const bytes = new Uint8Array(size);  // zeros follow the start
          bytes.set(start);
          const data = new DataTransfer();
          data.items.add(new File([bytes], "a.png", {type: "image/png"}));
          const event = how === "drop"
            ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
          document.body.dispatchEvent(event);
        }""",
        [base64.b64encode(content.rstrip(b"\0")).decode(), how, len(content)],
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
