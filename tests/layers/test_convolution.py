"""A convolution of few channels as a product gives what torch's convolution gives."""

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
def test_it_is_torchs_convolution(chans, kernel, stride, padding, bias):
    torch.manual_seed(0)
    conv = ImageConv2d(chans, 10, kernel, stride=stride, padding=padding, bias=bias).double()
    x = torch.randn(2, chans, 12, 8, dtype=torch.float64, requires_grad=True)
    expected, found = conv(x), conv.as_product(x)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    direction = torch.randn_like(expected)
    wanted = [x, *conv.parameters()]
    for one, other in zip(
        torch.autograd.grad(expected, wanted, direction),
        torch.autograd.grad(found, wanted, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_window_out_of_place_is_caught():
    conv = ImageConv2d(3, 4, 3, padding=1)
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(conv.as_product(x.roll(1, -1)), conv(x))


@pytest.mark.parametrize("name", [name for name in STEMS if name != "patch_linear"])
def test_of_the_convolutions_of_a_stem_the_first_has_few_inputs(name):
    patch = {"conv": 1, "conv_pool": 2}.get(name, 4)
    stem = build_stem(name, (16, 16), 3, 64, patch)
    first, *others = (m for m in stem.modules() if isinstance(m, nn.Conv2d))
    assert isinstance(first, ImageConv2d)
    assert first.has_few_inputs
    assert not any(m.has_few_inputs for m in others)
