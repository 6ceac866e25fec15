"""The cores of attention: what happens between the projections q, k, v and the output.

A core is a module on (B, H, N, D) that owns the parameters of its mechanism and nothing else. All
cores answer the same three questions: the output, the weights of chosen queries, the FLOPs.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.residual import is_hooked
from saccade.ops.arguments import Backend, compute_dtype
from saccade.ops.softmax import packed_softmax_attention, softmax_attention, softmax_weights
from saccade.ops.taylor import (
    Algorithm,
    check_coefficients,
    explain_choice,
    num_features,
    output_factor,
    packed_taylor_attention,
    speed_threshold,
    taylor_attention,
    taylor_weights,
    taylorshift_attention,
    unit_rows,
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

    def packed(self, qkv: Tensor) -> Tensor:
        """Attend, q, k and v lying together as one product leaves them.

        Whoever hooks into this module hears `forward` called.

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
        """`packed` in one kernel; None where there is none for such a call."""
        del qkv
        return None

    def __init_subclass__(cls) -> None:
        """A class that attends otherwise than its parent does not inherit the parent's kernel."""
        super().__init_subclass__()
        if "attend_packed" not in vars(cls) and {"forward", "attend", "finish"} & vars(cls).keys():
            cls.attend_packed = AttentionCore.attend_packed  # type: ignore[method-assign]

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

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor | None:
        """The softmax attention that `attend` approximates; None where it approximates none."""
        del q, k, v, key_mask
        return None

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """What a mechanism does to its output last; nothing by default."""
        del k, key_mask
        return out


class SoftmaxCore(AttentionCore):
    """Softmax of q.k / sqrt(D)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Fused softmax attention."""
        return softmax_attention(q, k, v, key_mask=key_mask)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Heads that are short enough, each in one program."""
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
        backend: As in `taylor_attention`.
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
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        if attn_drop > 0 and algorithm == "efficient":
            raise ConfigError(
                f"attn_drop={attn_drop} with algorithm='efficient': the linear-time form has no "
                "weights to drop; use algorithm='direct' or 'auto', attn_drop=0, or proj_drop"
            )
        self.coefficients = check_coefficients((*coefficients,))
        self.algorithm = algorithm
        self.backend = backend
        self._threshold = N0

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """The number of tokens above which the linear-time form is used.

        Where none was set, the one by FLOPs alone; a CPU goes by twice as many, and fused kernels
        have their own (`explain_choice`).
        """
        if self._threshold is not None:
            return self._threshold
        return speed_threshold(self.head_dim, symmetric=True)

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        self._threshold = int(tokens)

    def choose(self, num_queries: int, num_keys: int) -> Algorithm:
        """The algorithm for a number of tokens: the explicit one, by N0, or the library's rule."""
        algorithm = self._settled(num_keys)
        if algorithm != "auto":
            return algorithm
        return explain_choice(num_queries, num_keys, head_dim=self.head_dim).algorithm

    def _settled(self, num_keys: int) -> Algorithm:
        """What the options decide; `auto` leaves it to the function, which knows the device."""
        if self.attn_drop > 0:
            return "direct"
        if self.algorithm != "auto" or self._threshold is None:
            return self.algorithm
        return "efficient" if num_keys > self._threshold else "direct"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Taylor attention by the chosen algorithm."""
        return self.attend_by(self._settled(k.shape[2]), q, k, v, key_mask=key_mask)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Heads that are short enough, each in one program."""
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
        """Rows of the Taylor-softmax."""
        coefficients = self.coefficients
        return taylor_weights(q, k, coefficients=coefficients, key_mask=key_mask, queries=queries)

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """Softmax of q.k / sqrt(D), whose exp is expanded."""
        return softmax_attention(q, k, v, key_mask=key_mask)

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
        backend: As in `taylor_attention`.
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
        backend: Backend = "auto",
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
            backend=backend,
        )
        self.normalize_input = normalize_input
        self.output_normalized = output_normalized
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """As in every core; where nothing is dropped, both normalisations in one call."""
        if not self.normalize_input or (self.training and self.attn_drop > 0):
            return super().forward(q, k, v, key_mask=key_mask)
        algorithm = self._settled(k.shape[2])
        return self._shifted(algorithm, q, k, v, key_mask, self.output_normalized)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """Heads that are short enough, each in one program, where rows are normalised."""
        if not self.normalize_input:
            return None
        return packed_taylor_attention(
            qkv,
            self.temperature.flatten(),
            coefficients=self.coefficients,
            normalise_output=self.output_normalized,
            algorithm=self._settled(qkv.shape[1]),
            backend=self.backend,
        )

    def attend_by(
        self, algorithm: Algorithm, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """TaylorShift attention by a given algorithm, its output not yet scaled."""
        if self.normalize_input:
            return self._shifted(algorithm, q, k, v, key_mask, normalise_output=False)
        q = q * self.temperature.to(q.dtype)
        return super().attend_by(algorithm, q, k, v, key_mask=key_mask)

    def _shifted(
        self,
        algorithm: Algorithm,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        normalise_output: bool,
    ) -> Tensor:
        return taylorshift_attention(
            q,
            k,
            v,
            self.temperature.flatten(),
            coefficients=self.coefficients,
            key_mask=key_mask,
            normalise_output=normalise_output,
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
        """Rows of the Taylor-softmax of the normalised rows."""
        if not self.normalize_input:
            q = q * self.temperature.to(q.dtype)
            return super().attention_weights(q, k, queries=queries, key_mask=key_mask)
        q_unit, k_unit = unit_rows(q, k, self.temperature)
        weights = taylor_weights(
            q_unit,
            k_unit,
            scale=1.0,
            coefficients=self.coefficients,
            key_mask=key_mask,
            queries=queries,
        )
        return weights.to(q.dtype)

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """Softmax of the mechanism's own scores, those of normalised rows at its temperature."""
        if not self.normalize_input:
            return super().softmax_counterpart(
                q * self.temperature.to(q.dtype), k, v, key_mask=key_mask
            )
        q_unit, k_unit = unit_rows(q, k, self.temperature)
        return softmax_attention(
            q_unit.to(q.dtype), k_unit.to(k.dtype), v, scale=1.0, key_mask=key_mask
        )

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Multiply by sqrt(N / D)."""
        if not self.output_normalized:
            return out
        factor = output_factor(k, key_mask, compute_dtype(out.dtype))
        return out * (factor if isinstance(factor, float) else factor.to(out.dtype))

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return (
            f"{super().extra_repr()}, normalize_input={self.normalize_input}, "
            f"output_normalized={self.output_normalized}"
        )
