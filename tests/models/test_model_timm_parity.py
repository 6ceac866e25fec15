"""The softmax ViT is timm's: weights go both ways, outputs and gradients agree to rounding."""

import pytest
import timm
import torch
from timm.models.xcit import ConvPatchEmbed
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from saccade import create_model
from saccade.layers.stems import build_stem

SMALL = {"img_size": 32, "depth": 2, "num_classes": 5}


def twins(**overrides: object) -> tuple[nn.Module, nn.Module]:
    """timm's model and ours with timm's weights, in float64."""
    name = "vit_tiny_patch16_224"
    theirs = timm.create_model(name, **overrides).double().eval()
    ours = create_model(name, **overrides).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))  # no zero biases, no unit norms
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, in units of its largest entry."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(model(images).square().sum(), list(named.values()))
    return {name: g / g.abs().max() for name, g in zip(named, found, strict=True)}


def test_full_size_weights_go_both_ways_and_outputs_agree() -> None:
    theirs, ours = twins()
    fresh = timm.create_model("vit_tiny_patch16_224").double().eval()
    fresh.load_state_dict(ours.state_dict(), strict=True)
    images = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    torch.testing.assert_close(fresh(images), theirs(images), rtol=0, atol=0)
    expected = gradients(theirs, images)
    assert len(expected) == len(list(ours.parameters()))
    torch.testing.assert_close(gradients(ours, images), expected)


@pytest.mark.parametrize(
    "overrides",
    [
        {"global_pool": "avg"},
        {"global_pool": "avg", "class_token": False},
        {"global_pool": "map", "class_token": False},
        {"init_values": 0.1},
        {"qkv_bias": False},
        {"final_norm": False},
        {"no_embed_class": True},
        {"mlp_ratio": 2.0, "img_size": (32, 48)},
    ],
    ids=str,
)
def test_options_mean_what_they_mean_in_timm(overrides: dict[str, object]) -> None:
    theirs, ours = twins(**(SMALL | overrides))
    images = torch.randn(2, 3, *ours.config.img_size, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))


def test_the_comparison_catches_a_planted_error() -> None:
    theirs, ours = twins(**SMALL)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    ours.blocks[1].norm2.eps = 1e-5
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize("size", [(48, 64), (80, 16)])
def test_set_input_size_agrees_with_timm(size: tuple[int, int]) -> None:
    theirs, ours = twins(**(SMALL | {"img_size": 64}))
    theirs.set_input_size(size)
    ours.set_input_size(size)
    torch.testing.assert_close(ours.pos_embed, theirs.pos_embed)
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))


def test_set_input_size_288_agrees_with_timm() -> None:
    theirs, ours = twins(depth=1)
    theirs.set_input_size((288, 288))
    ours.set_input_size(288)
    torch.testing.assert_close(ours.pos_embed, theirs.pos_embed)
    images = torch.randn(1, 3, 288, 288, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    theirs.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"indices": 1, "intermediates_only": True},
        {"indices": [0, 2], "norm": True},
        {"indices": [-2], "stop_early": True, "output_fmt": "NLC"},
        {"return_prefix_tokens": True},
    ],
    ids=str,
)
def test_intermediates_agree_with_timm(arguments: dict[str, object]) -> None:
    theirs, ours = twins(**(SMALL | {"depth": 3, "img_size": (32, 48)}))
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    expected = theirs.forward_intermediates(images, **arguments)
    torch.testing.assert_close(ours.forward_intermediates(images, **arguments), expected)


def test_head_stages_agree_with_timm() -> None:
    theirs, ours = twins(**SMALL)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    features = theirs.forward_features(images)
    torch.testing.assert_close(ours.forward_features(images), features)
    expected = theirs.forward_head(features, pre_logits=True)
    torch.testing.assert_close(ours.forward_head(features, pre_logits=True), expected)


def test_layer_decay_groups_are_timms() -> None:
    theirs, ours = twins(**SMALL)
    names = {id(p): name for model in (theirs, ours) for name, p in model.named_parameters()}
    expected, actual = (
        {
            names[id(p)]: (group["lr_scale"], group["weight_decay"])
            for group in param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5)
            for p in group["params"]
        }
        for model in (theirs, ours)
    )
    assert actual == expected
    assert len(actual) == len(list(ours.parameters()))


@pytest.mark.parametrize("patch_size", [8, 16])
def test_convolutional_patches_are_xcits(patch_size: int) -> None:
    theirs = ConvPatchEmbed(32, patch_size, 3, 32)
    ours = build_stem("conv_patch", (32, 32), 3, 32, patch_size)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images)[0])


def test_weights_start_as_timms_do() -> None:
    torch.manual_seed(0)
    overrides = {"img_size": 64, "depth": 2}
    theirs = timm.create_model("vit_tiny_patch16_224", **overrides).state_dict()
    ours = create_model("vit_tiny_patch16_224", **overrides).state_dict()
    assert ours.keys() == theirs.keys()
    spread = {key: value.std().item() for key, value in ours.items() if value.numel() > 1}
    expected = {key: theirs[key].std().item() for key in spread}
    assert spread == pytest.approx(expected, rel=0.15, abs=2e-7)
