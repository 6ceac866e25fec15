"""What is particular to feature maps: positivity, the projection, FAVOR+ as an estimate."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS, create_core
from saccade.layers.performers import FeatureCore
from saccade.ops import linear as maps
from saccade.ops import linear_attention
from saccade.ops.linear import orthogonal_projection
from saccade.ops.softmax.reference import softmax_attention_reference
from tests.ops.mechanisms import HELD_BY_FUNCTION, make_inputs

RANDOM_MAPS = {
    "favor-query": lambda x, w: maps.favor_softmax(x, w, is_query=True),
    "favor-key": lambda x, w: maps.favor_softmax(x, w, is_query=False),
    "relu": maps.relu,
    "exp": maps.exp,
    "gelu": maps.gelu,
    "elu": maps.elu,
    "ftheta-mlp": lambda x, w: maps.ftheta_mlp(
        x, w, torch.zeros(32), torch.randn(24, 32), torch.randn(24)
    ),
    "ftheta-mix": lambda x, w: maps.ftheta_mix(x, w, torch.tensor(0.4), torch.tensor(1.3)),
}


def _features_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The feature map of a registered attention, with weights of its own."""

    def features(x: Tensor, w: Tensor) -> Tensor:
        return create_core(name, x.shape[1], x.shape[3]).features(x, is_query=True)

    return features


def _has_features(name: str, *, weight_eps: bool) -> bool:
    """True for a core with features whose weights may not be negative, with an eps or without."""
    core = ATTENTIONS[name].core_class
    return (
        issubclass(core, FeatureCore)
        and ATTENTIONS[name].rows == "convex"
        and (core.weight_eps > 0) == weight_eps
    )


REGISTERED = [name for name in ATTENTIONS if name not in HELD_BY_FUNCTION]
POSITIVE_MAPS = RANDOM_MAPS | {
    name: _features_of(name) for name in REGISTERED if _has_features(name, weight_eps=False)
}
"""Maps that no eps of the weights protects from a denominator of zero."""

NON_NEGATIVE_MAPS = {
    name: _features_of(name) for name in REGISTERED if _has_features(name, weight_eps=True)
}
ALL_MAPS = RANDOM_MAPS | {
    name: _features_of(name)
    for name in REGISTERED
    if issubclass(ATTENTIONS[name].core_class, FeatureCore)
}

every_size = pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1000.0])
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str
)


def features_of_random_tokens(feature_map, dtype: torch.dtype, size: float) -> Tensor:
    torch.manual_seed(0)
    x = (torch.randn(2, 2, 50, 16) * size).to(dtype)
    return feature_map(x, orthogonal_projection(32, 16, seed=0))


@every_size
@every_dtype
@pytest.mark.parametrize("name", ALL_MAPS)
def test_features_are_finite_in_full_precision(name, dtype, size):
    phi = features_of_random_tokens(ALL_MAPS[name], dtype, size)
    assert phi.dtype == torch.float32
    assert phi.isfinite().all()


@every_size
@every_dtype
@pytest.mark.parametrize("name", POSITIVE_MAPS)
def test_features_are_positive(name, dtype, size):
    assert (features_of_random_tokens(POSITIVE_MAPS[name], dtype, size) > 0).all()


@every_size
@every_dtype
@pytest.mark.parametrize("name", NON_NEGATIVE_MAPS)
def test_features_beside_an_eps_of_the_weights_are_not_negative(name, dtype, size):
    assert (features_of_random_tokens(NON_NEGATIVE_MAPS[name], dtype, size) >= 0).all()


def test_rows_are_orthogonal_with_chi_norms():
    dim, blocks = 16, 400
    w = orthogonal_projection(dim * blocks, dim, seed=0).double().view(blocks, dim, dim)
    gram = w @ w.mT
    off_diagonal = gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
    assert off_diagonal.abs().max() < 1e-4
    squared_norms = gram.diagonal(dim1=-2, dim2=-1)  # chi^2(16): mean 16, variance 32
    assert abs(squared_norms.mean() - dim) < 0.3
    assert abs(squared_norms.var() - 2 * dim) < 2.5


def test_projection_is_a_function_of_its_seed():
    first, again, other = (orthogonal_projection(20, 8, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    with pytest.raises(ConfigError, match="num_features and head_dim must be at least 1, got 0"):
        orthogonal_projection(0, 8, seed=1)


def test_favor_estimates_the_exponential_without_bias():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 6, 8, dtype=torch.float64) / 2
    scale = 8**-0.5
    w = orthogonal_projection(400_000, 8, seed=0)
    phi_q, phi_k = (
        maps.favor_softmax(x, w, is_query=i, eps=0.0) for x, i in ((q, True), (k, False))
    )
    estimate = phi_q @ phi_k.mT  # each row up to a factor, which cancels in a quotient of keys
    exact = torch.exp(scale * q @ k.mT)
    torch.testing.assert_close(
        estimate / estimate.sum(dim=-1, keepdim=True),
        exact / exact.sum(dim=-1, keepdim=True),
        rtol=0.03,
        atol=0,
    )


def favor_error(num_features: int, draws: int = 10) -> float:
    """Mean relative error of FAVOR+ against softmax over several projections."""
    q, k, v, _ = make_inputs(batch=2, heads=2, queries=64, dim=16)
    q, k = q / 2, k / 2  # |q| = 2: the variance of the estimate grows like exp(|q + k|^2)
    exact = softmax_attention_reference(q, k, v, scale=0.25)
    errors = []
    for seed in range(draws):
        w = orthogonal_projection(num_features, 16, seed=seed)
        phi_q, phi_k = (maps.favor_softmax(x, w, is_query=i) for x, i in ((q, True), (k, False)))
        errors.append((linear_attention(phi_q, phi_k, v) - exact).norm() / exact.norm())
    return float(torch.stack(errors).mean())


def test_favor_error_falls_as_features_grow():
    errors = [favor_error(m) for m in (16, 64, 256, 1024)]
    assert all(later < 0.75 * earlier for earlier, later in pairwise(errors))


def test_favor_agrees_with_performer_pytorch():
    """Same projection, same features, in the reference implementation of the field."""
    peer = pytest.importorskip("performer_pytorch.performer_pytorch")
    q, k, v = (x.float() for x in make_inputs(batch=2, heads=3, queries=50, dim=16)[:3])
    w = orthogonal_projection(40, 16, seed=0)
    peer_q, peer_k = (
        peer.softmax_kernel(x, projection_matrix=w, is_query=i, eps=0.0, device="cpu")
        for x, i in ((q, True), (k, False))
    )
    phi_q, phi_k = (
        maps.favor_softmax(x, w, is_query=i, eps=0.0) for x, i in ((q, True), (k, False))
    )
    ours, theirs = (
        linear_attention(phi_q, phi_k, v, eps=0.0),
        peer.linear_attention(peer_q, peer_k, v),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_large_masked_key_does_not_drown_the_others():
    _, k, _, _ = make_inputs(batch=1, heads=1, queries=6, dim=4)
    w = orthogonal_projection(16, 4, seed=0)
    mask = torch.tensor([[True] * 5 + [False]])
    expected = maps.favor_softmax(k[:, :, :5], w, is_query=False)
    k[:, :, 5] = w[0] * 1e3
    actual = maps.favor_softmax(k, w, is_query=False, key_mask=mask)[:, :, :5]
    torch.testing.assert_close(actual, expected)


def test_zero_features_attend_to_all_keys_alike():
    v = torch.randn(1, 1, 5, 3)
    out = linear_attention(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4), v)
    torch.testing.assert_close(out, v.mean(dim=2, keepdim=True).expand(-1, -1, 2, -1))


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf")])
def test_a_bad_eps_is_refused(eps):
    phi, v = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3)
    with pytest.raises(ConfigError, match="eps"):
        linear_attention(phi, phi, v, eps=eps)


def test_backend_without_a_kernel_is_refused():
    phi, v = torch.ones(2, 1, 1, 2, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match="backend='triton'"):
        linear_attention(phi, phi, v, backend="triton")


def test_feature_map_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="projection"):
        maps.relu(torch.ones(1, 1, 2, 3), torch.ones(5, 4))
    with pytest.raises(ConfigError, match=r"scale must be at least 0 .*, got -1"):
        maps.relu(torch.ones(1, 1, 2, 3), torch.ones(5, 3), scale=-1.0)
    with pytest.raises(ConfigError, match="key_mask"):
        maps.favor_softmax(
            torch.ones(1, 1, 2, 3),
            torch.ones(5, 3),
            is_query=True,
            key_mask=torch.ones(1, 2).bool(),
        )
