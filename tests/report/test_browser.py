"""The page in a real browser: no errors, no requests, phone width, dark mode, sorting, theme.

A page around it holds the report in a frame of the wanted width, looks inside, and writes what it
sees where `--dump-dom` finds it.
"""

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest

from saccade.report import write_report
from tests.report.made_runs import make_run, make_study, write_record
from tests.waiting import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--host-resolver-rules=MAP\u00a0*\u00a0~NOTFOUND --virtual-time-budget=5000"
)
LOOK = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, root = page.documentElement;
  const view = frame.contentWindow;
  const ground = () => view.getComputedStyle(page.body).backgroundColor;
  const text = () => view.getComputedStyle(page.querySelector("figure svg text")).fill;
  const names = () =>
    [...page.querySelectorAll("#summary tbody th")].map((cell) => cell.dataset.value);
  const seen = {
    width: view.innerWidth,
    scrollWidth: root.scrollWidth,
    requests: view.performance.getEntriesByType("resource").length,
    ground: ground(),
    text: text(),
    button: !page.getElementById("theme").hidden,
    before: names(),
    nameWidth: page.querySelector("#summary tbody th").offsetWidth,
  };
  const heads = page.querySelectorAll("#summary thead th");
  const accuracy = [...heads].find((h) => h.innerText.includes("accuracy"));
  accuracy.querySelector("button").click();
  seen.ascending = names();
  accuracy.querySelector("button").click();
  seen.descending = names();
  seen.sort = accuracy.getAttribute("aria-sort");
  page.getElementById("theme").click();
  seen.switched = ground();
  document.body.dataset.seen = JSON.stringify(seen);
});
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    accuracies = {"softmax": 0.8, "taylor": 0.9, "performer_ftheta": 0.7}
    make_study(folder, accuracies, seeds=2, classes=("<script>", "b" * 39, "c", "d"))
    failed = make_run(folder / "runs" / "taylor" / "seed-9", "taylor", 9)
    failed.write("status.json", {"state": "failed", "message": "x" * 200})
    row = {"latency_ms": 1.5, "latency_batch": 64, "approximation_error": 0.01}
    write_record(folder / "results.json", rows=[{"attention": "taylor", **row}])
    return (write_report(folder).out / "report.html").read_text()


def browse(page: str, folder: Path, *, width: int, dark: bool = False) -> tuple[Any, list[str]]:
    """What the looker saw, and the lines of the console."""
    around = folder / "around.html"
    around.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body><iframe style="width:{width}px;height:800px;'
        f'border:0" srcdoc="{escape(page)}"></iframe><script>{LOOK}</script></body>'
    )
    flags = [flag.replace("\u00a0", " ") for flag in FLAGS.split(" ")]
    if dark:
        flags.append("--blink-settings=preferredColorScheme=0")
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", around.as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(seen[1].replace("&quot;", '"')) if seen else None, told


def test_phone_light(page: str, tmp_path: Path) -> None:
    seen, console = browse(page, tmp_path, width=360)
    assert console == []
    assert seen["width"] == 360
    assert seen["scrollWidth"] <= 360
    assert seen["requests"] == 0
    assert (seen["ground"], seen["text"]) == ("rgb(255, 255, 255)", "rgb(87, 96, 106)")
    assert seen["switched"] == "rgb(20, 23, 26)"
    assert seen["button"]
    assert seen["before"] == ["softmax", "taylor", "performer_ftheta"]
    assert seen["ascending"] == ["performer_ftheta", "softmax", "taylor"]
    assert seen["descending"] == seen["ascending"][::-1]
    assert seen["sort"] == "descending"


def test_long_names_leave_room_for_numbers_on_a_phone(tmp_path: Path) -> None:
    """The column of names stays in sight while a table scrolls: it must not cover the screen."""
    for number, lr in enumerate((0.0123456, 0.1234567)):
        words = [f"optim.lr={lr}", f"optim.weight_decay={lr}", f"train.label_smoothing={lr}"]
        make_run(tmp_path / "trials" / str(number), overrides=words)
    params = ["optim.lr", "optim.weight_decay", "train.label_smoothing"]
    write_record(tmp_path / "results.json", trials=[{"params": dict.fromkeys(params, 0.1)}])
    found = write_report(tmp_path, formats=["html"])
    assert all("label_smoothing=" in row.label for row in found.findings.rows)
    seen, console = browse((found.out / "report.html").read_text(), tmp_path, width=360)
    assert console == []
    assert seen["scrollWidth"] <= 360
    assert seen["nameWidth"] < 200


def test_desktop_dark(page: str, tmp_path: Path) -> None:
    seen, console = browse(page, tmp_path, width=1280, dark=True)
    assert console == []
    assert seen["scrollWidth"] <= 1280
    assert (seen["ground"], seen["text"]) == ("rgb(20, 23, 26)", "rgb(163, 171, 180)")
    assert seen["switched"] == "rgb(255, 255, 255)"


def test_what_is_wrong_would_be_seen(page: str, tmp_path: Path) -> None:
    """Too wide a page, a request and a script that is not the report's own."""
    spoiled = page.replace(
        "<main>",
        '<main><div style="width:900px">wide</div><img src="https://example.org/x.png" alt="">'
        "<script>document.title = 1</script>",
    )
    seen, console = browse(spoiled, tmp_path, width=360)
    assert seen["scrollWidth"] > 360
    assert len(console) >= 2
    assert any("Content Security Policy" in line for line in console)
