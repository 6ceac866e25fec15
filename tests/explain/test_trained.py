"""Maps of trained models of all attentions, on digits and, if it is cached, on CIFAR-10."""

from pathlib import Path

import pytest
import torch

from saccade.config import load_config
from saccade.data import load_splits
from saccade.data.cache import cache_path
from saccade.explain import attention_maps
from saccade.layers import list_attentions
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.build import load_model
from saccade.train.image_inputs import normalize
from tests.explain.equations import errors_of_maps

SHORT = {
    "digits": ("train.epochs=4", "model.overrides.stem=conv", "model.overrides.patch_size=1"),
    "cifar10": (
        "data.name=cifar10",
        "data.num_train=1000",
        "data.num_test=100",
        "train.epochs=1",
        "model.overrides.stem=conv_patch",
        "model.overrides.patch_size=4",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("data", SHORT)
@pytest.mark.parametrize("attention", list_attentions())
def test_maps_of_trained_models_equal_the_equation(
    attention: str, data: str, tmp_path: Path
) -> None:
    if data == "cifar10" and not cache_path("cifar10").exists():
        pytest.skip("cifar10 is not in the cache")
    config = load_config("digits-quick", [f"model.attention={attention}", *SHORT[data]])
    train(config, tmp_path / "run", quiet=True)
    model, info = load_model(RunFolder(tmp_path / "run"))
    test = load_splits(config.data).test
    images = torch.stack([normalize(pixels, info) for pixels in test.images[:16]])
    found, plain = errors_of_maps(model, images)
    assert found <= 2 * plain
    sums = attention_maps(model, images).weights.double().sum(dim=-1)
    assert (sums - 1).abs().max() < 1e-5
