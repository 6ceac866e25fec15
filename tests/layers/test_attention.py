"""Multi-head attention with each core: results, saved state, errors, compilation."""

import shutil
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.errors import ConfigError, UnknownNameError
from saccade.layers import (
    ATTENTIONS,
    Attention,
    AttentionCore,
    MultiHeadAttention,
    create_core,
    list_attentions,
    register_attention,
)
from saccade.layers.cores import SoftmaxCore
from saccade.layers.performers import FeatureCore, LearnedFeatureCore, RandomFeatureCore
from saccade.ops.taylor import speed_threshold
from tests.waiting import PATIENCE_S

NAMES = list_attentions()
# Inductor needs a C++ compiler on the CPU. Without one, the graph is still traced as a whole.
# (Plain aot_eager fails on softplus_backward in torch 2.13.)
BACKEND = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager_decomp_partition"
every_attention = pytest.mark.parametrize("name", NAMES)


def make(name, dim=32, heads=2, **options):
    torch.manual_seed(0)
    return MultiHeadAttention(dim, heads, name, **options)


def test_names():
    published = [
        "performer",
        "performer_elu",
        "performer_exp",
        "performer_ftheta",
        "performer_gelu",
        "performer_relu",
        "softmax",
        "taylor",
        "taylorshift",
    ]
    assert [name for name in NAMES if name in published] == published
    assert list_attentions("taylors*") == ["taylorshift"]


@every_attention
def test_parameters_have_timm_names(name):
    keys = [key for key in make(name).state_dict() if not key.startswith("core.")]
    assert keys == ["qkv.weight", "qkv.bias", "proj.weight", "proj.bias"]


def test_softmax_equals_torch_multi_head_attention():
    ours, peer = make("softmax"), nn.MultiheadAttention(32, 2, batch_first=True)
    with torch.no_grad():
        peer.in_proj_weight.copy_(ours.qkv.weight)
        peer.in_proj_bias.copy_(ours.qkv.bias)
        peer.out_proj.weight.copy_(ours.proj.weight)
        peer.out_proj.bias.copy_(ours.proj.bias)
    x, mask = torch.randn(3, 20, 32), torch.rand(3, 20) > 0.3
    expected, weights = peer(x, x, x, key_padding_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(ours(x, key_mask=mask), expected)
    torch.testing.assert_close(ours.attention_weights(x, key_mask=mask), weights)


@every_attention
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_output_equals_weights_times_values(name, masked):
    layer = make(name).double()
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    mask = (torch.rand(2, 30) > 0.4) if masked else None
    weights = layer.attention_weights(x, key_mask=mask)
    _, k, v = layer.heads(x)
    mixed = layer.core.finish(weights @ v, k, mask)
    expected = layer.proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, key_mask=mask), expected)


@pytest.mark.parametrize("name", [n for n in NAMES if ATTENTIONS[n].rows != "free"])
def test_rows_of_weights_sum_to_one(name):
    layer, x = make(name).double(), torch.randn(2, 30, 32, dtype=torch.float64)
    weights = layer.attention_weights(x, key_mask=torch.rand(2, 30) > 0.4)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 30).double())


@every_attention
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_core_equals_the_equation_of_its_entry(name, masked):
    core = create_core(name, 2, 16).double().eval()
    q, k, v = (torch.randn(2, 2, 30, 16, dtype=torch.float64) for _ in range(3))
    mask = (torch.rand(2, 30) > 0.4) if masked else None
    own = core.equation_parameters()
    expected = ATTENTIONS[name].equation_function(q, k, v, own, mask)
    torch.testing.assert_close(core(q, k, v, key_mask=mask), expected)


@every_attention
def test_every_parameter_gets_a_gradient(name):
    layer = make(name)
    layer(torch.randn(2, 30, 32)).square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@every_attention
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes_match_float32(name, dtype):
    layer = make(name)
    x = torch.randn(2, 30, 32)
    expected = layer(x)
    actual = layer.to(dtype)(x.to(dtype))
    assert actual.dtype == dtype
    error = (actual.float() - expected).norm() / expected.norm()
    assert error < 16 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


@every_attention
def test_autocast_matches_float32(name):
    layer = make(name)
    x = torch.randn(2, 30, 32)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = layer(x)
    actual.float().sum().backward()
    assert actual.dtype == torch.bfloat16
    assert (actual.float() - expected).norm() / expected.norm() < 0.02
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def backends():
    """What to compile every attention with.

    Inductor takes many seconds. Chains of torch's own operators are traced as a whole instead, and
    so are all feature maps but the first: they come before the same linear attention. With inductor
    these are slow tests.
    """
    first: dict[type[AttentionCore], str] = {}
    for name in NAMES:
        entry = ATTENTIONS[name]
        kind = FeatureCore if issubclass(entry.core_class, FeatureCore) else entry.core_class
        if entry.parts or entry.rows != "convex":
            yield name, "aot_eager_decomp_partition"
        elif first.setdefault(kind, name) == name:
            yield name, BACKEND
        else:
            yield name, "aot_eager_decomp_partition"
            yield pytest.param(name, BACKEND, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "backend"), list(backends()))
def test_compiles_to_one_graph(name, backend):
    torch._dynamo.reset()
    layer = make(name)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(2, 30, 32)
    out = compiled(x)
    torch.testing.assert_close(out, layer(x))
    gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


@every_attention
def test_compiles_without_a_traceable_autocast_query(name, monkeypatch):
    """torch 2.11 cannot trace `is_autocast_available`, which broke the graph in every block."""
    ask = torch._dynamo.disable(torch.amp.is_autocast_available)
    monkeypatch.setattr(torch.amp, "is_autocast_available", ask)
    torch._dynamo.reset()
    compiled = torch.compile(make(name), fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(torch.randn(2, 30, 32)).dtype == torch.bfloat16


@every_attention
def test_exports_for_any_batch_size(name):
    layer = make(name).eval()
    x = torch.randn(2, 30, 32)
    exported = torch.export.export(
        layer, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    )
    other = torch.randn(5, 30, 32)
    torch.testing.assert_close(exported.module()(other), layer(other))


LOAD = """
import sys, warnings
import torch
warnings.simplefilter("ignore")
folder, x = sys.argv[1], torch.ones(2, 30, 32)
for name in ("softmax", "performer"):
    torch.export.load(f"{folder}/{name}.pt2").module()(x)
assert "saccade" not in sys.modules
import saccade
try:
    torch.export.load(f"{folder}/taylorshift.pt2")
except RuntimeError as error:
    print(error)
else:
    sys.exit("loads without saccade.ops, contrary to the documentation")
import saccade.ops
print(torch.export.load(f"{folder}/taylorshift.pt2").module()(x).double().sum().item())
"""


def test_saved_programs_load_as_documented(tmp_path):
    """docs/attention.md: only programs of Taylor attention need `import saccade.ops`."""
    for name in ("softmax", "performer", "taylorshift"):
        layer = make(name).eval()
        exported = torch.export.export(layer, (torch.randn(2, 30, 32),))
        torch.export.save(exported, tmp_path / f"{name}.pt2")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    message, total = done.stdout.splitlines()
    assert "error when deserializing the saved file" in message
    assert "We failed to resolve torch.ops.saccade.taylor_direct" in done.stderr
    expected = layer(torch.ones(2, 30, 32)).double().sum().item()
    assert float(total) == pytest.approx(expected, rel=1e-5)


@every_attention
def test_exports_for_any_number_of_tokens(name):
    """Taylor attention needs a fixed algorithm: `auto` depends on the number of tokens."""
    given = {"algorithm": "efficient", "max_tokens": 4096, "rank": 8}
    options = {key: value for key, value in given.items() if key in ATTENTIONS[name].options}
    layer = make(name, attention_options=options).eval()
    tokens = torch.export.Dim("tokens", min=2, max=4000)
    exported = torch.export.export(
        layer, (torch.randn(2, 30, 32),), dynamic_shapes={"x": {1: tokens}}
    )
    other = torch.randn(2, 700, 32)
    torch.testing.assert_close(exported.module()(other), layer(other), rtol=1e-4, atol=1e-5)


@every_attention
def test_zero_tokens_give_zero_tokens(name):
    assert make(name)(torch.randn(2, 0, 32)).shape == (2, 0, 32)


@every_attention
def test_builds_on_meta(name):
    with torch.device("meta"):
        layer = make(name)
        assert layer(torch.empty(2, 30, 32)).shape == (2, 30, 32)
    assert all(p.is_meta for p in layer.parameters())


@every_attention
def test_flops_equal_torch_flop_counter(name):
    """On the meta device every operator is counted and none is run."""
    with torch.device("meta"):
        layer = make(name)
        x = torch.empty(1, 40, 32)
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    # The fused operator of softmax has no formula on every device.
    with counter, sdpa_kernel(SDPBackend.MATH):
        layer(x)
    assert layer.flops(40) == counter.get_total_flops()


@pytest.mark.parametrize("algorithm", ["direct", "efficient"])
def test_taylor_flops_equal_torch_flop_counter(algorithm):
    with torch.device("meta"):
        layer = make("taylorshift", attention_options={"algorithm": algorithm})
        x = torch.empty(1, 500, 32, requires_grad=True)
    counter = torch.utils.flop_counter.FlopCounterMode(display=False)
    with counter:
        out = layer(x)
        assert layer.flops(500) == counter.get_total_flops()
        out.sum().backward()
    assert counter.get_total_flops() > 2.9 * layer.flops(500)


@pytest.mark.parametrize("name", ["softmax", "taylor", "taylorshift"])
def test_weight_dropout_is_active_only_in_training(name):
    layer = make(name, attn_drop=0.5)
    x = torch.randn(2, 600, 32)
    plain = make(name)
    torch.testing.assert_close(layer.eval()(x), plain.eval()(x))
    layer.train()
    samples = torch.stack([layer(x) for _ in range(30)])
    assert not torch.equal(samples[0], samples[1])
    spread = samples.std(dim=0) / 30**0.5
    assert ((samples.mean(dim=0) - plain(x)).abs() < 6 * spread + 1e-4).float().mean() > 0.99


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not ATTENTIONS[name].core_class.can_drop_weights]
)
def test_weight_dropout_on_a_linear_path_is_refused(name):
    with pytest.raises(
        ConfigError, match=r"attn_drop must be 0, got 0.1: linear attention has no.*proj_drop"
    ):
        make(name, attn_drop=0.1)


def test_weight_dropout_refuses_efficient_and_makes_auto_direct():
    with pytest.raises(ConfigError, match="algorithm='direct'"):
        make("taylor", attn_drop=0.1, attention_options={"algorithm": "efficient"})
    assert make("taylor", attn_drop=0.1).core.choose(10**6, 10**6) == "direct"


@pytest.mark.parametrize("name", ["taylor", "taylorshift"])
def test_n0_switches_the_algorithm(name):
    layer = make(name)
    assert speed_threshold(16, symmetric=True) == layer.N0
    for n0, expected in ((-1, "efficient"), (2**64, "direct"), (29, "efficient"), (30, "direct")):
        layer.N0 = n0
        assert n0 == layer.N0
        assert layer.core.choose(30, 30) == expected


def test_softmax_has_no_n0():
    assert not hasattr(make("softmax"), "N0")
    with pytest.raises(AttributeError, match="softmax"):
        make("softmax").N0 = 3


def test_output_normalization_increases_the_output():
    x = torch.randn(2, 4096, 32)
    with_it = make("taylorshift")(x).std()
    without = make("taylorshift", attention_options={"output_normalized": False})(x).std()
    assert with_it / without > 5


def test_seed_and_projection_are_saved():
    layer = make("performer", attention_options={"feature_seed": 11, "num_features": 20})
    other = make("performer", attention_options={"feature_seed": 12, "num_features": 20})
    x = torch.randn(2, 10, 32)
    assert not torch.allclose(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert other.core.feature_seed == 11


def test_redraw_changes_projection_and_seed():
    core = RandomFeatureCore(2, 16, feature_seed=5)
    before = core.projection.clone()
    core.redraw()
    assert core.feature_seed != 5
    assert not torch.allclose(core.projection, before)
    core.redraw(5)
    assert torch.equal(core.projection, before)


def test_layers_draw_different_reproducible_features():
    torch.manual_seed(1)
    first, second = RandomFeatureCore(2, 16), RandomFeatureCore(2, 16)
    torch.manual_seed(1)
    again = RandomFeatureCore(2, 16)
    assert not torch.equal(first.projection, second.projection)
    assert torch.equal(first.projection, again.projection)


def test_learned_features_of_kind_mix():
    layer = make("performer_ftheta", attention_options={"kind": "mix", "num_features": 24})
    layer(torch.randn(2, 10, 32)).square().sum().backward()
    for parameter in layer.core.parameters():
        assert parameter.grad.abs().max() > 0
    with pytest.raises(UnknownNameError, match="did you mean 'mlp'"):
        LearnedFeatureCore(2, 16, kind="mpl")


def test_head_dim_sets_the_width_of_qkv():
    layer = MultiHeadAttention(30, 4, "softmax", head_dim=5)
    assert layer.qkv.out_features == 60
    assert layer(torch.randn(2, 7, 30)).shape == (2, 7, 30)


BAD = {
    "num_heads must be a divisor of dim=32, got 3": lambda: MultiHeadAttention(32, 3),
    "num_heads must be at least 1, got 0": lambda: MultiHeadAttention(32, 0),
    "head_dim must be at least 1, got -1": lambda: MultiHeadAttention(32, 2, head_dim=-1),
    r"attn_drop must be a probability in \[0, 1\), got 1\.5": lambda: MultiHeadAttention(
        32, 2, attn_drop=1.5
    ),
    "proj_drop must be a probability.*got -1": lambda: MultiHeadAttention(32, 2, proj_drop=-1),
    "unknown attention 'taylorshit': did you mean 'taylorshift'": lambda: MultiHeadAttention(
        32, 2, "taylorshit"
    ),
    "unknown option of attention 'performer' 'num_feature': did you mean 'num_features'": (
        lambda: MultiHeadAttention(32, 2, "performer", attention_options={"num_feature": 3})
    ),
    "unknown option of attention 'performer_relu' 'feature_map'": lambda: MultiHeadAttention(
        32, 2, "performer_relu", attention_options={"feature_map": "gelu"}
    ),
    "num_features must be at least 1, got 0": lambda: MultiHeadAttention(
        32, 2, "performer", attention_options={"num_features": 0}
    ),
    "shifted must be False without a window, got True": lambda: MultiHeadAttention(
        32, 2, shifted=True
    ),
    r"window must have sides of at least 1, got \(2, 0\)": lambda: MultiHeadAttention(
        32, 2, window=(2, 0)
    ),
    "grid must be .* among 9 tokens, got None": lambda: MultiHeadAttention(32, 2, window=2)(
        torch.ones(1, 9, 32)
    ),
    r"grid must be .* among 9 tokens, got \(4, 4\)": lambda: MultiHeadAttention(32, 2, window=2)(
        torch.ones(1, 9, 32), grid=(4, 4)
    ),
    r"x must be a tensor of shape \(B, N, 32\), got \(1, 9, 31\)": lambda: MultiHeadAttention(
        32, 2
    )(torch.ones(1, 9, 31)),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused(message):
    with pytest.raises(ConfigError, match=message):
        BAD[message]()


class Kernel(SoftmaxCore):
    """Has a kernel for q, k and v in one tensor."""

    def attend_packed(self, qkv):
        return torch.full_like(qkv[:, :, 0], 7.0)


class Child(Kernel):
    """Overrides nothing."""


class Halved(Kernel):
    """Overrides `attend`, which makes the inherited kernel wrong."""

    def attend(self, q, k, v, *, key_mask):
        return super().attend(q, k, v, key_mask=key_mask) / 2


def test_packed_kernel_is_not_inherited_if_attend_is_overridden():
    qkv = torch.randn(2, 5, 3, 2, 8)
    assert (Child(2, 8).packed(qkv) == 7).all()
    expected = SoftmaxCore(2, 8)(*qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2)
    torch.testing.assert_close(Halved(2, 8).packed(qkv), expected / 2)


def forward_hook(core, calls):
    core.register_forward_hook(lambda *_: calls.append("forward"))


def backward_hook(core, calls):
    core.register_full_backward_hook(lambda *_: calls.append("backward"))


@pytest.mark.parametrize("hook", [forward_hook, backward_hook])
def test_packed_attention_fires_hooks(hook):
    core, calls = Kernel(2, 8), []
    hook(core, calls)
    core.packed(torch.randn(2, 5, 3, 2, 8, requires_grad=True)).sum().backward()
    assert len(calls) == 1


def test_register_attention_adds_an_attention():
    class Uniform(SoftmaxCore):
        """Attends to all tokens equally."""

        def attend(self, q, k, v, *, key_mask):
            return v.mean(dim=2, keepdim=True).expand(-1, -1, q.shape[2], -1)

    register_attention("uniform_for_test", Attention(Uniform, "a test", linear=True))
    layer = make("uniform_for_test")
    assert isinstance(layer.core, AttentionCore)
    out = layer(torch.randn(1, 5, 32))
    torch.testing.assert_close(out[:, :1].expand_as(out), out)
    with pytest.raises(ConfigError, match="already registered"):
        register_attention("uniform_for_test", ATTENTIONS["softmax"])
    del ATTENTIONS._entries["uniform_for_test"]


def test_create_core_without_a_layer():
    core = create_core("performer_gelu", 2, 8, options={"num_features": 16})
    q = torch.randn(1, 2, 5, 8)
    assert core(q, q, q).shape == (1, 2, 5, 8)


@torch.no_grad()
def relative_error(core: AttentionCore, q: Tensor, k: Tensor, v: Tensor) -> float:
    exact = core.softmax_counterpart(q, k, v, key_mask=None)
    assert exact is not None
    return float((core.attend(q, k, v, key_mask=None) - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["taylor", "taylorshift"])
def test_taylor_approaches_softmax_for_small_scores(name: str) -> None:
    torch.manual_seed(0)
    core = create_core(name, 2, 16)
    q, k, v = torch.randn(3, 2, 2, 50, 16)
    errors = []
    for size in (1.0, 0.5, 0.25):
        if name == "taylorshift":
            core.temperature.data.fill_(4 * size)
        errors.append(relative_error(core, q * size, k, v))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


def test_favor_approaches_softmax_with_more_features() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 50, 16)
    few, many = (
        relative_error(
            create_core("performer", 2, 16, options={"num_features": m}), q / 2, k / 2, v
        )
        for m in (16, 1024)
    )
    assert many < few / 3


def test_only_approximations_have_a_softmax_counterpart() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 16)
    approximate = {
        name
        for name in list_attentions()
        if create_core(name, 2, 16).softmax_counterpart(q, k, v, key_mask=None) is not None
    }
    assert approximate == {"taylor", "taylorshift", "performer"}
