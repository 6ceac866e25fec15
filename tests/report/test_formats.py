"""The files: complete, self-contained, and with strangers' text as text."""

import csv
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from saccade.report import write_report
from saccade.report.collect import collect
from tests.report.made_runs import make_run, make_study
from tests.waiting import PATIENCE_S

HOSTILE = ("<script>alert(1)</script>", "a|b *c* _d_ [e](f) `g`", r"\input{x} %&$#^~{}", "=1+1")


class Elements(HTMLParser):
    """What a browser would make of a page: elements, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose classes, attention, command and failure are all someone's joke."""
    folder = tmp_path_factory.mktemp("hostile")
    make_study(folder, {"softmax": 0.9}, classes=HOSTILE, seeds=1)
    odd = make_run(folder / "odd", "taylor", classes=HOSTILE, summary={"attention": HOSTILE[0]})
    odd.write("environment.json", {"command": ["<img src=x onerror=alert(1)>"], "device": "&<>"})
    failed = make_run(folder / "failed")
    failed.write("status.json", {"state": "failed", "message": HOSTILE[0]})
    (failed.path / "summary.json").unlink()
    return write_report(folder).out


def test_html_takes_text_for_text(hostile: Path) -> None:
    page = Elements((hostile / "report.html").read_text())
    scripts = [element for element in page.elements if element[0] == "script"]
    assert len(scripts) == 1
    assert not {"img", "input", "iframe"} & {tag for tag, _ in page.elements}
    handlers = [key for _, attributes in page.elements for key in attributes if key[:2] == "on"]
    assert handlers == []
    said = "".join(page.text)
    assert all(name in said for name in HOSTILE)
    assert said.count(HOSTILE[0]) > 3


def test_html_asks_for_nothing_else(hostile: Path) -> None:
    page = Elements((hostile / "report.html").read_text())
    links = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in {"src", "href", "xlink:href", "srcset", "action", "poster"}
    ]
    assert len(links) > 20
    inside = [link for link in links if link.startswith(("#", "data:image/png"))]
    beside = [link for link in links if link not in inside]
    assert all((hostile / link).is_file() for link in beside)
    style = re.search(r"<style>(.*?)</style>", (hostile / "report.html").read_text(), re.DOTALL)
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_html_ids_are_unique_and_headings_in_order(hostile: Path) -> None:
    page = Elements((hostile / "report.html").read_text())
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes.get("href", "")[1:] for tag, attributes in page.elements if tag == "a"}
    assert {"summary", "claims", "left-out"} <= targets & set(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if tag in {"h1", "h2", "h3", "h4"}]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - level <= 1 for level, later in pairwise(levels))


def test_every_figure_has_words_and_files(hostile: Path) -> None:
    page = Elements((hostile / "report.html").read_text())
    drawn = [a for tag, a in page.elements if tag == "svg" and a.get("role") == "img"]
    assert len(drawn) > 8
    assert all(len(attributes["aria-label"]) > 20 for attributes in drawn)
    names = {file.stem for file in (hostile / "figures").glob("*.svg")}
    assert names == {file.stem for file in (hostile / "figures").glob("*.png")}
    assert len(names) == len(drawn)


def test_markdown_takes_text_for_text(hostile: Path) -> None:
    tokens = MarkdownIt().enable("table").parse((hostile / "report.md").read_text())
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in [*tokens, *inline]}
    assert "table_open" in kinds
    assert not {"html_block", "html_inline", "link_open", "code_inline", "em_open"} & kinds
    texts = [token.content for token in tokens if token.type == "inline"]
    said = ["".join(c.content for c in token.children) for token in tokens if token.children]
    assert len(texts) > 50
    assert all(any(name == text for text in said) for name in HOSTILE)


def test_markdown_tables_keep_their_columns(hostile: Path) -> None:
    tokens = MarkdownIt().enable("table").parse((hostile / "report.md").read_text())
    counts: list[list[int]] = []
    for token in tokens:
        if token.type == "thead_open":
            counts.append([])
        elif token.type == "tr_open":
            counts[-1].append(0)
        elif token.type in {"td_open", "th_open"}:
            counts[-1][-1] += 1
    assert len(counts) >= 6
    assert all(len(set(rows)) == 1 for rows in counts)


def test_latex_specials_are_escaped(hostile: Path) -> None:
    text = (hostile / "tables" / "classes.tex").read_text()
    assert r"\textbackslash{}input\{x\} \%\&\$\#\textasciicircum{}\textasciitilde{}\{\}" in text
    assert r"\textless{}script\textgreater{}" in text
    assert r"a\textbar{}b *c* \_d\_" in text
    assert r"\toprule" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(hostile: Path, tmp_path: Path) -> None:
    command = ["pdflatex", "-halt-on-error", "-interaction=batchmode"]
    done = subprocess.run(
        [*command, f"-output-directory={tmp_path}", "report.tex"],
        cwd=hostile,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, (tmp_path / "report.log").read_text()[-2000:]
    assert (tmp_path / "report.pdf").stat().st_size > 10_000


def test_csv_holds_plain_numbers_and_no_formulas(hostile: Path) -> None:
    def rows(name: str) -> list[dict[str, str]]:
        text = (hostile / "tables" / f"{name}.csv").read_text()
        return list(csv.DictReader(io.StringIO(text)))

    softmax = rows("summary")[0]
    assert float(softmax["accuracy"]) == pytest.approx(0.9)
    assert float(softmax["accuracy_low"]) < 0.9 < float(softmax["accuracy_high"])
    assert softmax["latency_ms"] == ""
    assert [row["class"] for row in rows("classes")] == [*HOSTILE[:3], "'=1+1"]
    assert rows("left_out") == [{"what": "failed", "reason": f"failed: {HOSTILE[0]}"}]


def test_only_the_formats_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    report = write_report(tmp_path, tmp_path / "out", formats=["md"])
    assert {file.suffix for file in report.files} == {".md", ".png", ".svg"}


def test_a_single_run_is_a_report_too(tmp_path: Path) -> None:
    report = write_report(make_run(tmp_path / "run", accuracy=0.8).path)
    assert report.headline.startswith("softmax reaches 80.0\u00a0% [")
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert "What can be claimed" not in page
    assert len(collect(tmp_path).runs) == 1  # its own report is no run


def test_hundred_classes_and_long_names(tmp_path: Path) -> None:
    names = [f"a very long name of a class, number {k}" for k in range(100)]
    make_run(tmp_path / "run", classes=names, images=1000, accuracy=0.5)
    page = (write_report(tmp_path).out / "report.html").read_text()
    assert page.count("<image ") == 1
    assert "image/png;base64" in page


def by_seed(folder: Path) -> list[dict[str, str]]:
    report = write_report(folder, folder / "report", formats=["csv"])
    text = (report.out / "tables" / "by_seed.csv").read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_every_seed_has_its_accuracy(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.9, 0.8, 0.85)):
        make_run(tmp_path / "runs" / f"a{seed}", "softmax", seed, accuracy=accuracy)
    make_run(tmp_path / "runs" / "again", "softmax", 2, accuracy=0.1)
    make_run(tmp_path / "runs" / "b", "taylor", 2, accuracy=0.7)
    softmax, taylor = by_seed(tmp_path)
    assert list(softmax) == ["attention", "seed_0", "seed_1", "seed_2", "mean", "spread"]
    numbers = [float(value) for value in list(softmax.values())[1:]]
    assert numbers == pytest.approx([0.9, 0.8, 0.85, 0.85, 0.05])
    assert list(taylor.values()) == ["taylor", "", "", "0.7", "0.7", ""]


def test_the_table_by_seed_is_in_every_format(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=2)
    out = write_report(tmp_path).out
    page = (out / "report.md").read_text().replace("\u00a0", " ")
    assert "## By seed" in page
    assert "| attention | seed 0 | seed 1 | mean | spread |" in page
    assert "| taylor | 80.00 | 80.00 | 80.00 | 0.00 |" in page
    assert "Test accuracy in percent. The spread is the standard deviation" in page
    assert 'href="#by-seed"' in (out / "report.html").read_text()
    assert "taylor & 80.00 & 80.00 & 80.00 & 0.00" in (out / "report.tex").read_text()
    assert "taylor & 80.00" in (out / "tables" / "by_seed.tex").read_text()


@pytest.mark.parametrize(
    ("seeds", "columns", "title"),
    [
        ((0,), ["fold_0", "fold_1"], "By fold"),
        (
            (0, 1),
            ["seed_0_fold_0", "seed_0_fold_1", "seed_1_fold_0", "seed_1_fold_1"],
            "By seed and fold",
        ),
    ],
)
def test_folds_are_columns_of_their_own(
    tmp_path: Path, seeds: tuple[int, ...], columns: list[str], title: str
) -> None:
    for seed in seeds:
        for fold in range(2):
            place = tmp_path / "runs" / "softmax" / f"seed-{seed}" / f"fold-{fold}"
            make_run(place, "softmax", seed, overrides=["data.folds=2", f"data.fold={fold}"])
    (row,) = by_seed(tmp_path)
    assert list(row)[1:-2] == columns
    page = write_report(tmp_path, tmp_path / "page", formats=["md"]).out / "report.md"
    assert f"## {title}\n" in page.read_text()


def test_one_run_each_has_no_table_by_seed(tmp_path: Path) -> None:
    """It would say what the summary says."""
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=1)
    out = write_report(tmp_path, formats=["md", "csv"]).out
    assert not (out / "tables" / "by_seed.csv").exists()
    assert "By seed" not in (out / "report.md").read_text()


def test_html_alone_is_one_file(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    report = write_report(tmp_path, formats=["html"])
    assert report.files == [tmp_path / "report" / "report.html"]
    page = report.files[0].read_text()
    assert "<svg" in page
    assert 'href="figures/' not in page
    linked = write_report(tmp_path, tmp_path / "both", formats=["html", "md"]).files
    assert 'href="figures/' in (tmp_path / "both" / "report.html").read_text()
    assert any(path.suffix == ".svg" for path in linked)
