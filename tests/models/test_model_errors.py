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
        ({"num_heads": 7}, r"num_heads=7: expected a divisor of embed_dim=48"),
        ({"num_head": 4}, r"unknown model option 'num_head': did you mean 'num_heads'"),
        ({"img_size": 30}, r"img_size=\(30, 30\): .* multiples of 4"),
        ({"img_size": (32, 0)}, r"img_size=\(32, 0\): expected a positive integer"),
        ({"img_size": "32"}, r"img_size='32': expected"),
        ({"depth": 0}, r"depth=0: expected an integer of at least 1"),
        ({"depth": "4"}, r"depth='4': expected an integer"),
        ({"num_classes": -1}, r"num_classes=-1: expected an integer of at least 0"),
        ({"drop_rate": 1.0}, r"drop_rate=1.0: expected a number in \[0, 1\)"),
        ({"mlp_ratio": 0}, r"mlp_ratio=0: expected a positive number"),
        ({"global_pool": "mean"}, r"unknown global_pool 'mean'"),
        ({"class_token": False}, r"global_pool='token': expected 'avg' or 'map'"),
        ({"stem": "cnn"}, r"unknown stem 'cnn'"),
        ({"stem": "conv"}, r"patch_size=4: the stem 'conv' keeps every pixel"),
        ({"stem": "conv_pool"}, r"patch_size=4: the stem 'conv_pool'"),
        ({"stem": "conv_patch", "patch_size": 6}, r"patch_size=6: .* power of 2"),
        ({"act": "relu"}, r"unknown act 'relu'"),
        ({"pos_embed": "sinusoidal_2d", "embed_dim": 6, "num_heads": 2}, r"embed_dim=6: "),
        ({"mean": (0.5,)}, r"mean=\(0.5,\): expected in_chans=3 numbers"),
        ({"class_names": ["cat"]}, r"class_names=\('cat',\): expected num_classes=10 names"),
        ({"class_names": "cat"}, r"class_names='cat': expected a list"),
        ({"shifted": True}, r"shifted=True: expected False or a window"),
        ({"window": 0}, r"window=0: expected a positive integer"),
        ({"attention_options": 3}, r"attention_options=3: expected a mapping"),
        ({"attention_options": {"num_feature": 3}, "attention": "performer"}, r"'num_features'"),
        ({"attention": "performer", "attn_drop_rate": 0.1}, r"attn_drop=0.1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_options(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_model("vit_micro_patch4_32", **overrides)


def test_unknown_model_suggests_near_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'taylorir_bas'.*'taylorir_base'"):
        create_model("taylorir_bas")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 32, 28), r"image size \(32, 28\): .* \(32, 32\); set_input_size\(\(32, 28\)\)"),
        ((2, 1, 32, 32), r"shape \(2, 1, 32, 32\): expected \(batch, in_chans=3"),
        ((3, 32, 32), r"shape \(3, 32, 32\): expected \(batch, in_chans=3"),
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
        ("linear", torch.zeros(2, 10, 7), r"x has 10 tokens: max_seq_len=9"),
        ("linear", torch.zeros(2, 9, 6), r"expected \(batch, tokens, input_dim=7\)"),
        ("conv", torch.zeros(2, 9, 6), r"expected \(batch, tokens, input_dim=7\)"),
        ("token", torch.zeros(2, 10, dtype=torch.long), r"x has 10 tokens: max_seq_len=9"),
        ("token", torch.zeros(2, 9), r"dtype torch.float32: expected \(batch, tokens\) integers"),
    ],
)
def test_wrong_sequences(embedding: str, x: torch.Tensor, message: str) -> None:
    model = SequenceTransformer(9, 7, embedding=embedding, embed_dim=16, num_heads=2, depth=1)
    with pytest.raises(ValueError, match=message):
        model(x)


def test_wrong_mask() -> None:
    model = tiny_model("taylorshift_imdb")
    x = torch.zeros(2, 9, dtype=torch.long)
    with pytest.raises(ValueError, match=r"key_mask has shape \(2, 8\) .* expected bool"):
        model(x, key_mask=torch.ones(2, 8, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"dtype torch.float32: expected bool"):
        model(x, key_mask=torch.ones(2, 9))


def test_wrong_sequence_positions() -> None:
    with pytest.raises(ValueError, match="unknown pos_embed 'sinusoidal_2d'"):
        SequenceTransformer(9, 7, pos_embed="sinusoidal_2d")


@pytest.mark.parametrize("indices", [5, [4], []])
def test_wrong_block_indices(indices: Any) -> None:
    model = create_model("vit_micro_patch4_32")
    with pytest.raises(ValueError, match="the model has blocks 0 to 3"):
        model.forward_intermediates(torch.randn(1, 3, 32, 32), indices)
