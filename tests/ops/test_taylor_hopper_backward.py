"""Hopper's own kernels of the direct backward: who takes them, and, on one, what they compute.

As `test_taylor_hopper`, which also has what both leave to the other kernels. The gradients of
queries are added up in another order every time: two calls agree, but not to the last bit; those of
keys and values do.
"""

import functools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from saccade.bench.memory import cuda_peak_mib
from saccade.ops import taylor_attention
from saccade.ops.taylor import taylorshift_attention
from tests.ops.graphs import captured
from tests.ops.test_taylor_parts import Memory
from tests.ops.uninterpreted import seen_by

pytest.importorskip("triton")

from saccade.ops._triton import launch as launches
from saccade.ops.taylor.triton import direct, direct_hopper
from saccade.ops.taylor.triton.direct_hopper import Backward, suits_backward
from saccade.ops.taylor.triton.shapes import Problem
from tests.ops.hopper_calls import (
    both_kinds,
    both_widths,
    held_to_plain_torch,
    noting,
    nowhere,
    on_hopper,
    problem_of,
    random_projection,
)

TWO_KERNELS = ["weighted_row_gradients", "direct_keys", "direct_queries"]
FIVE_PRODUCTS = ["weighted_row_gradients", "hopper_backward", "query_gradients"]


def suits(*qkv, **options):
    return suits_backward(problem_of(*qkv, **options).call)


@pytest.mark.parametrize(
    "shape",
    [{}, {"dim": 128}, {"tokens": 128}, {"batch": 1, "heads": 1}, {"padding": 8}],
    ids=str,
)
def test_projections_are_taken_as_they_lie(shape):
    q, k, v = nowhere(**shape)
    assert suits(q, k, v)
    assert suits(q, k, v, temperature=torch.ones(q.shape[1]))


def test_keys_and_queries_may_differ_in_number():
    q, k, v = nowhere()
    assert suits(q[:, :, :128], k, v)
    assert suits(q, k[:, :, :384], v[:, :, :384])
    assert not suits(q[:, :, :192], k, v)
    assert not suits(q, k[:, :, :192], v[:, :, :192])


def test_heads_whose_sums_need_longer_offsets_are_left_to_the_other_kernels():
    assert not suits(*nowhere(batch=1, heads=1, tokens=1 << 24, dim=128))


@both_widths
@both_kinds
def test_a_pass_takes_no_more_memory_than_softmax(normalized, dim, monkeypatch):
    """Which holds, backwards, the gradients of q, k and v, and a float32 copy of the first."""
    memory, new = Memory(), Problem.new
    monkeypatch.setattr(Problem, "new", lambda *a, **options: memory.note(new(*a, **options)))
    own = Backward(*(launches.Launch(None, (4096 // 64, 256), (), {}) for _ in range(2)))
    monkeypatch.setattr(direct, "backward_launches", lambda f, dry_run: own)
    monkeypatch.setattr(direct, "is_aligned", lambda p: True)
    q, k, v = nowhere(batch=32, heads=8, tokens=4096, dim=dim)
    temperature = torch.empty(8, device="meta") if normalized else None
    p = problem_of(q, k, v, temperature=temperature)
    out, total = torch.empty_like(q), torch.empty(256, 4096, device="meta")
    token = launches._dry_run_launches.set(set())
    grads = direct.run_direct_backward(p, out, out, total)
    launches._dry_run_launches.reset(token)
    assert memory.held == sum(x.nbytes for x in grads[:3])
    assert memory.peak <= 1.05 * (3 + 2) * q.nbytes


@pytest.fixture(scope="module")
def found():
    """What `stub_hopper_backward` saw."""
    return seen_by("stub_hopper_backward")


@pytest.mark.parametrize("call", ["plain", "normalized"])
def test_a_call_is_three_launches(found, call):
    rows, keys, queries = found[call]["launches"]
    assert [x["kernel"] for x in (rows, keys, queries)] == FIVE_PRODUCTS
    assert keys["grid"] == [1024 // 128, 2 * 3, 1]
    assert queries["grid"] == [1024 // 64, 2 * 3, 1]


def test_places_of_blocks_are_apart_where_registers_do_and_rounds_are_whole(found):
    assert found["apart"] == [True, False, False]


@pytest.mark.parametrize("call", ["plain", "normalized"])
def test_sums_are_zero_before_and_read_after(found, call):
    _, keys, queries = found[call]["launches"]
    dim = {"plain": 64, "normalized": 128}[call]
    assert found[call]["sums"] == ["torch.float32", [2 * 3, 1024, dim]]
    assert found[call]["sums not zero"] == 0
    assert keys["p_sums"] == queries["p_sums"]


@pytest.mark.parametrize("call", ["plain", "normalized"])
def test_kernels_read_the_call_and_what_was_made_of_its_rows(found, call):
    rows, keys, queries = found[call]["launches"]
    read, dim = found[call]["read"], {"plain": 64, "normalized": 128}[call]
    assert keys["q_desc"] == [*read["q"], [1, 1, 64, dim]]
    dy = [2, 3, 1024, dim], [3 * 1024 * dim, 1024 * dim, dim, 1], [1, 1, 64, dim]
    assert keys["dy_desc"] == [rows["p_dy"], *dy]
    assert [keys["p_k"], keys["p_v"]] == [read["k"][0], read["v"][0]]
    assert queries["p_q"] == read["q"][0]
    for name in ("p_rows_a", "p_shifts", "p_temperature"):
        assert keys[name] == rows[name]
    assert keys["p_temperature"] == queries["p_temperature"]
    kn, kh, kb = read["k"][2][2::-1]
    numbers = {"heads": 3, "queries": 1024, "keys": 1024}
    numbers |= {"k_strides": [kb, kh, kn], "v_strides": [kb, kh, kn]}
    assert {name: keys[name] for name in numbers} == numbers
    assert keys["coefficients"][1:] == [1 / 1024, 0.5, 1.0, 1.0]
    assert [queries["q_strides"], queries["inv_keys"]] == [[kb, kh, kn], 1 / 1024]


@pytest.mark.parametrize("call", ["plain", "normalized"])
def test_gradients_are_where_the_kernels_wrote_them(found, call):
    _, keys, queries = found[call]["launches"]
    written = {"dq": queries["p_dq"], "dk": keys["p_dk"], "dv": keys["p_dv"]}
    assert found[call]["written"] == written


def test_they_are_compiled_side_by_side_without_being_launched(found):
    assert found["dry_run"] == {"kernels": sorted(FIVE_PRODUCTS), "launched": 0}


@pytest.mark.parametrize(
    "obstacle",
    [
        "masked",
        "unaligned",
        "narrow",
        "deterministic",
        "no Gluon",
        "other descriptors",
        "does not compile",
    ],
)
def test_the_other_kernels_do_what_these_cannot(found, obstacle):
    assert found[obstacle] == TWO_KERNELS


@pytest.mark.parametrize("obstacle", ["no Gluon", "other descriptors", "does not compile"])
def test_kernels_that_cannot_be_had_are_told_of_once(found, obstacle):
    (told,) = found[f"{obstacle}, told"]
    assert told == "a slower kernel takes the place of Hopper's own (AttributeError: no such name)"


@pytest.fixture
def taken(monkeypatch):
    """The forms that five products were launched for; launches of other tests are forgotten."""
    forms = []

    def noted(f, *, dry_run):
        found = direct_hopper.backward_launches(f, dry_run=dry_run)
        if found is None:
            return None
        return found._replace(keys=noting(forms, f, found.keys))

    direct_hopper._launches.cache_clear()
    monkeypatch.setattr(direct, "backward_launches", noted)
    yield forms
    direct_hopper._launches.cache_clear()


SHAPES = {
    "smallest": {"batch": 1, "heads": 2, "queries": 128, "keys": 128},
    "more keys": {"batch": 1, "heads": 3, "queries": 256, "keys": 640},
    "more queries": {"batch": 3, "heads": 1, "queries": 640, "keys": 384},
    "long": {"batch": 1, "heads": 3, "queries": 1024},
}


@on_hopper
@both_widths
@both_kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_as_good_as_plain_torch(shape, normalized, dim, taken):
    held_to_plain_torch(dim, normalized, SHAPES[shape])
    assert taken


def _halve_the_constant(launches):
    *sizes, (*rest, c) = launches.keys.numbers
    launches.keys.numbers = (*sizes, (*rest, c / 2))


def _forget_the_last_queries(launches):
    heads, queries, *rest = launches.keys.numbers
    launches.keys.numbers = (heads, queries - 128, *rest)


def _forget_the_lengths_of_keys(launches):
    launches.keys.constants["NORMALIZE"] = False


def _forget_the_lengths_of_queries(launches):
    launches.queries.constants["NORMALIZE"] = False


@on_hopper
@pytest.mark.parametrize(
    "plant",
    [
        _halve_the_constant,
        _forget_the_last_queries,
        _forget_the_lengths_of_keys,
        _forget_the_lengths_of_queries,
    ],
)
def test_planted_errors_are_caught(plant, taken, monkeypatch):
    launches_of = direct_hopper._launches

    @functools.cache
    def planted(f, *, dry_run):
        launches = launches_of(f, dry_run=dry_run)
        plant(launches)
        return launches

    monkeypatch.setattr(direct_hopper, "_launches", planted)
    shape = {"batch": 1, "heads": 3, "queries": 640, "keys": 256}
    with pytest.raises(AssertionError, match="allowed"):
        held_to_plain_torch(64, True, shape)
    assert taken


def passed_back(q, k, v, *, normalized):
    """A problem and the gradients that it takes back: of the output, with output and row sums."""
    temperature = torch.linspace(0.5, 4.0, q.shape[1], device="cuda") if normalized else None
    p = problem_of(q, k, v, temperature=temperature)
    out, total = direct.run_direct(p, keep=True)
    generator = torch.Generator("cuda").manual_seed(1)
    return p, torch.empty_like(out).normal_(generator=generator), out, total


def assert_close(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert (x - y).float().norm() < 0.01 * y.float().norm()


@on_hopper
@both_widths
@both_kinds
def test_many_tiles_agree_with_the_other_kernels_and_repeat(normalized, dim, taken):
    given = passed_back(*random_projection(batch=5, heads=13, dim=dim), normalized=normalized)
    grads = direct.run_direct_backward(*given)[:3]
    assert taken
    assert_close(grads, direct._run_backward_anywhere(*given)[:3])
    for _ in range(5):
        dq, dk, dv, _ = direct.run_direct_backward(*given)
        assert torch.equal(dk, grads[1])
        assert torch.equal(dv, grads[2])
        assert_close([dq], grads[:1])


@on_hopper
@both_widths
@both_kinds
def test_strided_inputs_are_not_copied_and_agree(normalized, dim, taken):
    strided = random_projection(dim=dim)
    packed = [x.contiguous() for x in strided]
    grads = [
        direct.run_direct_backward(*passed_back(*qkv, normalized=normalized))
        for qkv in (strided, packed)
    ]
    assert {f.q_stride for f in taken} == {x.stride() for x in (strided[0], packed[0])}
    assert torch.equal(grads[0][1], grads[1][1])
    assert torch.equal(grads[0][2], grads[1][2])
    assert_close(grads[0][:1], grads[1][:1])


@on_hopper
def test_offsets_have_64_bits(taken):
    q, k, v = random_projection(batch=8000, heads=8, tokens=384, dim=128)
    assert q[0].numel() * len(q) > 1 << 31
    p, grad, out, total = passed_back(q, k, v, normalized=False)
    grads = direct.run_direct_backward(p, grad, out, total)[:3]
    last = problem_of(q[-3:], k[-3:], v[-3:])
    some = direct.run_direct_backward(last, grad[-3:], out[-3:], total[-24:])[:3]
    assert len({f.batch for f in taken}) == 2
    assert_close([x[-3:] for x in grads], some)
    assert torch.equal(grads[1][-3:], some[1])


@on_hopper
@both_widths
@both_kinds
def test_a_captured_graph_takes_them_and_starts_from_zero_again(normalized, dim, taken):
    given = passed_back(*random_projection(tokens=384, dim=dim), normalized=normalized)

    def run():
        taken.clear()
        grads = direct.run_direct_backward(*given)[:3]
        assert taken
        return grads

    expected, replay = captured(run)
    for _ in range(2):
        replayed = replay()
        assert torch.equal(replayed[1], expected[1])
        assert torch.equal(replayed[2], expected[2])
        assert_close(replayed[:1], expected[:1])


@on_hopper
def test_deterministic_gradients_repeat_to_the_last_bit(taken):
    given = passed_back(*random_projection(), normalized=False)
    torch.use_deterministic_algorithms(True)
    try:
        first, again = (direct.run_direct_backward(*given)[:3] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not taken
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert_close(direct.run_direct_backward(*given)[:3], first)
    assert taken


@on_hopper
@both_widths
@both_kinds
def test_training_takes_no_more_than_a_quarter_more_memory_than_softmax(normalized, dim, taken):
    """All that torch counts beyond the inputs; softmax has a float32 copy of dq as well."""
    q, k, v = (x.requires_grad_() for x in random_projection(batch=4, heads=8, dim=dim))
    temperature = torch.ones(8, device="cuda", requires_grad=True)
    grad = torch.ones_like(q)

    def softmax():
        out = scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(out, (q, k, v), grad)

    def taylor():
        options = {"algorithm": "direct", "backend": "triton"}
        if normalized:
            out = taylorshift_attention(q, k, v, temperature, **options)
        else:
            out = taylor_attention(q, k, v, **options)
        return torch.autograd.grad(out, (q, k, v), grad)

    peaks = []
    for call in (softmax, taylor):
        call()
        peaks.append(cuda_peak_mib(call, q.device))
    assert taken
    assert peaks[1] <= 1.25 * peaks[0]
