"""The table of attentions by name, and how a core is built from it.

A core is named by its place and imported when it is built: the table itself needs no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from saccade.errors import UnknownNameError
from saccade.registry import Registry

if TYPE_CHECKING:
    from saccade.layers.cores import AttentionCore

__all__ = ["ATTENTIONS", "Attention", "create_core", "list_attentions", "register_attention"]

_COMMON = {"self", "num_heads", "head_dim", "attn_drop"}


@dataclass(frozen=True)
class Attention:
    """An entry of the table.

    Attributes:
        core: The class that implements it, or its place in this package: `cores.SoftmaxCore`.
        summary: One line for people.
        linear: Whether its cost grows linearly with the number of tokens (or can).
        fixed: Options of the core that the name decides.
    """

    core: type[AttentionCore] | str
    summary: str
    linear: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def core_class(self) -> type[AttentionCore]:
        """The class that implements it."""
        if not isinstance(self.core, str):
            return self.core
        module, _, name = self.core.rpartition(".")
        found: type[AttentionCore] = getattr(import_module(f"{__package__}.{module}"), name)
        return found

    @property
    def options(self) -> tuple[str, ...]:
        """The options that a user can set."""
        parameters = inspect.signature(self.core_class.__init__).parameters
        return tuple(name for name in parameters if name not in _COMMON and name not in self.fixed)


ATTENTIONS: Registry[Attention] = Registry("attention")


def register_attention(name: str, attention: Attention) -> None:
    """Add an attention to the table; a name taken already raises."""
    ATTENTIONS.register(name, attention)


def list_attentions(pattern: str = "*") -> list[str]:
    """The names of attentions that match a shell pattern."""
    return ATTENTIONS.names(pattern)


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
        num_heads: H.
        head_dim: D.
        attn_drop: Dropout of the attention weights.
        options: Options of that attention; one it does not have raises.
    """
    attention = ATTENTIONS[name]
    options = dict(options or {})
    for option in options:
        if option not in attention.options:
            raise UnknownNameError(f"option of attention {name!r}", option, attention.options)
    chosen = {**attention.fixed, **options}
    return attention.core_class(num_heads, head_dim, attn_drop=attn_drop, **chosen)


register_attention(
    "softmax", Attention("cores.SoftmaxCore", "softmax of q.k/sqrt(D), fused", linear=False)
)
register_attention(
    "taylor",
    Attention("cores.TaylorCore", "1 + s + s^2/2 of s = q.k/sqrt(D), as in TaylorIR", linear=True),
)
register_attention(
    "taylorshift",
    Attention(
        "cores.TaylorShiftCore",
        "1 + s + s^2/2 of unit q and k, temperature, output scaling",
        linear=True,
    ),
)
for _suffix, _feature_map, _summary in (
    ("", "favor_softmax", "FAVOR+: random positive features of the softmax"),
    ("_relu", "relu", "random features max(Wx, 0)"),
    ("_exp", "exp", "random features exp(Wx), clamped"),
    ("_gelu", "gelu", "random features gelu(Wx) + 0.17"),
    ("_elu", "elu", "random features elu(Wx) + 1"),
):
    register_attention(
        f"performer{_suffix}",
        Attention(
            "performers.RandomFeatureCore",
            _summary,
            linear=True,
            fixed={"feature_map": _feature_map},
        ),
    )
register_attention(
    "performer_ftheta",
    Attention("performers.LearnedFeatureCore", "learned positive features", linear=True),
)
