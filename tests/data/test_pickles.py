"""Pickles of plain values and arrays are read; others and memory bombs are refused."""

import pickle
import tracemalloc

import numpy as np
import pytest

from saccade.data.pickles import unpickle
from saccade.errors import DataError

BATCH = {
    "data": np.arange(12, dtype=np.uint8).reshape(4, 3),
    "labels": [0, 1, 2, 300],
    "names": ["a.png", "b.png"],
    "tall": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    b"batch": ("training", 1.5, None, True, -70000, 2**40),
}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_values_and_arrays_are_as_pickle_reads_them(protocol: int) -> None:
    found = unpickle(pickle.dumps(BATCH, protocol), "x")
    assert found.keys() == BATCH.keys()
    for key, value in BATCH.items():
        np.testing.assert_equal(found[key], value)
    assert found["data"].dtype == np.uint8


PAIRS = b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
"""A tuple of 60 levels, each of which holds the one before twice: its hash takes 2^60 steps."""


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}N" + PAIRS + b"Ns.",
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aN" + PAIRS + b"\x86R.",
    ],
    ids=["key", "argument"],
)
def test_nothing_is_hashed_that_takes_forever(content: bytes) -> None:
    with pytest.raises(DataError, match="x: "):
        unpickle(content, "x")


GREEDY = {
    "bytes longer than the file": b"\x80\x04\x8e\xff\xff\xff\xff\x0f\x00\x00\x00.",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7f.",
    "a byte array of many bytes": b"\x80\x05\x96\x00\x00\x00\x00\x08\x00\x00\x00.",
    "an array of many values": pickle.dumps(np.zeros(3, np.uint8), 2).replace(
        b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"
    ),
    "a large empty array": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R.",
    "a dtype of large items": b"\x80\x02cnumpy\ndtype\nX\x0b\x00\x00\x00S2000000000\x85R.",
    "the same text encoded again and again": b"\x80\x02c_codecs\nencode\nq\x00X\x10'\x00\x00"
    + b"a" * 10_000
    + b"q\x01"
    + b"h\x00h\x01\x85R" * 100_000
    + b".",
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_small_pickle_cannot_take_much_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"^data_batch_1: "):
            unpickle(GREEDY[name] + b" " * 10, "data_batch_1")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_large_memo_index_takes_no_memory() -> None:
    """Python's own unpickler would allocate a table of that length."""
    tracemalloc.start()
    try:
        assert unpickle(b"\x80\x02]r\xff\xff\xff\x7f.", "x") == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, np.zeros(2, object), np.zeros(1, "S9"), range(3)]
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(DataError, match=r"^x: "):
        unpickle(pickle.dumps({"data": value}, 2), "x")
