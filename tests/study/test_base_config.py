"""`base.yaml` of a study is held to the hash in `study.json`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from saccade.config import with_overrides
from saccade.errors import ConfigError
from saccade.io import sealed, write_file
from saccade.study.comparison import ComparisonFolder, Plan
from saccade.study.folder import UNCHECKED
from saccade.study.tuning import TuningFolder, join_search, tune
from tests.study.tiny_comparison import tiny_plan
from tests.study.tiny_search import start_tiny

Read = Callable[[Path], object]


def read_comparison(path: Path) -> object:
    return ComparisonFolder.open(path).plan


def read_search(path: Path) -> object:
    return TuningFolder.open(path).base()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return tiny_plan(tmp_path)


@pytest.fixture(params=[read_comparison, read_search])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Read]:
    """The folder of a study that has just begun, and how its configuration is read."""
    path = tmp_path / "study"
    if request.param is read_comparison:
        ComparisonFolder.start(path, request.getfixturevalue("plan"), resume=False)
    else:
        start_tiny(path, trials=1)
    return path, request.param


def forget_hash(path: Path) -> None:
    """Make `study.json` that of an earlier version."""
    values = json.loads((path / "study.json").read_text())
    del values["base_sha256"]
    (path / "study.json").write_text(json.dumps(sealed(values)))


def change(path: Path) -> None:
    """Change a learning rate."""
    text = (path / "base.yaml").read_text()
    assert text.count("  lr: ") == 1
    (path / "base.yaml").write_text(text.replace("  lr: ", "  lr: 1"))


def test_a_changed_configuration_is_refused(study: tuple[Path, Read]) -> None:
    path, read = study
    read(path)
    change(path)
    with pytest.raises(ConfigError, match=r"base\.yaml' was changed after it was written"):
        read(path)


def test_a_study_of_an_earlier_version_is_not_checked(study: tuple[Path, Read]) -> None:
    path, read = study
    forget_hash(path)
    change(path)
    read(path)


def test_a_search_without_hash_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = start_tiny(tmp_path / "study", trials=1)
    forget_hash(folder.path)
    tune(join_search(folder.path), say=lines.append)
    assert [line for line in lines if UNCHECKED in line]


def test_a_changed_value_of_a_trial_is_refused(tmp_path: Path) -> None:
    folder = start_tiny(tmp_path / "study", trials=1)
    value = tune(folder)["best"]["value"]
    lines = folder.journal.read_text().splitlines()
    (place,) = [n for n, line in enumerate(lines) if '"values"' in line and str(value) in line]
    lines[place] = lines[place].replace(str(value), "0.875")
    folder.journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(
        ConfigError, match=rf"says val_accuracy 0\.875 of trial 0, .* {value}; rest"
    ):
        tune(join_search(folder.path))


def test_changed_settings_of_this_machine_are_held_too(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "study"
    ComparisonFolder.start(path, plan, resume=False)
    moved = Plan(**{**vars(plan), "base": with_overrides(plan.base, ["data.workers=3"])})
    ComparisonFolder.start(path, moved, resume=True)
    assert ComparisonFolder.open(path).plan.base.data.workers == 3
    assert len(json.loads((path / "study.json").read_text())["base_sha256"]) == 1
    change(path)
    with pytest.raises(ConfigError, match=r"base\.yaml' was changed after"):
        ComparisonFolder.start(path, moved, resume=True)


@pytest.mark.parametrize("written", [1, 2])
def test_a_kill_while_settings_change_leaves_a_whole_study(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Of three writes, `written` are done."""
    path, done = tmp_path / "study", []
    ComparisonFolder.start(path, plan, resume=False)
    moved = Plan(**{**vars(plan), "base": with_overrides(plan.base, ["data.workers=3"])})

    def write_some(place: Path, content: str) -> None:
        if len(done) == written:
            raise KeyboardInterrupt
        write_file(place, content)
        done.append(place)

    monkeypatch.setattr("saccade.io.writing.write_file", write_some)
    monkeypatch.setattr("saccade.study.comparison.folder.write_file", write_some)
    with pytest.raises(KeyboardInterrupt):
        ComparisonFolder.start(path, moved, resume=True)
    monkeypatch.undo()
    assert ComparisonFolder.open(path).plan.base.data.workers == (0, 3)[written - 1]
    ComparisonFolder.start(path, moved, resume=True)
    assert ComparisonFolder.open(path).plan.base.data.workers == 3
