"""`saccade convert` as a user types it: results on stdout, one line for every mistake."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import saccade  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]


def test_diagnose_prints_the_layers_and_writes_nothing(saccade, teacher, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    code, out, err = saccade("convert", teacher, "--diagnose")
    assert (code, err) == (0, "")
    assert [line[:5].strip() for line in out.splitlines()[1:4]] == ["0", "1", "2"]
    assert re.search(r"softmax +\d+\.\d\d % of 200 test images", out)
    assert re.search(r"zero-shot +\d+\.\d\d % with taylor", out)
    assert list(tmp_path.iterdir()) == []
    code, out, _ = saccade("convert", teacher, "--diagnose", "--json", "--keep-softmax", 1)
    found = json.loads(out)
    assert len(found["softmax_blocks"]) == 1
    assert len(found["diagnosis"]["layers"]) == 3


def test_a_conversion_prints_its_result(saccade, teacher, few_tokens, tmp_path):  # noqa: F811
    out = tmp_path / "run"
    words = ("--option", "center_keys=false", "--quiet", "--out", out, "train.epochs=1")
    code, shown, err = saccade("convert", teacher, *words)
    assert code == 0, err
    assert "zero-shot" in err
    assert f"page       {out / 'conversion.html'}" in shown
    record = json.loads((out / "conversion.json").read_text())
    assert record["attention_options"] == {"center_keys": False}
    code, _, err = saccade("convert", teacher, "--out", out)
    assert code == 2
    assert "a run is there already; add --resume" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "--out DIR is needed"),
        (("--diagnose", "--attention", "tailor"), 2, "unknown attention 'tailor': did you mean"),
        (("--diagnose", "--attention", "softmax"), 2, "--attention must be another attention"),
        (("--diagnose", "--option", "centre_keys=true"), 2, "did you mean 'center_keys'"),
        (("--diagnose", "--option", "center_keys"), 2, "--option must be NAME=VALUE"),
        (("--diagnose", "--option", "backend=triton"), 2, "backend='triton' cannot run here"),
        (("--diagnose", "--keep-softmax", 3), 2, "--keep-softmax must be from 0 to 2, got 3"),
        (("--diagnose", "--device", "tpu"), 2, "--device must be auto, cpu or cuda, got 'tpu'"),
        (("--diagnose", "--weights", "x.pt"), 2, "--weights must not be given"),
        (("--diagnose", "--data", "shapes"), 3, "must have the classes and images of"),
        (("--diagnose", "--data", "nothing"), 2, "unknown data set 'nothing'"),
    ],
)
def test_mistakes_are_one_line(words, code, message, saccade, teacher, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    found, out, err = saccade("convert", teacher, *words)
    assert (found, out) == (code, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_source_that_is_none_is_one_line(saccade, tmp_path):  # noqa: F811
    code, _, err = saccade("convert", tmp_path / "none", "--diagnose")
    assert code == 2
    assert "SOURCE must be a run folder, a folder with config.json, or timm:NAME" in err
    assert len(err.strip().splitlines()) == 1


def tour() -> list[list[str]]:
    page = (ROOT / "docs" / "convert.md").read_text()
    block = re.search(r"<!-- tour -->\n```sh\n(.*?)```", page, flags=re.DOTALL)
    assert block is not None
    return [line.split()[1:] for line in block[1].splitlines()]


def follow(saccade, commands) -> None:  # noqa: F811
    assert len(commands) == 5
    for words in commands:
        code, _, err = saccade(*words)
        assert code == 0, err
    page = Path("runs/digits-taylor/conversion.html").read_text()
    assert "recovered by distillation" in page
    assert list(Path("maps").rglob("*.png"))


def test_the_tour_can_be_followed(saccade, few_tokens, tmp_path, monkeypatch):  # noqa: F811
    """Every command of the tour, with fewer epochs."""
    monkeypatch.chdir(tmp_path)
    commands = tour()
    commands[0].append("train.epochs=3")
    commands[2].append("train.epochs=1")
    follow(saccade, commands)


@pytest.mark.slow
def test_the_tour_as_it_stands(saccade, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    follow(saccade, tour())
