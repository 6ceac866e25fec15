"""One call of the fused attention: its tensors, and what follows from their shapes.

A `CallShape` is computed once and kept, and so is every launch (`functools.lru_cache` in the
modules that launch): a call with tensors like those of an earlier one only looks them up.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import INTERPRETED
from saccade.ops._triton.tiles import capability, ceil_div, power_of_two
from saccade.ops.taylor.triton import configs
from saccade.ops.taylor.triton.library import TABLE_STEP

__all__ = [
    "FREE_BYTES",
    "KEPT_CALLS",
    "CallShape",
    "Grads",
    "Problem",
    "Strides",
    "alignment_of",
    "moments_size",
    "operands_of",
    "resized",
    "tile_pairs",
    "within_reach",
]

FREE_BYTES = 16 << 20
"""Scratch memory that a call may always allocate, in bytes."""

KEPT_CALLS = 512

Strides = tuple[int, ...]
Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Of q, k, v and the temperature."""

_MAX_OFFSET = 1 << 24
"""Numbers between rows, or columns: offsets within a block of 128 at most have 32 bits."""

# The interpreter, which runs the kernels on a CPU for tests, has no products of bfloat16.
_TRITON_DTYPE = {
    torch.bfloat16: tl.float32 if INTERPRETED else tl.bfloat16,
    torch.float32: tl.float32,
}


def tile_pairs(dim: int) -> int:
    """Pairs (m, n), m <= n, of the tiles of 16 in a row of q or k."""
    tiles = ceil_div(dim, 16)
    return tiles * (tiles + 1) // 2


def operands_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype that products of such inputs are taken in.

    bfloat16 stays. float16 does not hold squares of its own numbers, so it goes through float32,
    whose tf32 products keep as many bits.
    """
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def alignment_of(dim: int, width: int, *strides: Strides) -> int:
    """8 where D, E and all strides but those of columns are its multiples, D or E not of 16; or 1.

    Of 16 Triton finds out by itself.
    """
    steps = [step for stride in strides for step in stride[:3]]
    told = dim % 16 == 0 and width % 16 == 0
    return 1 if told or any(n % 8 for n in (dim, width, *steps)) else 8


def moments_size(dim: int, width: int) -> int:
    """How many numbers L, G, p and r have together."""
    padded_dim, padded_width = power_of_two(dim), power_of_two(width)
    return padded_dim * (padded_width + padded_dim + 1) + padded_width


def within_reach(x: Tensor) -> Tensor:
    """x (B, H, N, D), copied where its rows lie farther apart than kernels can count."""
    return x if max(x.stride()[2:]) < _MAX_OFFSET else x.contiguous()


class Flags(NamedTuple):
    """What all kernels over tokens are compiled for, one argument of theirs.

    Attributes:
        DP: D, padded to a power of two of at least 16.
        EP: E, padded likewise.
        NORMALIZE: Whether q and k are normalized.
        MASKED: Whether the tokens that the kernel goes over are masked.
        ALIGNMENT: What D, E and strides are multiples of (`alignment_of`).
        DTYPE: The dtype that products are taken in.
        PRECISION: How float32 products are taken.
    """

    DP: int
    EP: int
    NORMALIZE: bool
    MASKED: bool
    ALIGNMENT: int
    DTYPE: Any
    PRECISION: str


@dataclass(frozen=True, eq=False)
class CallShape:
    """All there is to know of a call before its numbers; one object for each (`call_shape_of`).

    Attributes:
        batch: B.
        heads: H.
        queries: N.
        keys: S.
        dim: D.
        width: E.
        q_stride: Strides of q (B, H, N, D).
        k_stride: Strides of k (B, H, S, D).
        v_stride: Strides of v (B, H, S, E).
        dtype: The dtype of q, k and v.
        device: Where they are.
        masked: Whether there is a key mask.
        normalized: Whether q and k are normalized, with a temperature.
        scale: Factor of the scores.
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        normalize_output: Whether the output is multiplied by sqrt(keys attended to / D).
        precision: How float32 products are taken: `ieee` or `tf32`.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    width: int
    q_stride: Strides
    k_stride: Strides
    v_stride: Strides
    dtype: torch.dtype
    device: torch.device
    masked: bool
    normalized: bool
    scale: float
    a: float
    b: float
    c: float
    normalize_output: bool
    precision: str

    @functools.cached_property
    def batch_heads(self) -> int:
        """B H."""
        return self.batch * self.heads

    @functools.cached_property
    def head_bytes(self) -> int:
        """Bytes of the output of a head."""
        return self.queries * self.width * self.dtype.itemsize

    @functools.cached_property
    def padded_dim(self) -> int:
        """D as the kernels take it."""
        return power_of_two(self.dim)

    @functools.cached_property
    def padded_width(self) -> int:
        """E as the kernels take it."""
        return power_of_two(self.width)

    @functools.cached_property
    def tiles(self) -> int:
        """Tiles of 16 in a row of q or k."""
        return ceil_div(self.dim, 16)

    @functools.cached_property
    def pairs(self) -> int:
        """Pairs of tiles (m, n), m <= n."""
        return tile_pairs(self.dim)

    @functools.cached_property
    def kind(self) -> tuple[Any, ...]:
        """What kernels are compiled for, but for the divisibility of sizes and strides."""
        return (
            self.dim, self.width, self.dtype, self.device,
            self.masked, self.normalized, self.normalize_output, self.precision,
        )  # fmt: skip

    @functools.cached_property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the device."""
        return capability(self.device)

    @functools.cached_property
    def alignment(self) -> int:
        """What kernels tell the compiler that D, E and strides are multiples of."""
        return alignment_of(self.dim, self.width, self.q_stride, self.k_stride, self.v_stride)

    @functools.cached_property
    def is_odd(self) -> bool:
        """Whether numbers are loaded one by one, which takes registers."""
        return self.alignment == 1 and bool(self.dim % 16 or self.width % 16)

    @functools.cached_property
    def operands(self) -> torch.dtype:
        """The dtype that products are taken in."""
        return operands_of(self.dtype)

    @functools.cached_property
    def dot_precision(self) -> str:
        """tf32 for float16 inputs, as asked for otherwise."""
        return "tf32" if self.dtype == torch.float16 else self.precision

    @functools.cached_property
    def min_weight(self) -> float:
        """The smallest possible weight, c - b^2 / 4a."""
        return max(0.0, self.c - self.b * self.b / (4 * self.a))

    @functools.cached_property
    def output_scale(self) -> float:
        """Factor of the output if a sample attends to all keys."""
        return float((self.keys / self.dim) ** 0.5) if self.normalize_output else 1.0

    @functools.cached_property
    def moments_size(self) -> int:
        """How many numbers L, G, p and r have together."""
        return moments_size(self.dim, self.width)

    def blocks(self, kernel: str) -> configs.Blocks:
        """The blocks of a kernel; the wider of D and E decides."""
        widest = max(self.dim, self.width)
        return configs.blocks_for(kernel, widest, self.operands, self.capability, self.is_odd)

    def flags(self, *, masked: bool) -> Flags:
        """The compile-time arguments that all kernels over tokens take."""
        return Flags(
            self.padded_dim,
            self.padded_width,
            self.normalized,
            self.masked and masked,
            self.alignment,
            _TRITON_DTYPE[self.operands],
            self.dot_precision,
        )

    def rows(self, *, of_queries: bool) -> tuple[int, Strides, Strides]:
        """How many queries or keys there are, their strides, and those of dy or the values."""
        if not of_queries:
            return self.keys, self.k_stride, self.v_stride
        head = self.queries * self.width
        return self.queries, self.q_stride, (self.heads * head, head, self.width, 1)

    def is_even(self, tokens: int, block: int) -> bool:
        """Whether a loop over blocks of tokens meets neither an end nor a mask nor padding."""
        exact = self.dim == self.padded_dim and self.width == self.padded_width
        return exact and not self.masked and tokens % block == 0


@functools.lru_cache(maxsize=KEPT_CALLS, typed=True)
def call_shape_of(q_shape: tuple[int, ...], v_shape: tuple[int, ...], *rest: Any) -> CallShape:
    """The shape of a call with such tensors, always the same object; `rest` as in `CallShape`."""
    batch, heads, queries, dim = q_shape
    return CallShape(batch, heads, queries, v_shape[2], dim, v_shape[3], *rest)


@functools.lru_cache(maxsize=KEPT_CALLS)
def resized(call: CallShape, batch: int, heads: int) -> CallShape:
    """The same call for so many samples and heads, always the same object."""
    same = (call.batch, call.heads) == (batch, heads)
    return call if same else replace(call, batch=batch, heads=heads)


class Problem(NamedTuple):
    """Tensors as they were passed, and the shape of the call.

    Attributes:
        q: Queries (B, H, N, D), any strides.
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        key_mask: (B, S) contiguous; any tensor where there is none, which no kernel reads.
        temperature: (H,) in float32; any tensor where there is none.
        call: What follows from them and the numbers of the call.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor
    temperature: Tensor
    call: CallShape

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        temperature: Tensor | None,
        scale: float,
        a: float,
        b: float,
        c: float,
        normalize_output: bool,
        precision: str,
    ) -> "Problem":
        """The problem of a call; see `CallShape` for the numbers."""
        call = call_shape_of(
            q.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, q.device,
            key_mask is not None, temperature is not None,
            scale, a, b, c, normalize_output, precision,
        )  # fmt: skip
        mask = q if key_mask is None else key_mask.contiguous()
        return cls(q, k, v, mask, q if temperature is None else temperature.contiguous(), call)

    def of_samples(self, some: slice) -> "Problem":
        """The problem of some samples."""
        q, k, v = self.q[some], self.k[some], self.v[some]
        call = resized(self.call, q.shape[0], self.call.heads)
        mask = self.key_mask[some] if call.masked else q
        return Problem(q, k, v, mask, self.temperature, call)

    def of_heads(self, first: int, last: int) -> "Problem":
        """Heads first to last - 1 alone: samples with all their heads, or heads of one sample."""
        call, (sample, head) = self.call, divmod(first, self.call.heads)
        samples = self.of_samples(slice(sample, max(sample + 1, last // call.heads)))
        if samples.call.batch_heads == last - first:
            return samples
        some = slice(head, head + last - first)
        q, k, v = (x[:, some] for x in samples[:3])
        mask = samples.key_mask if call.masked else q
        temperature = self.temperature[some].clone() if call.normalized else q  # aligned again
        return Problem(q, k, v, mask, temperature, resized(call, 1, last - first))

    def key_fractions(self) -> Tensor:
        """(B,) float32: the fraction of keys that a sample attends to; any tensor if unmasked."""
        return self.key_mask.mean(dim=-1, dtype=torch.float32) if self.call.masked else self.q

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor on the same device."""
        return torch.empty(shape, dtype=dtype or self.q.dtype, device=self.q.device)

    def numbers(self, *shape: int) -> Tensor:
        """An uninitialised float32 tensor on the same device."""
        return self.new(*shape, dtype=torch.float32)

    def table(self, rows: int) -> Tensor:
        """An uninitialised table of one number for each row (`table_place` in `blocks`)."""
        padded = ceil_div(rows, TABLE_STEP.value) * TABLE_STEP.value
        return self.new(self.call.batch_heads, padded, dtype=self.call.operands)
