"""A teacher: its loss, and a run that learns from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.errors import ConfigError
from saccade.runs import RunFolder
from saccade.train import load_model, train
from saccade.train.teacher import Teacher
from tests.train.tiny_runs import tiny


def test_the_loss_is_the_equation() -> None:
    logits, wanted = torch.randn(2, 5, 3, dtype=torch.float64).float()
    valid = torch.tensor([True, True, False, True, True])
    own = torch.tensor(2.0)
    p, q = ((x / 4).softmax(1) for x in (logits, wanted))
    rows = (q * (q.log() - p.log())).sum(1)
    expected = 0.3 * own + 0.7 * 16 * rows[valid].sum()
    teacher = Teacher(torch.nn.Identity(), weight=0.7, temperature=4.0)
    torch.testing.assert_close(teacher.loss(logits, wanted, valid, own), expected)
    swapped = teacher.loss(wanted, logits, valid, own)
    assert not torch.allclose(swapped, expected)  # KL is not symmetric: the test sees the order


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(tiny("train.epochs=2", "run.checkpoint_every_steps=null"), out, quiet=True)
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    step = max((run / "checkpoints").iterdir())
    return load_file(step / "model.safetensors")


def test_a_student_does_not_change_its_teacher_and_differs_from_a_run_without(
    teacher: Path, tmp_path: Path
) -> None:
    before = weights(teacher)
    common = ("train.epochs=1", "run.checkpoint_every_steps=null", "run.keep_last=1")
    train(tiny(*common), tmp_path / "alone", quiet=True)
    train(tiny(*common, f"train.teacher={teacher}"), tmp_path / "taught", quiet=True)
    train(
        tiny(*common, f"train.teacher={teacher}", "train.teacher_weight=0"),
        tmp_path / "ignored",
        quiet=True,
    )
    alone, taught, ignored = (weights(tmp_path / name) for name in ("alone", "taught", "ignored"))
    assert all(torch.equal(alone[name], ignored[name]) for name in alone)
    assert not torch.equal(alone["head.weight"], taught["head.weight"])
    after = weights(teacher)
    assert all(torch.equal(before[name], after[name]) for name in before)
    record = load_model(tmp_path / "taught")[0].trained
    assert record["config"]["train"]["teacher"] == "run"  # no local path
    assert RunFolder(tmp_path / "taught").config().train.teacher == teacher


def test_a_teacher_of_other_data_is_refused(teacher: Path, tmp_path: Path) -> None:
    other = tiny(f"train.teacher={teacher}", "data.name=shapes", "data.image_size=8")
    with pytest.raises(
        ConfigError, match=r"must be trained on the data .* got other class_names, "
    ):
        train(other, tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError):
        train(tiny("train.teacher=missing"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
