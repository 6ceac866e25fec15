"""Models learn the generated tasks: accuracies rise above what needs no learning. Minutes."""

from pathlib import Path

import numpy as np
import pytest

from saccade.config import load_config
from saccade.data import load_splits
from saccade.runs import RunFolder
from saccade.train import train

pytestmark = pytest.mark.slow
ON_CPU = ["train.device=cpu", "train.precision=fp32", "data.workers=2"]
CURVES = {
    "recall, one pair among fillers, softmax": (
        "recall",
        ["data.options={num_pairs: 1, num_keys: 64, num_values: 16, length: 64}"],
        ["data.num_train=6000", "train.batch_size=64", "train.epochs=5", "optim.warmup_epochs=0.5"],
        0.95,
    ),
}
"""Recipe, data, training, and the test accuracy that must be reached."""


@pytest.mark.parametrize("name", CURVES)
def test_a_model_learns(name: str, tmp_path: Path) -> None:
    recipe, data, training, least = CURVES[name]
    config = load_config(recipe, [*ON_CPU, *data, *training])
    labels = load_splits(config.data).test.labels.numpy()
    majority = np.bincount(labels).max() / len(labels)
    summary = train(config, tmp_path / "run", quiet=True)
    losses = [row["train_loss"] for row in RunFolder(tmp_path / "run").metrics("epoch")]
    assert summary["test_accuracy"] >= max(least, majority + 0.04)
    assert losses[-1] < losses[0]
