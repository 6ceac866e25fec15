"""The Python snippets of docs/training.md train and load a run."""

from pathlib import Path

import pytest
from PIL import Image

from tests.test_docs import ROOT, snippets

PAGE = ROOT / "docs" / "training.md"


def test_the_snippets_run(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(finished)
    for name in ("a", "b"):
        Image.new("L", (8, 8), 90).save(tmp_path / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    for name, code in snippets(PAGE):
        exec(compile(code, name, "exec"), {"__name__": name})
    accuracy, predictions = capsys.readouterr().out.splitlines()
    assert 0 <= float(accuracy) <= 1
    assert len(predictions.split()) == 4  # two classes, two probabilities
