"""Maps, rollouts and gradients against whole matrices computed by the equations in float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.explain import attention_maps, maps, rollout
from saccade.explain.hooks import observe
from saccade.layers import ATTENTIONS, list_attentions
from saccade.models import SequenceTransformer
from tests.explain.equations import (
    errors_of_maps,
    explicit,
    pictures,
    relative_error,
    small_model,
    whole_map,
)

POOLINGS = {
    "token": {},
    "avg": {"class_token": False, "global_pool": "avg"},
    "map": {"class_token": False, "global_pool": "map"},
    "avg_beside_token": {"global_pool": "avg"},
}


def worst_ratio(attention: str, shift: float = 0.0) -> float:
    model = small_model(attention)
    errors = [errors_of_maps(model, pictures(seed=seed), shift) for seed in range(3)]
    return sum(found for found, _ in errors) / sum(plain for _, plain in errors)


@pytest.mark.parametrize("attention", list_attentions())
def test_maps_equal_the_equation(attention: str) -> None:
    """At most twice the error of the plain equation in the same dtype."""
    assert worst_ratio(attention) <= 2


@pytest.mark.parametrize("attention", list_attentions())
def test_comparison_catches_shifted_tokens(attention: str) -> None:
    """The equation gets tokens shifted by 0.01."""
    assert worst_ratio(attention, shift=0.01) > 20


SUMMING = [name for name in list_attentions() if ATTENTIONS[name].rows != "free"]
CONVEX = [name for name in SUMMING if ATTENTIONS[name].rows == "convex"]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("attention", SUMMING)
def test_rows_sum_to_one_and_logits_are_unchanged(attention: str, pooling: str) -> None:
    model, images = small_model(attention, **POOLINGS[pooling]), pictures()
    found = attention_maps(model, images, method="rollout")
    ones = torch.ones(2, 2, 4)
    torch.testing.assert_close(found.weights.sum(dim=-1), ones, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.summary.sum(dim=-1), ones[:, 0, 0], atol=1e-5, rtol=0)
    with torch.no_grad():
        assert torch.equal(found.logits, model(images))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("attention", CONVEX)
def test_convex_rows_are_not_negative(attention: str, pooling: str) -> None:
    model, images = small_model(attention, **POOLINGS[pooling]), pictures()
    assert attention_maps(model, images, method="rollout").weights.min() >= 0


def whole_maps(model, images: Tensor) -> list[Tensor]:
    """The map of every layer, for the tokens that the model gives it."""
    seen = observe(model, images, range(len(model.blocks)))
    with torch.no_grad():
        return [whole_map(layer.attn, layer.tokens) for layer in seen.layers]


def readout_of(model, images: Tensor) -> Tensor:
    """The pooling as a row over the tokens, by differentiating it: pool(x) = sum_i r_i x_i."""
    tokens = model.forward_features(images).detach()
    if model.attn_pool is None:
        tokens.requires_grad_()
        pooled = model.pool(tokens).sum()
        return torch.autograd.grad(pooled, tokens)[0][..., 0]
    pool = model.attn_pool
    heads = (len(tokens), -1, pool.num_heads, tokens.shape[-1] // pool.num_heads)
    q = pool.q(pool.latent).expand(len(tokens), -1, -1).reshape(heads)
    k = pool.kv(tokens).chunk(2, dim=-1)[0].reshape(heads)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / heads[-1] ** 0.5
    return scores.softmax(-1).mean(1)[:, 0].detach()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("attention", list_attentions())
def test_rollout_equals_the_product_of_whole_matrices(attention: str, pooling: str) -> None:
    model = small_model(attention, **POOLINGS[pooling]).double()
    images = pictures().double()
    row = readout_of(model, images)[:, None]
    first = whole_maps(model, images)[0]
    torch.testing.assert_close(
        attention_maps(model, images, layers=[0], method="attention").weights[:, 0],
        (row[:, None] @ first)[:, :, 0],
    )
    for weights in reversed(whole_maps(model, images)):
        row = row @ (torch.eye(weights.shape[-1]) + weights.mean(1)) / 2
    torch.testing.assert_close(rollout(model, images), (row / row.sum(-1, keepdim=True))[:, 0])


@pytest.mark.parametrize("pooling", ["token", "avg"])
@pytest.mark.parametrize("attention", list_attentions())
def test_gradients_equal_those_of_an_explicit_map(attention: str, pooling: str) -> None:
    """dy/dA by autograd through an explicit map, against dy/dA from the fast path."""
    model = small_model(attention, **POOLINGS[pooling]).double()
    images, target = pictures().double(), torch.tensor([3, 1])
    found = attention_maps(model, images, method="gradient", target=target)
    whole = explicit(copy.deepcopy(model))
    whole(images).gather(1, target[:, None]).sum().backward()
    start = readout_of(model, images)[:, None]
    row = start
    relevances = [(b.attn.map * b.attn.map.grad).relu().detach() for b in whole.blocks]
    for relevance in reversed(relevances):
        row = row + row @ relevance.mean(1)
    row = (row - start)[:, 0]
    torch.testing.assert_close(found.summary, row / row.sum(1, keepdim=True))
    shown = torch.stack([(start[:, None] @ each)[:, :, 0] for each in relevances], dim=1)
    torch.testing.assert_close(found.weights, shown)
    assert not torch.allclose(found.summary, rollout(model, images), rtol=0.01)


@pytest.mark.parametrize("attention", ["softmax", "taylorshift", "performer"])
def test_rollout_of_windows_equals_the_product_of_their_matrices(attention: str) -> None:
    model = small_model(attention, window=3, shifted=True).double()
    images, grid = pictures().double(), (8, 8)
    seen = observe(model, images, [0, 1])
    row = torch.zeros(2, 1, 65).double().index_fill(2, torch.tensor(0), 1)
    for layer in reversed(seen.layers):
        weights = layer.attn.attention_weights(layer.tokens, grid=grid).detach()
        assert (weights[:, :, 1, 1:].view(2, 4, *grid)[..., 3:] == 0).all()
        row = row @ (torch.eye(65) + weights.mean(1)) / 2
    torch.testing.assert_close(rollout(model, images), row[:, 0])
    gradients = attention_maps(model, images, method="gradient").summary
    torch.testing.assert_close(gradients.sum(1), torch.ones(2).double())


@pytest.mark.parametrize("method", maps.METHODS)
def test_chunks_do_not_change_the_summary(
    method: maps.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = small_model("taylor", **POOLINGS["avg"]).double(), pictures().double()
    whole = attention_maps(model, images, method=method)
    monkeypatch.setattr(maps, "CHUNK_BYTES", 1)
    torch.testing.assert_close(attention_maps(model, images, method=method).summary, whole.summary)


def test_half_precision_is_summed_in_float32() -> None:
    model, images = small_model("taylorshift", **POOLINGS["avg"]), pictures()
    exact = rollout(model, images)
    found = rollout(model.bfloat16(), images.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(2), atol=0.01, rtol=0)
    assert relative_error(found, exact.double()) < 0.05


def test_samples_are_independent() -> None:
    model, images = small_model("performer").double(), pictures(3).double()
    together = attention_maps(model, images, method="gradient").summary
    alone = torch.cat([attention_maps(model, x[None], method="gradient").summary for x in images])
    torch.testing.assert_close(together, alone)


def test_layers_and_heads_select_maps() -> None:
    model, images = small_model("softmax"), pictures()
    everything = attention_maps(model, images)
    some = attention_maps(model, images, layers=[-1], heads=[3, 1])
    assert (some.layers, some.heads) == ((1,), (1, 3))
    assert torch.equal(some.weights, everything.weights[:, 1:, [1, 3]])
    assert torch.equal(some.summary, everything.summary)
    mean = attention_maps(model, images, layers=[0], heads=[2], method="attention")
    torch.testing.assert_close(mean.summary, everything.weights[:, 0, 2])
    assert torch.equal(mean.on_grid(mean.summary)[:, 1, 2], mean.summary[:, 1 + 8 + 2])


def test_model_is_unchanged() -> None:
    model, images = small_model("softmax", proj_drop_rate=0.5).train(), pictures()
    model.set_grad_checkpointing()
    attention_maps(model, images, method="gradient")
    assert model.training
    assert model.grad_checkpointing
    assert not images.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [2]}, r"layers must be one or more of the model's layers 0 to 1 .* got \[2\]"),
        ({"heads": [-5]}, "heads 0 to 3"),
        ({"layers": []}, r"layers 0 to 1 .* got \[\]"),
        ({"method": "atention"}, "did you mean 'attention'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attention_maps(small_model("softmax"), pictures(), **arguments)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), SequenceTransformer(8, 4, embed_dim=12)])
def test_other_models_are_refused(model: nn.Module) -> None:
    with pytest.raises(
        ConfigError, match=f"model must be a VisionTransformer, got {type(model).__name__}"
    ):
        attention_maps(model, pictures())
