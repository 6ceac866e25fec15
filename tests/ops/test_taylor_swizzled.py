"""Sums over keys that are swizzled first: when they are, and that they are the same sums."""

from functools import partial

import pytest
import torch

from tests.ops.fused_taylor import (
    DEVICE,
    draw,
    draw_shift,
    equation,
    fused,
    fused_shift,
    shift_equation,
)
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops.taylor.triton import efficient_state
from saccade.ops.taylor.triton.shapes import call_shape_of

# The interpreter cuts bfloat16 instead of rounding it: float32 stands for it there.
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
two_processors = pytest.mark.parametrize("few_processors", [2], indirect=True)
pytestmark = [
    pytest.mark.usefixtures("blocks_of_bfloat16"),
    pytest.mark.parametrize("blocks_of_bfloat16", [(9, 0)], indirect=True, ids=["hopper"]),
]
both_kinds = pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])


@pytest.fixture
def swizzled(monkeypatch):
    """The launches that sum swizzled keys: (first tile, tiles, splits) of each."""
    launched, launch_of = [], efficient_state._swizzled_launch

    def noted(form, *tiles):
        launched.append(tiles)
        return launch_of(form, *tiles)

    monkeypatch.setattr(efficient_state, "_swizzled_launch", noted)
    return launched


def given_temperature(attend, q, k, v, mask):
    return attend(q, k, v, mask, torch.full((q.shape[1],), 0.5, dtype=q.dtype))


def assert_right(normalized, **shape):
    """Output and gradients are as good as plain torch's."""
    run, exact, make = (
        (fused_shift, shift_equation, draw_shift) if normalized else (fused, equation, draw)
    )
    run, make = partial(run, "efficient"), partial(make, **shape)
    # Of a temperature there is one number a head, whose plain gradient can be exact by luck.
    draws, heads = 1, shape["heads"]
    if normalized and torch.bfloat16 == DTYPE:
        draws = -(-24 // heads)
    elif normalized and 1 < heads < 5:
        draws = 8 // heads
    if normalized and draws == shape["heads"] == 1:
        run, exact, make = (
            partial(given_temperature, run),
            partial(given_temperature, exact),
            partial(draw, **shape),
        )
    assert_as_good_as_plain(run, exact, make, DTYPE, draws=draws)


@both_kinds
@pytest.mark.parametrize(
    ("queries", "keys", "dim", "width"),
    [(64, 64, 32, 32), (150, 128, 32, 32), (70, 64, 64, 64), (40, 128, 16, 64), (70, 128, 64, 128)],
)
def test_swizzled_keys_give_the_same_sums(queries, keys, dim, width, normalized, swizzled):
    shape = {"queries": queries, "keys": keys, "dim": dim, "width": width}
    assert_right(normalized, batch=1, heads=2, **shape)
    tiles = dim // 16 * (dim // 16 + 1) // 2
    assert set(swizzled) == {(0, 2 * tiles, 1)}


@both_kinds
def test_swizzled_keys_of_the_widest_heads(normalized, swizzled):
    assert_right(normalized, batch=1, heads=1, queries=130, keys=128, dim=128)
    assert set(swizzled) == {(0, 36, 1)}


@both_kinds
@two_processors
@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize(
    ("heads", "queries", "launches"),
    [(5, 1024, {(0, 12, 1), (12, 3, 2)}), (1, 4096, {(0, 3, 2)})],
    ids=["where keys were that nobody reads any more", "behind the keys"],
)
def test_split_rows_are_summed_in_what_is_free(heads, queries, launches, normalized, swizzled):
    """Six programs run at once; 16 steps can be split in two."""
    assert_right(normalized, batch=1, heads=heads, queries=queries, keys=1024, dim=32)
    assert set(swizzled) == launches


def test_another_order_of_tokens_is_caught(monkeypatch):
    launch_of = efficient_state._swizzled_launch

    class Swapped:
        def __init__(self, *arguments):
            self.launch = launch_of(*arguments)

        def __call__(self, keys, *rest):
            keys.copy_(keys.unflatten(0, (-1, 2)).flip(1).flatten())
            self.launch(keys, *rest)

    monkeypatch.setattr(efficient_state, "_swizzled_launch", Swapped)
    with pytest.raises(AssertionError, match="allowed"):
        assert_right(False, batch=1, heads=2, queries=64, keys=64, dim=32)


@two_processors
@pytest.mark.usefixtures("few_processors")
@pytest.mark.skipif(DEVICE == "cuda", reason="who is first there is a matter of luck")
def test_sums_over_keys_that_are_still_to_be_read_are_caught(monkeypatch):
    six_tiles = 6 * 4 * 256 * 32
    monkeypatch.setattr(
        efficient_state, "_free_bytes", lambda f, keys, room, _: slice(room - six_tiles, room)
    )
    with pytest.raises(AssertionError, match="allowed"):
        assert_right(False, batch=1, heads=5, queries=1024, keys=1024, dim=32)


def shares(batch=33, queries=2048, keys=2048, dim=64, width=64, masked=False):
    """The shares of swizzled keys in an output of this shape, or None."""
    strides = [
        (8 * tokens * columns, tokens * columns, columns, 1)
        for tokens, columns in ((queries, dim), (keys, dim), (keys, width))
    ]
    rest = (torch.bfloat16, torch.device("cpu"), masked, False, 1.0, 0.5, 1.0, 1.0, False, "ieee")
    form = call_shape_of((batch, 8, queries, dim), (batch, 8, keys, width), *strides, *rest)
    return efficient_state.swizzled_division(form, batch * 8 * queries * width * 2)


def test_keys_are_swizzled_where_they_fit_and_all_is_whole():
    assert shares() == (2640, 0, 1, 10.0)
    assert shares(dim=16) is not None
    assert shares(queries=4096) is not None
    assert shares(queries=1024) is None  # the output has no room for so many keys
    assert shares(keys=2049) is None
    assert shares(masked=True) is None
    assert shares(dim=48) is None
    assert shares(width=80) is None
    assert shares(dim=16, width=16) is None  # one pass takes all sums


def test_rows_are_split_only_where_their_sums_find_room():
    assert shares(batch=8, queries=16384, keys=16384)[:3] == (528, 112, 2)
    # 160 tiles in thirds take two thirds of a round: no head is done before.
    assert shares(batch=2, queries=65536, keys=65536) is None
    assert shares(batch=2, queries=2 * 65536, keys=65536)[:3] == (0, 160, 3)  # behind the keys
    # Five rounds of swizzled keys take less than four and a half of others.
    assert shares(batch=2, queries=2048, keys=2048, dim=128, width=128)[:3] == (576, 0, 1)
