"""TaylorShift attention under its published name and signature (arXiv:2403.02920)."""

from torch import Tensor

from saccade.layers.attention import MultiHeadAttention
from saccade.layers.cores import TaylorShiftCore
from saccade.ops.taylor import Algorithm, speed_threshold

__all__ = ["TaylorShiftAttention"]


class TaylorShiftAttention(MultiHeadAttention):
    """`MultiHeadAttention` with the `taylorshift` core, the paper's arguments and its N0.

    Set `N0` to choose between the algorithms: -1 for linear time always, 2**64 for quadratic.

    Args:
        dim: Width C.
        num_heads: H.
        head_dim: D; C / H by default.
        qkv_bias: Whether q, k, v have a bias.
        attn_drop: Dropout of the attention weights; the quadratic form is then used throughout.
        proj_drop: Dropout of the output.
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        normalize_input: Divide every q and k by its length.
        output_normalized: Multiply the output by sqrt(N / D).
    """

    core: TaylorShiftCore

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
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
        """Attend in quadratic time: (B, H, N, D) -> (B, H, N, D)."""
        return self._attention(q, k, v, "direct")

    def _efficient_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in linear time: (B, H, N, D) -> (B, H, N, D)."""
        return self._attention(q, k, v, "efficient")

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, algorithm: Algorithm) -> Tensor:
        out = self.core.attend_by(algorithm, q, k, v, key_mask=None)
        return self.core.finish(out, k, None)
