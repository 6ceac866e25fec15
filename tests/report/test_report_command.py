"""`saccade report` as a stranger calls it, bad input included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.report import write_report
from tests.cli.conftest import Saccade, saccade  # noqa: F401 - a fixture
from tests.report.made_runs import make_run, make_study
from tests.waiting import PATIENCE_S

WITHOUT_TORCH = """
import sys
from saccade.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules, "torch was loaded"
"""


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_fresh_process_needs_no_torch_and_gives_the_same_bytes(tmp_path: Path) -> None:
    """Its sets and hashes have another order than those of this process."""
    study = make_study(tmp_path / "study", {"softmax": 0.9, "taylor": 0.5}, seeds=2)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "report", str(study)],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.endswith("of the runs have no manifest: their files cannot be checked")
    headline, page = done.stdout.splitlines()
    assert headline.startswith("taylor is less accurate than softmax")
    assert Path(page) == study / "report" / "report.html"
    again = write_report(study, tmp_path / "again").out
    assert contents(again) == contents(study / "report")
    kinds = {Path(name).suffix for name in contents(again)}
    assert kinds == {".html", ".md", ".tex", ".csv", ".png", ".svg"}


def test_json_names_every_file(saccade: Saccade, tmp_path: Path) -> None:  # noqa: F811
    make_run(tmp_path / "run")
    out = tmp_path / "out"
    code, words, _ = saccade("report", tmp_path, "--out", out, "--format", "md,csv", "--json")
    assert code == 0
    told = json.loads(words)
    assert sorted(told["files"]) == sorted(str(p) for p in out.rglob("*") if p.is_file())
    assert told["page"] == str(out / "report.md")
    assert told["rows"][0]["attention"] == "softmax"
    assert told["datasets"] == ["digits"]


def test_what_is_left_out_is_told_and_the_page_is_made(
    saccade: Saccade,  # noqa: F811
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "good")
    (make_run(tmp_path / "half").path / "status.json").unlink()
    (tmp_path / "results.json").write_text('{"version": 7}')
    code, out, err = saccade("report", tmp_path)
    assert code == 0
    assert err.splitlines() == [
        "saccade: left out half: half-written: no status.json (and 1 more)",
        "saccade: 1 of the runs have no manifest: their files cannot be checked",
    ]
    page = Path(out.splitlines()[-1]).read_text()
    assert "half-written: no status.json" in page
    assert "written by a newer saccade: version 7" in page


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report"], "DIR is needed"),
        (["report", "absent"], "no such folder: 'absent'"),
        (["report", "empty"], "'empty' holds no run folder"),
        (["report", "half"], "'half' holds no finished run: half: half-written"),
        (["report", "good", "--format", "html,pdf"], "--format 'pdf': accepted are html, md"),
        (["report", "good", "--format", ","], "accepted are html, md, csv, latex"),
        (["report", "good", "--out", "/proc/nowhere"], "--out '/proc/nowhere': cannot write"),
        (["report", "good", "--out", "good/config.yaml"], "cannot write"),
    ],
)
def test_mistakes_get_one_line_and_code_2(
    saccade: Saccade,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    make_run(Path("good"))
    (make_run(Path("half")).path / "status.json").unlink()
    code, out, err = saccade(*words)
    assert code == 2, err
    assert told in err
    assert out == ""
    assert len(err.strip().splitlines()) <= 4
