"""Stems, positions, drop path: each against its definition."""

import math

import pytest
import torch
from torch import nn

from saccade import create_model
from saccade.errors import ConfigError
from saccade.layers.block import DropPath
from saccade.layers.positions import resample_line_positions, sinusoidal_1d, sinusoidal_2d
from saccade.layers.stems import build_stem


def test_linear_patches_are_convolutional_patches() -> None:
    torch.manual_seed(0)
    conv = build_stem("patch", (8, 12), 3, 16, 4)
    linear = build_stem("patch_linear", (8, 12), 3, 16, 4)
    linear.proj.weight.data = conv.proj.weight.data.flatten(1)
    linear.proj.bias.data = conv.proj.bias.data
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(linear(images), conv(images))
    assert linear.flops() == conv.flops()


@pytest.mark.parametrize(
    ("stem", "patch_size", "reach"),
    [
        ("patch", 4, 1),
        ("patch_linear", 4, 1),
        ("conv", 1, 3),
        ("conv_pool", 2, 2),
        ("conv_patch", 4, 1),
        ("conv_residual", 4, 5),
    ],
)
def test_tokens_lie_row_by_row(stem: str, patch_size: int, reach: int) -> None:
    """A change in one corner of a non-square image changes the token of that corner."""
    torch.manual_seed(0)
    layer = build_stem(stem, (16, 24), 1, 8, patch_size).eval()
    images = torch.randn(1, 1, 16, 24)
    assert layer.grid_size == (16 // patch_size, 24 // patch_size)
    assert layer(images).shape == (1, layer.num_patches, 8)
    other = images.clone()
    other[:, :, -1, 0] += 1
    changed = (layer(other) != layer(images)).any(dim=-1)[0].nonzero().flatten().tolist()
    rows, columns = layer.grid_size
    assert (rows - 1) * columns in changed
    assert reach == 1 + max(index % columns for index in changed)
    assert min(index // columns for index in changed) == max(0, rows - reach)


def test_conv_pool_is_the_front_of_its_source() -> None:
    stem = create_model("hybrid_cifar", depth=1).patch_embed
    widths = [layer.out_channels for layer in stem.proj if isinstance(layer, nn.Conv2d)]
    assert widths == [64, 128, 256]
    assert isinstance(stem.proj[-1], nn.MaxPool2d)


def test_conv_residual_is_the_front_of_a_resnet_9() -> None:
    torch.manual_seed(0)
    stem = create_model("residual_cifar", depth=1).patch_embed
    convs = [layer for layer in stem.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convs] == [64, 128, 128, 128, 256, 256, 256]
    sides: list[int] = []
    for layer in convs:
        layer.register_forward_hook(lambda _, __, out: sides.append(out.shape[-1]))
    stem.eval()
    images = torch.randn(2, 3, 32, 32)
    whole = stem.proj(images)
    assert sides == [32, 16, 16, 16, 8, 8, 8]
    assert stem.flops() == sum(
        2 * side**2 * layer.weight.numel() for side, layer in zip(sides, convs, strict=True)
    )
    before = nn.Sequential(*stem.proj[:-1])(images)
    torch.testing.assert_close(whole, before + nn.Sequential(*stem.proj[-1])(before))


def test_the_first_width_of_conv_residual_can_be_said() -> None:
    stem = create_model("residual_cifar", depth=1, stem_dim=32).patch_embed
    convs = [layer for layer in stem.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convs] == [32, 64, 64, 64, 256, 256, 256]
    with pytest.raises(ConfigError, match="stem_dim must be None with stem='patch', got 32"):
        create_model("vit_cifar", stem_dim=32)
    with pytest.raises(
        ConfigError, match="stem_dim must be an integer of at least 1 or None, got 0"
    ):
        create_model("residual_cifar", stem_dim=0)


def test_sinusoids_are_their_formula() -> None:
    table = sinusoidal_1d(50, 8)
    assert table.shape == (1, 50, 8)
    position, channel = 37, 4
    angle = position / 10000 ** (channel / 8)
    assert table[0, position, channel].item() == pytest.approx(math.sin(angle), abs=1e-6)
    assert table[0, position, channel + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert sinusoidal_1d(3, 5).shape == (1, 3, 5)


def test_sinusoids_in_two_dimensions_split_rows_and_columns() -> None:
    table = sinusoidal_2d((3, 5), 8, num_prefix_tokens=1)[0]
    grid = table[1:].view(3, 5, 8)
    assert not table[0].any()
    assert torch.equal(grid[:, 2, :4], sinusoidal_1d(3, 4)[0])
    assert torch.equal(grid[1, :, 4:], sinusoidal_1d(5, 4)[0])


@pytest.mark.parametrize("pos_embed", ["sinusoidal_1d", "sinusoidal_2d", "none"])
def test_resized_fixed_positions_are_those_of_a_model_of_that_size(pos_embed: str) -> None:
    torch.manual_seed(0)
    model = create_model("light_vit", pos_embed=pos_embed).eval()
    fresh = create_model("light_vit", pos_embed=pos_embed, img_size=(8, 20)).eval()
    fresh.load_state_dict(model.state_dict())
    model.set_input_size((8, 20))
    images = torch.randn(2, 1, 8, 20)
    assert torch.equal(model(images), fresh(images))


def test_learned_positions_of_a_line_are_interpolated() -> None:
    table = torch.arange(5.0)[None, :, None].expand(1, 5, 2)
    longer = resample_line_positions(table, 8, num_prefix_tokens=1)
    assert longer.shape == (1, 9, 2)
    assert longer[0, 0, 0] == 0
    assert longer[0, 1:, 0].tolist() == pytest.approx([1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4])


def test_drop_path_keeps_the_mean_and_drops_whole_samples() -> None:
    torch.manual_seed(0)
    drop = DropPath(0.25)
    out = drop(torch.ones(4000, 3, 2))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert torch.equal(out.amin(dim=(1, 2)), out.amax(dim=(1, 2)))
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    x = torch.randn(3, 2, 2)
    assert torch.equal(drop.eval()(x), x)


def test_drop_path_rises_with_depth() -> None:
    model = create_model("vit_micro_patch4_32", drop_path_rate=0.3)
    assert [block.drop_path1.rate for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
