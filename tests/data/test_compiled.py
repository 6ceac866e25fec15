"""A compiled loader makes the same batches as an uncompiled one, and compiles once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from saccade.config import AugmentConfig
from saccade.data import Batch, DatasetInfo, Loader, Split, make_loader
from saccade.data.policy import OPERATIONS, Policy, apply_operations

AUGMENTS = {
    "none": None,
    "cutmix": AugmentConfig(crop_padding=2, flip=True, erase=4, cutmix=1.0, mix_probability=0.7),
    "trivial": AugmentConfig(crop_padding=1, flip=True, policy="trivial", mixup=0.8, cutmix=1.0),
    "rand": AugmentConfig(policy="rand", rand_ops=2, rand_magnitude=20, erase=3),
}


@pytest.fixture(autouse=True)
def _compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def loader_of(
    toy: tuple[Split, DatasetInfo], name: str, *, compiled: bool, seed: int = 7, device: str = "cpu"
) -> Loader:
    loader = make_loader(
        *toy, batch_size=5, augment=AUGMENTS[name], seed=seed, device=device, shuffle=True,
        compiled=compiled,
    )  # fmt: skip
    loader.group_bytes = 3 * 5 * 4 * 9 * 7 * 3  # three batches; the last group is smaller
    return loader


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(getattr(a, field), getattr(b, field))
        for a, b in zip(first, second, strict=True)
        for field in ("images", "targets", "index", "valid")
    )


@pytest.mark.parametrize(
    "name", ["none", "cutmix", "trivial", pytest.param("rand", marks=pytest.mark.slow)]
)
def test_compiled_batches_are_the_same(toy: tuple[Split, DatasetInfo], name: str) -> None:
    compiled = loader_of(toy, name, compiled=True)
    next(compiled.epoch(0))
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    with torch.compiler.set_stance("fail_on_recompile"):
        batches = [list(compiled.epoch(epoch, start_batch=epoch)) for epoch in (0, 1)]
        other = list(loader_of(toy, name, compiled=True, seed=8).epoch(0))
    plain = loader_of(toy, name, compiled=False)
    assert same(batches[0], list(plain.epoch(0)))
    assert same(batches[1], list(plain.epoch(1, start_batch=1)))
    assert same(other, list(loader_of(toy, name, compiled=False, seed=8).epoch(0)))
    assert not same(other, batches[0])


def test_resized_crops_are_not_compiled(toy: tuple[Split, DatasetInfo]) -> None:
    config = AugmentConfig(resized_crop=(0.2, 1.0), flip=True)
    loader = make_loader(
        *toy, batch_size=4, augment=config, seed=0, device="cpu", shuffle=True, compiled=True
    )
    next(loader.epoch(0))
    assert not counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", ["trivial", "rand"])
def test_levels_do_not_depend_on_the_last_bit(name: str) -> None:
    """In float64, with slightly changed maps, every operation gives the same levels."""
    size = (11, 13)
    policy = Policy(name, size, torch.tensor([[[[9.0]], [[70.0]], [[200.0]]]]))  # type: ignore[arg-type]
    rows = torch.arange(len(policy.maps)).repeat(3)
    operation = rows // (len(rows) // 3 // len(OPERATIONS))
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(0, 256, (len(rows), 3, *size), generator=generator).float()
    maps, values = policy.maps[rows], policy.values[rows]
    wanted = apply_operations(levels, operation, maps, values, policy.fill)
    off = maps.double() * (1 + 1e-15)
    blended = (operation >= OPERATIONS.index("brightness")) & (
        operation <= OPERATIONS.index("sharpness")
    )
    again = apply_operations(levels.double(), operation, off, values.double(), policy.fill)
    assert torch.equal(wanted[~blended], again[~blended].float())
    far = apply_operations(levels.double(), operation, off * (1 + 1e-4), values, policy.fill)
    assert not torch.equal(wanted[~blended], far[~blended].float())


@pytest.mark.gpu
@pytest.mark.parametrize("name", AUGMENTS)
def test_compiled_batches_are_the_same_on_a_gpu(toy: tuple[Split, DatasetInfo], name: str) -> None:
    compiled, plain = (
        list(loader_of(toy, name, compiled=compiled, device="cuda").epoch(0))
        for compiled in (True, False)
    )
    assert same(compiled, plain)
