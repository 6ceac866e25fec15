"""Maps, rollouts and gradients against whole matrices formed by the equations in float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.explain import attention_maps, maps, rollout
from saccade.explain.observation import observe
from saccade.layers import list_attentions
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
def test_maps_are_those_of_the_equation(attention: str) -> None:
    """At most twice the error of the plain equation in the same dtype."""
    assert worst_ratio(attention) <= 2


@pytest.mark.parametrize("attention", list_attentions())
def test_the_comparison_notices_other_tokens(attention: str) -> None:
    """The layers had other tokens, a hundredth of their spread away."""
    assert worst_ratio(attention, shift=0.01) > 20


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("attention", list_attentions())
def test_rows_sum_to_one_and_the_model_answers_as_ever(attention: str, pooling: str) -> None:
    model, images = small_model(attention, **POOLINGS[pooling]), pictures()
    found = attention_maps(model, images, method="rollout")
    ones = torch.ones(2, 2, 4)
    torch.testing.assert_close(found.weights.sum(dim=-1), ones, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.summary.sum(dim=-1), ones[:, 0, 0], atol=1e-5, rtol=0)
    assert (found.weights >= 0).all()
    with torch.no_grad():
        assert torch.equal(found.logits, model(images))


def whole_maps(model, images: Tensor) -> list[Tensor]:
    """The map of every layer, of the tokens that the model itself gives it."""
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
def test_rollout_is_the_product_of_the_whole_matrices(attention: str, pooling: str) -> None:
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
    torch.testing.assert_close(rollout(model, images), row[:, 0])


@pytest.mark.parametrize("pooling", ["token", "avg"])
@pytest.mark.parametrize("attention", list_attentions())
def test_gradients_are_those_of_a_map_that_is_formed(attention: str, pooling: str) -> None:
    """Autograd through attention that forms its map, against dy/dA made from the fast path."""
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
def test_windows_roll_out_as_their_matrices_say(attention: str) -> None:
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
def test_pieces_make_the_whole(method: maps.Method, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_samples_do_not_see_each_other() -> None:
    model, images = small_model("performer").double(), pictures(3).double()
    together = attention_maps(model, images, method="gradient").summary
    alone = torch.cat([attention_maps(model, x[None], method="gradient").summary for x in images])
    torch.testing.assert_close(together, alone)


def test_layers_and_heads_are_those_asked_for() -> None:
    model, images = small_model("softmax"), pictures()
    everything = attention_maps(model, images)
    some = attention_maps(model, images, layers=[-1], heads=[3, 1])
    assert (some.layers, some.heads) == ((1,), (1, 3))
    assert torch.equal(some.weights, everything.weights[:, 1:, [1, 3]])
    assert torch.equal(some.summary, everything.summary)
    mean = attention_maps(model, images, layers=[0], heads=[2], method="attention")
    torch.testing.assert_close(mean.summary, everything.weights[:, 0, 2])
    assert torch.equal(mean.on_grid(mean.summary)[:, 1, 2], mean.summary[:, 1 + 8 + 2])


def test_the_model_is_left_as_it_was() -> None:
    model, images = small_model("softmax", proj_drop_rate=0.5).train(), pictures()
    model.set_grad_checkpointing()
    attention_maps(model, images, method="gradient")
    assert model.training
    assert model.grad_checkpointing
    assert not images.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"layers": [2]}, r"layers=\[2\]: the model has layers 0 to 1"),
        ({"heads": [-5]}, "heads 0 to 3"),
        ({"layers": []}, "layers 0 to 1"),
        ({"method": "atention"}, "did you mean 'attention'"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        attention_maps(small_model("softmax"), pictures(), **arguments)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), SequenceTransformer(8, 4, embed_dim=12)])
def test_a_model_without_image_maps_is_refused(model: nn.Module) -> None:
    with pytest.raises(ConfigError, match=f"model is a {type(model).__name__}"):
        attention_maps(model, pictures())
