"""Every fast path against its equation in float64, and proof that the comparison can fail."""

from functools import partial

import pytest
import torch

from saccade.ops import linear as maps
from saccade.ops import linear_attention, taylor_attention
from tests.ops.mechanisms import MECHANISMS, assert_as_good_as_plain, draw, fitted, make_inputs

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MECHANISMS)
def test_fast_path_is_as_good_as_plain_torch(name, dtype, masked):
    mechanism = MECHANISMS[name]
    make = partial(draw, mechanism, queries=65, keys=49, dim=16, width=12, masked=masked)
    assert_as_good_as_plain(mechanism.fast, mechanism.reference, make, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [8, 32, 64])
@pytest.mark.parametrize("algorithm", ["direct", "efficient"])
def test_taylor_at_the_head_dims_of_models(algorithm, dim, dtype):
    mechanism = MECHANISMS[f"taylor-{algorithm}"]
    make = partial(draw, mechanism, batch=1, heads=2, queries=300, dim=dim)
    assert_as_good_as_plain(mechanism.fast, mechanism.reference, make, dtype, draws=2)


class PlantedErrors:
    """Wrong versions of the fast paths, one for each way of going wrong that we know."""

    @staticmethod
    def drop_the_half(q, k, v, m):
        return taylor_attention(q, k, v, coefficients=(1.0, 1.0, 1.0), key_mask=m)

    @staticmethod
    def ignore_the_mask(q, k, v, m):
        return taylor_attention(q, k, v)

    @staticmethod
    def forget_the_scale(q, k, v, m):
        return taylor_attention(q, k, v, scale=1.0, key_mask=m)

    @staticmethod
    def cut_the_gradient_of_the_denominator(q, k, v, m):
        s = q @ k.mT * q.shape[-1] ** -0.5
        w = (1 + s + s**2 / 2) * m[:, None, None, :]
        return (w @ v) / w.sum(dim=-1, keepdim=True).detach()

    @staticmethod
    def count_off_diagonal_pairs_once(q, k, v, m):
        x, y = (t * q.shape[-1] ** -0.25 for t in (q, k))
        i, j = torch.triu_indices(q.shape[-1], q.shape[-1])
        phi_q, phi_k = (torch.cat([t[..., i] * t[..., j] / 2**0.5, t], -1) for t in (x, y))
        w = (1 + phi_q @ phi_k.mT) * m[:, None, None, :]
        return (w @ v) / w.sum(dim=-1, keepdim=True)


PLANTED = [name for name in vars(PlantedErrors) if not name.startswith("_")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_in_taylor_is_caught(error, dtype):
    mechanism = MECHANISMS["taylor-direct"]
    make = partial(draw, mechanism, queries=65, keys=49, masked=True)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(getattr(PlantedErrors, error), mechanism.reference, make, dtype)


def _favor_without_the_norm(q, k, v, m, w):
    phi_q, phi_k = (torch.exp(x @ w.T * q.shape[-1] ** -0.25) for x in (q, k))
    return linear_attention(phi_q, phi_k, v, eps=0.0, key_mask=m)


def _favor_with_an_unmasked_sum(q, k, v, m, w):
    phi_q, phi_k = (maps.favor_softmax(x, w, is_query=i, eps=0.0) for x, i in ((q, 1), (k, 0)))
    out = linear_attention(phi_q, phi_k, v, eps=0.0)
    return out * m.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wrong", [_favor_without_the_norm, _favor_with_an_unmasked_sum])
def test_planted_error_in_favor_is_caught(wrong, dtype):
    mechanism = MECHANISMS["favor"]
    make = partial(draw, mechanism, queries=65, keys=49, masked=True)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(wrong, mechanism.reference, make, dtype)


def test_planted_nan_is_caught():
    mechanism = MECHANISMS["taylor-direct"]

    def one_nan(*args):
        out = mechanism.fast(*args).clone()
        out[0, 0, 0, 0] = torch.nan
        return out

    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(
            one_nan, mechanism.reference, partial(draw, mechanism), torch.float32
        )


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_gradcheck(name, masked):
    mechanism = MECHANISMS[name]
    shape = {"batch": 1, "heads": 2, "queries": 5, "keys": 4, "dim": 3, "width": 2}
    q, k, v, mask = make_inputs(**fitted(mechanism, shape), masked=masked)
    parameters = [x.double() for x in mechanism.parameters(2, 3)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v, *parameters)]

    def run(q, k, v, *parameters):
        return mechanism.fast(q, k, v, mask, *parameters)

    assert torch.autograd.gradcheck(run, leaves)
