import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.randomness import (
    Purpose,
    make_key,
    permutation,
    random_bits,
    uniforms,
)

WORD = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The generator as it is published, on Python's own integers."""
    z = state & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


@given(key=st.integers(-(1 << 63), (1 << 63) - 1), counter=st.integers(0, (1 << 50)))
@settings(max_examples=50, deadline=None)
def test_bits_are_splitmix64(key: int, counter: int) -> None:
    wanted = splitmix64(key + counter * 0x9E3779B97F4A7C15)
    assert random_bits(key, torch.tensor([counter])).item() & WORD == wanted


def test_first_published_output_of_splitmix64() -> None:
    assert random_bits(0, torch.tensor([1])).item() & WORD == 0xE220A8397B1DCDAF


@given(st.integers(0, 1 << 62), st.integers(0, 1000), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_permutation_holds_every_position_once(seed: int, epoch: int, size: int) -> None:
    order = permutation(make_key(seed, epoch, Purpose.ORDER), size)
    assert order.sort().values.tolist() == list(range(size))


def test_every_part_of_the_key_matters() -> None:
    keys = {
        make_key(seed, epoch, purpose)
        for seed in range(5)
        for epoch in range(5)
        for purpose in Purpose
    }
    assert len(keys) == 5 * 5 * len(Purpose)


def test_uniforms_are_uniform_and_streams_uncorrelated() -> None:
    values = uniforms(make_key(0, 0, Purpose.AUGMENT), torch.arange(100_000), torch.arange(8))
    assert values.shape == (8, 100_000)
    assert values.min() >= 0
    assert values.max() < 1
    assert (values.mean(1) - 0.5).abs().max() < 0.005  # 5 standard errors
    counts = torch.stack([torch.histc(row, 64, 0, 1) for row in values])
    chi_square = ((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum(1)
    assert chi_square.max() < 63 + 5 * (2 * 63) ** 0.5
    correlation = torch.corrcoef(values) - torch.eye(8)
    assert correlation.abs().max() < 0.016


def test_neighboring_indices_and_epochs_are_uncorrelated() -> None:
    streams = torch.arange(1)
    first = uniforms(make_key(0, 0, Purpose.AUGMENT), torch.arange(100_001), streams)[0]
    second = uniforms(make_key(0, 1, Purpose.AUGMENT), torch.arange(100_001), streams)[0]
    pairs = torch.stack([first[:-1], first[1:], second[:-1]])
    assert (torch.corrcoef(pairs) - torch.eye(3)).abs().max() < 0.016


@pytest.mark.gpu
def test_devices_agree_to_the_last_bit() -> None:
    key = make_key(3, 4, Purpose.AUGMENT)
    index, streams = torch.arange(10_000), torch.arange(20)
    on_gpu = uniforms(key, index.cuda(), streams.cuda()).cpu()
    assert torch.equal(uniforms(key, index, streams), on_gpu)
    assert torch.equal(permutation(key, 10_000), permutation(key, 10_000, "cuda").cpu())
