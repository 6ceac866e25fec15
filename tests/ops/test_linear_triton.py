"""Fused linear attention against the float64 equations, in Triton's interpreter or on a GPU."""

import re
import subprocess
import sys
from functools import partial
from importlib.metadata import version

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.errors import ConfigError
from saccade.ops import linear as maps
from saccade.ops import linear_attention
from saccade.ops.linear import orthogonal_projection, performer_attention
from saccade.ops.linear import reference as equations
from tests.ops.mechanisms import assert_as_good_as_plain, make_inputs, with_gradients

pytest.importorskip("triton")

from saccade.ops.linear.triton import api, configs, heads, shapes, state
from saccade.ops.linear.triton.shapes import HeadState

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MAPS = ["favor_softmax", "relu", "exp", "gelu", "elu"]
EPS = {"favor_softmax": 0.0, "relu": 1e-3, "exp": 1e-6, "gelu": 1e-3, "elu": 1e-6}


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Cut heads into pieces at lengths that the interpreter can take."""
    monkeypatch.setattr(shapes, "MIN_CHUNK", 32)


def projection_of(dim: int, features: int) -> torch.Tensor:
    """Rounded to bfloat16, so that every dtype has the same W."""
    return orthogonal_projection(features, dim, seed=3).bfloat16()


def fused(feature_map, features, q, k, v, mask):
    eps = 0.0 if feature_map == "favor_softmax" else 1e-6
    out = performer_attention(
        *(x.to(DEVICE) for x in (q, k, v)),
        projection_of(q.shape[-1], features).to(DEVICE, q.dtype),
        feature_map=feature_map,
        feature_eps=EPS[feature_map],
        eps=eps,
        key_mask=None if mask is None else mask.to(DEVICE),
        backend="triton",
    )
    return out.cpu()


def equation(feature_map, features, q, k, v, mask):
    w, scale = projection_of(q.shape[-1], features).to(q.dtype), q.shape[-1] ** -0.5
    if feature_map == "favor_softmax":
        phi = partial(equations.favor_softmax_reference, projection=w, scale=scale)
        return equations.linear_attention_reference(phi(q), phi(k), v, eps=0.0, key_mask=mask)
    options = {"scale": scale, "eps": EPS[feature_map]}
    if feature_map == "exp":
        options["clamp"] = 10.0
    phi = partial(getattr(equations, f"{feature_map}_reference"), projection=w, **options)
    return equations.linear_attention_reference(phi(q), phi(k), v, key_mask=mask)


def hold(feature_map, dtype, *, features=24, draws=2, fast=fused, **shape):
    """Compare with the equation; few draws of a shape with few gradients would be luck."""
    make = partial(make_inputs, **shape)
    assert_as_good_as_plain(
        partial(fast, feature_map, features),
        partial(equation, feature_map, features),
        lambda seed: make(seed=seed),
        dtype,
        draws=draws,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("feature_map", MAPS)
def test_every_map_is_as_good_as_plain_torch(feature_map, dtype):
    hold(feature_map, dtype, batch=1, heads=1, queries=65, keys=130, dim=16, width=12, masked=True)


@pytest.mark.parametrize("tokens", [1, 63, 65, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_number_of_tokens(tokens, dtype):
    shape = {"queries": tokens, "keys": max(20, tokens), "draws": 12 if tokens == 1 else 2}
    hold("favor_softmax", dtype, batch=1, heads=1, **shape)


def favor_of_small_exponents(features):
    """FAVOR+ attention of queries whose exponents all lie below -128."""
    q, k, v = (torch.full((1, 2, 20, 16), x) for x in (3.0, 0.1, 1.0))
    return performer_attention(q, k, v, torch.full((features, 16), -8.0), backend="triton")


@pytest.mark.parametrize("features", [4, 16, 20])
def test_padded_features_take_no_part_whatever_the_exponents(features):
    assert torch.allclose(favor_of_small_exponents(features), torch.ones(1, 2, 20, 16))


@pytest.fixture
def whole_heads(monkeypatch):
    """One program a head, however few heads there are, for every map."""
    monkeypatch.setattr(heads, "HEADS_PER_PROCESSOR", 0)
    monkeypatch.setattr(heads, "HEAVY_DERIVATIVES", ())


@pytest.mark.parametrize("feature_map", MAPS)
def test_whole_heads_are_as_good_as_plain_torch(whole_heads, feature_map):
    shape = {"queries": 65, "keys": 130, "dim": 16, "width": 12, "masked": True}
    hold(feature_map, torch.bfloat16, batch=1, heads=2, **shape)


@pytest.mark.parametrize(("tokens", "features", "dim"), [(1, 24, 16), (64, 128, 32), (129, 7, 20)])
def test_whole_heads_of_any_size(whole_heads, tokens, features, dim):
    draws = 12 if tokens == 1 else 4
    shape = {"queries": tokens, "keys": max(20, tokens), "dim": dim, "width": dim}
    hold("favor_softmax", torch.bfloat16, features=features, draws=draws, batch=1, heads=1, **shape)


def test_whole_heads_give_what_pieces_give(monkeypatch):
    q, k, v, mask = make_inputs(batch=2, heads=2, queries=70, keys=50, masked=True)
    mask[0] = False
    pieces = with_gradients(partial(fused, "relu", 24), [q, k, v, mask], torch.bfloat16)
    monkeypatch.setattr(heads, "HEADS_PER_PROCESSOR", 0)
    whole = with_gradients(partial(fused, "relu", 24), [q, k, v, mask], torch.bfloat16)
    for x, y in zip(whole, pieces, strict=True):
        assert x.isfinite().all()
        assert (x.double() - y.double()).norm() <= 0.01 * y.double().norm()


def test_one_key_gets_all_the_weight():
    q, k, v, _ = make_inputs(queries=5, keys=1)
    out, dq, dk, dv = with_gradients(partial(fused, "relu", 24), [q, k, v, None], torch.float32)
    torch.testing.assert_close(out.double(), v.expand(-1, -1, 5, -1), rtol=1e-5, atol=1e-6)
    assert max(dq.abs().max(), dk.abs().max()) < 1e-5
    assert dv.abs().max() > 0.1


@pytest.mark.parametrize(("dim", "width"), [(8, 8), (20, 32), (128, 48), (64, 128)])
@pytest.mark.parametrize("feature_map", ["favor_softmax", "elu"])
def test_any_head_width(feature_map, dim, width):
    hold(feature_map, torch.bfloat16, batch=1, heads=1, queries=40, dim=dim, width=width)


@pytest.mark.parametrize("features", [1, 7, 64, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_number_of_features(features, dtype):
    # Exponents make single draws err far more than others do, in one library of exp or the other.
    draws = 48 if dtype == torch.float32 else 6
    hold("favor_softmax", dtype, features=features, batch=1, heads=1, queries=40, draws=draws)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_two_parts_of_half_precision_hold_the_projection(dtype):
    w = orthogonal_projection(70, 40, seed=0).to(DEVICE)
    leading, rest = shapes.parts_of(w.t().contiguous().t(), dtype)
    assert torch.equal(leading, w.to(dtype))
    assert torch.equal(rest, (w - leading.float()).to(dtype))


def test_head_dims_in_every_precision():
    for dtype in DTYPES:
        for width in (16, 32, 64, 128):
            for kind in ("state", "mix", "gradient"):
                chosen = configs.tiles(kind, dtype, width, 272)
                assert min(chosen.tokens, chosen.features) >= 16


def plain(phi_q, phi_k, v, mask):
    return equations.linear_attention_reference(phi_q, phi_k, v, key_mask=mask)


def fused_features(phi_q, phi_k, v, mask):
    return linear_attention(
        *(x.to(DEVICE) for x in (phi_q, phi_k, v)),
        key_mask=None if mask is None else mask.to(DEVICE),
        backend="triton",
    ).cpu()


def positive(seed, **shape):
    q, k, v, mask = make_inputs(seed=seed, **shape)
    return q.abs(), k.abs(), v, mask


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_given_features(dtype):
    make = partial(positive, batch=1, heads=1, queries=40, keys=70, dim=72, width=12, masked=True)
    assert_as_good_as_plain(fused_features, plain, make, dtype, draws=2)


def test_float32_features_of_bfloat16_values():
    q, k, v, mask = positive(0, batch=1, heads=2, queries=33, keys=65, masked=True)
    leaves = [q.float(), k.float(), v.bfloat16()]
    exact = with_gradients(plain, [*(x.double() for x in leaves), mask], torch.float64)
    leaves = [x.to(DEVICE).requires_grad_() for x in leaves]
    out = fused_features(*leaves, mask)
    direction = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    results = [out, *torch.autograd.grad(out, leaves, direction.bfloat16())]
    assert [x.dtype for x in results] == [v.bfloat16().dtype, *(x.dtype for x in leaves)]
    for x, e in zip(results, exact, strict=True):
        assert (x.detach().cpu().double() - e).norm() < 0.02 * e.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_views_of_a_fused_projection(dtype):
    """q, k, v as they come out of one linear layer; an expanded gradient; a transposed mask."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 40, 3, 2, 16, generator=generator).to(DEVICE, dtype)
    w, mask = projection_of(16, 24).to(DEVICE), torch.rand(40, 2, generator=generator).t() > 0.3

    def run(x, copy):
        q, k, v = (y.clone() if copy else y for y in x.permute(2, 0, 3, 1, 4).unbind(0))
        out = performer_attention(q, k, v, w, key_mask=mask.to(DEVICE), backend="triton")
        return out, torch.autograd.grad(out.sum(), x)[0]

    strided = run(qkv.requires_grad_(), copy=False)
    dense = run(qkv.detach().requires_grad_(), copy=True)
    for x, y in zip(strided, dense, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    out = strided[0].transpose(1, 2)
    assert out.is_contiguous()


@pytest.mark.parametrize("feature_map", ["favor_softmax", "gelu"])
def test_defaults_agree_with_plain_torch(feature_map):
    """eps of weights and features as users get them, W in float32, scale given."""
    q, k, v, mask = make_inputs(heads=2, queries=33, keys=49, masked=True)
    w = orthogonal_projection(40, 16, seed=1)
    options = {"feature_map": feature_map, "key_mask": mask, "scale": 0.2}

    def run(backend, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = performer_attention(*leaves, w, backend=backend, **options)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    if DEVICE == "cuda":
        q, k, v, w, options["key_mask"] = (x.cuda() for x in (q, k, v, w, mask))
    for x, y in zip(run("triton", torch.float32), run("torch", torch.float64), strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=1e-5)


def test_exponents_keep_the_precision_of_the_projection():
    """W is float32: rounding it to the dtype of q would move every exponent."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 100, 64, generator=generator).bfloat16().to(DEVICE)
    w = orthogonal_projection(128, 64, seed=0).to(DEVICE)

    def run(w, backend):
        x = q.float() if backend == "torch" else q
        return performer_attention(x * 2, k.to(x.dtype), v.to(x.dtype), w, backend=backend).float()

    exact = run(w, "torch")
    error = (run(w, "triton") - exact).norm() / exact.norm()
    rounded = (run(w.bfloat16(), "torch") - exact).norm() / exact.norm()
    assert error < 0.006
    assert rounded > 2 * error


@pytest.mark.parametrize("size", [1e-3, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_and_small_inputs_stay_finite(dtype, size):
    q, k, v, mask = make_inputs(batch=1, heads=1, queries=40, masked=True)
    leaves = [x.to(DEVICE, dtype).requires_grad_() for x in (q * size, k * size, v)]
    w = projection_of(16, 24).to(DEVICE)
    for feature_map in ("favor_softmax", "exp"):
        out = performer_attention(
            *leaves, w, feature_map=feature_map, key_mask=mask.to(DEVICE), backend="triton"
        )
        grads = torch.autograd.grad(out.sum(), leaves)
        assert all(x.isfinite().all() for x in (out, *grads))


def test_a_sample_without_keys_gets_zero_and_hidden_keys_do_not_count():
    q, k, v, mask = make_inputs(heads=1, queries=20, masked=True)
    mask[0] = False
    leaves = [x.float().to(DEVICE).requires_grad_() for x in (q, k, v)]
    with torch.no_grad():
        for x in leaves[1:]:
            x[~mask[:, None].to(DEVICE)] = torch.nan
    for feature_map in MAPS:
        out = fused(feature_map, 24, *leaves, mask)
        grads = torch.autograd.grad(out.sum(), leaves)
        assert (out[0] == 0).all()
        assert all(x.isfinite().all() for x in (out, *grads))
        assert all((x.cpu().transpose(1, 2)[~mask] == 0).all() for x in grads[1:])


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 5), (1, 0, 5), (1, 5, 0)])
def test_nothing_in_nothing_out(batch, queries, keys):
    q, k, v = (
        torch.randn(batch, 2, n, 16, device=DEVICE, requires_grad=True)
        for n in (queries, keys, keys)
    )
    out = performer_attention(q, k, v, projection_of(16, 24).to(DEVICE), backend="triton")
    out.sum().backward()
    assert out.shape == (batch, 2, queries, 16)
    assert (out == 0).all()
    assert all((x.grad == 0).all() for x in (q, k, v))


def test_pieces_give_the_same_and_the_same_again(monkeypatch):
    inputs = make_inputs(batch=1, heads=1, queries=300, masked=True)
    leaves = [x.float() if x.is_floating_point() else x for x in inputs]
    pieced, again = (fused("favor_softmax", 24, *leaves) for _ in range(2))
    monkeypatch.setattr(shapes, "MIN_CHUNK", 1000)
    whole = fused("favor_softmax", 24, *leaves)
    assert torch.equal(pieced, again)
    torch.testing.assert_close(pieced, whole, rtol=1e-5, atol=1e-6)


class PlantedErrors:
    """Wrong versions of what happens between the kernels."""

    @staticmethod
    def drop_a_piece(summed, call, k, v, key_mask=None, queries=None, **options):
        if queries is not None:
            return summed
        mask = key_mask[:, :-32].contiguous()
        return state.run_state(call, k[:, :, :-32], v[:, :, :-32], key_mask=mask, **options)

    @staticmethod
    def forget_the_largest_exponent(summed, *_args, **_options):
        return HeadState(summed.state, summed.weight, summed.base, summed.top * 0)

    @staticmethod
    def forget_the_denominator(summed, *_args, **_options):
        return HeadState(summed.state, summed.weight * 0, summed.base, summed.top)

    @staticmethod
    def forget_the_base(summed, *_args, **_options):
        return HeadState(summed.state, summed.weight, summed.base * 0, summed.top)


PLANTED = [name for name in vars(PlantedErrors) if not name.startswith("_")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(monkeypatch, error, dtype):
    right, wrong = state.run_state, getattr(PlantedErrors, error)

    def planted(*args, **options):
        return wrong(right(*args, **options), *args, **options)

    monkeypatch.setattr(api, "run_state", planted)
    feature_map = "gelu" if error == "forget_the_base" else "favor_softmax"
    with pytest.raises(AssertionError, match="allowed"):
        hold(feature_map, dtype, batch=1, heads=1, queries=65, masked=True)


@pytest.mark.parametrize("feature_map", ["favor_softmax", "relu", "identity"])
def test_opcheck(feature_map):
    q, k, v, mask = make_inputs(batch=2, heads=1, queries=3, keys=4, dim=8, width=6, masked=True)
    q, k, v = (x.float().abs().to(DEVICE).requires_grad_() for x in (q, k, v))
    w = None if feature_map == "identity" else projection_of(8, 24).float().to(DEVICE)
    args = (q, k, v, w, mask.to(DEVICE), feature_map, 0.3, 1e-3, 1e-6, "ieee")
    torch.library.opcheck(api._forward.overload, args)
    torch.library.opcheck(api._backward.overload, _backward_arguments(args))


def _backward_arguments(args):
    args = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
    out, *saved = api._forward(*args)
    return (torch.randn_like(out), *args[:5], out, *saved, *args[5:])


def test_compiles_to_one_graph():
    q, k, v, mask = make_inputs(batch=1, heads=2, queries=9, dim=8, masked=True)
    leaves = [x.bfloat16().to(DEVICE).requires_grad_() for x in (q, k, v)]
    w, mask = projection_of(8, 24).to(DEVICE), mask.to(DEVICE)

    def run(q, k, v):
        return performer_attention(q, k, v, w, key_mask=mask, backend="triton")

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for x, y in zip(
        torch.autograd.grad(compiled(*leaves).sum(), leaves),
        torch.autograd.grad(run(*leaves).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(x, y)


def test_autocast_changes_nothing():
    q, k, v, _ = (x if x is None else x.float().to(DEVICE) for x in make_inputs(queries=20))
    w = projection_of(16, 24).float().to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        inside = performer_attention(q, k, v, w, backend="triton")
    assert torch.equal(inside, performer_attention(q, k, v, w, backend="triton"))


def test_flops_are_counted():
    q, k, v, _ = make_inputs(batch=2, heads=3, queries=10, keys=20, dim=8, width=6)
    leaves = [x.float().to(DEVICE).requires_grad_() for x in (q, k, v)]
    with FlopCounterMode(display=False) as counter:
        out = performer_attention(*leaves, projection_of(8, 24).to(DEVICE), backend="triton")
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == 2 * 6 * 24 * (30 * (8 + 6) + 10)
    assert counter.get_total_flops() == 3 * forward


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v, w: (q.double(), k.double(), v.double(), w), "float64"),
        (lambda q, k, v, w: (q, k, v.repeat(1, 1, 1, 20), w), "up to 128"),
        (lambda q, k, v, w: (q, k, v, w.requires_grad_()), "gradient"),
        (lambda *inputs: (x.to("meta") for x in inputs), "meta"),
    ],
)
def test_what_cannot_run_fused_is_refused_with_the_reason(change, message):
    inputs = (*torch.randn(3, 1, 2, 5, 8, device=DEVICE), torch.randn(24, 8, device=DEVICE))
    with pytest.raises(ConfigError, match=rf"backend='triton' cannot run here: .*{message}"):
        performer_attention(*change(*inputs), backend="triton")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"feature_map": "rleu"}, "did you mean 'relu'"),
        ({"precision": "tf"}, "precision"),
        ({"backend": "tritn"}, "did you mean 'triton'"),
        ({"scale": -1.0}, r"scale must be at least 0 .*, got -1\.0"),
        ({"eps": -1.0}, r"eps must be a finite number of at least 0, got -1\.0"),
        ({"projection": torch.ones(24, 9)}, "projection must have shape"),
    ],
)
def test_options_that_do_not_fit_are_refused(option, message):
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    with pytest.raises(ValueError, match=message):
        performer_attention(q, k, v, **{"projection": torch.ones(24, 8), **option})


def test_torch_path_is_the_composition_of_its_parts():
    q, k, v, mask = make_inputs(queries=20, masked=True)
    w = orthogonal_projection(24, 16, seed=0)
    phi_q = maps.favor_softmax(q, w, is_query=True)
    phi_k = maps.favor_softmax(k, w, is_query=False, key_mask=mask)
    expected = linear_attention(phi_q, phi_k, v, eps=0.0, key_mask=mask)
    actual = performer_attention(q, k, v, w, key_mask=mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_products_stay_whole_and_in_registers_on_hopper():
    """A whole head may park numbers: a few dozen backward, and FAVOR+ for its four programs."""
    command = [sys.executable, "benchmarks/machine_code_linear.py"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = told.splitlines()
    assert len(lines) == 4 + 4 + 7 + 2 * 3 * 9
    assert "SERIALIZED" not in told
    spilled = {line: int(re.search(r"(\d+) bytes spilled", line)[1]) for line in lines}
    favor = 496 if version("triton").startswith("3.7.") else 480
    allowed = {"head_backward": 160, "favor_softmax head_forward": favor}
    for line, size in spilled.items():
        assert size <= max([most for name, most in allowed.items() if name in line], default=0)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(100))
def test_random_shapes(seed):
    """20 heads drawn at random (each is compiled once), 5 batches and masks for each."""

    def between(low, high, generator):
        return int(torch.randint(low, high + 1, (), generator=generator))

    compiled = partial(between, generator=torch.Generator().manual_seed(seed % 20))
    drawn = partial(between, generator=torch.Generator().manual_seed(seed))
    hold(
        MAPS[compiled(0, 4)],
        DTYPES[compiled(0, 2)],
        features=compiled(8, 512),
        dim=compiled(8, 128),
        width=compiled(8, 128),
        batch=drawn(1, 3),
        heads=drawn(1, 4),
        queries=drawn(16, 700),
        keys=drawn(16, 700),
        masked=bool(drawn(0, 1)),
    )


@pytest.mark.gpu
def test_addresses_beyond_two_to_the_31():
    x = torch.zeros(1, 1, 2**31 // 64 + 300, 64, device="cuda", dtype=torch.bfloat16)
    last = x[:, :, -200:].normal_()
    w = orthogonal_projection(32, 64, seed=0).cuda()
    options = {"feature_map": "relu", "feature_eps": 0.0, "eps": 0.0}  # zero keys weigh nothing
    actual = performer_attention(last, x, x, w, backend="triton", **options)
    expected = performer_attention(last, last, last, w, backend="torch", **options)
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.02)
