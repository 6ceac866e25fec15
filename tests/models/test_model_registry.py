"""Every model takes every attention: it builds, steps, saves, reloads bit-equal and compiles."""

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_models import Model, example, tiny_model

from saccade import create_model, list_attentions, list_models
from saccade.models import load_model

MODELS_BY_ATTENTIONS = list(product(list_models(), list_attentions()))


def test_the_table_has_the_models_of_the_seeds() -> None:
    assert set(list_models()) == {
        *(f"taylorir_{size}" for size in ("small", "base", "large")),
        *(f"taylorshift_vit_{size}_patch16_224" for size in ("na", "mu", "ti", "s", "b", "l")),
        *(f"taylorshift_{task}" for task in ("listops", "imdb", "cifar_pixel", "pathfinder")),
        *(f"performer_{kind}_cifar" for kind in ("relu", "exp", "gelu", "elu", "ftheta")),
        *("performer_cifar", "vit_cifar", "hybrid_cifar", "residual_cifar"),
        *("light_vit", "vit_micro_patch4_32", "lra_small"),
        *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base")),
    }
    assert list_models("taylorir*") == ["taylorir_base", "taylorir_large", "taylorir_small"]


def step(model: Model) -> torch.Tensor:
    """The logits before one step of gradient descent."""
    logits = model(example(model))
    F.cross_entropy(logits, torch.tensor([0, 2])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return logits


@pytest.mark.parametrize(("name", "attention"), MODELS_BY_ATTENTIONS)
def test_steps_saves_and_reloads_bit_equal(name: str, attention: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = tiny_model(name, attention)
    before = {key: value.clone() for key, value in model.named_parameters()}
    assert step(model).shape == (2, 3)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(before[key], value) for key, value in model.named_parameters())

    model.eval().save_pretrained(tmp_path)
    again = load_model(tmp_path)
    x = example(model)
    assert again.config == model.config
    assert again.name == name
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("attention", list_attentions())
def test_full_sizes_build_on_meta(attention: str) -> None:
    for name in list_models():
        with torch.device("meta"):
            model = create_model(name, attention)
        assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}
        assert model.config.attention == attention
        assert model.blocks[0].attn.attention == attention


def distinct_tiny_models() -> list[str]:
    """One name for each tiny model: sizes and attentions apart, several variants are the same."""
    names: dict[tuple[str, str], str] = {}
    for name in list_models():
        model = tiny_model(name, "softmax")
        names.setdefault((repr(model), model.config.pos_embed), name)
    return list(names.values())


def compiled_soon() -> list[tuple[str, str]]:
    """Two models for every attention, in turn, so that every model has several attentions.

    A model calls all attentions in the same way, and each is compiled by itself in `tests/layers`.
    The other pairs are slow tests.
    """
    models, attentions = distinct_tiny_models(), list_attentions()
    turns = (0, len(models) // 2)
    pairs = [(models[(i + t) % len(models)], x) for i, x in enumerate(attentions) for t in turns]
    assert {name for name, _ in pairs} == set(models)
    return pairs


SOON = compiled_soon()
LATER = [pair for pair in product(distinct_tiny_models(), list_attentions()) if pair not in SOON]


@pytest.mark.parametrize(
    ("name", "attention"),
    [*SOON, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in LATER)],
)
@torch.no_grad()
def test_compiles_without_graph_breaks(name: str, attention: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = tiny_model(name, attention).eval()
    x = example(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("attention", list_attentions())
def test_training_step_compiles_without_graph_breaks(attention: str) -> None:
    """With decompositions: torch 2.13's undecomposed softplus backward has wrong fake strides."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = tiny_model("taylorir_small", attention).eval()
    x = example(model)
    expected = torch.autograd.grad(model(x).sum(), model.blocks[0].attn.qkv.weight)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")
    actual = torch.autograd.grad(compiled(x).sum(), model.blocks[0].attn.qkv.weight)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("attention", list_attentions())
def test_everything_random_follows_the_seed(attention: str) -> None:
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(tiny_model("hybrid_cifar", attention).state_dict())
    first, same, other = states
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not torch.equal(first["blocks.0.attn.qkv.weight"], other["blocks.0.attn.qkv.weight"])
