"""An unfinished run is held to the configuration and descriptions of its newest checkpoint."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import ConfigError, DamagedRunError, Stopped
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.inference import evaluate_run
from tests.train.tiny_runs import final_state, tiny

CONFIG = tiny("train.epochs=2")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended after its first epoch."""
    out = tmp_path_factory.mktemp("half") / "run"

    def stop(row: Mapping[str, Any]) -> None:
        raise Stopped(f"after epoch {row['epoch']}")

    with pytest.raises(Stopped):
        train(CONFIG, out, quiet=True, on_epoch=stop)
    return out


@pytest.fixture
def run(half: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(half, tmp_path / "run"))


def edit(path: Path, pattern: str, new: str) -> None:
    text = path.read_text()
    changed = re.sub(pattern, new, text)
    assert changed != text
    path.write_text(changed)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "learning rate": (lambda p: edit(p / "config.yaml", r"\n  lr: \S+", "\n  lr: 0.5"), "optim.lr"),
    "seed": (lambda p: edit(p / "config.yaml", r"seed: 0", "seed: 7"), "run.seed"),
    "mean": (lambda p: edit(p / "dataset.json", r'("mean": \[\s*)0\.', r"\g<1>1."), "dataset.json"),
    "dataset gone": (lambda p: (p / "dataset.json").unlink(), "dataset.json is missing"),
    "split gone": (lambda p: (p / "split.json.gz").unlink(), "split.json.gz is missing"),
    "split": (lambda p: (p / "split.json.gz").write_bytes(b"\x1f\x8b"), "split.json.gz"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_description_is_neither_resumed_nor_evaluated(run: RunFolder, name: str) -> None:
    change, told = CHANGES[name]
    change(run.path)
    with pytest.raises(DamagedRunError, match=re.escape(told)):
        train(RunFolder(run.path).config(), run.path, resume=True, quiet=True)
    with pytest.raises(DamagedRunError, match=re.escape(told)):
        evaluate_run(run.path)


def test_moved_data_is_no_change(run: RunFolder, tmp_path: Path) -> None:
    run.note_data_root(tmp_path)
    assert run.config().data.root == tmp_path


def test_a_damaged_record_holds_nothing_and_the_checkpoint_is_passed_over(run: RunFolder) -> None:
    newest = run.checkpoints()[-1].path
    edit(newest / "run.json", r"seed: 0", "seed: 7")
    assert run.config() == CONFIG
    checkpoint, faults = run.newest_intact()
    assert checkpoint is None or checkpoint.path != newest
    assert "run.json is not what was written" in faults[0]


def test_checkpoints_of_an_older_saccade_hold_nothing(run: RunFolder) -> None:
    for checkpoint in run.checkpoints():
        (checkpoint.path / "run.json").unlink()
        manifest = json.loads((checkpoint.path / "manifest.json").read_text())
        del manifest["sha256"]["run.json"]
        (checkpoint.path / "manifest.json").write_text(json.dumps(manifest))
    train(CONFIG, run.path, resume=True, quiet=True)
    assert run.is_finished()


def test_a_file_changed_during_training_does_not_get_into_the_manifest(
    tmp_path: Path, half: Path
) -> None:
    out = tmp_path / "run"

    def spoil(row: Mapping[str, Any]) -> None:
        if row["epoch"] == 2:
            edit(out / "dataset.json", r'("mean": \[\s*)0\.', r"\g<1>1.")

    with pytest.raises(ConfigError, match=r"dataset\.json is not what the run wrote"):
        train(CONFIG, out, quiet=True, on_epoch=spoil)
    assert not RunFolder(out).is_finished()
    shutil.copy(half / "dataset.json", out / "dataset.json")
    train(CONFIG, out, resume=True, quiet=True)
    assert RunFolder(out).damage() == {}
    assert final_state(out)
