"""Before and around Hopper's kernel of the direct forward: normalized keys, and calls in parts.

A stand-in by torch takes the kernel's place here; on a card, `test_taylor_hopper` has the same.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize

from tests.ops.fused_taylor import DEVICE
from tests.ops.test_taylor_parts import Memory

pytest.importorskip("triton")

from saccade.ops._triton import launch as launches
from saccade.ops.taylor.triton import direct, direct_hopper, rows
from saccade.ops.taylor.triton.direct_hopper import heads_at_a_time
from saccade.ops.taylor.triton.shapes import Problem
from tests.ops.hopper_calls import (
    both_kinds,
    both_widths,
    normalized_problem,
    nowhere,
    problem_of,
    projected,
)


def random_rows(**shape):
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = projected(device=DEVICE, dtype=torch.bfloat16, **shape)
    for x in (q, k, v):
        x.normal_(generator=generator)
    return q, k, v


@both_widths
@both_kinds
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_one_pass_normalizes_keys_and_sums_values(splits, normalized, dim):
    q, k, v = random_rows(tokens=512, dim=dim, padding=8)
    k[0, 0, 7] = 0
    p = normalized_problem(q, k, v) if normalized else problem_of(q, k, v)
    unit = torch.full((2, 3, 512, dim), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    sums = rows.unit_keys(p, splits, unit)
    torch.testing.assert_close(sums.view(2, 3, dim), v.float().sum(dim=2), rtol=1e-5, atol=1e-4)
    expected = normalize(k.float(), dim=-1) if normalized else torch.full_like(unit, torch.nan)
    # The interpreter cuts numbers to bfloat16, where a card rounds them.
    torch.testing.assert_close(unit.float(), expected.float(), rtol=2**-7, atol=0, equal_nan=True)


def test_keys_are_split_where_heads_are_few():
    def splits(batch, tokens):
        return rows.key_splits(problem_of(*nowhere(batch=batch, heads=8, tokens=tokens)).call)

    assert [splits(2**17 // n, n) for n in (1024, 4096, 16384)] == [1, 4, 16]
    assert splits(1, 1024) == 8
    assert splits(1, 384) == 1


def heads_of(batch, heads, queries, keys=None):
    q, k, v = nowhere(batch=batch, heads=heads, tokens=max(queries, keys or 0), dim=128)
    k, v = k[:, :, :keys], v[:, :, :keys]
    return heads_at_a_time(normalized_problem(q[:, :, :queries], k, v).call)


def test_the_last_part_keeps_to_a_quarter():
    assert heads_of(128, 8, 1024) == [96, 464, 232, 232]
    assert heads_of(32, 8, 4096) == [32, 112, 56, 56]


def test_parts_are_whole_samples_or_heads_of_one():
    assert heads_of(13, 8, 8192) == [8, 48, 24, 24]
    assert heads_of(1, 8, 65536) == [4, 2, 1, 1]
    assert heads_of(2, 8, 16384) == [8, 4, 4]
    assert heads_of(1, 1, 1 << 18) == []


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"),
    [(16, 12, 256, 65536), (64, 12, 512, 8192), (64, 12, 128, 4096)],
)
def test_many_keys_of_few_queries_are_left_to_the_other_kernel(batch, heads, queries, keys):
    assert heads_of(batch, heads, queries, keys) == []


def test_few_keys_go_at_once():
    assert heads_of(1, 8, 4096) == [8]
    assert heads_of(1, 8, 65536, 4096) == [8]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize("heads", [1, 3, 8, 12])
@pytest.mark.parametrize(
    ("queries", "keys"), [(1024, 1024), (4096, 512), (512, 4096), (32768,) * 2]
)
def test_keys_of_every_part_have_room(batch, heads, queries, keys, monkeypatch):
    monkeypatch.setattr(direct_hopper, "FREE_BYTES", 0)
    counts = heads_of(batch, heads, queries, keys)
    assert sum(counts) in (0, batch * heads)
    first, spare = 0, batch * heads * queries / 4
    for count in counts:
        left = batch * heads - first - count
        assert count * keys <= max(left * queries, spare)
        assert count % heads == 0 or first // heads == (first + count - 1) // heads
        first += count


@pytest.fixture
def imitated(monkeypatch):
    """The kernel by torch, given what the launch is given: the forms it ran for, and its module."""
    forms = []

    class Imitation:
        def __init__(self, f):
            self.f = f

        def compile(self, dtypes):
            pass

        def __call__(self, q, k, v, temperature, sum_v, out, total):
            if launches.is_dry_run():
                return
            f = self.f
            forms.append(f)
            out = out.view(f.batch, f.heads, f.queries, f.dim)
            sum_v = sum_v.view(f.batch, f.heads, f.dim)
            total = total.view(f.batch, f.heads, f.queries)
            for i, j in torch.cartesian_prod(*map(torch.arange, (f.batch, f.heads))).tolist():
                x = normalize(q[i, j].float(), dim=-1) * (f.scale * temperature[j])
                s = x @ k[i, j].float().T
                w = f.b * s + f.a * s * s
                z = w.mean(dim=1) + f.c
                y = (w @ v[i, j].float() + f.c * sum_v[i, j]) / f.keys
                out[i, j], total[i, j] = f.output_scale * y / z[:, None], z

    kernels = SimpleNamespace(forward_launch=Imitation, forward_dtypes=lambda f: ())
    direct_hopper.forward_parts.cache_clear()
    monkeypatch.setattr(direct_hopper, "INTERPRETED", False)
    monkeypatch.setattr(direct_hopper, "attempted", lambda f, module, make: make(kernels))
    yield forms, kernels
    direct_hopper.forward_parts.cache_clear()


def random_problem(batch, heads, keys):
    """TaylorShift's of 256 queries."""
    q, k, v = random_rows(batch=batch, heads=heads, tokens=max(keys, 256))
    return normalized_problem(q[:, :, :256], k[:, :, :keys], v[:, :, :keys])


@pytest.mark.parametrize(
    ("batch", "heads", "keys", "parts"),
    [(5, 2, 256, 4), (2, 4, 256, 4), (1, 8, 256, 4), (10, 1, 512, 7), (4, 1, 128, 3)],
)
def test_parts_give_what_the_whole_gives(batch, heads, keys, parts, imitated, monkeypatch):
    monkeypatch.setattr(direct_hopper, "suits_forward", lambda f: True)
    p = random_problem(batch, heads, keys)
    out, total = direct.run_direct(p, keep=True)
    assert imitated[0] == [p.call]
    monkeypatch.setattr(direct_hopper, "FREE_BYTES", 0)
    in_parts, in_parts_total = direct_hopper.run_forward(p, keep=False)
    assert len(imitated[0]) == 1 + parts
    assert torch.equal(in_parts, out)
    assert torch.equal(in_parts_total, total)
    assert direct.run_direct(p, keep=False)[1] is None


def test_keys_that_lie_in_what_is_written_are_noticed(imitated, monkeypatch):
    p, scratch = random_problem(4, 2, 256), direct_hopper._scratch
    out, _ = direct.run_direct(p, keep=True)
    monkeypatch.setattr(direct_hopper, "FREE_BYTES", 0)
    monkeypatch.setattr(direct_hopper, "_scratch", lambda p, later: scratch(p, later._base))
    assert not torch.equal(direct_hopper.run_forward(p, keep=False)[0], out)


@both_kinds
@pytest.mark.parametrize(
    ("batch", "heads", "tokens"),
    [(128, 8, 1024), (32, 8, 4096), (8, 8, 16384), (43, 12, 2048), (1, 16, 65536), (3, 16, 32768)],
)
@both_widths
def test_a_pass_without_gradients_keeps_to_memory_like_softmax(
    dim, batch, heads, tokens, normalized, imitated, monkeypatch
):
    """At most a quarter beside the output; nothing is launched."""
    memory, new = Memory(), Problem.new
    monkeypatch.setattr(Problem, "new", lambda *a, **options: memory.note(new(*a, **options)))
    imitated[1].forward_launch = lambda f: lambda *tensors: None
    q, k, v = nowhere(batch=batch, heads=heads, tokens=tokens, dim=dim)
    p = normalized_problem(q, k, v) if normalized else problem_of(q, k, v)
    token = launches._dry_run_launches.set(set())
    out, total = direct.run_direct(p, keep=False)
    launches._dry_run_launches.reset(token)
    assert total is None
    assert memory.held == out.nbytes == q.nbytes
    assert memory.peak <= 1.25 * out.nbytes
