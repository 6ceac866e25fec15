"""Attention of q, k and v that lie together, a head a program: softmax and both Taylor forms.

In float32 without a GPU, where the interpreter computes it exactly; on one in bfloat16.
"""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from saccade.ops.softmax import attention as softmax_module
from saccade.ops.softmax import packed_softmax_attention
from saccade.ops.softmax.reference import softmax_attention_reference
from saccade.ops.taylor import attention as taylor_module
from saccade.ops.taylor import packed_taylor_attention, taylorshift_attention
from tests.ops.fused_taylor import COEFFICIENTS, DEVICE, equation, shift_equation
from tests.ops.graphs import assert_replayed_alike
from tests.ops.mechanisms import assert_as_good_as_plain
from tests.ops.uninterpreted import seen_by

pytest.importorskip("triton")

from saccade.ops.softmax import triton as softmax_triton
from saccade.ops.softmax.triton import api
from saccade.ops.taylor import triton as taylor_triton

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
SHAPES = {
    "tokens of CIFAR-10": (3, 64, 2, 32),
    "wide": (2, 64, 2, 64),
    "odd": (2, 37, 3, 20),
    "one token": (2, 1, 2, 8),
    "a class token": (2, 65, 2, 32),
}
SHORT = [(3, 64, 2, 32), (2, 64, 2, 64), (2, 37, 3, 20), (2, 37, 2, 48), (2, 5, 2, 8)]


def draw(seed, shape):
    batch, tokens, heads, dim = shape
    generator = torch.Generator().manual_seed(seed)
    size = (batch, tokens, 3, heads, dim)
    return [torch.randn(size, generator=generator, dtype=torch.float64)]


def draw_shift(seed, shape):
    return [*draw(seed, shape), torch.linspace(0.5, 3.0, shape[2], dtype=torch.float64)]


def unpacked(attend, qkv, *rest):
    return attend(*qkv.permute(2, 0, 3, 1, 4), None, *rest).transpose(1, 2)


def softmax_equation(q, k, v, mask):
    return softmax_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5, key_mask=mask)


def fused_softmax(qkv):
    return softmax_triton.fused(qkv.to(DEVICE), scale=qkv.shape[-1] ** -0.5).to(qkv.device)


def fused_taylor(qkv, temperature=None):
    scale = 1.0 if temperature is not None else qkv.shape[-1] ** -0.5
    moved = temperature if temperature is None else temperature.to(DEVICE)
    return taylor_triton.fused_packed(
        qkv.to(DEVICE),
        scale=scale,
        coefficients=COEFFICIENTS if temperature is None else (0.5, 1.0, 1.0),
        temperature=moved,
        normalize_output=temperature is not None,
    ).to(qkv.device)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_softmax_is_as_good_as_plain_torch(shape):
    plain = partial(unpacked, softmax_equation)
    assert_as_good_as_plain(fused_softmax, plain, partial(draw, shape=shape), DTYPE, draws=4)


def test_large_scores_do_not_overflow():
    qkv = 100 * draw(0, (1, 20, 1, 16))[0].to(DTYPE).requires_grad_()
    out = fused_softmax(qkv)
    (grad,) = torch.autograd.grad(out.sum(), qkv)
    assert out.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("shape", SHORT)
def test_taylor_is_as_good_as_plain_torch(shape):
    plain = partial(unpacked, equation)
    assert_as_good_as_plain(fused_taylor, plain, partial(draw, shape=shape), DTYPE, draws=4)


@pytest.mark.parametrize("shape", [*SHORT, (2, 65, 2, 32)])
def test_taylorshift_is_as_good_as_plain_torch(shape):
    plain = partial(unpacked, shift_equation)
    make = partial(draw_shift, shape=shape)
    assert_as_good_as_plain(fused_taylor, plain, make, DTYPE)


def test_taylorshift_gives_what_it_gives_of_q_k_and_v():
    """The gradient of a temperature sums terms of both signs, so its rounding is larger."""
    draws = [packed_and_apart(seed) for seed in range(1, 7)]
    for epsilons, pairs in zip((4, 4, 8), zip(*draws, strict=True), strict=True):
        errors = sum((one - other).double().square().sum() for one, other in pairs)
        sizes = sum(other.double().square().sum() for _, other in pairs)
        assert (errors / sizes).sqrt() < epsilons * torch.finfo(DTYPE).eps


def packed_and_apart(seed):
    """Output and gradients of the packed kernel, each beside those of the usual one."""
    qkv, temperature = draw_shift(seed, (2, 48, 3, 16))
    together = qkv.to(DEVICE, DTYPE).requires_grad_()
    temperature = temperature.float().to(DEVICE).requires_grad_()
    options = {"normalize_output": True}
    run = partial(taylorshift_attention, algorithm="direct", backend="triton", **options)
    apart = run(*together.permute(2, 0, 3, 1, 4), temperature).transpose(1, 2)
    packed = taylor_triton.fused_packed(
        together, scale=1.0, coefficients=(0.5, 1.0, 1.0), temperature=temperature, **options
    )
    assert packed.is_contiguous()
    direction = torch.randn_like(packed)
    return list(
        zip(
            [packed, *torch.autograd.grad(packed, (together, temperature), direction)],
            [apart, *torch.autograd.grad(apart, (together, temperature), direction)],
            strict=True,
        )
    )


@pytest.mark.parametrize("fused", [fused_softmax, fused_taylor])
def test_gradients_and_inputs_may_lie_otherwise(fused):
    qkv = draw(2, (2, 33, 2, 16))[0].to(DTYPE)
    strided = qkv.transpose(0, 1).contiguous().transpose(0, 1)
    direction = draw(3, (2, 33, 2, 16))[0][:, :, 0].to(DTYPE)
    results = []
    for given, grad in ((qkv, direction), (strided, direction.mT.contiguous().mT)):
        leaf = given.detach().requires_grad_()
        out = fused(leaf)
        results.append([out, *torch.autograd.grad(out, leaf, grad)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fused", [fused_softmax, fused_taylor])
def test_no_samples(fused):
    qkv = torch.empty(0, 9, 3, 2, 16, dtype=DTYPE, requires_grad=True)
    out = fused(qkv)
    (grad,) = torch.autograd.grad(out.sum(), qkv)
    assert out.shape == (0, 9, 2, 16)
    assert grad.shape == qkv.shape


@pytest.mark.parametrize("fused", [fused_softmax, fused_taylor])
def test_operations_are_counted(fused):
    qkv = torch.randn(2, 32, 3, 4, 16, dtype=DTYPE, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        out = fused(qkv)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert forward.get_total_flops() == 4 * 2 * 4 * 32**2 * 16
    assert backward.get_total_flops() == 10 * 2 * 4 * 32**2 * 16


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("softmax_packed", (0.25,)),
        ("taylor_packed", (torch.ones(2, device=DEVICE), 1.0, 0.5, 1.0, 1.0, True)),
    ],
)
def test_what_is_traced_is_what_is_run(name, rest):
    qkv = torch.randn(2, 9, 3, 2, 16, dtype=DTYPE, device=DEVICE, requires_grad=True)
    torch.library.opcheck(
        getattr(torch.ops.saccade, name).default,
        (qkv, *rest),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )


def test_a_wrong_sign_is_caught(monkeypatch):
    launch_of = api.packed_attention_launch.__wrapped__

    def planted(*arguments):
        launch = launch_of(*arguments)
        *sizes, scale = launch.numbers
        launch.numbers = (*sizes, -scale)
        return launch

    monkeypatch.setattr(api, "packed_attention_launch", planted)
    plain = partial(unpacked, softmax_equation)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(
            fused_softmax, plain, partial(draw, shape=(1, 20, 2, 16)), DTYPE, draws=1
        )


def on_paper(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Have every tensor taken for one on a GPU; what would be run is noted."""
    taken = []

    def note(qkv, **options):
        taken.append(options)
        return qkv

    for module in (softmax_module, taylor_module):
        monkeypatch.setattr(module, "fused_obstacle", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(taylor_module, "_gpu_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(softmax_triton, "fused", note)
    monkeypatch.setattr(taylor_triton, "fused_packed", note)
    return taken


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        ((2, 64, 3, 4, 32), torch.bfloat16, True),
        ((2, 64, 3, 4, 32), torch.float32, False),
        ((2, 64, 3, 4, 32), torch.float16, False),
        ((2, 128, 3, 4, 32), torch.bfloat16, True),
        ((2, 129, 3, 4, 32), torch.bfloat16, False),
        ((2, 64, 3, 4, 64), torch.bfloat16, True),
        ((2, 65, 3, 4, 64), torch.bfloat16, False),
        ((2, 64, 3, 4, 128), torch.bfloat16, False),
    ],
)
def test_which_calls_softmax_takes(shape, dtype, taken, as_on_a_gpu):
    assert (packed_softmax_attention(on_paper(*shape, dtype=dtype)) is not None) is taken
    assert as_on_a_gpu == ([{"scale": shape[-1] ** -0.5}] if taken else [])


@pytest.mark.parametrize(
    ("shape", "options", "taken"),
    [
        ((2, 64, 3, 4, 32), {}, True),
        ((2, 65, 3, 4, 32), {}, False),
        ((2, 64, 3, 4, 64), {}, True),
        ((2, 64, 3, 4, 65), {}, False),
        ((2, 64, 3, 4, 32), {"algorithm": "efficient"}, False),
        ((2, 64, 3, 4, 32), {"backend": "torch"}, False),
        ((2, 64, 3, 4, 32), {"temperature": torch.ones(4)}, True),
        ((2, 65, 3, 4, 32), {"temperature": torch.ones(4)}, False),
    ],
)
def test_which_calls_taylor_takes(shape, options, taken, as_on_a_gpu):
    options = {"temperature": None, **options}
    assert (packed_taylor_attention(on_paper(*shape), **options) is not None) is taken
    assert len(as_on_a_gpu) == taken


def test_other_devices_go_by_q_k_and_v():
    qkv = torch.randn(2, 9, 3, 2, 16, dtype=torch.bfloat16)
    assert packed_softmax_attention(qkv) is None
    assert packed_taylor_attention(qkv, None) is None


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are a GPU's")
@pytest.mark.parametrize("fused", [fused_softmax, fused_taylor])
def test_a_captured_graph_gives_the_same_again(fused):
    qkv = torch.randn(4, 64, 3, 8, 32, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)

    def run():
        out = fused(qkv)
        return [out, *torch.autograd.grad(out, qkv, torch.ones_like(out))]

    assert_replayed_alike(run)


def test_kernels_compile_without_a_gpu_and_spill_nothing():
    spilled = seen_by("compile_short")
    assert len(spilled) == 3 * 6 + 2 * 3
    assert not any(spilled.values())
