"""Weight files are parsed as safetensors parses them, without its copies in compiled code."""

import random

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from saccade.errors import ConfigError
from saccade.models.weight_files import DTYPES, parse_tensors

TENSORS = {
    **{name: torch.arange(6).view(2, 3).to(dtype) for name, dtype in DTYPES.items()},
    "none": torch.zeros(0, 2),
    "scalar": torch.tensor(2.5),
}


def test_tensors_are_those_of_the_file() -> None:
    found = parse_tensors(bytearray(save(TENSORS, {"source": "here"})))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def is_accepted(content: bytes) -> bool:
    try:
        parse_tensors(bytearray(content))
    except ConfigError:
        return False
    return True


def is_accepted_by_safetensors(content: bytes) -> bool:
    try:
        load(content)
    except (SafetensorError, ValueError, KeyError, OverflowError):
        return False
    return True


@pytest.mark.parametrize("places", [160, 1000])
def test_damaged_files_are_refused_as_safetensors_refuses_them(places: int) -> None:
    content, draw = save({"a": torch.randn(3, 4), "b": torch.zeros(2)}), random.Random(0)
    refused = 0
    for number in range(1000):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(min(places, len(content)))] = draw.randrange(256)
        damaged = damaged[: draw.randrange(len(content)) if number % 5 == 0 else None]
        expected = is_accepted_by_safetensors(bytes(damaged))
        assert is_accepted(bytes(damaged)) == expected, bytes(damaged)
        refused += not expected
    assert 200 < refused < 1000
