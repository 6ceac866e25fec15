"""The cores of attention: what happens between the projections q, k, v and the output.

A core is a module on (B, H, N, D) that owns the parameters of its mechanism and nothing else. All
cores answer the same three questions: the output, the weights of chosen queries, the FLOPs.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.ops.arguments import compute_dtype
from saccade.ops.softmax import softmax_attention, softmax_weights
from saccade.ops.taylor import (
    Algorithm,
    check_coefficients,
    explain_choice,
    num_features,
    speed_threshold,
    taylor_attention,
    taylor_weights,
)

__all__ = ["AttentionCore", "SoftmaxCore", "TaylorCore", "TaylorShiftCore"]


class AttentionCore(nn.Module, ABC):
    """What `MultiHeadAttention` asks of a mechanism.

    Args:
        num_heads: H.
        head_dim: D, the width of queries, keys and values in a head.
        attn_drop: Probability that an attention weight is dropped in training.
    """

    def __init__(self, num_heads: int, head_dim: int, *, attn_drop: float = 0.0) -> None:
        super().__init__()
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

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """The rows of `attention_weights` times v, by the fastest path."""

    @abstractmethod
    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The weights of chosen queries, (B, H, Q, S), rows summing to one."""

    @abstractmethod
    def flops(self, num_tokens: int) -> int:
        """FLOPs of matrix products for one sample, all heads, a multiply-add counted as 2."""

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """What a mechanism does to its output last; nothing by default."""
        del k, key_mask
        return out


class SoftmaxCore(AttentionCore):
    """Softmax of q.k / sqrt(D)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Fused softmax attention."""
        return softmax_attention(q, k, v, key_mask=key_mask)

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
        """4 N^2 D a head."""
        return 4 * self.num_heads * num_tokens**2 * self.head_dim


class TaylorCore(AttentionCore):
    """c + b s + a s^2 with s = q.k / sqrt(D), q and k as they are (TaylorIR).

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: As in `AttentionCore`. Dropping weights needs the weights: `direct` is then used
            at every length, so that the number of tokens does not change the training.
        coefficients: (a, b, c).
        algorithm: `direct`, `efficient`, or `auto`.
        N0: With `auto`, `efficient` is used for more than N0 tokens; by default
            `explain_choice` decides.
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
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        if attn_drop > 0 and algorithm == "efficient":
            raise ConfigError(
                f"attn_drop={attn_drop} with algorithm='efficient': the linear-time form has no "
                "weights to drop; use algorithm='direct' or 'auto', attn_drop=0, or proj_drop"
            )
        self.coefficients = check_coefficients((*coefficients,))
        self.algorithm = algorithm
        self._threshold = N0

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """The number of tokens above which the linear-time form is used."""
        if self._threshold is not None:
            return self._threshold
        return speed_threshold(self.head_dim, symmetric=True)

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        self._threshold = int(tokens)

    def choose(self, num_queries: int, num_keys: int) -> Algorithm:
        """The algorithm for a number of tokens: the explicit one, by N0, or the library's rule."""
        if self.attn_drop > 0:
            return "direct"
        if self.algorithm != "auto":
            return self.algorithm
        if self._threshold is None:
            return explain_choice(num_queries, num_keys, head_dim=self.head_dim).algorithm
        return "efficient" if num_keys > self._threshold else "direct"

    def scores_from(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """q, k and scale such that s = scale q.k."""
        return q, k, self.head_dim**-0.5

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Taylor attention by the chosen algorithm."""
        return self.attend_by(self.choose(q.shape[2], k.shape[2]), q, k, v, key_mask=key_mask)

    def attend_by(
        self, algorithm: Algorithm, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """Taylor attention by a given algorithm."""
        q, k, scale = self.scores_from(q, k)
        out = taylor_attention(
            q,
            k,
            v.to(q.dtype),
            scale=scale,
            coefficients=self.coefficients,
            key_mask=key_mask,
            algorithm=algorithm,
        )
        return out.to(v.dtype)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the Taylor-softmax."""
        dtype = q.dtype
        q, k, scale = self.scores_from(q, k)
        weights = taylor_weights(
            q,
            k,
            scale=scale,
            coefficients=self.coefficients,
            key_mask=key_mask,
            queries=queries,
        )
        return weights.to(dtype)

    def flops(self, num_tokens: int) -> int:
        """4 N^2 D a head, or 4 N F (D+1) in linear time."""
        if self.choose(num_tokens, num_tokens) == "direct":
            return 4 * self.num_heads * num_tokens**2 * self.head_dim
        features = num_features(self.head_dim)
        return 4 * self.num_heads * num_tokens * features * (self.head_dim + 1)

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"coefficients={self.coefficients}, algorithm={self.algorithm!r}, N0={self.N0}"


class TaylorShiftCore(TaylorCore):
    """TaylorShift (arXiv:2403.02920): unit q and k, temperature tau per head, s = tau q.k.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: As in `TaylorCore`.
        coefficients: (a, b, c).
        algorithm: As in `TaylorCore`.
        N0: As in `TaylorCore`.
        normalize_input: Divide every q and k by its length. Without it s = tau q.k / sqrt(D).
        output_normalized: Multiply the output by sqrt(N / D), N the number of keys attended to,
            which keeps its size independent of N.
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
        normalize_input: bool = True,
        output_normalized: bool = True,
    ) -> None:
        super().__init__(
            num_heads,
            head_dim,
            attn_drop=attn_drop,
            coefficients=coefficients,
            algorithm=algorithm,
            N0=N0,
        )
        self.normalize_input = normalize_input
        self.output_normalized = output_normalized
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def scores_from(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """tau q/|q|, k/|k| and 1, no longer rounded to half precision."""
        dtype = compute_dtype(q.dtype)
        q, k, scale = q.to(dtype), k.to(dtype), self.head_dim**-0.5
        if self.normalize_input:
            q, k, scale = F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.0
        return q * self.temperature.to(dtype), k, scale

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Multiply by sqrt(N / D)."""
        if not self.output_normalized:
            return out
        if key_mask is None:
            return out * math.sqrt(k.shape[2] / self.head_dim)
        attended = key_mask.sum(dim=-1).to(compute_dtype(out.dtype))[:, None, None, None]
        factor: Tensor = (attended / self.head_dim).sqrt().to(out.dtype)
        return out * factor

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return (
            f"{super().extra_repr()}, normalize_input={self.normalize_input}, "
            f"output_normalized={self.output_normalized}"
        )
