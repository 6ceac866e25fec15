"""Recorded steps against steps that are asked for launch by launch, on a GPU."""

import warnings

import pytest
import torch
from safetensors.torch import load_file

from saccade.data import Batch
from saccade.errors import TrainingError
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.recording import Recording
from tests.train.tiny_runs import tiny

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def put_back():
    """Training allows TF32 and may ask for determinism; other tests are to find neither."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def weights(path, *overrides, resume=False):
    """Last and averaged weights of a run on the GPU, and what it summed up to."""
    config = tiny("train.device=cuda", "train.deterministic=true", *overrides)
    summary = train(config, path, quiet=True, resume=resume)
    checkpoint, _ = RunFolder(path).newest_intact()
    files = [load_file(checkpoint.path / f"{name}.safetensors") for name in ("model", "average")]
    return files, summary["test_accuracy"]


KINDS = {name: (f"optim.name={name}",) for name in ("adamw", "adam", "sgd", "lion", "muon")}
KINDS["compiled"] = ("train.compile=true", "train.precision=bf16")


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_are_the_same_steps(tmp_path, kind):
    overrides = (*KINDS[kind], "optim.clip_norm=1.0", "train.label_smoothing=0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        recorded, accuracy = weights(tmp_path / "recorded", *overrides)
    stepped, other = weights(tmp_path / "stepped", *overrides, "train.cuda_graph=false")
    assert accuracy == other
    for ours, theirs in zip(recorded, stepped, strict=True):
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), name


def test_a_recorded_step_that_is_not_finite_stops_the_run(tmp_path):
    config = tiny("train.device=cuda", "optim.lr=1e30", "optim.clip_norm=null")
    with pytest.raises(TrainingError, match="not finite, first in the"):
        train(config, tmp_path / "run", quiet=True)


def test_what_cannot_be_recorded_is_stepped_and_said():
    def step(batch):
        return torch.tensor(batch.images.sum().item())  # waits for the device

    record = Recording(step)
    ones = torch.ones(4, 1, device="cuda")
    batch = Batch(ones, ones[:, 0], ones[:, 0], ones[:, 0] > 0, len(ones))
    for _ in range(3):
        assert record(batch) == 4
    with pytest.warns(RuntimeWarning, match="not recorded"):
        assert record(batch) == 4
    assert record(batch) == 4


def test_other_shapes_are_stepped():
    total = torch.zeros((), device="cuda")

    def step(batch):
        return total.add_(batch.images.sum())

    record = Recording(step)
    for rows in (4, 4, 4, 4, 2, 4, 2):
        images = torch.ones(rows, 1, device="cuda")
        record(Batch(images, images, images, images, len(images)))
    assert total == 24
