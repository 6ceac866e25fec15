"""The functions as a user meets them: parity with torch, maps on demand, clear refusals."""

import pytest
import torch
import torch.nn.functional as F

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops import attention_weights, linear_attention, softmax_attention, taylor_attention
from saccade.ops.linear.reference import linear_weights_reference
from saccade.ops.softmax.reference import softmax_weights_reference
from saccade.ops.taylor.reference import taylor_weights_reference
from tests.ops.mechanisms import make_inputs


@pytest.mark.parametrize("scale", [None, 0.1, 2.0])
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_softmax_is_torchs_own(scale, masked):
    q, k, v, mask = make_inputs(queries=33, keys=21, width=7, masked=masked)
    attn_mask = None if mask is None else mask[:, None, None, :]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale)
    actual = softmax_attention(q, k, v, scale=scale, key_mask=mask)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def positive(x):
    return x.abs() + 0.01


MAPS = {
    "softmax": lambda q, k, m: softmax_weights_reference(q, k, scale=0.25, key_mask=m),
    "taylor": lambda q, k, m: taylor_weights_reference(q, k, scale=0.25, key_mask=m),
    "linear": lambda q, k, m: linear_weights_reference(q, k, key_mask=m),
}


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("mechanism", MAPS)
def test_maps_equal_the_reference(mechanism, masked):
    q, k, _, mask = make_inputs(queries=30, keys=20, masked=masked)
    if mechanism == "linear":
        q, k = positive(q), positive(k)
    expected = MAPS[mechanism](q, k, mask)
    actual = attention_weights(q, k, mechanism=mechanism, key_mask=mask)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(actual.sum(dim=-1), torch.ones(2, 3, 30).double())
    chosen = torch.tensor([0, 7, 29, 7])
    some = attention_weights(q, k, mechanism=mechanism, key_mask=mask, queries=chosen)
    torch.testing.assert_close(some, actual[:, :, chosen])
    first = attention_weights(q, k, mechanism=mechanism, key_mask=mask, queries=slice(0, 1))
    torch.testing.assert_close(first, actual[:, :, :1])


@pytest.mark.parametrize("mechanism", MAPS)
def test_maps_times_values_are_the_attention(mechanism):
    q, k, v, mask = make_inputs(queries=30, keys=20, masked=True)
    run = {"softmax": softmax_attention, "taylor": taylor_attention, "linear": linear_attention}
    if mechanism == "linear":
        q, k = positive(q), positive(k)
    expected = run[mechanism](q, k, v, key_mask=mask)
    actual = attention_weights(q, k, mechanism=mechanism, key_mask=mask) @ v
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mechanism", MAPS)
def test_a_map_of_few_queries_over_many_keys_is_small(mechanism):
    q, k = torch.rand(2, 1, 2, 200_000, 8)
    rows = attention_weights(q, k, mechanism=mechanism, queries=torch.tensor([5, 199_999]))
    assert rows.shape == (1, 2, 2, 200_000)
    torch.testing.assert_close(
        rows.double().sum(dim=-1), torch.ones(1, 2, 2).double(), rtol=1e-4, atol=0
    )


def test_options_that_do_not_apply_are_refused():
    q, k, _, _ = make_inputs()
    with pytest.raises(ConfigError, match="does not apply to mechanism='softmax'"):
        attention_weights(q, k, mechanism="softmax", eps=0.1)
    with pytest.raises(ConfigError, match="coefficients"):
        attention_weights(q, k, mechanism="linear", coefficients=(0.5, 1.0, 1.0))
    with pytest.raises(UnknownNameError, match="did you mean 'softmax'"):
        attention_weights(q, k, mechanism="sofmax")
    with pytest.raises(ConfigError, match="queries"):
        attention_weights(q, k, mechanism="softmax", queries=torch.tensor([0.5]))


FUNCTIONS = [softmax_attention, taylor_attention, linear_attention]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), r"(phi_)?q must have shape"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v), "D at least 1"),
        (lambda q, k, v: (q[..., :3], k, v), "batch, heads and width"),
        (lambda q, k, v: (q[:1], k, v), "batch, heads and width"),
        (lambda q, k, v: (q, k, v[:, :, :3]), "v must have shape"),
        (lambda q, k, v: (q.long(), k.long(), v.long()), "dtype"),
        (lambda q, k, v: (q.float(), k, v), "must have the dtype"),
        (lambda q, k, v: (q.to("meta"), k, v), "meta"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(function, change, message):
    q, k, v, _ = make_inputs(queries=6)
    with pytest.raises(ValueError, match=message):
        function(*change(q, k, v))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 6), torch.ones(2, 5).bool(), torch.ones(6).bool()],
    ids=["float", "N", "B"],
)
def test_masks_that_do_not_fit_are_refused(function, mask):
    q, k, v, _ = make_inputs(queries=6)
    with pytest.raises(ConfigError, match="key_mask"):
        function(q, k, v, key_mask=mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cuda_agrees_with_the_cpu(dtype):
    q, k, v, mask = make_inputs(queries=700, masked=True)
    for function in (softmax_attention, taylor_attention):
        exact = function(q, k, v, key_mask=mask)
        actual = function(*(x.to("cuda", dtype) for x in (q, k, v)), key_mask=mask.cuda())
        error = (actual.cpu().double() - exact).norm() / exact.norm()
        assert error < 8 * torch.finfo(dtype).eps, function
