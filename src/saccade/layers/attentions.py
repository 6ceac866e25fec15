"""The table of attentions by name, and the function that builds a core from it.

An entry names its core as a string, and the core is imported when it is built. So the table can be
read without torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from saccade.errors import ConfigError, UnknownNameError
from saccade.registry import Registry

if TYPE_CHECKING:
    from saccade.layers.cores import AttentionCore
    from saccade.layers.equations import Equation

__all__ = [
    "ATTENTIONS",
    "LEARNING_RATE",
    "Around",
    "Attention",
    "Rows",
    "check_options",
    "create_core",
    "describe_kind",
    "list_attentions",
    "register_attention",
]

_COMMON = {"self", "num_heads", "head_dim", "attn_drop"}

Rows = Literal["convex", "signed", "free"]
"""Properties of a row of weights.

`convex`: no weight is negative, and they sum to 1. `signed`: they sum to 1, and some may be
negative. `free`: neither holds.
"""


@dataclass(frozen=True)
class Around:
    """Candidates around a recipe's own value, on a logarithmic scale.

    Attributes:
        factor: The candidates lie between the value divided and multiplied by this.
    """

    factor: float


LEARNING_RATE: dict[str, Around | Sequence[Any]] = {"optim.lr": Around(10)}
"""The learning rate alone, the search space of most attentions."""

NUM_FEATURES: dict[str, Around | Sequence[Any]] = {
    "model.attention_options.num_features": (16, 32, 64, 128)
}


@dataclass(frozen=True)
class Attention:
    """One attention in the table.

    Attributes:
        core: The class that implements it, or its name in this package: `cores.SoftmaxCore`.
        summary: One-line description.
        linear: True if its cost grows linearly with the number of tokens, or can.
        fixed: Options of the core that the entry sets; users cannot change them.
        equation: The reference for its fast path: a function as in `layers/equations.py`, or its
            name in this package, such as `equations.softmax`.
        weight: The weight of a key, for the table in docs/attention.md.
        cost: FLOPs per head, forward, for the same table.
        parts: What is inside of an attention of linear cost besides products of features, such as
            `softmax`. With such a part it is a hybrid, without one it is pure.
        fixed_length: True if the longest sequence is set when the core is built.
        rows: Properties of the rows of its weights.
        ordered: True if the order of the keys matters, as with segments, buckets or learned
            positions.
        self_only: True if queries and keys must be of the same tokens, because an output depends on
            other queries or on positions. The mask of the keys is then used for the queries too.
        untrained: Why the core is meaningless before training; None if it is not.
        search: What `saccade compare --tune` searches for this attention: keys of the
            configuration, each with candidates beside the recipe's own value. The key of an option
            is `model.attention_options.OPTION`.
    """

    core: type[AttentionCore] | str
    summary: str
    linear: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)
    equation: Equation | str | None = None
    weight: str = ""
    cost: str = ""
    parts: tuple[str, ...] = ()
    fixed_length: bool = False
    rows: Rows = "convex"
    ordered: bool = False
    self_only: bool = False
    untrained: str | None = None
    search: Mapping[str, Around | Sequence[Any]] = field(default_factory=lambda: LEARNING_RATE)

    @property
    def core_class(self) -> type[AttentionCore]:
        """The class that implements it."""
        found: type[AttentionCore] = _resolved(self.core)
        return found

    @property
    def equation_function(self) -> Equation:
        """The equation; raises if the attention was registered without one."""
        if self.equation is None:
            raise ConfigError("equation must be given to register_attention, got None")
        found: Equation = _resolved(self.equation)
        return found

    @property
    def kind(self) -> str:
        """`quadratic`; `pure`, a linear kernel alone; or `hybrid`, with the parts inside."""
        return self.kind_with(())

    def kind_with(self, more: Iterable[str]) -> str:
        """`kind` of a model that adds parts of its own, such as a convolution of the values."""
        parts = (*self.parts, *more)
        name = ("hybrid" if parts else "pure") if self.linear else "quadratic"
        return f"{name} ({', '.join(parts)})" if parts else name

    @property
    def length(self) -> str:
        """The lengths of sequences that one core accepts: `any` or `fixed`."""
        return "fixed" if self.fixed_length else "any"

    @property
    def options(self) -> tuple[str, ...]:
        """The options that a user can set."""
        parameters = inspect.signature(self.core_class.__init__).parameters
        return tuple(name for name in parameters if name not in _COMMON and name not in self.fixed)


def _resolved(place: Any) -> Any:
    """The object with a name in this package; objects that are not strings are returned."""
    if not isinstance(place, str):
        return place
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)


ATTENTIONS: Registry[Attention] = Registry("attention")


def register_attention(name: str, attention: Attention) -> None:
    """Add an attention to the table; raise if the name is taken."""
    ATTENTIONS.register(name, attention)


def describe_kind(name: str, *, local_conv: bool = False) -> str:
    """The kind of an attention in a model, or nothing if its name is unknown.

    Args:
        name: Name of the attention.
        local_conv: True if the model adds its convolution of the values.
    """
    more = ("convolution",) if local_conv else ()
    return ATTENTIONS[name].kind_with(more) if name in ATTENTIONS else ""


def list_attentions(pattern: str = "*") -> list[str]:
    """Names of the attentions that match a shell pattern."""
    return ATTENTIONS.names(pattern)


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise `UnknownNameError` for a name of an option that an attention does not have."""
    known = ATTENTIONS[name].options
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of attention {name!r}", option, known)


def create_core(
    name: str,
    num_heads: int,
    head_dim: int,
    *,
    attn_drop: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> AttentionCore:
    """Build the core of a named attention.

    Args:
        name: One of `list_attentions()`.
        num_heads: Number of heads H.
        head_dim: Width D of a head.
        attn_drop: Dropout of the attention weights.
        options: Options of that attention; an unknown option raises.
    """
    attention = ATTENTIONS[name]
    options = dict(options or {})
    check_options(name, options)
    chosen = {**attention.fixed, **options}
    return attention.core_class(num_heads, head_dim, attn_drop=attn_drop, **chosen)


register_attention(
    "softmax",
    Attention(
        "cores.SoftmaxCore",
        "softmax of q.k/sqrt(D), fused",
        linear=False,
        equation="equations.softmax",
        weight="exp(s)",
        cost="4 N^2 D",
    ),
)
register_attention(
    "taylor",
    Attention(
        "cores.TaylorCore",
        "1 + s + s^2/2 of s = q.k/sqrt(D), as in TaylorIR",
        linear=True,
        equation="equations.taylor",
        weight="c + b s + a s^2; 1 + s + s^2/2 by default",
        cost="4 N^2 D or 4 N F (D + 1)",
    ),
)
register_attention(
    "taylorshift",
    Attention(
        "taylorshift.TaylorShiftCore",
        "1 + s + s^2/2 of unit q and k, temperature, output scaling",
        linear=True,
        equation="equations.taylorshift",
        weight=r"the same of s = tau q.k/(\|q\|\|k\|), tau learned; output times sqrt(N/D)",
        cost="as `taylor`",
    ),
)
for _suffix, _feature_map, _phi, _summary in (
    (
        "",
        "favor_softmax",
        r"phi = exp(z - \|x'\|^2/2): FAVOR+, estimates exp(s)",
        "FAVOR+: random positive features of the softmax",
    ),
    ("_relu", "relu", "phi = max(z, 0)", "random features max(Wx, 0)"),
    ("_exp", "exp", r"phi = exp(z), \|z\| limited to 10", "random features exp(Wx), clamped"),
    ("_gelu", "gelu", "phi = gelu(z) + 0.17", "random features gelu(Wx) + 0.17"),
    ("_elu", "elu", "phi = elu(z) + 1", "random features elu(Wx) + 1"),
):
    register_attention(
        f"performer{_suffix}",
        Attention(
            "performers.RandomFeatureCore",
            _summary,
            linear=True,
            fixed={"feature_map": _feature_map} | ({"center_keys": False} if _suffix else {}),
            equation=f"equations.{_suffix[1:] or 'favor'}",
            weight=f"phi(q).phi(k), {_phi}",
            cost="4 N M (D + E)",
            search=LEARNING_RATE | NUM_FEATURES,
        ),
    )
register_attention(
    "performer_ftheta",
    Attention(
        "performers.LearnedFeatureCore",
        "learned positive features",
        linear=True,
        equation="equations.ftheta",
        weight="phi(q).phi(k), phi learned: softplus(MLP(x')) or "
        "mu exp(z/t) + (1 - mu) max(z/t, 0)",
        cost="4 N (K (D + M) + M E) for the MLP of width K",
        search=LEARNING_RATE | NUM_FEATURES,
    ),
)
register_attention(
    "relu_linear",
    Attention(
        "linear_kernels.ReluLinearCore",
        "products of max(q, 0) and max(k, 0), as in EfficientViT",
        linear=True,
        equation="linear_kernels.relu_linear",
        weight="max(q, 0).max(k, 0) + eps",
        cost="4 N D (E + 1)",
    ),
)
register_attention(
    "inline",
    Attention(
        "linear_kernels.InLineCore",
        "q.k made to sum to one by a shift, as in InLine",
        linear=True,
        equation="linear_kernels.inline",
        weight="(s + 1 - mean(s)) / N",
        cost="2 N D (2 E + 1)",
        rows="signed",
    ),
)
register_attention(
    "mala",
    Attention(
        "linear_kernels.MalaCore",
        "magnitude-aware: (1 + 1/z) phi(q).phi(k) - z, phi = elu + 1",
        linear=True,
        equation="linear_kernels.mala",
        weight="((1 + 1/mean(t)) t - mean(t)) / N, t = phi(q).phi(k)/sqrt(D), phi = elu + 1",
        cost="2 N D (2 E + 1)",
        rows="signed",
    ),
)
register_attention(
    "rfa",
    Attention(
        "linear_kernels.RfaCore",
        "random sines and cosines of unit q and k",
        linear=True,
        equation="linear_kernels.rfa",
        weight=r"phi(q).phi(k), phi = (sin(W x), cos(W x)) of x = q/\|q\|, k/\|k\|",
        cost="2 N M (D + 2 E + 1)",
        rows="signed",
    ),
)
register_attention(
    "linformer",
    Attention(
        "landmarks.LinformerCore",
        "softmax over learned mixtures of keys, for a fixed length",
        linear=True,
        equation="landmarks.linformer",
        weight="sum_r softmax(q.(E k)_r/sqrt(D)) F_rj, E and F learned",
        cost="8 N R D",
        parts=("softmax",),
        fixed_length=True,
        rows="free",
        ordered=True,
        untrained="its mixtures of keys and values are learned",
    ),
)
register_attention(
    "nystrom",
    Attention(
        "landmarks.NystromCore",
        "softmax through landmarks and a pseudo-inverse",
        linear=True,
        equation="landmarks.nystrom",
        weight="softmax(q.L) Z softmax(l.k), landmarks l, L of q, k; Z near softmax(l.L)^-1",
        cost="12 N M D + 4 M^2 D + 48 M^3",
        parts=("softmax",),
        rows="free",
        ordered=True,
        self_only=True,
    ),
)
register_attention(
    "agent",
    Attention(
        "landmarks.AgentCore",
        "two softmaxes, through agents pooled from the queries",
        linear=True,
        equation="landmarks.agent",
        weight="sum_a softmax(q.a/sqrt(D)) softmax(a.k/sqrt(D)), agents a pooled from q",
        cost="10 N M D",
        parts=("softmax",),
        ordered=True,
        self_only=True,
    ),
)
register_attention(
    "reformer",
    Attention(
        "reformer.ReformerCore",
        "softmax among tokens of like hashes, in several rounds",
        linear=True,
        equation="reformer.reformer",
        weight=r"exp(x.y/(\|y\| sqrt(D))) of tokens in neighboring chunks, x = y = (q + k)/sqrt(2)",
        cost="R N (B D + 8 m D) for R rounds, B buckets, chunks of m",
        parts=("softmax",),
        ordered=True,
        self_only=True,
    ),
)
register_attention(
    "eva",
    Attention(
        "eva.EvaCore",
        "softmax over a window and one key for each run of tokens",
        linear=True,
        equation="eva.eva",
        weight="exp(s) in a window of w, exp(q.K_c/sqrt(D)) for the tokens of run c, K learned",
        cost="4 N (w + 3 m) D + 4 m D^2 for m runs",
        parts=("softmax",),
        ordered=True,
        self_only=True,
        untrained="the keys of its runs come from learned layers",
    ),
)
