"""The variants give what their sources' published forward passes give with the same weights."""

import math
from collections.abc import Callable
from itertools import pairwise

import published as pub
import published_vits as vits
import pytest
import torch
from published import Weights
from torch import Tensor

from saccade import TaylorShiftAttention, TaylorShiftTransformer, TaylorShiftViT, create_model
from saccade.layers.block import Block
from saccade.layers.performers import RandomFeatureCore
from saccade.models import MODELS

ROUNDING = 1e-12


def images(channels: int = 3, side: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, side, side, dtype=torch.float64, generator=generator)


def tokens(count: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, count, width, dtype=torch.float64, generator=generator)


def loaded(model: torch.nn.Module, state: Weights) -> torch.nn.Module:
    """The model with all of its weights replaced, in float64, for evaluation."""
    model = model.double().eval()
    model.load_state_dict(state, strict=True)
    for module in model.modules():  # kept in float32 with the model's other fixed tables
        if isinstance(table := getattr(module, "pos_embed", None), Tensor) and not isinstance(
            table, torch.nn.Parameter
        ):
            exact = pub.sinusoids(table.shape[1], table.shape[2])
            torch.testing.assert_close(table[0], exact, rtol=0, atol=1e-7)
            module.pos_embed = exact[None]
    return model


def difference(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


# Five logits of the first sample by the code that the sources released, for weights and inputs by
# `published.wave`. They hold the restatements, and us, to more than our reading.

RELEASED = {
    "taylorshift": [-1.5489663, 1.7867785, 0.1254732, 0.0444056, 2.396666],
    "vit from scratch": [5.2279234, -1.2687988, -3.2229977, 7.0862051, -2.254677],
    "taylorir": [7.1019255, -6.5632693, 3.4662715, -2.9909833, -1.1411356],
}


def released_case(source: str) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """A model with weights by formula, its input, and the restated output."""
    if source == "taylorshift":
        w = pub.waves(conv_shapes(12))
        model = TaylorShiftTransformer(
            40, 7, True, embed_dim=12, depth=2, num_heads=3, num_classes=5
        )
        x = pub.wave("input", (2, 33, 7))
        restated = pub.taylorshift_transformer(w, x, 3, 2, efficient=True)
        return loaded(model, pub.to_saccade_sequences(w)), x, restated
    if source == "taylorir":
        w, x = pub.waves(pub.taylorir_shapes(128, 4, 768, 10)), pub.wave("input", (2, 3, 8, 8))
        model = loaded(create_model("taylorir_small", img_size=8), pub.to_saccade_taylorir(w))
        return model, x, pub.taylorir(w, x, 4, 4)
    w = pub.waves(vits.vit_from_scratch_shapes(48, 4, 192, 4, 64))
    x = pub.wave("input", (2, 3, 32, 32))
    model = create_model("vit_micro_patch4_32", final_norm=False)
    return loaded(model, vits.to_saccade_vit_from_scratch(w)), x, vits.vit_from_scratch(w, x, 4, 4)


@pytest.mark.parametrize("source", list(RELEASED))
def test_released_code_gave_these_logits(source: str) -> None:
    model, x, restated = released_case(source)
    expected = torch.tensor(RELEASED[source], dtype=torch.float64)
    torch.testing.assert_close(restated[0, :5], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(model(x)[0, :5].detach(), expected, rtol=0, atol=1e-6)


# TaylorIR, small: its variant, with 64 pixels instead of 1,024.


def taylorir_case(**overrides: object) -> tuple[torch.nn.Module, Weights]:
    weights = pub.random_weights(pub.taylorir_shapes(128, 4, 768, 10))
    model = create_model("taylorir_small", img_size=8, **overrides)
    return loaded(model, pub.to_saccade_taylorir(weights)), weights


def test_taylorir() -> None:
    model, weights = taylorir_case()
    assert difference(model(images()), pub.taylorir(weights, images(), 4, 4)) < ROUNDING


def test_taylorir_drops_where_its_source_does() -> None:
    """In training, with the same seed: every dropout has its place, its rate and its order."""
    model, weights = taylorir_case()
    torch.manual_seed(0)
    found = model.train()(images())
    torch.manual_seed(0)
    expected = pub.taylorir(weights, images(), 4, 4, training=True)
    assert difference(found, expected) < ROUNDING
    assert difference(expected, pub.taylorir(weights, images(), 4, 4)) > 0.1


@pytest.mark.parametrize(
    "rate", ["drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "act_drop_rate"]
)
def test_taylorir_without_one_of_its_dropouts_is_another(rate: str) -> None:
    model, weights = taylorir_case(**{rate: 0.0})
    torch.manual_seed(0)
    found = model.train()(images())
    torch.manual_seed(0)
    assert difference(found, pub.taylorir(weights, images(), 4, 4, training=True)) > 1e-3


# TaylorShift

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}


def conv_shapes(width: int) -> dict[str, tuple]:
    """Of a sequence model of two layers whose tokens are made by convolutions."""
    shapes = pub.taylorshift_shapes(width, 2, 3, 4 * width, 5)
    widths = (7, width // 4, width // 2, width)
    for index, (before, after) in enumerate(pairwise(widths)):
        shapes[f"patch_embed.proj.{3 * index}.weight"] = (after, before, 3)
        shapes |= pub.norm_shapes(f"patch_embed.proj.{3 * index + 1}", after)
    return shapes


def sequence_weights(conv: bool) -> Weights:
    if conv:
        return pub.random_weights(conv_shapes(48))
    shapes = pub.taylorshift_shapes(48, 2, 3, 192, 5)
    return pub.random_weights(shapes | pub.linear_shapes("patch_embed", 7, 48))


def sequence_case(conv: bool, **options: object) -> tuple[torch.nn.Module, Weights]:
    weights = sequence_weights(conv)
    model = TaylorShiftTransformer(40, 7, conv, **SMALL, **options)
    return loaded(model, pub.to_saccade_sequences(weights)), weights


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("conv", [False, True])
def test_taylorshift_transformer(conv: bool, efficient: bool) -> None:
    model, weights = sequence_case(conv)
    model.N0 = -1 if efficient else 2**64
    found = model(tokens(33, 7))
    expected = pub.taylorshift_transformer(weights, tokens(33, 7), 3, 2, efficient=efficient)
    assert difference(found, expected) < ROUNDING


def test_taylorshift_transformer_with_a_position_for_the_class_token_is_another() -> None:
    model, weights = sequence_case(False, no_embed_class=False)
    expected = pub.taylorshift_transformer(weights, tokens(33, 7), 3, 2)
    assert difference(model(tokens(33, 7)), expected) > 0.01


def test_taylorshift_sequence_variants_position_their_tokens_so() -> None:
    """`taylorshift_pathfinder` reads symbols, which is a linear map of their one-hot code."""
    shapes = pub.taylorshift_shapes(64, 4, 4, 64, 2) | pub.linear_shapes("patch_embed", 256, 64)
    weights = pub.random_weights(shapes)
    weights["patch_embed.bias"].zero_()
    state = pub.to_saccade_sequences(weights)
    state["token_embed.proj.weight"] = state["token_embed.proj.weight"].T
    del state["token_embed.proj.bias"]
    model = loaded(create_model("taylorshift_pathfinder"), state)
    symbols = torch.arange(60).mul(17).remainder(256).view(2, 30)
    one_hot = torch.nn.functional.one_hot(symbols, 256).double()
    expected = pub.taylorshift_transformer(weights, one_hot, 4, 4)
    assert difference(model(symbols), expected) < ROUNDING


def vit_case(conv: bool, build: Callable[..., torch.nn.Module]) -> tuple[torch.nn.Module, Weights]:
    shapes = pub.taylorshift_shapes(96, 2, 2, 384, 10) | {"pos_embed": (1, 16, 96)}
    if not conv:
        shapes |= {"patch_embed.proj.weight": (96, 3, 16, 16), "patch_embed.proj.bias": (96,)}
    widths = (3, 12, 24, 48, 96)
    for place, (before, after) in enumerate(pairwise(widths) if conv else ()):
        name = f"patch_embed.proj.{2 * place}"
        shapes |= {f"{name}.0.weight": (after, before, 3, 3)}
        shapes |= pub.batch_norm_shapes(f"{name}.1", after)
    weights = pub.random_weights(shapes)
    return loaded(build(), pub.to_saccade_taylorshift(weights)), weights


def na(conv: bool) -> torch.nn.Module:
    sizes = {"embed_dim": 96, "depth": 2, "num_heads": 2, "num_classes": 10}
    return TaylorShiftViT(64, patch_size=16, conv_embed=conv, **sizes)


def variant() -> torch.nn.Module:
    return create_model("taylorshift_vit_na_patch16_224", img_size=64, num_classes=10)


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize(
    ("conv", "build"),
    [(False, variant), (False, lambda: na(False)), (True, lambda: na(True))],
    ids=["variant", "class", "class with convolutions"],
)
def test_taylorshift_vit(
    conv: bool, build: Callable[..., torch.nn.Module], efficient: bool
) -> None:
    model, weights = vit_case(conv, build)
    model.N0 = -1 if efficient else 2**64
    x = images(side=64)
    expected = pub.taylorshift_vit(weights, x, 2, 2, patch=16, efficient=efficient)
    assert difference(model(x), expected) < ROUNDING


@pytest.mark.parametrize("normalize_input", [False, True])
@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("output_normalized", [False, True])
def test_taylorshift_attention(
    normalize_input: bool, efficient: bool, output_normalized: bool
) -> None:
    shapes = pub.linear_shapes("qkv", 32, 96) | pub.linear_shapes("proj", 32, 32)
    if normalize_input:
        shapes["temperature"] = (1, 4, 1, 1)
    weights = pub.random_weights(shapes)
    layer = TaylorShiftAttention(
        32, 4, normalize_input=normalize_input, output_normalized=output_normalized
    )
    state = dict(weights)
    if normalize_input:
        state["core.temperature"] = state.pop("temperature")[0]
    layer = loaded(layer, state)
    layer.N0 = -1 if efficient else 2**64
    expected = pub.taylorshift_layer(
        {f"attn.{name}": value for name, value in weights.items()},
        "attn",
        tokens(20, 32),
        4,
        efficient=efficient,
        output_normalized=output_normalized,
    )
    assert difference(layer(tokens(20, 32)), expected) < ROUNDING


# ViT from scratch


def vit_micro_case(**overrides: object) -> tuple[torch.nn.Module, Weights]:
    weights = pub.random_weights(vits.vit_from_scratch_shapes(48, 4, 192, 4, 64))
    model = create_model("vit_micro_patch4_32", **({"final_norm": False} | overrides))
    return loaded(model, vits.to_saccade_vit_from_scratch(weights)), weights


def test_vit_from_scratch() -> None:
    model, weights = vit_micro_case()
    x = images(side=32)
    assert difference(model(x), vits.vit_from_scratch(weights, x, 4, 4)) < ROUNDING


@pytest.mark.parametrize("overrides", [{"act": "gelu"}, {"norm_eps": 1e-6}], ids=str)
def test_vit_from_scratch_with_another_gelu_or_eps_is_another(overrides: dict[str, object]) -> None:
    model, weights = vit_micro_case(**overrides)
    x = images(side=32)
    assert difference(model(x), vits.vit_from_scratch(weights, x, 4, 4)) > 1e-8


def test_hidden_dropout_prob_is_not_inside_the_mlp() -> None:
    model, weights = vit_micro_case(pos_drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.2)
    x = images(side=32)
    torch.manual_seed(0)
    found = model.train()(x)
    torch.manual_seed(0)
    expected = vits.vit_from_scratch(
        weights, x, 4, 4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2
    )
    assert difference(found, expected) < ROUNDING


# LightViT


def light_vit_case(scale: str) -> tuple[Tensor, Tensor]:
    weights = pub.random_weights(vits.light_vit_shapes(8, 2, 4))
    model = create_model("light_vit", final_norm=False)
    model = loaded(model, vits.to_saccade_light_vit(weights))
    x = images(channels=1, side=28)
    return model(x), vits.light_vit(weights, x, 2, 2, patch=4, scale=scale)


def test_light_vit_but_for_the_scale() -> None:
    found, expected = light_vit_case("head")
    assert difference(found, expected) < ROUNDING


def test_light_vit_scales_by_the_head_where_the_tutorial_takes_the_width() -> None:
    found, expected = light_vit_case("width")
    assert difference(found, expected) > 1e-3


# Efficient Transformers on CIFAR-10: its features differ on purpose, and all else is listed.

HEADS, HEAD_DIM, FEATURES = 4, 6, 40


def our_features(kernel: str, z: Tensor) -> Tensor:
    """The published phi with the deviations that docs/published.md lists."""
    if kernel == "relu":
        return z.clamp(min=0) + 1e-3
    if kernel == "exp":
        return z.clamp(-10, 10).exp() + 1e-6
    if kernel == "gelu":
        return pub.gelu(z) + 0.17 + 1e-3
    return torch.where(z > 0, z, z.exp() - 1) + 1 + 1e-6


def our_attention(q: Tensor, k: Tensor, v: Tensor, projection: Tensor, kernel: str) -> Tensor:
    phi_q, phi_k = (our_features(kernel, x / math.sqrt(HEAD_DIM) @ projection.T) for x in (q, k))
    weights = phi_q @ phi_k.mT
    return weights / weights.sum(-1, keepdim=True) @ v


def set_projection(core: RandomFeatureCore, projection: Tensor) -> None:
    """Ours scales q and k by D^-1/4, the study by D^-1/2."""
    core.double()
    core.projection.copy_(projection * HEAD_DIM**-0.25)


KERNELS = pytest.mark.parametrize("kernel", ["relu", "exp", "gelu", "elu"])


@KERNELS
def test_the_studys_layer_is_a_block_of_ours_but_for_what_is_listed(kernel: str) -> None:
    """Without the MLP and with a norm after it a block of ours is a layer of the study."""
    width = HEADS * HEAD_DIM
    shapes = vits.study_shapes(width, 1, FEATURES, HEADS)
    weights, x = pub.random_weights(shapes), tokens(9, width)
    name = "performer_layers.0"
    model = create_model(
        f"performer_{kernel}_cifar",
        embed_dim=width,
        num_heads=HEADS,
        depth=1,
        qkv_bias=False,
        norm_eps=1e-5,
        attention_options={"num_features": FEATURES},
    )
    block: Block = model.double().eval().blocks[0]
    with torch.no_grad():
        block.mlp.fc2.weight.zero_()
        block.mlp.fc2.bias.zero_()
        parts = [weights[f"{name}.{part}.weight"] for part in ("to_q", "to_k", "to_v")]
        block.attn.qkv.weight.copy_(torch.cat(parts))
        for ours, theirs in ((block.attn.proj, "to_out"), (block.norm1, "layer_norm1")):
            ours.weight.copy_(weights[f"{name}.{theirs}.weight"])
            ours.bias.copy_(weights[f"{name}.{theirs}.bias"])
        set_projection(block.attn.core, weights[f"{name}.projection_matrix"])
        found = pub.layer_norm(weights, f"{name}.layer_norm2", block(x), 1e-5)[:, 0]
    found = pub.linear(
        weights, "classifier.1", pub.layer_norm(weights, "classifier.0", found, 1e-5)
    )
    expected = vits.study_layers(weights, x, HEADS, 1, kernel, our_attention)
    assert difference(found, expected) < ROUNDING
    literal = vits.study_layers(weights, x, HEADS, 1, kernel)
    assert difference(literal, expected) > 1e-6


def test_relu_features_differ_from_the_studys_in_eps_alone() -> None:
    weights = pub.random_weights({"projection": (FEATURES, HEAD_DIM)})
    q, k, v = (tokens(9 + i, HEAD_DIM)[:, None, :9] for i in range(3))
    ours = our_attention(q, k, v, weights["projection"], "relu")
    assert difference(vits.study_attention(q, k, v, weights["projection"], "relu"), ours) < 0.01


@KERNELS
def test_over_one_token_every_kernel_of_the_study_is_the_same(kernel: str) -> None:
    weights = pub.random_weights(vits.study_shapes(24, 2, FEATURES, HEADS))
    found, expected = (
        vits.study_performer(weights, images(), HEADS, 2, name) for name in (kernel, "relu")
    )
    assert difference(found, expected) < 1e-3


def test_eps_of_each_variant_is_its_sources() -> None:
    eps = {name: MODELS[name].config.norm_eps for name in MODELS}
    narrow = {"light_vit", "vit_micro_patch4_32", "taylorir_small", "taylorir_base"}
    assert {name for name in eps if eps[name] == 1e-5} == narrow | {"taylorir_large"}
    assert set(eps.values()) == {1e-5, 1e-6}
