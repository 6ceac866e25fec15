"""A device that is smaller than any."""

import pytest


@pytest.fixture(params=[16])
def few_processors(monkeypatch, request):
    """Play a device so small that sums over few tokens are split, and forget it afterwards."""
    pytest.importorskip("triton")
    from saccade.ops.taylor.triton import sums
    from saccade.ops.taylor.triton.problem import form_of

    form_of.cache_clear()
    monkeypatch.setattr(sums, "multiprocessors", lambda device: request.param)
    yield
    form_of.cache_clear()
