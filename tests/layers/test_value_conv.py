"""The convolution of values, and blocks that keep softmax."""

import pytest
import torch

from saccade import create_model
from saccade.errors import ConfigError
from saccade.layers import MultiHeadAttention
from saccade.layers.value_conv import ValueConv
from saccade.models import VisionTransformer, count_flops, load_model

SIZES = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 3, "num_heads": 2}


def layer(attention="taylor", **options):
    made = MultiHeadAttention(24, 2, attention, **options).double().eval()
    if made.value_conv is not None:
        torch.nn.init.normal_(made.value_conv.weight)
    return made


def test_it_is_its_equation():
    """Sum over the square around each patch, one weight for each channel and offset."""
    conv = ValueConv(6, 3).double()
    torch.nn.init.normal_(conv.weight)
    v = torch.randn(2, 2, 1 + 12, 3, dtype=torch.float64)
    out = conv(v, (3, 4))
    assert out.shape == (2, 13, 6)
    assert out[:, 0].eq(0).all()
    weight = conv.weight[:, 0]  # (channels, 3, 3)
    for row in range(3):
        for column in range(4):
            expected = torch.zeros(2, 6, dtype=torch.float64)
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    i, j = row + down, column + right
                    if 0 <= i < 3 and 0 <= j < 4:
                        value = v[:, :, 1 + 4 * i + j].flatten(1)
                        expected += weight[:, down + 1, right + 1] * value
            torch.testing.assert_close(out[:, 1 + 4 * row + column], expected)


@pytest.mark.parametrize("attention", ["softmax", "taylor", "performer"])
def test_a_new_one_changes_nothing(attention):
    torch.manual_seed(0)
    plain = MultiHeadAttention(24, 2, attention).eval()
    local = MultiHeadAttention(24, 2, attention, value_conv=3).eval()
    local.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 17, 24)
    torch.testing.assert_close(local(x, grid=(4, 4)), plain(x, grid=(4, 4)))
    assert local.value_conv.weight.numel() == 24 * 9


def test_masked_values_do_not_enter():
    local = layer(value_conv=3)
    x = torch.randn(2, 16, 24, dtype=torch.float64)
    mask = torch.arange(16).expand(2, 16) < 12
    out = local(x, key_mask=mask, grid=(4, 4))
    y = x.clone()
    y[:, 12:] = 7.0
    torch.testing.assert_close(local(y, key_mask=mask, grid=(4, 4))[:, :12], out[:, :12])


def test_it_has_gradients():
    local = layer(value_conv=3)
    x = torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: local(x, grid=(2, 2)), (x,))
    local(x, grid=(2, 2)).square().sum().backward()
    assert local.value_conv.weight.grad.abs().sum() > 0


def test_bad_sizes_and_masks_are_one_line():
    with pytest.raises(ConfigError, match="value_conv must be an odd number of patches or None"):
        MultiHeadAttention(24, 2, value_conv=2)
    with pytest.raises(ConfigError, match="grid must be the"):
        layer(value_conv=3)(torch.randn(1, 5, 24).double())
    with pytest.raises(ConfigError, match="attn_mask with value_conv"):
        layer("softmax", value_conv=3)(
            torch.randn(1, 4, 24).double(), attn_mask=torch.randn(4, 4), grid=(2, 2)
        )


def test_blocks_keep_softmax(tmp_path):
    model = create_model(
        "vit_tiny_patch16_224", "taylorshift", 5, softmax_blocks=[2, 0, 2], value_conv=3, **SIZES
    ).eval()
    assert model.config.softmax_blocks == (0, 2)
    assert [b.attn.attention for b in model.blocks] == ["softmax", "taylorshift", "softmax"]
    assert [b.attn.value_conv is None for b in model.blocks] == [True, False, True]
    plain = create_model("vit_tiny_patch16_224", "taylorshift", 5, softmax_blocks=[0, 2], **SIZES)
    extra = sum(count_flops(model).values()) - sum(count_flops(plain).values())
    assert extra == 2 * 16 * 24 * 9
    model.N0 = 3
    assert model.N0 == model.blocks[1].attn.N0 == 3
    torch.nn.init.normal_(model.blocks[1].attn.value_conv.weight)
    model.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(load_model(tmp_path)(x), model(x), rtol=0, atol=0)
    model.prune_intermediate_layers([1])
    assert model.config.softmax_blocks == (0,)
    VisionTransformer(model.config)


@pytest.mark.parametrize("blocks", [[3], [-1], "01", 1, [0.5], [True]])
def test_bad_blocks_are_one_line(blocks):
    with pytest.raises(ConfigError, match="softmax_blocks must be a list of blocks from 0 to 2"):
        create_model("vit_tiny_patch16_224", softmax_blocks=blocks, **SIZES)
