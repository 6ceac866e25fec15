"""The named models are those of their sources: shapes, sizes, parameters, options."""

import pytest
import torch
from torch import Tensor, nn

from saccade import create_model
from saccade.models import MODELS, VisionTransformer


def count(name: str, **overrides: object) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in create_model(name, **overrides).parameters())


@pytest.mark.parametrize(
    ("name", "params", "printed", "four_times"),
    [
        ("taylorir_small", 1_239_434, "1.24", 976_266),
        ("taylorir_base", 2_995_018, "3.00", 2_995_018),
        ("taylorir_large", 5_772_810, "5.77", 6_823_434),
    ],
)
def test_taylorir_counts(name: str, params: int, printed: str, four_times: int) -> None:
    assert count(name) == params
    assert f"{params / 1e6:.2f}" == printed
    assert count(name, mlp_hidden_dim=None) == four_times


@pytest.mark.parametrize(("size", "width"), [("small", 128), ("base", 192), ("large", 256)])
def test_taylorir_shapes_line_by_line(size: str, width: int) -> None:
    with torch.device("meta"):
        model = create_model(f"taylorir_{size}")
        image = torch.empty(2, 3, 32, 32)
    kinds = [nn.Conv2d, nn.BatchNorm2d, nn.GELU] * 2
    layers = zip(model.patch_embed.proj, kinds, strict=True)
    assert all(isinstance(layer, kind) for layer, kind in layers)
    assert model.patch_embed.proj[:3](image).shape == (2, width // 2, 32, 32)
    assert model.patch_embed.proj(image).shape == (2, width, 32, 32)
    tokens = model.patch_embed(image)
    assert tokens.shape == (2, 1024, width)
    tokens = model.add_class_token(tokens)
    assert tokens.shape == (2, 1025, width)
    assert model.pos_embed.shape == (1, 1025, width)
    assert model.embed(image).shape == (2, 1025, width)
    for block in model.blocks:
        hidden = block.mlp.fc1(block.norm2(tokens))
        assert hidden.shape == (2, 1025, 768)
        tokens = block(tokens)
        assert tokens.shape == (2, 1025, width)
    features = model.forward_head(model.norm(tokens), pre_logits=True)
    assert features.shape == (2, width)
    assert model.head.fc1(features).shape == (2, 768)
    assert model.head(features).shape == (2, 10)


def test_taylorir_reads_the_normalized_class_token() -> None:
    model = create_model("taylorir_small", img_size=4, depth=1).eval()
    tokens = torch.randn(2, 17, 128)
    expected = model.head(model.norm(tokens[:, 0]))
    torch.testing.assert_close(model.forward_head(model.norm(tokens)), expected)


def test_vit_from_scratch_counts() -> None:
    assert count("vit_micro_patch4_32") == 119_194
    assert count("vit_micro_patch4_32", final_norm=False) == 119_098


def test_vit_from_scratch_config_is_reachable() -> None:
    """Every key of the source's config, in its order, under the name it has here."""
    model = create_model(
        "vit_micro_patch4_32",
        patch_size=8,
        embed_dim=24,
        depth=2,
        num_heads=3,
        mlp_hidden_dim=40,
        proj_drop_rate=0.1,
        attn_drop_rate=0.2,
        init_std=0.5,
        img_size=16,
        num_classes=4,
        in_chans=1,
        qkv_bias=False,
        act="gelu_tanh",
    )
    block = model.blocks[1]
    assert model.patch_embed.proj.weight.shape == (24, 1, 8, 8)
    assert (block.attn.num_heads, block.attn.qkv.bias) == (3, None)
    assert (block.mlp.fc1.out_features, block.mlp.act.approximate) == (40, "tanh")
    assert (block.attn.proj_drop.p, block.mlp.drop2.p, block.attn.core.attn_drop) == (0.1, 0.1, 0.2)
    assert block.mlp.drop1.p == 0
    assert block.mlp.fc2.weight.std().item() == pytest.approx(0.5, rel=0.2)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 4)


def test_fused_qkv_is_the_projection_head_by_head() -> None:
    """`use_faster_attention` of that source changes the layout of the weights, not the model."""
    torch.manual_seed(0)
    attn = create_model("vit_micro_patch4_32").blocks[0].attn
    x = torch.randn(2, 5, 48)
    weights, biases = attn.qkv.weight.view(3, 4, 12, 48), attn.qkv.bias.view(3, 4, 12)

    def head(index: int) -> Tensor:
        q, k, v = (x @ weights[i, index].T + biases[i, index] for i in range(3))
        return (q @ k.transpose(1, 2) / 12**0.5).softmax(-1) @ v

    expected = attn.proj(torch.cat([head(index) for index in range(4)], dim=-1))
    torch.testing.assert_close(attn(x), expected)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("vit_cifar", 65),
        ("performer_relu_cifar", 65),
        ("hybrid_cifar", 257),
        ("light_vit", 50),
        ("vit_micro_patch4_32", 65),
        ("taylorshift_vit_l_patch16_224", 197),
    ],
)
def test_tokens(name: str, tokens: int) -> None:
    with torch.device("meta"):
        model = create_model(name)
        assert model.embed(torch.empty(1, model.config.in_chans, *model.config.img_size)).shape == (
            1,
            tokens,
            model.config.embed_dim,
        )


def test_performers_differ_from_the_baseline_in_attention_only() -> None:
    baseline = MODELS["vit_cifar"].config
    for kind in ("", "_relu", "_exp", "_gelu", "_elu", "_ftheta"):
        config = MODELS[f"performer{kind}_cifar"].config
        assert config.attention == f"performer{kind}"
        assert {key for key, value in vars(config).items() if value != getattr(baseline, key)} == {
            "attention"
        }


def test_every_variant_cites_its_source() -> None:
    assert all(len(MODELS[name].source) > 10 for name in MODELS)


def test_default_attentions() -> None:
    assert MODELS["taylorir_base"].config.attention == "taylor"
    assert MODELS["taylorshift_vit_s_patch16_224"].config.attention == "taylorshift"
    assert MODELS["taylorshift_imdb"].config.attention == "taylorshift"
    with torch.device("meta"):
        swapped = create_model("taylorshift_imdb", attention="performer", num_classes=7)
    assert (swapped.config.attention, swapped.head.out_features) == ("performer", 7)


def test_variants_are_vision_transformers_of_no_other_class() -> None:
    assert type(create_model("light_vit")) is VisionTransformer
