"""Attention cores: the computation between the projections q, k, v and the output projection.

A core is a module on tensors (B, H, N, D). It owns the parameters of its mechanism and no others.
Every core computes its output, the attention weights of chosen queries, and its FLOPs.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.residual import is_hooked
from saccade.ops.arguments import Backend
from saccade.ops.softmax import packed_softmax_attention, softmax_attention, softmax_weights
from saccade.ops.taylor import (
    Algorithm,
    check_coefficients,
    explain_choice,
    num_features,
    packed_taylor_attention,
    speed_threshold,
    taylor_attention,
    taylor_weights,
)

__all__ = ["AttentionCore", "SoftmaxCore", "TaylorCore"]


class AttentionCore(nn.Module, ABC):
    """Base class of the attention mechanisms of `MultiHeadAttention`.

    Args:
        num_heads: Number of heads H.
        head_dim: Width D of queries, keys and values in a head.
        attn_drop: Probability that an attention weight is dropped in training.
    """

    can_drop_weights: ClassVar[bool] = True
    """True if the mechanism can form its weights in training, which `attn_drop` needs."""

    export_obstacle: ClassVar[str | None] = None
    """Why the mechanism has no graph that can be exported; None if it has one."""

    equation_options: ClassVar[tuple[str, ...]] = ()
    """Names of the numbers, besides tensors, that the equation of the entry needs."""

    without_gradient: ClassVar[tuple[str, ...]] = ()
    """Buffers of numbers through which nothing is differentiated, such as those of a hash."""

    def __init__(self, num_heads: int, head_dim: int, *, attn_drop: float = 0.0) -> None:
        super().__init__()
        if attn_drop > 0 and not self.can_drop_weights:
            raise ConfigError(
                f"attn_drop must be 0, got {attn_drop}: linear attention has no weights to drop; "
                "use proj_drop, or an attention with weights (softmax, taylor, taylorshift)"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.attn_drop = attn_drop

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """Attend: (B, H, N, D), (B, H, S, D), (B, H, S, E) -> (B, H, N, E)."""
        if self.training and self.attn_drop > 0:
            weights = self.attention_weights(q, k, key_mask=key_mask)
            out = F.dropout(weights, self.attn_drop) @ v
        else:
            out = self.attend(q, k, v, key_mask=key_mask)
        return self.finish(out, k, key_mask)

    def packed(self, qkv: Tensor) -> Tensor:
        """Attend, with q, k and v in one tensor.

        Uses `attend_packed` if it supports the call, else `forward()`. Falls back to `forward()`
        so that hooks fire.

        Args:
            qkv: (B, N, 3, H, D).

        Returns:
            (B, N, H, E).
        """
        dropping = self.training and self.attn_drop > 0
        out = None if dropping or is_hooked(self) else self.attend_packed(qkv)
        if out is None:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            out = self(q, k, v).transpose(1, 2)
        return out

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Attend in one kernel; None if no kernel supports the call."""
        del qkv
        return None

    def __init_subclass__(cls) -> None:
        """Reset `attend_packed` in a subclass that overrides the computation of its parent."""
        super().__init_subclass__()
        if "attend_packed" not in vars(cls) and {"forward", "attend", "finish"} & vars(cls).keys():
            cls.attend_packed = AttentionCore.attend_packed  # type: ignore[method-assign]

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Attention weights times v, by the fastest path."""

    @abstractmethod
    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention weights of chosen queries, (B, H, Q, S).

        `Attention.rows` of the entry describes the rows; most sum to one.
        """

    @abstractmethod
    def flops(self, num_tokens: int) -> int:
        """FLOPs of the matrix products for one sample, all heads; a multiply-add counts as 2."""

    def equation_parameters(self) -> dict[str, Any]:
        """Arguments of the entry's equation by name: parameters, buffers and numbers."""
        numbers = {name: getattr(self, name) for name in self.equation_options}
        return numbers | dict(self.named_parameters()) | dict(self.named_buffers())

    def resize(self, tokens: int) -> None:
        """Adapt to another maximum number of tokens; most cores accept any number."""
        del tokens

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor | None:
        """The softmax attention that `attend` approximates; None if it approximates none."""
        del q, k, v, key_mask
        return None

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Postprocess the output, such as scale it; the identity by default."""
        del k, key_mask
        return out


class SoftmaxCore(AttentionCore):
    """Softmax of q.k / sqrt(D)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Fused softmax attention."""
        return softmax_attention(q, k, v, key_mask=key_mask)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Attend in one kernel, one program per head, if the sequence is short enough."""
        return packed_softmax_attention(qkv)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the softmax."""
        return softmax_weights(q, k, key_mask=key_mask, queries=queries)

    def flops(self, num_tokens: int) -> int:
        """4 N^2 D per head."""
        return 4 * self.num_heads * num_tokens**2 * self.head_dim


class TaylorCore(AttentionCore):
    """Taylor attention: weights c + b s + a s^2 of s = q.k / sqrt(D), as in TaylorIR.

    Args:
        num_heads: Number of heads H.
        head_dim: Width D of a head.
        attn_drop: As in `AttentionCore`. Only `direct` has weights to drop, so with dropout it is
            used at every length.
        coefficients: (a, b, c).
        algorithm: `direct`, `efficient`, or `auto`.
        N0: With `auto`, `efficient` is used for more than N0 tokens; by default
            `explain_choice` chooses.
        backend: As in `taylor_attention`.
        center_keys: Subtract the mean of the attended keys from the keys. This does not change
            softmax, and brings these weights closer to softmax.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        coefficients: tuple[float, float, float] = (0.5, 1.0, 1.0),
        algorithm: Algorithm = "auto",
        N0: int | None = None,
        backend: Backend = "auto",
        center_keys: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        if attn_drop > 0 and algorithm == "efficient":
            raise ConfigError(
                f"attn_drop must be 0 with algorithm='efficient', got {attn_drop}: the linear-time "
                "form has no weights to drop; use algorithm='direct' or 'auto', or proj_drop"
            )
        self.coefficients = check_coefficients((*coefficients,))
        self.algorithm = algorithm
        self.backend = backend
        self.center_keys = center_keys
        self._threshold = N0

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """The number of tokens above which the linear-time form is used.

        By default this is the threshold by FLOPs. `explain_choice` uses twice as many tokens on a
        CPU, and measured thresholds for fused kernels.
        """
        if self._threshold is not None:
            return self._threshold
        return speed_threshold(self.head_dim, symmetric=True)

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        self._threshold = int(tokens)

    def choose(self, num_queries: int, num_keys: int) -> Algorithm:
        """The algorithm for a number of tokens: as set, else by N0, else by `explain_choice`."""
        algorithm = self._settled(num_keys)
        if algorithm != "auto":
            return algorithm
        return explain_choice(num_queries, num_keys, head_dim=self.head_dim).algorithm

    def _settled(self, num_keys: int) -> Algorithm:
        """The algorithm that the options imply; `auto` if `taylor_attention` is to choose."""
        if self.attn_drop > 0:
            return "direct"
        if self.algorithm != "auto" or self._threshold is None:
            return self.algorithm
        return "efficient" if num_keys > self._threshold else "direct"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Taylor attention by the chosen algorithm."""
        return self.attend_by(self._settled(k.shape[2]), q, k, v, key_mask=key_mask)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Attend in one kernel, one program per head, if the sequence is short enough.

        None with `center_keys`, which changes the keys before the kernels read them.
        """
        if self.center_keys:
            return None
        return packed_taylor_attention(
            qkv,
            None,
            coefficients=self.coefficients,
            algorithm=self._settled(qkv.shape[1]),
            backend=self.backend,
        )

    def attend_by(
        self, algorithm: Algorithm, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """Taylor attention by a given algorithm."""
        return taylor_attention(
            q,
            k,
            v,
            coefficients=self.coefficients,
            key_mask=key_mask,
            center_keys=self.center_keys,
            algorithm=algorithm,
            backend=self.backend,
        )

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the Taylor softmax."""
        return taylor_weights(
            q,
            k,
            coefficients=self.coefficients,
            key_mask=key_mask,
            center_keys=self.center_keys,
            queries=queries,
        )

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """Softmax attention of the same scores q.k / sqrt(D)."""
        return softmax_attention(q, k, v, key_mask=key_mask)

    def flops(self, num_tokens: int) -> int:
        """4 N^2 D per head, or 4 N F (D + 1) in linear time."""
        if self.choose(num_tokens, num_tokens) == "direct":
            return 4 * self.num_heads * num_tokens**2 * self.head_dim
        features = num_features(self.head_dim)
        return 4 * self.num_heads * num_tokens * features * (self.head_dim + 1)

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        options = f"coefficients={self.coefficients}, algorithm={self.algorithm!r}, N0={self.N0}"
        return f"{options}, center_keys=True" if self.center_keys else options
