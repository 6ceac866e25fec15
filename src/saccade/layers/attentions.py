"""The table of attentions by name, and the function that builds a core from it.

An entry names its core as a string, and the core is imported when it is built. So the table can be
read without torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.errors import ConfigError, UnknownNameError
from saccade.registry import Registry

if TYPE_CHECKING:
    from saccade.layers.cores import AttentionCore
    from saccade.layers.equations import Equation

__all__ = [
    "ATTENTIONS",
    "Attention",
    "check_options",
    "create_core",
    "list_attentions",
    "register_attention",
]

_COMMON = {"self", "num_heads", "head_dim", "attn_drop"}


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
    """

    core: type[AttentionCore] | str
    summary: str
    linear: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)
    equation: Equation | str | None = None
    weight: str = ""
    cost: str = ""

    @property
    def core_class(self) -> type[AttentionCore]:
        """The class that implements it."""
        found: type[AttentionCore] = _resolved(self.core)
        return found

    @property
    def equation_function(self) -> Equation:
        """The equation; raises if the attention was registered without one."""
        if self.equation is None:
            raise ConfigError("this attention was registered without an equation to be held to")
        found: Equation = _resolved(self.equation)
        return found

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
    ),
)
