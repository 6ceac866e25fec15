"""Fused Taylor attention against the float64 equations, in Triton's interpreter or on a GPU."""

import itertools
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch._subclasses import FakeTensorMode

from saccade.errors import ConfigError
from saccade.ops import taylor_attention
from saccade.ops.backends import fused_obstacle
from saccade.ops.taylor import taylorshift_attention
from tests.ops.fused_taylor import (
    DEVICE,
    draw,
    draw_shift,
    equation,
    fused,
    fused_shift,
    shift_equation,
)
from tests.ops.graphs import assert_replayed_alike
from tests.ops.mechanisms import assert_as_good_as_plain, make_inputs, with_gradients

pytest.importorskip("triton")

from saccade.ops.taylor.triton import (
    api,
    configs,
    efficient,
    efficient_gradients,
    efficient_moments,
)
from saccade.ops.taylor.triton.library import TABLE_STEP
from saccade.ops.taylor.triton.rows import weighted_gradients
from saccade.ops.taylor.triton.shapes import Problem, alignment_of

# The interpreter cuts bfloat16 instead of rounding it: that dtype is judged on a GPU.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
both = pytest.mark.parametrize("algorithm", ["direct", "efficient"])


SHAPES = {
    "even": {"queries": 64, "dim": 16},
    "one": {"queries": 1, "keys": 17, "dim": 8},
    "narrow": {"queries": 65, "keys": 63, "dim": 12, "width": 16, "masked": True},
    "ragged": {"queries": 65, "keys": 63, "dim": 20, "width": 24, "masked": True},
    "wide": {"queries": 17, "keys": 33, "dim": 40, "width": 8, "masked": True},
}


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_are_as_good_as_plain_torch(shape, dtype, algorithm):
    make = partial(draw, batch=1, heads=2, **SHAPES[shape])
    assert_as_good_as_plain(partial(fused, algorithm), equation, make, dtype, draws=2)


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [10, 20])
def test_fused_normalization_and_temperature(dim, dtype, algorithm):
    make = partial(draw_shift, batch=1, heads=4, queries=33, keys=49, dim=dim, masked=True)
    assert_as_good_as_plain(partial(fused_shift, algorithm), shift_equation, make, dtype, draws=4)


@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize(
    ("algorithm", "width"), [("direct", 8), ("efficient", 8), ("efficient", 17)]
)
def test_several_splits_and_blocks_add_up(algorithm, width):
    make = partial(draw, batch=1, heads=1, queries=540, dim=8, width=width)
    assert_as_good_as_plain(partial(fused, algorithm), equation, make, torch.float32, draws=1)


def test_narrow_heads_can_take_the_passes_of_wide_ones(monkeypatch):
    monkeypatch.setattr(configs, "ONE_PASS_WIDTH", 0)
    make = partial(draw_shift, batch=1, heads=4, queries=33, keys=49, dim=10, masked=True)
    run = partial(fused_shift, "efficient")
    assert_as_good_as_plain(run, shift_equation, make, torch.float32, draws=4)


@pytest.mark.skipif(DEVICE == "cuda", reason="float32 does not fit the blocks of bfloat16")
@pytest.mark.usefixtures("blocks_of_bfloat16")
@pytest.mark.parametrize(
    ("algorithm", "dim", "width"), [("direct", 40, 24), ("direct", 12, 12), ("efficient", 20, 40)]
)
def test_blocks_of_bfloat16_are_right_too(algorithm, dim, width):
    make = partial(draw, batch=1, heads=1, queries=33, keys=49, dim=dim, width=width, masked=True)
    assert_as_good_as_plain(partial(fused, algorithm), equation, make, torch.float32, draws=2)


@pytest.mark.parametrize(
    ("capability", "dtype", "word"),
    [
        ((7, 5), torch.bfloat16, "bfloat16 needs compute capability 8.0"),
        ((7, 5), torch.float32, None),
        ((8, 0), torch.bfloat16, None),
    ],
)
def test_bfloat16_is_left_to_torch_where_the_gpu_cannot_multiply_it(
    capability, dtype, word, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    with FakeTensorMode():
        told = fused_obstacle(torch.empty(1, 1, 4, 8, device="cuda:0", dtype=dtype), 8)
    assert (told or "").startswith(word or "")
    assert (told is None) is (word is None)


@pytest.mark.parametrize(("dim", "width"), [(64, 64), (72, 64), (66, 64), (64, 50)])
def test_rows_of_odd_width_have_smaller_blocks_on_hopper(dim, width):
    q, k, v = (torch.zeros(1, 1, 128, n, dtype=torch.bfloat16) for n in (dim, dim, width))
    form = Problem.of(q, k, v, None, None, 1.0, 0.5, 1.0, 1.0, False, "ieee").call
    odd = bool(dim % 8 or width % 8)
    assert form.blocks("values").rows == (64 if odd else 128)
    assert form.blocks("accumulate") == configs.blocks_for(
        "accumulate", dim, torch.bfloat16, (9, 0)
    )


def test_a_device_nobody_knows_gets_the_blocks_that_ask_for_least():
    def blocks(capability):
        return configs.blocks_for("gradients", 32, torch.bfloat16, capability)

    assert blocks((7, 5)) == blocks((8, 6)) == blocks((8, 9)) == blocks((12, 0))
    assert len({blocks((9, 0)), blocks((8, 0)), blocks((8, 6))}) == 3


def test_keys_are_swizzled_where_that_was_timed():
    def swizzled(dtype, capability):
        widths = (32, 64, 128)
        sizes = [configs.blocks_for("accumulate", w, dtype, capability) for w in widths]
        return [size.swizzled is not None for size in sizes]

    assert swizzled(torch.bfloat16, (9, 0)) == [True] * 3
    assert swizzled(torch.bfloat16, (8, 0)) == swizzled(torch.bfloat16, (10, 0)) == [False] * 3
    assert swizzled(torch.float32, (9, 0)) == [False] * 3


def result_and_gradients(algorithm, inputs, dtype):
    q, k, v, mask, temperature = inputs
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, temperature)]
    out = fused_shift(algorithm, *leaves[:3], mask, leaves[3])
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


@both
@pytest.mark.parametrize("masked", [False, True])
def test_more_heads_than_a_launch_takes_go_in_parts(algorithm, masked, monkeypatch):
    shape = {"batch": 5, "heads": 2, "queries": 20, "keys": 24, "dim": 8, "masked": masked}
    run = partial(result_and_gradients, algorithm, draw_shift(0, **shape), torch.float32)
    whole = run()
    launched, forward = [], api._forward

    def noted(q, *rest):
        launched.append(len(q))
        return forward(q, *rest)

    monkeypatch.setattr(api, "MAX_HEADS", 5)
    monkeypatch.setattr(api, "_forward", noted)
    torch.testing.assert_close(run(), whole)
    assert launched == [2, 2, 1]


@both
@pytest.mark.parametrize("masked", [False, True])
def test_the_output_is_the_same_where_nothing_is_kept(algorithm, masked, monkeypatch):
    shape = {"batch": 5, "heads": 2, "queries": 20, "keys": 24, "dim": 8, "masked": masked}
    q, k, v, mask, temperature = draw_shift(0, **shape)
    q, k, v, temperature = (x.float() for x in (q, k, v, temperature))
    kept = fused_shift(algorithm, q.requires_grad_(), k, v, mask, temperature)
    samples, attend = [], efficient._attend

    def noted(p, *rest):
        samples.append(p.call.batch)
        return attend(p, *rest)

    monkeypatch.setattr(efficient, "_attend", noted)
    monkeypatch.setattr(efficient, "_samples_at_once", lambda form: 2)
    with torch.no_grad():
        alone = fused_shift(algorithm, q, k, v, mask, temperature)
    assert torch.equal(alone, kept)
    assert samples[-3:] == ([2, 2, 1] if algorithm == "efficient" else [])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dim", [8, 20])
def test_states_larger_than_the_output_are_formed_anew(dim, masked, monkeypatch):
    shape = {"batch": 5, "heads": 2, "queries": 20, "keys": 24, "dim": dim, "masked": masked}
    run = partial(result_and_gradients, "efficient", draw_shift(0, **shape), torch.float32)
    kept = run()
    samples, pull_back = [], efficient.run_efficient_backward

    def noted(p, *rest):
        samples.append(p.call.batch)
        return pull_back(p, *rest)

    monkeypatch.setattr(efficient, "run_efficient_backward", noted)
    monkeypatch.setattr(efficient, "FREE_BYTES", 0)
    monkeypatch.setattr(efficient, "_samples_at_once", lambda form: 2)
    torch.testing.assert_close(run(), kept)
    assert samples[-3:] == [2, 2, 1]


@pytest.mark.gpu
@both
def test_more_heads_than_an_axis_of_a_grid_holds(algorithm):
    # More tokens than a program takes whole.
    q, k, v = torch.randn(3, 9000, 8, 130, 8, device="cuda", dtype=torch.bfloat16)
    run = partial(taylor_attention, algorithm=algorithm, backend="triton")
    torch.testing.assert_close(run(q, k, v)[-3:], run(q[-3:], k[-3:], v[-3:]), rtol=0, atol=0)


@both
def test_bfloat16_is_roughly_right_in_the_interpreter(algorithm):
    shape = {"batch": 2, "heads": 2, "queries": 70, "keys": 90, "dim": 24, "masked": True}
    inputs = draw_shift(0, **shape)
    exact = result_and_gradients(algorithm, inputs, torch.float32)
    for found, true in zip(
        result_and_gradients(algorithm, inputs, torch.bfloat16), exact, strict=True
    ):
        assert (found.float() - true).norm() < 0.05 * true.norm()


def test_the_compiler_is_told_what_widths_and_strides_are_multiples_of():
    assert alignment_of(8, 40, (4096, 512, 8, 1), (4096, 40, 320, 1)) == 8
    assert alignment_of(8, 40, (4096, 512, 12, 1)) == 1
    assert alignment_of(8, 44, (4096, 512, 8, 1)) == 1
    assert alignment_of(32, 16, (4096, 512, 32, 1)) == 1  # Triton finds out


def test_blocks_that_go_by_fit_the_tables():
    capabilities = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0))
    for capability, dtype in itertools.product(capabilities, (torch.bfloat16, torch.float32)):
        for kernel, dim in itertools.product(("forward", "queries", "keys"), range(1, 129)):
            size = configs.blocks_for(f"direct_{kernel}", dim, dtype, capability).block
            assert size in (32, 64, 128)
            assert TABLE_STEP.value % size == 0
        for dim in range(1, 129):  # what programs of keys keep are whole blocks of queries' loop
            keys, queries = (
                configs.blocks_for(f"direct_{kernel}", dim, dtype, capability)
                for kernel in ("keys", "queries")
            )
            assert keys.rows % queries.block == 0
            assert TABLE_STEP.value % keys.rows == 0


@pytest.mark.parametrize(
    ("queries", "dim", "programs"), [(100, 128, 1), (130, 16, 2), (130, 64, 4), (130, 128, 8)]
)
def test_tables_are_written_to_their_end(queries, dim, programs, monkeypatch):
    numbers, added = Problem.numbers, []
    monkeypatch.setattr(Problem, "table", lambda p, n: numbers(p, 2, 256).fill_(torch.nan))
    monkeypatch.setattr(
        Problem, "numbers", lambda p, *shape: added.append(shape) or numbers(p, *shape)
    )
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, out = torch.randn(2, 1, 2, queries, dim, device=DEVICE, generator=generator)
    temperature = torch.ones(2, device=DEVICE)
    p = Problem.of(q, q, q, None, temperature, 1.0, 0.5, 1.0, 1.0, True, "ieee")
    found = weighted_gradients(p, out, out, torch.ones(2, queries, device=DEVICE))
    assert (2, programs, dim) in added
    written = -(-queries // TABLE_STEP.value) * TABLE_STEP.value
    for table in (found.rows_a, found.shifts):
        assert table[0, :written].isfinite().all()
    # Rows that do not exist add nothing to any gradient.
    assert found.shifts.count_nonzero() - found.shifts.isnan().sum() == 2 * queries
    exact = out[0].double().sum(dim=1) * p.call.output_scale
    torch.testing.assert_close(found.sum_dy.double(), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("keys", "dim"), [(40, 128), (130, 64), (70, 16)])
def test_what_no_key_wrote_into_a_table_is_not_read(keys, dim, masked, monkeypatch):
    inputs = draw_shift(0, batch=1, heads=2, queries=50, keys=keys, dim=dim, masked=masked)
    found = with_gradients(partial(fused_shift, "direct"), inputs, torch.float32)
    table = Problem.table
    monkeypatch.setattr(Problem, "table", lambda p, rows: table(p, rows).fill_(torch.nan))
    again = with_gradients(partial(fused_shift, "direct"), inputs, torch.float32)
    for before, after in zip(found, again, strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0)


@both
def test_strided_inputs_are_not_copied_and_agree(algorithm):
    qkv = torch.randn(2, 40, 3, 2, 16)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    strided = fused(algorithm, q, k, v, None)
    packed = fused(algorithm, q.contiguous(), k.contiguous(), v.contiguous(), None)
    torch.testing.assert_close(strided, packed)


@both
def test_empty_batch_and_a_sample_without_keys(algorithm):
    q, k, v, mask = make_inputs(queries=20, masked=True)
    q, k, v = (x.float() for x in (q, k, v))
    assert fused(algorithm, q[:0], k[:0], v[:0], mask[:0]).shape == (0, 3, 20, 16)
    mask[1] = False
    out, dq, dk, dv = with_gradients(
        lambda q, k, v: fused(algorithm, q, k, v, mask), (q, k, v), torch.float32
    )
    assert (out[1] == 0).all()
    assert all(x.isfinite().all() for x in (out, dq, dk, dv))
    assert (dk[1] == 0).all()
    assert (dv[1] == 0).all()


@both
def test_no_keys_at_all(algorithm):
    leaves = [torch.randn(1, 2, n, 8, requires_grad=True) for n in (5, 0, 0)]
    out = fused(algorithm, *leaves, None)
    assert (out == 0).all()
    grads = torch.autograd.grad(out.sum(), leaves)
    assert all((x == 0).all() for x in grads)


@both
def test_nan_in_masked_keys_does_not_spread(algorithm):
    q, k, v, mask = make_inputs(batch=1, queries=20, masked=True)
    q, k, v = (x.float() for x in (q, k, v))
    hidden = ~mask[:, None, :, None]
    expected = fused(algorithm, q, k, v, mask)
    spoiled = [x.masked_fill(hidden, torch.nan) for x in (k, v)]
    torch.testing.assert_close(fused(algorithm, q, *spoiled, mask), expected)


def _skip_the_last_split(monkeypatch):
    splits = efficient_moments.split_rows
    monkeypatch.setattr(
        efficient_moments, "split_rows", lambda *a: (max(1, splits(*a)[0] - 1), splits(*a)[1])
    )


def _forget_to_double_off_diagonal_pairs(monkeypatch):
    unfold_launch = efficient_gradients._unfold_launch

    class Halved:
        def __init__(self, form):
            self.launch = unfold_launch(form)
            self.grid = self.launch.grid

        def __call__(self, state, state_transposed):
            self.launch(state, state_transposed)
            state_transposed *= 0.5

    monkeypatch.setattr(efficient_gradients, "_unfold_launch", Halved)


@pytest.mark.usefixtures("few_processors")
@pytest.mark.parametrize("plant", [_skip_the_last_split, _forget_to_double_off_diagonal_pairs])
def test_planted_errors_are_caught(plant, monkeypatch):
    plant(monkeypatch)
    make = partial(draw, batch=1, heads=1, queries=600, dim=8, width=8)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(partial(fused, "efficient"), equation, make, torch.float32, draws=1)


@both
def test_opcheck(algorithm):
    q, k, v, mask = (x.to(DEVICE) for x in make_inputs(batch=1, heads=1, queries=9, masked=True))
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    temperature = torch.ones(1, device=DEVICE, requires_grad=True)
    numbers = (1.0, 0.5, 1.0, 1.0)
    arguments = (*leaves, mask, temperature, *numbers, True, algorithm == "efficient", True)
    torch.library.opcheck(torch.ops.saccade.taylor_fused.default, arguments)
    backward = (leaves[0] * 0, *arguments[:5], *api._forward(*arguments), *numbers, True)
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in backward]
    torch.library.opcheck(
        torch.ops.saccade.taylor_fused_backward.default, (*detached, algorithm == "efficient")
    )
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments[:-1]]
    torch.library.opcheck(torch.ops.saccade.taylor_fused.default, (*detached, False))


@both
def test_compiles_to_one_graph(algorithm):
    torch._dynamo.reset()
    q, k, v, _ = make_inputs(batch=1, heads=1, queries=20)
    leaves = [x.float().to(DEVICE).requires_grad_() for x in (q, k, v)]

    def run(q, k, v):
        return taylor_attention(q, k, v, algorithm=algorithm, backend="triton") * 2

    out = torch.compile(run, fullgraph=True, backend="aot_eager")(*leaves)
    torch.testing.assert_close(out, run(*leaves))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_what_cannot_run_says_why(monkeypatch):
    q, k, v, _ = make_inputs(queries=5)
    with pytest.raises(ConfigError, match="no float64"):
        taylor_attention(q, k, v, backend="triton")
    wide = torch.randn(1, 1, 5, 130)
    with pytest.raises(ConfigError, match="up to 128 wide"):
        taylor_attention(wide, wide, wide, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    small = torch.randn(1, 1, 5, 8)
    with pytest.raises(ConfigError, match="on cpu"):
        taylor_attention(small, small, small, backend="triton")
    with pytest.raises(ConfigError, match=r"temperature must have shape \(1,\)"):
        taylorshift_attention(small, small, small, torch.ones(3))


FAULTS = "DOES NOT FIT", "SERIALIZED", "READS UNSET REGISTERS"


def machine_code(*options):
    command = [sys.executable, "benchmarks/machine_code.py", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def kernels_of(lines):
    """The kernels in their order; a pass may launch one in two variants, one after the other."""
    return [
        name
        for name, _ in itertools.groupby(re.match(r"(.*?) +\d+ reg", line)[1] for line in lines)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [[], ["--normalized"]], ids=["plain", "normalized"])
def test_products_stay_whole_on_hopper(normalized):
    lines = machine_code(*normalized)
    whole = 8 if normalized else 2  # at D = 16 and 32
    # Eight heads of 128 are enough to turn keys.
    assert len(kernels_of(lines)) == 9 + 13 + 15 + 13 + 2 * whole
    assert len([line for line in lines if "accumulate_swizzled" in line]) == 3
    assert not [line for line in lines if any(fault in line for fault in FAULTS)]
    spilled = [
        int(re.search(r"(\d+) bytes spilled", line)[1]) for line in lines if "hopper" in line
    ]
    assert len(spilled) == 5  # backwards two at D = 64
    assert max(spilled) < 200  # between tiles, but for a few bytes


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [[], ["--normalized"]], ids=["plain", "normalized"])
def test_masked_kernels_compile_on_hopper(normalized):
    lines = machine_code("--masked", "--dims", "32,64,128,20x100", *normalized)
    assert len(kernels_of(lines)) == 2 + 4 * 11  # heads of 32 also whole
    faults = "DOES NOT FIT", "READS UNSET REGISTERS"
    assert not [line for line in lines if any(fault in line for fault in faults)]


# What is spilled on Ampere lies outside the loops, most of it where states of odd widths are
# written. Hopper's blocks for bfloat16 were chosen by timing.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "dtype", "dims", "allowed"),
    [
        ("80", "bfloat16", "32,128", 100),
        ("80", "bfloat16", "20x100", 1100),
        ("86", "bfloat16", "32,64,128,100x20", 300),
        ("90", "bfloat16", "24,40,72,16x64,128x20", 800),
        ("80", "float32", "128", 600),
        ("86", "float32", "32,32x16,64", 600),
        ("90", "float32", "11x108,128", 600),
    ],
)
def test_kernels_fit_and_hardly_spill_on_every_device(arch, dtype, dims, allowed):
    lines = machine_code("--arch", arch, "--dtype", dtype, "--dims", dims, "--normalized")
    swizzled = [line for line in lines if "accumulate_swizzled" in line]
    heads = [max(map(int, head.split("x"))) for head in dims.split(",")]
    whole = sum(width <= 32 for width in heads) if dtype == "bfloat16" else 0
    assert len(kernels_of(lines)) == 11 * len(heads) + 2 * len(swizzled) + 8 * whole
    assert not [line for line in lines if any(fault in line for fault in FAULTS)]
    spilled = {line: int(re.search(r"(\d+) bytes spilled", line)[1]) for line in lines}
    assert not [line for line, size in spilled.items() if size > allowed]


@pytest.mark.gpu
@both
@pytest.mark.parametrize("dim", [8, 16, 24, 32])
@pytest.mark.parametrize("masked", [False, True])
def test_narrow_heads_in_bfloat16_of_more_tokens_than_go_whole(masked, dim, algorithm):
    make = partial(draw_shift, batch=2, heads=24, queries=130, keys=200, dim=dim, masked=masked)
    assert_as_good_as_plain(
        partial(fused_shift, algorithm), shift_equation, make, torch.bfloat16, draws=2
    )


@pytest.mark.gpu
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(17))
def test_a_hundred_random_shapes(seed, dtype, algorithm):
    generator = torch.Generator().manual_seed(seed)

    def pick(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    shape = {
        "batch": pick(1, 3), "heads": pick(1, 4), "queries": pick(1, 700), "keys": pick(1, 700),
        "dim": pick(8, 128), "width": pick(8, 128), "masked": bool(pick(0, 1)),
    }  # fmt: skip
    if seed % 3 == 0:
        make = partial(draw, **shape)
        assert_as_good_as_plain(partial(fused, algorithm), equation, make, dtype, draws=4)
        return
    # Of a temperature there is one number a head: a few of them can be exact by luck.
    make, draws = partial(draw_shift, **shape), -(-24 // shape["heads"])
    run = partial(fused_shift, algorithm)
    assert_as_good_as_plain(run, shift_equation, make, dtype, draws=draws)


@pytest.mark.gpu
@both
def test_a_captured_graph_gives_the_same_again(algorithm):
    leaves = [
        torch.randn(2, 2, 300, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]

    def run():
        out = taylor_attention(*leaves, algorithm=algorithm, backend="triton")
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]

    assert_replayed_alike(run)


@pytest.mark.gpu
@both
def test_addresses_of_any_alignment(algorithm):
    aligned = torch.randn(3, 2 * 2 * 300 * 16, device="cuda", dtype=torch.bfloat16)
    shifted = torch.empty(3, aligned.shape[1] + 8, device="cuda", dtype=torch.bfloat16)[:, 1:-7]
    shifted.copy_(aligned)

    def run(x):
        q, k, v = x.unflatten(1, (2, 2, 300, 16))
        return taylor_attention(q, k, v, algorithm=algorithm, backend="triton")

    first, odd, again = run(aligned), run(shifted), run(aligned)
    assert torch.equal(first, again)
    torch.testing.assert_close(odd, first)
