"""Steps captured as a CUDA graph against ordinary steps, on a GPU."""

import warnings

import pytest
import torch
from safetensors.torch import load_file

from saccade.data import Batch
from saccade.errors import TrainingError
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.step import CudaGraphStep
from tests.train.tiny_runs import tiny

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def put_back():
    """Restore the flags: training allows TF32 and may enable determinism."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def weights(path, *overrides, resume=False):
    """Last and averaged weights of a run on the GPU, and its test accuracy."""
    config = tiny("train.device=cuda", "train.deterministic=true", *overrides)
    summary = train(config, path, quiet=True, resume=resume)
    checkpoint, _ = RunFolder(path).newest_intact()
    files = [load_file(checkpoint.path / f"{name}.safetensors") for name in ("model", "average")]
    return files, summary["test_accuracy"]


KINDS = {name: (f"optim.name={name}",) for name in ("adamw", "adam", "sgd", "lion", "muon")}
KINDS["compiled"] = ("train.compile=true", "train.precision=bf16")


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_equal_ordinary_steps(tmp_path, kind):
    overrides = (*KINDS[kind], "optim.clip_norm=1.0", "train.label_smoothing=0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        recorded, accuracy = weights(tmp_path / "recorded", *overrides)
    stepped, other = weights(tmp_path / "stepped", *overrides, "train.cuda_graph=false")
    assert accuracy == other
    for ours, theirs in zip(recorded, stepped, strict=True):
        for name, tensor in theirs.items():
            assert torch.equal(ours[name], tensor), name


def test_a_captured_step_that_is_not_finite_stops_the_run(tmp_path):
    config = tiny("train.device=cuda", "optim.lr=1e30", "optim.clip_norm=null")
    with pytest.raises(TrainingError, match="not finite, first in the"):
        train(config, tmp_path / "run", quiet=True)


def test_a_step_that_cannot_be_captured_runs_normally_with_a_warning():
    def step(batch):
        return torch.tensor(batch.images.sum().item())  # waits for the device

    record = CudaGraphStep(step)
    ones = torch.ones(4, 1, device="cuda")
    batch = Batch(ones, ones[:, 0], ones[:, 0], ones[:, 0] > 0, len(ones))
    for _ in range(3):
        assert record(batch) == 4
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        assert record(batch) == 4
    assert record(batch) == 4


def test_batches_of_other_shapes_run_normally():
    total = torch.zeros((), device="cuda")

    def step(batch):
        return total.add_(batch.images.sum())

    record = CudaGraphStep(step)
    for rows in (4, 4, 4, 4, 2, 4, 2):
        images = torch.ones(rows, 1, device="cuda")
        record(Batch(images, images, images, images, len(images)))
    assert total == 24
