"""TaylorShift (arXiv:2403.02920): the core, and the layer with the published name and signature.

    s_ij = tau q_i.k_j / (|q_i| |k_j|),   w_ij = c + b s_ij + a s_ij^2
    o_i = sqrt(N / D) sum_j w_ij v_j / sum_j w_ij

Layout (B, H, N, D); cost as in `TaylorCore`.
"""

import math

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.attention import MultiHeadAttention
from saccade.layers.cores import TaylorCore
from saccade.ops.arguments import Backend, compute_dtype
from saccade.ops.centering import centered_keys
from saccade.ops.softmax import softmax_attention
from saccade.ops.taylor import (
    Algorithm,
    output_factor,
    packed_taylor_attention,
    speed_threshold,
    taylor_weights,
    taylorshift_attention,
    unit_rows,
)

__all__ = ["TaylorShiftAttention", "TaylorShiftCore"]


class TaylorShiftCore(TaylorCore):
    """Taylor-softmax of scores s = tau q.k / (|q| |k|), with a temperature tau per head.

    Without `normalize_input`, s = q.k / sqrt(C) with C = H D, and there is no temperature.

    Args:
        num_heads: Number of heads H.
        head_dim: Width D of a head.
        attn_drop: As in `TaylorCore`.
        coefficients: (a, b, c).
        algorithm: As in `TaylorCore`.
        N0: As in `TaylorCore`.
        backend: As in `taylor_attention`.
        center_keys: As in `TaylorCore`, before keys are divided by their length.
        normalize_input: Divide every q and k by its length.
        output_normalized: Multiply the output by sqrt(N / D) for N unmasked keys, so that its size
            does not depend on N.
        temperature: True learns a temperature tau per head; None learns it if `normalize_input`.
            True without `normalize_input` gives s = tau q.k / sqrt(D).
    """

    temperature: nn.Parameter | None

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
        normalize_input: bool = True,
        output_normalized: bool = True,
        temperature: bool | None = None,
    ) -> None:
        super().__init__(
            num_heads,
            head_dim,
            attn_drop=attn_drop,
            coefficients=coefficients,
            algorithm=algorithm,
            N0=N0,
            backend=backend,
            center_keys=center_keys,
        )
        if normalize_input and temperature is False:
            raise ConfigError(
                "temperature must be True or None with normalize_input=True, got False"
            )
        self.normalize_input = normalize_input
        self.output_normalized = output_normalized
        learned = nn.Parameter(torch.ones(num_heads, 1, 1))
        wanted = normalize_input or bool(temperature)
        self.register_parameter("temperature", learned if wanted else None)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """As in `AttentionCore`; without dropout, one call normalizes, attends and scales."""
        if not self.normalize_input or (self.training and self.attn_drop > 0):
            return super().forward(q, k, v, key_mask=key_mask)
        algorithm = self._settled(k.shape[2])
        return self._taylorshift(algorithm, q, k, v, key_mask, self.output_normalized)

    def attend_packed(self, qkv: Tensor) -> Tensor | None:
        """As in `TaylorCore`; None without `normalize_input`."""
        if not self.normalize_input or self.center_keys:
            return None
        return packed_taylor_attention(
            qkv,
            self._temperatures(),
            coefficients=self.coefficients,
            normalize_output=self.output_normalized,
            algorithm=self._settled(qkv.shape[1]),
            backend=self.backend,
        )

    def attend_by(
        self, algorithm: Algorithm, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor:
        """TaylorShift attention by a given algorithm, before `finish` scales the output."""
        if self.normalize_input:
            return self._taylorshift(algorithm, q, k, v, key_mask, normalize_output=False)
        return super().attend_by(algorithm, self._scaled(q), k, v, key_mask=key_mask)

    def _temperatures(self) -> Tensor:
        """The temperatures of the heads, (H,)."""
        assert self.temperature is not None
        return self.temperature.flatten()

    def _scaled(self, q: Tensor) -> Tensor:
        """Scale q so that q.k / sqrt(D) are the scores without `normalize_input`."""
        if self.temperature is None:
            factor: float = self.num_heads**-0.5
            return q * factor
        return q * self.temperature.to(q.dtype)

    def _unit_rows(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """tau q/|q| and k/|k|, of centered keys if they are to be centered."""
        assert self.temperature is not None
        k = centered_keys(k, key_mask) if self.center_keys else k
        return unit_rows(q, k, self.temperature)

    def _taylorshift(
        self,
        algorithm: Algorithm,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        normalize_output: bool,
    ) -> Tensor:
        return taylorshift_attention(
            q,
            k,
            v,
            self._temperatures(),
            coefficients=self.coefficients,
            key_mask=key_mask,
            center_keys=self.center_keys,
            normalize_output=normalize_output,
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
        """Rows of the Taylor softmax of the scores."""
        if not self.normalize_input:
            scaled = self._scaled(q)
            return super().attention_weights(scaled, k, queries=queries, key_mask=key_mask)
        q_unit, k_unit = self._unit_rows(q, k, key_mask)
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
        """Softmax attention of the same scores."""
        if not self.normalize_input:
            return super().softmax_counterpart(self._scaled(q), k, v, key_mask=key_mask)
        q_unit, k_unit = self._unit_rows(q, k, key_mask)
        return softmax_attention(
            q_unit.to(q.dtype), k_unit.to(k.dtype), v, scale=1.0, key_mask=key_mask
        )

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Multiply by sqrt(N / D) if `output_normalized`."""
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


class TaylorShiftAttention(MultiHeadAttention):
    """`MultiHeadAttention` with the `taylorshift` core and the published signature.

    `N0` is the paper's threshold unless you set it: -1 always uses linear time, 2**64 always uses
    quadratic time.

    Args:
        dim: Width C of the tokens.
        num_heads: Number of heads H.
        head_dim: Width D of a head; C / H by default.
        qkv_bias: True adds a bias to q, k and v.
        proj_drop: Dropout of the output.
        attn_drop: Dropout of the attention weights; above 0 the algorithm is always quadratic.
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        normalize_input: Divide every q and k by its length and learn a temperature per head.
            If False, scores are q.k / sqrt(C).
        output_normalized: Multiply the output by sqrt(N / D).
    """

    core: TaylorShiftCore

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        a: float = 0.5,
        b: float = 1.0,
        c: float = 1.0,
        normalize_input: bool = True,
        output_normalized: bool = False,
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            "taylorshift",
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            attention_options={
                "coefficients": (a, b, c),
                "normalize_input": normalize_input,
                "output_normalized": output_normalized,
            },
        )
        self.N0 = speed_threshold(self.head_dim)

    def _direct_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in quadratic time: (B, H, N, D) -> (B, H, N, D).

        With `normalize_input=False`, q must already be scaled, as in the published class.
        """
        return self._attention(q, k, v, "direct")

    def _efficient_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in linear time: (B, H, N, D) -> (B, H, N, D); q as in `_direct_attention`."""
        return self._attention(q, k, v, "efficient")

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, algorithm: Algorithm) -> Tensor:
        if not self.core.normalize_input:
            q = q * math.sqrt(self.num_heads * self.head_dim)  # the core divides by it
        out = self.core.attend_by(algorithm, q, k, v, key_mask=None)
        return self.core.finish(out, k, None)
