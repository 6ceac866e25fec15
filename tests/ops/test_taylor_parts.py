"""Batches in parts and tiles in splits: memory that is kept to, and sums that add up."""

import weakref
from functools import partial

import pytest
import torch

from tests.ops.fused_taylor import draw, equation, fused
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops._triton import launch as launches
from saccade.ops.taylor.triton import efficient, efficient_splits, efficient_state
from saccade.ops.taylor.triton.shapes import Problem

two_processors = pytest.mark.parametrize("few_processors", [2], indirect=True)


def test_states_are_kept_where_the_output_is_larger():
    def keeps(batch, tokens, dim):
        q = torch.empty(batch, 8, tokens, dim, dtype=torch.bfloat16, device="meta")
        return efficient.keeps_state(q, q)

    assert keeps(2, 1024, 64)  # few are free
    assert not keeps(128, 1024, 64)
    assert keeps(32, 4096, 64)
    assert not keeps(32, 4096, 128)


def at_once(batch, tokens, dim, *, normalized=False):
    """How many samples of eight heads go at a time."""
    x = torch.empty(batch, 8, tokens, dim, dtype=torch.bfloat16, device="meta")
    temperature = torch.empty(8, device="meta") if normalized else None
    p = Problem.of(x, x, x, None, temperature, 1.0, 0.5, 1.0, 1.0, False, "ieee")
    return efficient._samples_at_once(p.call)


def test_states_are_small_beside_the_output_and_still_fill_the_device():
    assert at_once(4, 1024, 64) == 4  # the states of few samples are free
    assert at_once(32, 4096, 64) == 11  # three times as many tiles as fit at once, and thirds
    assert at_once(8, 16384, 128) == 3
    assert at_once(512, 256, 128) == 5  # more than a share, else multiprocessors are idle
    assert at_once(1, 2048, 128) == 1


def test_lengths_of_keys_take_memory_only_where_keys_are_not_swizzled():
    assert at_once(64, 4096, 32, normalized=True) == at_once(64, 4096, 32) == 64
    assert at_once(32, 4096, 64, normalized=True) == at_once(32, 4096, 64)
    assert at_once(256, 1024, 16, normalized=True) == at_once(256, 1024, 16)  # all in one pass
    assert at_once(64, 4095, 32, normalized=True) < at_once(64, 4095, 32)  # not whole blocks


class Memory:
    """Bytes of what a problem allocates, while it is held."""

    def __init__(self):
        self.held = self.peak = 0

    def note(self, tensor):
        self.held += tensor.nbytes
        self.peak = max(self.peak, self.held)
        weakref.finalize(tensor, self.forget, tensor.nbytes)
        return tensor

    def forget(self, size):
        self.held -= size


# Where some part has swizzled keys; with 65,536 tokens few heads are left, and all rows are split.
TURNED = {(n, d) for n in (1024, 4096, 16384) for d in (32, 64, 128)} | {(65536, 128)}


@pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize(
    ("tokens", "dim"), [(n, d) for n in (1024, 4096, 16384, 65536) for d in (16, 32, 64, 128)]
)
def test_a_pass_without_gradients_keeps_to_memory_like_softmax(
    tokens, dim, normalized, monkeypatch
):
    """At most a quarter beside the output, in the shapes of the benchmark; nothing is launched."""
    memory, new = Memory(), Problem.new
    monkeypatch.setattr(Problem, "new", lambda *a, **options: memory.note(new(*a, **options)))
    batch = (1 << (21 if dim <= 32 else 20)) // (8 * tokens)
    x = torch.empty(batch, 8, tokens, dim, dtype=torch.bfloat16, device="meta")
    temperature = torch.empty(8, device="meta") if normalized else None
    p = Problem.of(x, x, x, None, temperature, 1.0, 0.5, 1.0, 1.0, normalized, "ieee")
    launched = set()
    token = launches._dry_run_launches.set(launched)
    out, total = efficient.run_in_parts(p, keep=False)
    launches._dry_run_launches.reset(token)
    kernels = {launch.kernel.__name__ for launch, _ in launched}
    assert ("accumulate_swizzled" in kernels) is ((tokens, dim) in TURNED)
    assert total is None
    assert memory.held == out.nbytes == x.nbytes
    assert memory.peak <= 1.25 * out.nbytes


@pytest.mark.parametrize(
    ("tiles", "most_splits", "most_parts", "shares"),
    [
        (528, 9, 999, (528, 0, 1, 2.0)),  # the device is full twice
        (640, 9, 999, (528, 112, 2, 2.5)),  # and once more for half as long
        (880, 9, 999, (792, 88, 3, 3 + 1 / 3)),
        (160, 9, 999, (0, 160, 3, 2 / 3)),  # more thirds than fit at once, and still sooner
        (8, 90, 999, (0, 8, 33, 1 / 33)),
        (250, 9, 999, (250, 0, 1, 1.0)),  # nothing to gain
        (640, 1, 999, (640, 0, 1, 3.0)),  # too few rows to split
        (640, 9, 223, (640, 0, 1, 3.0)),  # no room for 112 twice
        (0, 0, 0, (0, 0, 1, 0.0)),
    ],
)
def test_tiles_that_do_not_fill_a_wave_are_split(tiles, most_splits, most_parts, shares):
    assert efficient_splits.divide_tiles(tiles, 264, most_splits, most_parts) == pytest.approx(
        shares
    )


@two_processors
@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize(
    ("dim", "keys", "masked"),
    [(20, 300, False), (20, 300, True), (32, 352, False)],
    ids=["uneven", "masked", "whole blocks, six and five"],
)
def test_whole_and_split_tiles_add_up(dim, keys, masked, monkeypatch):
    shape = {"batch": 1, "heads": 1, "queries": 9, "keys": keys, "dim": dim, "masked": masked}
    launched, launch_of = [], efficient_state._state_launch

    def noted(form, of_queries, *tiles):
        launched.append(tiles)
        return launch_of(form, of_queries, *tiles)

    monkeypatch.setattr(efficient_state, "_state_launch", noted)
    make = partial(draw, **shape)
    assert_as_good_as_plain(partial(fused, "efficient"), equation, make, torch.float32, draws=1)
    assert launched[:2] == [(0, 2, 1), (2, 1, 2)]  # of three tiles two fit at once


@two_processors
@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize("width", [16, 20])
def test_split_tiles_are_summed_in_the_memory_of_the_output(width, monkeypatch):
    q, k, v, _ = draw(0, batch=1, heads=1, queries=600, keys=300, dim=20, width=width)
    run = partial(fused, "efficient", q.float(), k.float(), v.float(), None)
    inside, scratch = [], efficient_state._scratch_numbers

    def noted(p, room, count):
        found = scratch(p, room, count)
        inside.append(found.data_ptr() == room.data_ptr())
        return found

    monkeypatch.setattr(efficient_state, "_scratch_numbers", noted)
    found = run()
    monkeypatch.setattr(
        efficient_state, "_scratch_numbers", lambda p, room, count: p.numbers(count)
    )
    assert torch.equal(run(), found)
    assert set(inside) == {True}  # on a GPU a first call is dry_run


def test_swizzled_keys_need_no_table_of_lengths(monkeypatch):
    x = torch.empty(33, 8, 1024, 64, dtype=torch.bfloat16, device="meta")
    temperature = torch.empty(8, device="meta")
    p = Problem.of(x, x, x, None, temperature, 1.0, 0.5, 1.0, 1.0, True, "ieee")
    tables, table = [], Problem.table
    monkeypatch.setattr(Problem, "table", lambda *a: tables.append(a) or table(*a))
    token = launches._dry_run_launches.set(set())
    efficient_state.row_sums(p, scratch=x)
    assert not tables
    efficient_state.row_sums(p)
    assert tables
    launches._dry_run_launches.reset(token)
