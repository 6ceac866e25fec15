import runpy
import sys
from pathlib import Path

import pytest

from saccade.runs import find_runs

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_digits_compare_ends_with_a_table_a_plot_and_a_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "compare"
    words = ["--out", str(out), "train.epochs=1", "data.num_train=100", "data.num_test=30"]
    monkeypatch.setattr(sys, "argv", ["digits_compare.py", *words])
    runpy.run_path(str(EXAMPLES / "digits_compare.py"), run_name="__main__")
    told = capsys.readouterr().out
    for attention in ("softmax", "taylorshift", "performer"):
        assert f"\n{attention} " in told
    assert f"run folders: {out}" in told
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert len(find_runs(out)) == 3
