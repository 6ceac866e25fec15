"""Hopper's own kernel of the direct forward: who takes it, and, on one, what it computes.

Gluon has no interpreter: what the kernel computes is seen on a card alone. That it compiles, with
whole products, is `test_products_stay_whole_on_hopper`. Parts of calls: `test_taylor_hopper_parts`.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from saccade.bench.memory import cuda_peak_mib
from saccade.ops import taylor_attention
from saccade.ops.taylor import taylorshift_attention
from tests.ops.graphs import captured
from tests.ops.uninterpreted import seen_by

pytest.importorskip("triton")

from saccade.ops.taylor.triton import direct, direct_hopper, shapes
from saccade.ops.taylor.triton.direct_hopper import suits_backward, suits_forward
from saccade.ops.taylor.triton.shapes import call_shape_of
from tests.ops.hopper_calls import (
    both_kinds,
    both_widths,
    held_to_plain_torch,
    normalized_problem,
    noting,
    nowhere,
    on_hopper,
    problem_of,
    random_projection,
)


def suits(*qkv, **options):
    return suits_forward(problem_of(*qkv, **options).call)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"dim": 128},
        {"tokens": 256},
        {"batch": 1, "heads": 1},
        {"batch": 70000, "heads": 1, "tokens": 256},
        {"padding": 8},
    ],
    ids=str,
)
def test_projections_are_taken_as_they_lie(shape):
    q, k, v = nowhere(**shape)
    assert suits(q, k, v)
    assert suits(q, k, v, temperature=torch.ones(q.shape[1]))


def test_keys_and_queries_may_differ_in_number():
    q, k, v = nowhere()
    assert suits(q[:, :, :128], k, v)
    assert suits(q, k[:, :, :256], v[:, :, :256])
    assert not suits(q, k[:, :, :128], v[:, :, :128])
    assert not suits(q, k[:, :, :320], v[:, :, :320])
    assert not suits(q[:, :, :192], k, v)
    q, k, v = nowhere(dim=128)
    assert suits(q, k[:, :, :320], v[:, :, :320])
    assert suits(q, k[:, :, :128], v[:, :, :128])
    assert not suits(q, k[:, :, :64], v[:, :, :64])


def test_a_series_without_s_is_left_to_the_other_kernel():
    form = problem_of(*nowhere()).call
    assert suits_forward(form)
    assert not suits_forward(replace(form, b=0.0))


both_passes = pytest.mark.parametrize(
    "suited", [suits_forward, suits_backward], ids=["forward", "backward"]
)


@both_passes
@pytest.mark.parametrize(
    "shape",
    [
        {"dtype": torch.float16},
        {"dtype": torch.float32},
        {"dim": 32},
        {"dim": 96},
        {"tokens": 1000},
        {"padding": 4},
        {"batch": 1 << 20, "heads": 2},
    ],
    ids=str,
)
def test_other_shapes_and_dtypes_are_left_to_the_other_kernel(shape, suited):
    assert not suited(problem_of(*nowhere(**shape)).call)


@both_passes
def test_masks_other_widths_and_strides_are_left_to_the_other_kernel(suited):
    def suits(*qkv, **options):
        return suited(problem_of(*qkv, **options).call)

    q, k, v = nowhere()
    assert suits(q, k, v)
    assert not suits(q, k, v, mask=torch.ones(2, 1024, dtype=torch.bool))
    assert not suits(q, k, nowhere(dim=128)[2])
    assert not suits(q, k, v[:, :1].expand_as(v))
    for place in range(3):
        turned = [q, k, v]
        turned[place] = q.new_empty(2, 3, 64, 1024).transpose(2, 3)
        assert not suits(*turned)


@both_passes
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_devices_are_left_to_the_other_kernel(capability, suited, monkeypatch):
    call_shape_of.cache_clear()
    monkeypatch.setattr(shapes, "capability", lambda device: capability)
    taken = suited(problem_of(*nowhere()).call)
    call_shape_of.cache_clear()
    assert not taken


@pytest.fixture(scope="module")
def found():
    """What `stub_hopper` saw."""
    return seen_by("stub_hopper")


def test_a_call_is_two_launches(found):
    for call in ("first", "kept", "normalized"):
        assert found[call]["kernels"] == ["prepare_keys", "hopper_forward"]
    assert found["first"]["grid"] == [2 * 3 * 1024 // 128, 1, 1]


def test_a_pass_without_gradients_takes_the_kernel_of_one_with_them(found):
    assert found["first"]["total"] is not None
    assert found["kept"]["total"] is not None
    assert not found["kept"]["asked"]


@pytest.mark.parametrize("call", ["first", "again", "other", "kept"])
def test_blocks_are_copied_out_of_the_tensors_of_the_call(found, call):
    read, given = found[call]["read"], found[call]["given"]
    assert [x[:3] for x in read] == given
    assert [x[3] for x in read] == [[1, 1, 64, 64], [1, 1, 128, 64], [1, 1, 128, 64]]


def test_normalized_keys_are_those_that_the_pass_before_wrote(found):
    q, k, v = found["normalized"]["read"]
    given = found["normalized"]["given"]
    assert [q[:3], v[:3]] == [given[0], given[2]]
    assert k[0] == found["normalized"]["prepared"] != given[1][0]
    assert k[1:3] == [[2, 3, 1024, 128], [3 * 1024 * 128, 1024 * 128, 128, 1]]
    assert [x[3] for x in (q, k, v)] == [[1, 1, 64, 128]] * 3


def test_normalized_keys_of_a_part_lie_in_the_output_of_the_next(found):
    *parts, last = found["in parts"]  # samples, heads, where the keys are, where the output goes
    assert parts == [[1, 3, 3, 0], [1, 1, 4, 3], [1, 1, 5, 4]]
    assert last == [1, 1, None, 5]


def test_a_second_launch_does_not_ask_triton_even_with_other_tensors(found):
    assert found["first"]["asked"]
    assert not found["again"]["asked"]
    assert not found["other"]["asked"]
    assert found["other"]["read"] != found["first"]["read"]
    assert found["other"]["numbers"] == found["first"]["numbers"]


def test_it_is_compiled_beside_the_others_without_being_launched(found):
    assert found["dry_run"] == ["hopper_forward", "prepare_keys"]
    assert found["launched meanwhile"] == 0


@pytest.mark.parametrize(
    "obstacle",
    ["masked", "unaligned", "narrow", "no Gluon", "other descriptors", "does not compile"],
)
def test_the_other_kernel_does_what_this_one_cannot(found, obstacle):
    assert found[obstacle]["kernels"] == ["key_sums", "direct_forward"]


@pytest.mark.parametrize("obstacle", ["no Gluon", "other descriptors", "does not compile"])
def test_a_kernel_that_cannot_be_had_is_told_of_once(found, obstacle):
    (told,) = found[obstacle]["told"]
    assert told == "a slower kernel takes the place of Hopper's own (AttributeError: no such name)"


@pytest.fixture
def taken(monkeypatch):
    """The forms of calls that Hopper's kernel was launched for; launches before are forgotten."""
    forms, parts_of = [], direct_hopper.forward_parts

    def noted(f, **options):
        def launched(part):
            return part._replace(launch=noting(forms, f, part.launch))

        parts = parts_of(f, **options)
        return None if parts is None else [launched(part) for part in parts]

    parts_of.cache_clear()
    monkeypatch.setattr(direct_hopper, "forward_parts", noted)
    yield forms
    parts_of.cache_clear()


SHAPES = {
    "smallest": {"batch": 1, "heads": 2, "queries": 128, "keys": 256},
    "more keys": {"batch": 1, "heads": 3, "queries": 256, "keys": 640},
    "more queries": {"batch": 3, "heads": 1, "queries": 640, "keys": 384},
    "long": {"batch": 1, "heads": 3, "queries": 1024},
}


@on_hopper
@both_widths
@both_kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_good_as_plain_torch(shape, normalized, dim, taken):
    held_to_plain_torch(dim, normalized, SHAPES[shape])
    assert taken


@on_hopper
@both_widths
@both_kinds
@pytest.mark.parametrize("processors", [1, 2])
def test_programs_go_from_tile_to_tile(processors, normalized, dim, taken, monkeypatch):
    kernels = pytest.importorskip("saccade.ops.taylor.triton.direct_hopper_forward")
    monkeypatch.setattr(kernels, "multiprocessors", lambda device: processors)
    held_to_plain_torch(dim, normalized, {"batch": 3, "heads": 3, "queries": 384, "keys": 256})
    assert taken


def _halve_the_constant(launch):
    *sizes, (*rest, c, floor, lift) = launch.numbers
    launch.numbers = (*sizes, (*rest, c / 2, floor, lift))


def _forget_the_last_blocks(launch):
    heads, queries, keys, *rest = launch.numbers
    launch.numbers = (heads, queries, keys - 128, *rest)


def _forget_the_lengths(launch):
    launch.constants["NORMALIZE"] = False


@on_hopper
@pytest.mark.parametrize(
    "plant", [_halve_the_constant, _forget_the_last_blocks, _forget_the_lengths]
)
def test_planted_errors_are_caught(plant, taken, monkeypatch):
    kernels = pytest.importorskip("saccade.ops.taylor.triton.direct_hopper_forward")
    launch_of = kernels.forward_launch

    def planted(*arguments):
        launch = launch_of(*arguments)
        plant(launch)
        return launch

    monkeypatch.setattr(kernels, "forward_launch", planted)
    shape = {"batch": 1, "heads": 3, "queries": 256, "keys": 640}
    with pytest.raises(AssertionError, match="allowed"):
        held_to_plain_torch(64, True, shape)
    assert taken


@on_hopper
@both_widths
@both_kinds
def test_many_tiles_agree_with_the_other_kernel_and_repeat(normalized, dim, taken):
    q, k, v = random_projection(batch=5, heads=13, dim=dim)
    temperature = torch.linspace(0.5, 4.0, 13, device="cuda") if normalized else None
    p = problem_of(q, k, v, temperature=temperature)
    out, total = direct.run_direct(p, keep=True)
    assert taken
    other = torch.empty_like(out)
    other_total = direct._run_anywhere(p, other, keep=True)
    assert (out - other).float().norm() < 0.01 * other.float().norm()
    torch.testing.assert_close(total, other_total, rtol=0.01, atol=0)
    for _ in range(5):
        again, total_again = direct.run_direct(p, keep=True)
        assert torch.equal(again, out)
        assert torch.equal(total_again, total)
    assert torch.equal(direct.run_direct(p, keep=False)[0], out)


@on_hopper
@both_widths
@pytest.mark.parametrize(("batch", "heads"), [(7, 3), (2, 8), (1, 5)])
def test_parts_give_what_the_whole_gives_on_a_card(batch, heads, dim, taken, monkeypatch):
    monkeypatch.setattr(direct_hopper, "FREE_BYTES", 0)
    p = normalized_problem(*random_projection(batch=batch, heads=heads, dim=dim))
    out, total = direct.run_direct(p, keep=True)
    assert len(taken) == 1
    in_parts, in_parts_total = direct_hopper.run_forward(p, keep=False)
    assert len(taken) >= 4
    assert torch.equal(in_parts, out)
    assert torch.equal(in_parts_total, total)


@on_hopper
@both_widths
@both_kinds
@pytest.mark.parametrize(("batch", "tokens"), [(128, 1024), (7, 16384)])
def test_no_more_than_a_quarter_more_memory_than_softmax(batch, tokens, normalized, dim, taken):
    q, k, v = random_projection(batch=batch, heads=8, tokens=tokens, dim=dim)
    temperature = torch.ones(8, device="cuda")
    options = {"algorithm": "direct", "backend": "triton"}

    def taylor():
        if normalized:
            return taylorshift_attention(q, k, v, temperature, **options)
        return taylor_attention(q, k, v, **options)

    peaks = []
    for call in (lambda: scaled_dot_product_attention(q, k, v), taylor):
        call()
        peaks.append(cuda_peak_mib(call, q.device))
    assert taken
    assert peaks[1] <= 1.25 * peaks[0]


@on_hopper
@both_widths
@both_kinds
def test_strided_inputs_are_not_copied_and_agree(normalized, dim, taken):
    strided = random_projection(dim=dim)
    temperature = torch.linspace(0.5, 4.0, 3, device="cuda") if normalized else None
    packed = [x.contiguous() for x in strided]
    outs = [
        direct.run_direct(problem_of(*qkv, temperature=temperature), keep=False)[0]
        for qkv in (strided, packed)
    ]
    assert torch.equal(*outs)
    assert {f.k_stride for f in taken} == {x.stride() for x in (strided[1], packed[1])}


@on_hopper
def test_offsets_have_64_bits(taken):
    q, k, v = random_projection(batch=8000, heads=8, tokens=384, dim=128)
    assert q[0].numel() * len(q) > 1 << 31
    out = direct.run_direct(problem_of(q, k, v), keep=False)[0]
    last = direct.run_direct(problem_of(q[-3:], k[-3:], v[-3:]), keep=False)[0]
    assert len({f.batch for f in taken}) == 2
    assert torch.equal(out[-3:], last)


@on_hopper
@both_widths
@both_kinds
def test_a_captured_graph_takes_it_and_gives_the_same_again(normalized, dim, taken):
    temperature = torch.linspace(0.5, 4.0, 3, device="cuda") if normalized else None
    p = problem_of(*random_projection(tokens=384, dim=dim), temperature=temperature)

    def run():
        taken.clear()
        out, total = direct.run_direct(p, keep=True)
        assert taken
        return out, total, *direct.run_direct_backward(p, out, out, total)[:3]

    expected, replay = captured(run)
    for name, x, y in zip(("out", "total", "dq", "dk", "dv"), replay(), expected, strict=True):
        # Gradients of queries are added up in another order every time.
        assert (x - y).norm() <= (1e-2 if name == "dq" else 0) * y.norm(), name


@on_hopper
@pytest.mark.parametrize("obstacle", ["address", "tokens", "mask"])
def test_what_it_cannot_do_is_right_all_the_same(obstacle, taken):
    q, k, v = random_projection(tokens=512)
    whole = taylor_attention(q, k, v, algorithm="direct", backend="triton")
    assert taken
    taken.clear()
    mask, kept = None, 512
    if obstacle == "address":
        moved = torch.empty(3, q.numel() + 1, dtype=q.dtype, device="cuda")[:, 1:]
        q, k, v = (x.view(y.shape).copy_(y) for x, y in zip(moved, (q, k, v), strict=True))
    if obstacle == "tokens":
        q, kept = q[:, :, :500], 500
    if obstacle == "mask":
        mask = torch.ones(2, 512, dtype=torch.bool, device="cuda")
    out = taylor_attention(q, k, v, key_mask=mask, algorithm="direct", backend="triton")
    assert not taken
    assert (out - whole[:, :, :kept]).float().norm() < 0.01 * out.float().norm()
