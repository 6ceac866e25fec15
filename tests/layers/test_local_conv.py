"""The convolution of values on grids and lines, and blocks that keep softmax."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade import create_model
from saccade.config import load_config
from saccade.errors import ConfigError
from saccade.layers import MultiHeadAttention, list_attentions
from saccade.layers.local_conv import LocalConv
from saccade.models import SequenceTransformer, VisionTransformer, count_flops, load_model

SIZES = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 3, "num_heads": 2}


def layer(attention="taylor", **options):
    made = MultiHeadAttention(24, 2, attention, **options).double().eval()
    if made.local_conv is not None:
        torch.nn.init.normal_(made.local_conv.weight)
    return made


def test_it_is_its_equation():
    """Sum over the square around each patch, one weight for each channel and offset."""
    conv = LocalConv(6, 3).double()
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


def test_on_a_line_it_is_its_equation():
    conv = LocalConv(6, 5, is_line=True).double()
    torch.nn.init.normal_(conv.weight)
    v = torch.randn(2, 2, 1 + 9, 3, dtype=torch.float64)
    out, weight = conv(v, (1, 9)), conv.weight[:, 0, 0]  # (channels, 5)
    for place in range(9):
        near = [j for j in range(place - 2, place + 3) if 0 <= j < 9]
        expected = sum(weight[:, j - place + 2] * v[:, :, 1 + j].flatten(1) for j in near)
        torch.testing.assert_close(out[:, 1 + place], expected)
    assert out[:, 0].eq(0).all()


def local_sequences(**options):
    sizes = {"embed_dim": 16, "num_heads": 2, "depth": 2, "num_classes": 3}
    made = SequenceTransformer(16, 5, attention="relu_linear", local_conv=3, **sizes, **options)
    for block in made.blocks:
        torch.nn.init.normal_(block.attn.local_conv.weight)
    return made.double().eval()


def test_sequences_have_it_and_padding_does_not_enter(tmp_path):
    model = local_sequences()
    x, mask = torch.randn(2, 11, 5, dtype=torch.float64), torch.arange(11).expand(2, -1) < 6
    short = model(x[:, :6])
    torch.testing.assert_close(model(x, key_mask=mask), short)
    assert (model(x) - short).abs().max() > 1e-6
    torch.nn.init.zeros_(model.blocks[0].attn.local_conv.weight)
    assert (model(x[:, :6]) - short).abs().max() > 1e-6
    model.float().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded(x.float()), model(x.float()))
    plain = SequenceTransformer(16, 5, embed_dim=16, num_heads=2, depth=2, num_classes=3)
    assert loaded.blocks[0].attn.local_conv.flops(16) == 2 * 16 * 16 * 3
    assert all(block.attn.local_conv is None for block in plain.blocks)


def test_windows_do_not_limit_it():
    """A patch reaches its neighbor in the next window through the convolution alone."""
    x = torch.randn(1, 17, 24, dtype=torch.float64)
    changed = x.clone()
    changed[:, 1 + 1] += 1  # the second patch of the first row, at the border of a window
    moved = {}
    for local in (None, 3):
        torch.manual_seed(0)
        made = layer(local_conv=local, window=2)
        difference = made(changed, grid=(4, 4)) - made(x, grid=(4, 4))
        moved[local] = difference[0, 1 + 2].abs().max() > 1e-9
    assert moved == {None: False, 3: True}


def test_the_former_name_still_loads(tmp_path):
    model = create_model("vit_tiny_patch16_224", "mala", 5, local_conv=3, **SIZES).eval()
    torch.nn.init.normal_(model.blocks[1].attn.local_conv.weight)
    model.save_pretrained(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    record = json.loads(config.read_text().replace("local_conv", "value_conv"))
    del record["sha256"], record["weights_sha256"]  # which older models do not have
    config.write_text(json.dumps(record))
    tensors = {k.replace("local_conv", "value_conv"): v for k, v in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(load_model(tmp_path)(x), model(x))
    recipe = tmp_path / "old.yaml"
    recipe.write_text(
        "model: {name: vit_cifar, overrides: {value_conv: 3}}\ndata: {name: digits}\n"
    )
    assert load_config(recipe).model.overrides == {"local_conv": 3}


def test_both_names_at_once_are_refused(tmp_path):
    recipe = tmp_path / "both.yaml"
    recipe.write_text(
        "model: {name: vit_cifar, overrides: {local_conv: 3, value_conv: 5}}\n"
        "data: {name: digits}\n"
    )
    with pytest.raises(ConfigError, match="local_conv must be given once, got it and value_conv"):
        load_config(recipe)
    create_model("vit_tiny_patch16_224", "mala", 5, local_conv=3, **SIZES).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    record = json.loads(config.read_text())
    del record["sha256"]
    config.write_text(json.dumps(record | {"value_conv": 5}))
    with pytest.raises(ConfigError, match="local_conv must be given once"):
        load_model(tmp_path)


@pytest.mark.parametrize("attention", list_attentions())
def test_a_new_one_changes_nothing(attention):
    torch.manual_seed(0)
    plain = MultiHeadAttention(24, 2, attention).eval()
    local = MultiHeadAttention(24, 2, attention, local_conv=3).eval()
    local.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 17, 24)
    torch.testing.assert_close(local(x, grid=(4, 4)), plain(x, grid=(4, 4)))
    assert local.local_conv.weight.numel() == 24 * 9


def test_masked_values_do_not_enter():
    local = layer(local_conv=3)
    x = torch.randn(2, 16, 24, dtype=torch.float64)
    mask = torch.arange(16).expand(2, 16) < 12
    out = local(x, key_mask=mask, grid=(4, 4))
    y = x.clone()
    y[:, 12:] = 7.0
    torch.testing.assert_close(local(y, key_mask=mask, grid=(4, 4))[:, :12], out[:, :12])


def test_it_has_gradients():
    local = layer(local_conv=3)
    x = torch.randn(1, 5, 24, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: local(x, grid=(2, 2)), (x,))
    local(x, grid=(2, 2)).square().sum().backward()
    assert local.local_conv.weight.grad.abs().sum() > 0


def test_bad_sizes_and_masks_are_one_line():
    with pytest.raises(ConfigError, match="local_conv must be an odd number of tokens or None"):
        MultiHeadAttention(24, 2, local_conv=2)
    with pytest.raises(ConfigError, match="grid must be the"):
        layer(local_conv=3)(torch.randn(1, 5, 24).double())
    with pytest.raises(ConfigError, match="attn_mask with local_conv"):
        layer("softmax", local_conv=3)(
            torch.randn(1, 4, 24).double(), attn_mask=torch.randn(4, 4), grid=(2, 2)
        )


def test_blocks_keep_softmax(tmp_path):
    model = create_model(
        "vit_tiny_patch16_224", "taylorshift", 5, softmax_blocks=[2, 0, 2], local_conv=3, **SIZES
    ).eval()
    assert model.config.softmax_blocks == (0, 2)
    assert [b.attn.attention for b in model.blocks] == ["softmax", "taylorshift", "softmax"]
    assert [b.attn.local_conv is None for b in model.blocks] == [True, False, True]
    plain = create_model("vit_tiny_patch16_224", "taylorshift", 5, softmax_blocks=[0, 2], **SIZES)
    extra = sum(count_flops(model).values()) - sum(count_flops(plain).values())
    assert extra == 2 * 16 * 24 * 9
    model.N0 = 3
    assert model.N0 == model.blocks[1].attn.N0 == 3
    torch.nn.init.normal_(model.blocks[1].attn.local_conv.weight)
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
