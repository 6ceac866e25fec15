"""Windowed attention against its definition: a mask over all pairs of tokens."""

import pytest
import torch

from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS, MultiHeadAttention, list_attentions
from saccade.layers.windows import window_layout

GRIDS = [((6, 6), (3, 3), 0), ((7, 5), (3, 2), 1), ((4, 9), (4, 4), 2), ((3, 3), (8, 8), 1)]


def same_window(grid, window, shifted, prefix):
    """(N, N), True if a query may attend to a key, by the definition of windows."""
    offsets = [
        side // 2 if shifted and side < size else 0 for size, side in zip(grid, window, strict=True)
    ]
    tokens = [(r, c) for r in range(grid[0]) for c in range(grid[1])]
    window_of = [
        tuple((x + o) // s for x, o, s in zip(t, offsets, window, strict=True)) for t in tokens
    ]
    ids = torch.tensor([hash(w) for w in window_of])
    visible = torch.ones(len(tokens) + prefix, len(tokens) + prefix, dtype=torch.bool)
    visible[prefix:, prefix:] = ids[:, None] == ids[None, :]
    return visible


@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize(("grid", "window", "prefix"), GRIDS)
def test_softmax_windows_equal_a_pair_mask(grid, window, prefix, shifted):
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, "softmax", window=window, shifted=shifted).double()
    tokens = grid[0] * grid[1] + prefix
    x, keys = torch.randn(2, tokens, 16).double(), torch.rand(2, tokens) > 0.2
    q, k, v = layer.heads(x)
    visible = same_window(grid, window, shifted, prefix) & keys[:, None, None, :]
    scores = (q @ k.mT / 8**0.5).masked_fill(~visible, -1e9)
    weights = scores.softmax(dim=-1).masked_fill(~visible, 0)
    expected = layer.proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, key_mask=keys, grid=grid), expected)
    actual = layer.attention_weights(x, key_mask=keys, grid=grid)
    torch.testing.assert_close(actual, weights)
    chosen = torch.tensor([tokens - 1, 0, 2])
    some = layer.attention_weights(x, key_mask=keys, grid=grid, queries=chosen)
    torch.testing.assert_close(some, weights[:, :, chosen])


WINDOWED = [name for name in list_attentions() if not ATTENTIONS[name].self_only]


@pytest.mark.parametrize("name", [name for name in list_attentions() if name not in WINDOWED])
def test_attention_among_the_same_tokens_refuses_windows(name):
    with pytest.raises(ConfigError, match=f"window must be None with attention='{name}', got 2"):
        MultiHeadAttention(16, 2, name, window=2)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_patch_affects_only_its_window_and_the_prefix(name):
    """A change of one patch changes the outputs of its window and of the class token only."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, name, window=2, shifted=True).double()
    x = torch.randn(1, 26, 16).double()
    visible = same_window((5, 5), (2, 2), True, 1)
    changed = x.clone()
    changed[:, 8] += 1
    difference = (layer(changed, grid=(5, 5)) - layer(x, grid=(5, 5))).abs().amax(dim=(0, 2))
    assert ((difference > 1e-9) == visible[:, 8]).all()


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_of_the_whole_grid_equals_no_window(name):
    torch.manual_seed(0)
    plain = MultiHeadAttention(16, 2, name).double()
    windowed = MultiHeadAttention(16, 2, name, window=(4, 5), shifted=True).double()
    windowed.load_state_dict(plain.state_dict())
    x = torch.randn(2, 21, 16).double()
    torch.testing.assert_close(windowed(x, grid=(4, 5)), plain(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["softmax", "performer"])
def test_windows_compile_and_export(name):
    torch._dynamo.reset()
    layer = MultiHeadAttention(16, 2, name, window=3, shifted=True).eval()
    x = torch.randn(2, 26, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, grid=(5, 5)), layer(x, grid=(5, 5)))
    exported = torch.export.export(layer, (x,), {"grid": (5, 5)}).module()
    torch.testing.assert_close(exported(x, grid=(5, 5)), layer(x, grid=(5, 5)))


def test_windows_cost_fewer_flops():
    plain, windowed = (
        MultiHeadAttention(16, 2, "softmax"),
        MultiHeadAttention(16, 2, "softmax", window=4),
    )
    assert windowed.flops(1025, grid=(32, 32)) < plain.flops(1025) / 10


def test_layout_places_every_patch_once():
    layout = window_layout((7, 5), (3, 2), True, torch.device("cpu"))
    assert layout.inside.sum() == 35
    assert torch.equal(layout.patch.flatten()[layout.place], torch.arange(35))
    assert layout.inside.flatten()[layout.place].all()
