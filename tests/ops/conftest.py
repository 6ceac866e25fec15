"""Devices that are not there: smaller than any, or with other blocks."""

import pytest
import torch


@pytest.fixture(params=[16])
def few_processors(monkeypatch, request):
    """Play a device so small that sums over few tokens are split, and forget it afterwards."""
    pytest.importorskip("triton")
    from saccade.ops.taylor.triton import efficient_splits
    from saccade.ops.taylor.triton.shapes import call_shape_of

    call_shape_of.cache_clear()
    monkeypatch.setattr(efficient_splits, "multiprocessors", lambda device: request.param)
    yield
    call_shape_of.cache_clear()


@pytest.fixture(params=[(9, 0), (8, 0)], ids=["hopper", "ampere"])
def blocks_of_bfloat16(request, monkeypatch):
    """Let products of float32 have the blocks that those of bfloat16 have on some device."""
    pytest.importorskip("triton")
    from saccade.ops.taylor.triton import configs
    from saccade.ops.taylor.triton.shapes import call_shape_of

    blocks_for = configs.blocks_for

    def chosen(kernel, width, *_):
        return blocks_for(kernel, width, torch.bfloat16, request.param)

    call_shape_of.cache_clear()
    monkeypatch.setattr(configs, "blocks_for", chosen)
    yield
    call_shape_of.cache_clear()
