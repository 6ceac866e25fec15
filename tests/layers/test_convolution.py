"""`ImageConv2d.as_product` against torch's convolution."""

import pytest
import torch
from torch import nn

from saccade.layers.convolution import ImageConv2d
from saccade.layers.stems import STEMS, build_stem


@pytest.mark.parametrize(
    ("chans", "kernel", "stride", "padding"),
    [(3, 3, 1, 1), (3, 3, 2, 1), (1, 3, 1, 1), (3, 4, 4, 0)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_product_equals_torch_convolution(chans, kernel, stride, padding, bias):
    torch.manual_seed(0)
    conv = ImageConv2d(chans, 10, kernel, stride=stride, padding=padding, bias=bias).double()
    x = torch.randn(2, chans, 12, 8, dtype=torch.float64, requires_grad=True)
    expected, actual = conv(x), conv.as_product(x)
    torch.testing.assert_close(actual, expected)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    direction = torch.randn_like(expected)
    inputs = [x, *conv.parameters()]
    for one, other in zip(
        torch.autograd.grad(expected, inputs, direction),
        torch.autograd.grad(actual, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_comparison_catches_shifted_windows():
    conv = ImageConv2d(3, 4, 3, padding=1)
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(conv.as_product(x.roll(1, -1)), conv(x))


@pytest.mark.parametrize("name", [name for name in STEMS if name != "patch_linear"])
def test_only_the_first_convolution_of_a_stem_has_few_inputs(name):
    patch = {"conv": 1, "conv_pool": 2}.get(name, 4)
    stem = build_stem(name, (16, 16), 3, 64, patch)
    first, *others = (m for m in stem.modules() if isinstance(m, nn.Conv2d))
    assert isinstance(first, ImageConv2d)
    assert first.has_few_inputs
    assert not any(m.has_few_inputs for m in others)
