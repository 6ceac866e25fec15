"""A user's mistake is one clear ValueError that names the argument, the value, what is accepted."""

from typing import Any

import pytest
import torch
from tiny_models import tiny_model

from saccade import SequenceTransformer, create_model
from saccade.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"attention": "sofmax"}, r"unknown attention 'sofmax': did you mean 'softmax'"),
        ({"num_heads": 7}, r"num_heads must be a divisor of embed_dim=48.*, got 7"),
        ({"num_head": 4}, r"unknown model option 'num_head': did you mean 'num_heads'"),
        ({"img_size": 30}, r"img_size must be .* multiples of 4.* got \(30, 30\)"),
        ({"img_size": (32, 0)}, r"img_size must be a positive integer.*, got \(32, 0\)"),
        ({"img_size": "32"}, r"img_size must be .*, got '32'"),
        ({"depth": 0}, r"depth must be an integer of at least 1, got 0"),
        ({"depth": "4"}, r"depth must be an integer.*, got '4'"),
        ({"num_classes": -1}, r"num_classes must be an integer of at least 0, got -1"),
        ({"drop_rate": 1.0}, r"drop_rate must be a number in \[0, 1\), got 1.0"),
        ({"mlp_ratio": 0}, r"mlp_ratio must be a positive number, got 0"),
        ({"norm_eps": 0}, r"norm_eps must be a positive number, got 0"),
        ({"norm_eps": float("inf")}, r"norm_eps must be a positive number, got inf"),
        ({"init_values": "1"}, r"init_values must be a finite number or None, got '1'"),
        ({"init_values": float("nan")}, r"init_values must be a finite number or None, got nan"),
        ({"act_drop_rate": 1.0}, r"act_drop_rate must be a number in \[0, 1\) or None, got 1.0"),
        ({"attn_drop_rate": None}, r"attn_drop_rate must be a number in \[0, 1\), got None$"),
        ({"no_embed_class": 1}, r"no_embed_class must be a bool, got 1"),
        ({"global_pool": "mean"}, r"unknown global_pool 'mean'"),
        ({"class_token": False}, r"global_pool must be 'avg', 'map' or '' with.*, got 'token'"),
        ({"stem": "cnn"}, r"unknown stem 'cnn'"),
        ({"stem": "conv"}, r"patch_size must be 1 with stem='conv', .* got 4"),
        ({"stem": "conv_pool"}, r"patch_size must be 2 with stem='conv_pool', .* got 4"),
        ({"stem": "conv_patch", "patch_size": 6}, r"patch_size must be .* power of 2 .* got 6"),
        ({"act": "relu"}, r"unknown act 'relu'"),
        (
            {"pos_embed": "sinusoidal_2d", "embed_dim": 6, "num_heads": 2},
            "embed_dim must be a multiple of 4 for sinusoidal positions of a grid, got 6",
        ),
        ({"mean": (0.5,)}, r"mean must be in_chans=3 numbers, got \(0.5,\)"),
        ({"class_names": ["cat"]}, r"class_names must be num_classes=10 names.*, got \('cat',\)"),
        ({"class_names": "cat"}, r"class_names must be a list.*, got 'cat'"),
        ({"shifted": True}, r"shifted must be False without a window.*, got True"),
        ({"window": 0}, r"window must be a positive integer.*, got 0"),
        ({"attention_options": 3}, r"attention_options must be a mapping.*, got 3"),
        ({"attention_options": {"num_feature": 3}, "attention": "performer"}, r"'num_features'"),
        ({"attention": "performer", "attn_drop_rate": 0.1}, "attn_drop must be 0, got 0.1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_options(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_model("vit_micro_patch4_32", **overrides)


def test_layer_scales_may_start_from_an_integer() -> None:
    """A recipe or the command line gives 1, not 1.0."""
    gamma = create_model("vit_micro_patch4_32", init_values=1).blocks[0].ls1.gamma
    assert gamma.dtype == torch.float32
    assert torch.equal(gamma, torch.ones(48))


def test_unknown_model_suggests_near_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'taylorir_bas'.*'taylorir_base'"):
        create_model("taylorir_bas")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 32, 28), r"must be \(32, 32\), got \(32, 28\); call set_input_size\(\(32, 28\)\)"),
        ((2, 1, 32, 32), r"shape \(batch, in_chans=3, .* got \(2, 1, 32, 32\)"),
        ((3, 32, 32), r"shape \(batch, in_chans=3, .* got \(3, 32, 32\)"),
    ],
)
@pytest.mark.parametrize("stem", ["patch", "patch_linear"])
def test_wrong_images(shape: tuple[int, ...], message: str, stem: str) -> None:
    model = create_model("vit_micro_patch4_32", depth=1, stem=stem)
    with pytest.raises(ValueError, match=message):
        model(torch.randn(shape))


def test_wrong_image_size_leaves_the_model_as_it_was() -> None:
    model = create_model("vit_micro_patch4_32", depth=1)
    with pytest.raises(ValueError, match="multiples of 4"):
        model.set_input_size(30)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    assert model.config.img_size == (32, 32)


@pytest.mark.parametrize(
    ("embedding", "x", "message"),
    [
        ("linear", torch.zeros(2, 10, 7), r"x must have at most max_seq_len=9 tokens, got 10"),
        ("linear", torch.zeros(2, 9, 6), r"shape \(batch, tokens, input_dim=7\), got \(2, 9, 6\)"),
        ("conv", torch.zeros(2, 9, 6), r"shape \(batch, tokens, input_dim=7\), got \(2, 9, 6\)"),
        (
            "token",
            torch.zeros(2, 10, dtype=torch.long),
            r"x must have at most max_seq_len=9 tokens, got 10",
        ),
        ("token", torch.zeros(2, 9), r"integers below input_dim=7 .* got torch.float32"),
    ],
)
def test_wrong_sequences(embedding: str, x: torch.Tensor, message: str) -> None:
    model = SequenceTransformer(9, 7, embedding=embedding, embed_dim=16, num_heads=2, depth=1)
    with pytest.raises(ValueError, match=message):
        model(x)


def test_wrong_mask() -> None:
    model = tiny_model("taylorshift_imdb")
    x = torch.zeros(2, 9, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"key_mask must be bool of shape .*, got .* of shape \(2, 8\)"
    ):
        model(x, key_mask=torch.ones(2, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"key_mask must be bool .*, got torch.float32"):
        model(x, key_mask=torch.ones(2, 9))


def test_wrong_sequence_positions() -> None:
    with pytest.raises(ValueError, match="unknown pos_embed 'sinusoidal_2d'"):
        SequenceTransformer(9, 7, pos_embed="sinusoidal_2d")


@pytest.mark.parametrize("indices", [5, [4], []])
def test_wrong_block_indices(indices: Any) -> None:
    model = create_model("vit_micro_patch4_32")
    with pytest.raises(ValueError, match="blocks from 0 to 3"):
        model.forward_intermediates(torch.randn(1, 3, 32, 32), indices)
