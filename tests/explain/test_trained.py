"""Maps of trained models of all attentions, on digits and, if it is cached, on CIFAR-10."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from saccade.config import load_config
from saccade.data import load_splits
from saccade.data.cache import cache_path
from saccade.explain import attention_maps
from saccade.layers import ATTENTIONS, list_attentions
from saccade.models import VisionTransformer
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


SUMMING = [name for name in list_attentions() if ATTENTIONS[name].rows != "free"]

Trained = Callable[[str, str], tuple[VisionTransformer, Tensor]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model trained with an attention on a data set, once for all tests, and test images."""

    @cache
    def make(attention: str, data: str) -> tuple[VisionTransformer, Tensor]:
        if data == "cifar10" and not cache_path("cifar10").exists():
            pytest.skip("cifar10 is not in the cache")
        config = load_config("digits-quick", [f"model.attention={attention}", *SHORT[data]])
        run = RunFolder(tmp_path_factory.mktemp(f"{attention}-{data}") / "run")
        train(config, run.path, quiet=True)
        model, info = load_model(run)
        test = load_splits(config.data).test
        return model, torch.stack([normalize(pixels, info) for pixels in test.images[:16]])

    return make


@pytest.mark.slow
@pytest.mark.parametrize("data", SHORT)
@pytest.mark.parametrize("attention", list_attentions())
def test_maps_of_trained_models_equal_the_equation(
    trained: Trained, attention: str, data: str
) -> None:
    found, plain = errors_of_maps(*trained(attention, data))
    assert found <= 2 * plain


@pytest.mark.slow
@pytest.mark.parametrize("data", SHORT)
@pytest.mark.parametrize("attention", SUMMING)
def test_rows_of_trained_models_sum_to_one(trained: Trained, attention: str, data: str) -> None:
    sums = attention_maps(*trained(attention, data)).weights.double().sum(dim=-1)
    assert (sums - 1).abs().max() < 1e-5
