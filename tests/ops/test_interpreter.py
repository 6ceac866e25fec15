"""The interpreter that tests speed up computes what Triton's own computes."""

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels are compiled on this machine", allow_module_level=True)

import triton
import triton.language as tl

from saccade.ops import taylor_attention
from tests.interpreter import REPLACED
from tests.ops.mechanisms import make_inputs, with_gradients


def attend():
    def run(q, k, v):
        return taylor_attention(q, k, v, algorithm="efficient", key_mask=mask, backend="triton")

    q, k, v, mask = make_inputs(batch=1, heads=1, queries=40, keys=70, masked=True)
    return with_gradients(run, [q, k, v], torch.float32)


def test_both_interpreters_give_the_same_bits(monkeypatch):
    fast = attend()
    assert len(fast) == 4
    assert len(REPLACED) == 3
    for place, name, plain in REPLACED:
        assert getattr(place, name) != plain
        monkeypatch.setattr(place, name, plain)
    assert all(torch.equal(x, y) for x, y in zip(fast, attend(), strict=True))


@triton.jit
def doubled(x):
    return tl.sum(x + x)


@triton.jit
def sum_of_powers(p_out, OPERATION: tl.constexpr, largest):
    x = tl.arange(0, 4) + largest
    if OPERATION == "mul":
        x = x * 65536
    elif OPERATION == "sub":
        x = -x - 2147483647
    else:
        x = x + 2147483640
    tl.store(p_out, doubled(x.to(tl.int64)))


@pytest.mark.parametrize(
    ("operation", "fits", "overflows"),
    [("mul", 32764, 32765), ("sub", -2, -1), ("add", 4, 5)],
)
def test_integers_that_overflow_are_refused(operation, fits, overflows):
    out = torch.zeros(1, dtype=torch.int64)
    sum_of_powers[(1,)](out, operation, fits)
    assert out.item() != 0
    with pytest.raises(Exception, match="int32 overflow detected"):
        sum_of_powers[(1,)](out, operation, overflows)


def test_the_language_is_itself_again_after_a_launch():
    before = tl.load, tl.sum, tl.range, tl.core.dot, tl.tensor.__add__
    attend()
    assert (tl.load, tl.sum, tl.range, tl.core.dot, tl.tensor.__add__) == before
    with pytest.raises(Exception, match="overflow"):
        sum_of_powers[(1,)](torch.zeros(1, dtype=torch.int64), "add", 2147483600)
    assert (tl.load, tl.sum, tl.range, tl.core.dot, tl.tensor.__add__) == before
