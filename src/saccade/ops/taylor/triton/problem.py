"""One call of the fused attention: its sizes, flags and dtypes, worked out once."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Problem", "power_of_two"]


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 16."""
    return max(16, 1 << (n - 1).bit_length())


@dataclass(frozen=True)
class Problem:
    """Tensors as they came and what follows from them.

    Attributes:
        q: Queries (B, H, N, D), any strides.
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        key_mask: (B, S) or None.
        temperature: (H,) in float32, or None; with it q and k are normalised.
        scale: Factor of the scores.
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        normalise_output: Whether the output is multiplied by sqrt(keys attended to / D).
        precision: How float32 products are taken: `ieee` or `tf32`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    temperature: Tensor | None
    scale: float
    a: float
    b: float
    c: float
    normalise_output: bool
    precision: str

    @property
    def heads(self) -> int:
        """H."""
        return self.q.shape[1]

    @property
    def batch_heads(self) -> int:
        """B H."""
        return self.q.shape[0] * self.q.shape[1]

    @property
    def queries(self) -> int:
        """N."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """S."""
        return self.k.shape[2]

    @property
    def dim(self) -> int:
        """D."""
        return self.q.shape[3]

    @property
    def width(self) -> int:
        """E."""
        return self.v.shape[3]

    @property
    def operands(self) -> torch.dtype:
        """The dtype that products are taken in.

        bfloat16 stays. float16 does not hold squares of its own numbers, so it goes through
        float32, whose tf32 products keep as many bits.
        """
        return torch.bfloat16 if self.q.dtype == torch.bfloat16 else torch.float32

    @property
    def dot_precision(self) -> str:
        """tf32 for float16 inputs, as asked for otherwise."""
        return "tf32" if self.q.dtype == torch.float16 else self.precision

    @property
    def floor(self) -> float:
        """The smallest possible weight, c - b^2 / 4a."""
        return max(0.0, self.c - self.b * self.b / (4 * self.a))

    @property
    def lift(self) -> float:
        """Factor of the output, but for the share of keys that a sample attends to."""
        return (self.keys / self.dim) ** 0.5 if self.normalise_output else 1.0

    @property
    def mask_argument(self) -> Tensor:
        """The mask, or any tensor where there is none: the kernel does not read it."""
        return self.q if self.key_mask is None else self.key_mask.contiguous()

    @property
    def temperature_argument(self) -> Tensor:
        """The temperature, or any tensor where there is none."""
        return self.q if self.temperature is None else self.temperature.contiguous()

    def shares(self) -> Tensor:
        """(B,) float32: the share of the keys that a sample attends to; any tensor where all."""
        if self.key_mask is None:
            return self.q
        return self.key_mask.mean(dim=-1, dtype=torch.float32)

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor on the same device."""
        return torch.empty(shape, dtype=dtype or self.q.dtype, device=self.q.device)
