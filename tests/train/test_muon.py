"""Batched Muon against torch's, which updates the matrices one by one."""

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.train.muon import BatchedMuon, MaskedMuon, families

SHAPES = [(24, 8), (8, 8), (24, 8), (8, 16), (8, 8), (5, 3), (16, 8)]


class Calls(TorchDispatchMode):
    """Counts the calls of torch's operators by name, except views, which launch no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        if function.overloadpacket is not torch.ops.aten.view:
            self.names[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def matrices(shapes: list[tuple[int, int]] = SHAPES) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def give_gradients(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)


def momenta(optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> list[torch.Tensor]:
    return [optimizer.state[p]["momentum_buffer"] for p in params]


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("padding", [2**30, 0])
def test_batched_muon_equals_torchs_muon(
    nesterov: bool, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saccade.train.muon.MAX_PADDING", padding)
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    results = {}
    for kind in (torch.optim.Muon, BatchedMuon):
        params = matrices()
        optimizer = kind(params, **options)
        for step in range(4):
            give_gradients(params, step)
            optimizer.step()
        results[kind] = params, momenta(optimizer, params)
    (ours, our_momenta), (torchs, torchs_momenta) = results[BatchedMuon], results[torch.optim.Muon]
    for p, expected, first in zip(ours, torchs, matrices(), strict=True):
        moved = (expected - first).norm()
        assert (p - expected).norm() < 0.01 * moved  # bfloat16 products, summed in another order
    for momentum, expected in zip(our_momenta, torchs_momenta, strict=True):
        torch.testing.assert_close(momentum, expected)


def test_matrices_are_batched_if_padding_is_cheap() -> None:
    small = [torch.empty(8, *shape) for shape in [(768, 256), (256, 256), (512, 256), (256, 512)]]
    other = torch.empty(1, 128, 256)
    (together, alone) = families([*small, other])
    assert sorted(map(id, together)) == sorted(map(id, small))
    assert alone[0] is other
    shapes = [(3072, 768), (768, 768), (768, 3072)]
    large = [torch.empty(12, *shape, device="meta") for shape in shapes]
    assert sorted(len(family) for family in families(large)) == [1, 2]


def test_number_of_muon_launches_does_not_grow_with_the_matrices() -> None:
    counts = []
    for shapes in (SHAPES, SHAPES * 4):
        params = matrices(shapes)
        optimizer = BatchedMuon(params)
        for step in range(2):
            give_gradients(params, step)
            with Calls() as calls:
                optimizer.step()
        counts.append(calls.names)
    assert counts[0] == counts[1]
    assert counts[0]["bmm"] + counts[0]["baddbmm"] == 2 * 5 * 3  # families, iterations, products
    assert counts[0]["zeros_like"] == 0


def test_muon_state_has_torchs_format_and_can_be_loaded() -> None:
    params, others = matrices(), matrices()
    optimizer, loaded = BatchedMuon(params), BatchedMuon(others)
    give_gradients(params, 0)
    optimizer.step()
    state = deepcopy(optimizer.state_dict())
    torchs = torch.optim.Muon(matrices())
    torchs.load_state_dict(deepcopy(state))
    for index, p in enumerate(params):
        assert set(state["state"][index]) == {"momentum_buffer"}
        assert state["state"][index]["momentum_buffer"].shape == p.shape
    for p, other in zip(params, others, strict=True):
        other.data.copy_(p)
    give_gradients(others, 7)
    loaded.step()  # it has its own momenta before the state is loaded
    for p, other in zip(params, others, strict=True):
        other.data.copy_(p)
    loaded.load_state_dict(state)
    for step in (1, 2):
        give_gradients(params, step)
        give_gradients(others, step)
        optimizer.step()
        loaded.step()
    assert same_bits(params, others)
    assert same_bits(momenta(optimizer, params), momenta(loaded, others))


@pytest.mark.parametrize("source", ["another matrix", "another optimizer"])
def test_replaced_momenta_are_used(source: str) -> None:
    results = []
    for kind in (BatchedMuon, torch.optim.Muon):
        params, others = matrices(), matrices()
        optimizer, other = kind(params), kind(others)
        give_gradients(params, 0)
        give_gradients(others, 1)
        optimizer.step()
        other.step()
        one = optimizer.state[params[2]]
        two = optimizer.state[params[0]] if source == "another matrix" else other.state[others[2]]
        one["momentum_buffer"], two["momentum_buffer"] = (
            two["momentum_buffer"],
            one["momentum_buffer"],
        )
        optimizer.step()
        results.append(momenta(optimizer, params))
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_a_matrix_without_a_gradient_is_skipped_for_one_step() -> None:
    results = []
    for kind in (BatchedMuon, torch.optim.Muon):
        params = matrices()
        optimizer = kind(params)
        stayed = []
        for step in range(4):
            give_gradients(params, step)
            params[2].grad = None if step == 1 else params[2].grad
            before = params[2].detach().clone()
            optimizer.step()
            stayed.append(torch.equal(params[2], before))
        assert stayed == [False, True, False, False]
        results.append(momenta(optimizer, params))
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("kind", [BatchedMuon, MaskedMuon])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_muon_skips_the_step_if_a_gradient_is_not_finite(kind: type, number: float) -> None:
    params = matrices()
    optimizer = kind(params, lr=0.1, weight_decay=0.1)
    give_gradients(params, 0)
    optimizer.step()
    params[1].data[0] = -0.0
    before = copies([*params, *momenta(optimizer, params)])
    give_gradients(params, 1)
    for p in params[:3]:
        p.grad[0, 0] = number
    optimizer.found_inf = torch.ones(1)
    optimizer.step()
    assert same_bits([*params, *momenta(optimizer, params)], before)
    optimizer.found_inf = torch.zeros(1)
    optimizer.step()
    assert not params[0].isfinite().all()
