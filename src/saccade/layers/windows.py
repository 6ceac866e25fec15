"""Windows over the token grid, for any attention core.

Patch tokens lie on a grid (h, w) and are cut into windows of (wh, ww); a patch attends to the
patches of its window and to the prefix tokens (class token); a prefix token attends to all tokens.
A shifted layout moves the windows by half their size, as in Swin (arXiv:2103.14030). Windows that
extend beyond the grid hold fewer patches.

# DEVIATION: Swin rolls the grid and then masks pairs of tokens from opposite borders. Linear
# attention cannot mask pairs. Here the grid is padded and keys are masked, which gives the same
# windows for even sides; for an odd side the shift is rounded the other way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.cores import AttentionCore

__all__ = ["WindowLayout", "window_attention", "window_layout", "window_weights"]


@dataclass(frozen=True)
class WindowLayout:
    """Assignment of the patches to W windows of L places each.

    Attributes:
        patch: (W, L), index of the patch in each place; arbitrary in an empty place.
        inside: (W, L), True if the place holds a patch.
        place: (h * w), index of each patch's place in the flattened (W * L).
    """

    patch: Tensor
    inside: Tensor
    place: Tensor


def window_layout(
    grid: tuple[int, int], window: tuple[int, int], shifted: bool, device: torch.device
) -> WindowLayout:
    """Divide a grid into windows."""
    axes = [_axis(size, side, shifted, device) for size, side in zip(grid, window, strict=True)]
    (rows, row_inside, row_window, row_place), (cols, col_inside, col_window, col_place) = axes
    places = window[0] * window[1]

    def outer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # (a, wh), (b, ww) -> (a, b, wh, ww)
        return x[:, None, :, None], y[None, :, None, :]

    row, col = outer(rows, cols)
    row_in, col_in = outer(row_inside, col_inside)
    patch = (row * grid[1] + col).reshape(-1, places)
    inside = (row_in & col_in).reshape(-1, places)
    window_index = row_window[:, None] * cols.shape[0] + col_window[None, :]
    place_index = row_place[:, None] * window[1] + col_place[None, :]
    return WindowLayout(patch, inside, (window_index * places + place_index).flatten())


def _axis(
    size: int, side: int, shifted: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Windows of one axis.

    Returns:
        The positions in each window and whether they lie inside the grid, both (count, side); the
        window of each position and its place in that window, both (size,).
    """
    offset = side // 2 if shifted and side < size else 0
    count = -(-(size + offset) // side)
    position = torch.arange(count * side, device=device).view(count, side) - offset
    inside = (position >= 0) & (position < size)
    shifted_position = torch.arange(size, device=device) + offset
    return (
        position.clamp(0, size - 1),
        inside,
        shifted_position // side,
        shifted_position % side,
    )


def window_attention(
    core: AttentionCore,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: WindowLayout,
    key_mask: Tensor | None,
) -> Tensor:
    """Attend within windows: (B, H, N, D) -> (B, H, N, E)."""
    prefix = q.shape[2] - layout.place.numel()
    windows_k, windows_v = (_keys_by_window(x, layout, prefix) for x in (k, v))
    mask = _mask_by_window(k, layout, prefix, key_mask)
    out = core(_by_window(q[:, :, prefix:], layout), windows_k, windows_v, key_mask=mask)
    patches = _join(out, k.shape[0])[:, :, layout.place]
    if prefix == 0:
        return patches
    return torch.cat([core(q[:, :, :prefix], k, v, key_mask=key_mask), patches], dim=2)


def window_weights(
    core: AttentionCore,
    q: Tensor,
    k: Tensor,
    *,
    layout: WindowLayout,
    key_mask: Tensor | None,
    queries: Tensor | slice | None,
) -> Tensor:
    """Attention weights of chosen queries over all tokens, (B, H, Q, N), zero outside the window.

    Forms the weights within every window, at a cost linear in N, and scatters the chosen rows.
    """
    batch, heads, tokens, _ = q.shape
    prefix = tokens - layout.place.numel()
    windows_k = _keys_by_window(k, layout, prefix)
    mask = _mask_by_window(k, layout, prefix, key_mask)
    maps = core.attention_weights(
        _by_window(q[:, :, prefix:], layout), windows_k, key_mask=mask
    )  # (B * W, H, L, prefix + L)
    if queries is None:
        # Without a choice of rows no shape depends on data, so that the graph can be exported.
        patches = _rows_of_patches(maps, layout, torch.arange(layout.place.numel()), batch)
        shared = slice(0, prefix)
        first = core.attention_weights(q, k, queries=shared, key_mask=key_mask)
        return torch.cat([first, patches], dim=2) if prefix else patches
    chosen = torch.arange(tokens, device=q.device)[queries]
    rows = q.new_zeros(batch, heads, chosen.numel(), tokens)
    is_prefix = chosen < prefix
    if is_prefix.any():
        rows[:, :, is_prefix] = core.attention_weights(
            q, k, queries=chosen[is_prefix], key_mask=key_mask
        )
    rows[:, :, ~is_prefix] = _rows_of_patches(maps, layout, chosen[~is_prefix] - prefix, batch)
    return rows


def _rows_of_patches(maps: Tensor, layout: WindowLayout, chosen: Tensor, batch: int) -> Tensor:
    """Spread the weights of chosen patches over all tokens: (B, H, P, N).

    Args:
        maps: Weights in the windows, (B * W, H, L, prefix + L).
        layout: The windows.
        chosen: Indices of the patches, (P,).
        batch: Number of samples B.
    """
    places = layout.patch.shape[1]
    prefix = maps.shape[-1] - places
    place = layout.place[chosen.to(layout.place.device)]
    local = _join(maps, batch)[:, :, place]  # (B, H, P, prefix + L)
    target = torch.cat(
        [
            torch.arange(prefix, device=place.device).expand(len(place), -1),
            layout.patch[place // places] + prefix,
        ],
        dim=1,
    ).expand_as(local)
    tokens = prefix + layout.place.numel()
    spread = local.new_zeros(batch, local.shape[1], len(place), tokens)
    return spread.scatter_add_(3, target, local)


def check_window(window: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a window as (height, width), or None; raise if a side is below 1."""
    if window is None:
        return None
    height, width = (window, window) if isinstance(window, int) else window
    if height < 1 or width < 1:
        raise ConfigError(f"window must have sides of at least 1, got {window!r}")
    return height, width


def _by_window(x: Tensor, layout: WindowLayout) -> Tensor:
    """Group patches by window: (B, H, h * w, D) -> (B * W, H, L, D)."""
    windows, places = layout.patch.shape
    cut = x[:, :, layout.patch.flatten()].view(*x.shape[:2], windows, places, x.shape[-1])
    return cut.transpose(1, 2).flatten(0, 1)


def _join(x: Tensor, batch: int) -> Tensor:
    """Join the windows of a sample: (B * W, H, L, E) -> (B, H, W * L, E)."""
    return x.view(batch, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3)


def _keys_by_window(x: Tensor, layout: WindowLayout, prefix: int) -> Tensor:
    """Put the prefix tokens in front of each window's patches: (B * W, H, prefix + L, D)."""
    patches = _by_window(x[:, :, prefix:], layout)
    if prefix == 0:
        return patches
    shared = x[:, :, :prefix].repeat_interleave(layout.patch.shape[0], dim=0)
    return torch.cat([shared, patches], dim=2)


def _mask_by_window(
    k: Tensor, layout: WindowLayout, prefix: int, key_mask: Tensor | None
) -> Tensor:
    """Key mask of the windows, (B * W, prefix + L): True for keys that exist and are unmasked."""
    batch, windows = k.shape[0], layout.patch.shape[0]
    inside = layout.inside.expand(batch, -1, -1)
    if key_mask is not None:
        inside = inside & key_mask[:, prefix:][:, layout.patch]
    if prefix == 0:
        return inside.flatten(0, 1)
    if key_mask is None:
        shared = inside.new_ones(batch, windows, prefix)
    else:
        shared = key_mask[:, None, :prefix].expand(-1, windows, -1)
    return torch.cat([shared, inside], dim=2).flatten(0, 1)
