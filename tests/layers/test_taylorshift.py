"""`TaylorShiftAttention` against the published example, equation and signature."""

import inspect
import re

import pytest
import torch

from saccade import MultiHeadAttention, TaylorShiftAttention
from saccade.ops.taylor import speed_threshold
from saccade.ops.taylor.reference import taylor_attention_reference

# The published example, with only the import changed.
EXAMPLE = """
import torch
from saccade import TaylorShiftAttention

# example parameters
bs = 128
d_embed = 256
heads = 8
seq_len = 1024

attn = TaylorShiftAttention(d_embed, num_heads=heads)

q, k, v = torch.rand(3, bs, heads, seq_len, d_embed//heads).unbind(0)
y_dir = attn._direct_attention(q, k, v)
y_eff = attn._efficient_attention(q, k, v)

print(f"Difference: abs={(y_dir - y_eff).abs().mean(dim=0).max()} -> rel={(2* (y_dir - y_eff)/(y_dir + y_eff)).abs().mean(dim=0).max()}")
"""  # noqa: E501


def test_published_example_prints_only_rounding_errors(capsys):
    torch.manual_seed(0)
    exec(compile(EXAMPLE, "example", "exec"), {})
    absolute, relative = map(float, re.findall(r"=([0-9.e-]+)", capsys.readouterr().out))
    assert 0 < absolute < 1e-6
    assert 0 < relative < 2e-6


@pytest.mark.parametrize("normalize_input", [True, False])
@pytest.mark.parametrize("output_normalized", [True, False])
def test_both_methods_equal_the_equation(normalize_input, output_normalized):
    torch.manual_seed(0)
    options = {"normalize_input": normalize_input, "output_normalized": output_normalized}
    layer = TaylorShiftAttention(32, 4, a=0.7, b=-0.5, c=0.9, **options).double()
    q, k, v = torch.randn(3, 2, 4, 20, 8).double()
    query, key = q, k
    if normalize_input:
        layer.core.temperature.data = torch.rand(4, 1, 1).double() + 0.5
        query, key = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        query = query * layer.core.temperature
    expected = taylor_attention_reference(
        query, key, v, scale=1.0, coefficients=(0.7, -0.5, 0.9)
    ) * ((20 / 8) ** 0.5 if output_normalized else 1)
    torch.testing.assert_close(layer._direct_attention(q, k, v), expected)
    torch.testing.assert_close(layer._efficient_attention(q, k, v), expected)


def test_n0_is_the_threshold_of_the_paper_and_settable():
    layer = TaylorShiftAttention(256, num_heads=8)
    assert layer.N0 == speed_threshold(32) == 1057
    x = torch.randn(1, 40, 256)
    layer.N0 = -1
    efficient = layer(x)
    layer.N0 = 2**64
    torch.testing.assert_close(layer(x), efficient)


@pytest.mark.parametrize("temperature", [None, True])
def test_scores_without_normalization(temperature):
    """q.k / sqrt(C) without a temperature as published, tau q.k / sqrt(D) with one."""
    torch.manual_seed(0)
    options = {"normalize_input": False, "output_normalized": False, "temperature": temperature}
    layer = MultiHeadAttention(32, 4, "taylorshift", attention_options=options).double()
    q, k, v = torch.randn(3, 2, 4, 20, 8).double()
    scores = q @ k.mT / 32**0.5
    if temperature:
        layer.core.temperature.data = torch.rand(4, 1, 1).double() + 0.5
        scores = layer.core.temperature * q @ k.mT / 8**0.5
    weights = 1 + scores + scores**2 / 2
    expected = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(layer.core(q, k, v), expected @ v)
    torch.testing.assert_close(layer.core.attention_weights(q, k), expected)
    softmax = torch.softmax(scores, dim=-1) @ v
    torch.testing.assert_close(layer.core.softmax_counterpart(q, k, v, key_mask=None), softmax)
    assert ("core.temperature" in layer.state_dict()) == bool(temperature)


def test_normalize_input_without_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature must be True or None"):
        MultiHeadAttention(32, 4, "taylorshift", attention_options={"temperature": False})


def test_arguments_have_the_published_order():
    """In the published order: proj_drop before attn_drop."""
    layer = TaylorShiftAttention(30, 3, 7, False, 0.1, 0.2, 0.5, 1.0, 1.0, True, True)
    assert layer.qkv.bias is None
    assert layer.qkv.out_features == 63
    assert layer.proj_drop.p == 0.1
    assert layer.core.attn_drop == 0.2
    names = list(inspect.signature(TaylorShiftAttention).parameters)
    assert names[:9] == [
        "dim",
        "num_heads",
        "head_dim",
        "qkv_bias",
        "proj_drop",
        "attn_drop",
        "a",
        "b",
        "c",
    ]
    assert names[9:] == ["normalize_input", "output_normalized"]
    assert layer.core.output_normalized
    with pytest.raises(ValueError, match="coefficients"):
        TaylorShiftAttention(32, a=0.1)
