"""The core of `reformer`: softmax among tokens with equal hashes (arXiv:2001.04451)."""

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.cores import AttentionCore
from saccade.layers.equations import Parameters
from saccade.layers.performers import draw_seed
from saccade.ops.arguments import compute_dtype
from saccade.ops.hashing import lsh_attention, lsh_weights
from saccade.ops.hashing.reference import lsh_reference

__all__ = ["ReformerCore", "reformer"]


class ReformerCore(AttentionCore):
    """LSH attention in several rounds, with shared queries and keys.

    The rotations of the hash and their seed are buffers, so both are saved with the model.

    # DEVIATION: Reformer has one projection for queries and keys. All attentions here share the
    projections q, k and v; the shared vector is (q + k) / sqrt(2), one projection of the tokens by
    the sum of both matrices. The number of buckets does not grow with the number of tokens.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        num_buckets: Number of values of a hash, an even number.
        chunk_size: Tokens of a chunk, in the order of hashes; they attend to their chunk and the
            one before.
        rounds: Number of hashes.
        feature_seed: Seed of the rotations; drawn from torch's generator by default.
    """

    can_drop_weights = False
    equation_options = ("chunk_size",)
    without_gradient = ("rotations",)

    rotations: Tensor
    feature_seed: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        num_buckets: int = 32,
        chunk_size: int = 32,
        rounds: int = 4,
        feature_seed: int | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        if num_buckets < 2 or num_buckets % 2:
            raise ConfigError(
                f"num_buckets must be an even number of at least 2, got {num_buckets}: a hash is "
                "the largest of R x and -R x"
            )
        for name, value in (("chunk_size", chunk_size), ("rounds", rounds)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self.num_buckets, self.chunk_size, self.rounds = num_buckets, chunk_size, rounds
        shape = (rounds, num_buckets // 2, head_dim)
        self.register_buffer("rotations", torch.empty(shape))
        self.register_buffer("feature_seed", torch.zeros((), dtype=torch.int64))
        seed = draw_seed() if feature_seed is None else feature_seed
        generator = torch.Generator(device="cpu").manual_seed(seed)
        self.rotations.copy_(torch.randn(shape, generator=generator, device="cpu"))
        self.feature_seed.fill_(seed)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Softmax within chunks of tokens sorted by hash."""
        return lsh_attention(
            _shared(q, k), v, self.rotations, chunk=self.chunk_size, key_mask=key_mask
        )

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the softmax; zero for tokens that are in neighboring chunks in no round."""
        weights = lsh_weights(
            _shared(q, k),
            self.rotations,
            chunk=self.chunk_size,
            key_mask=key_mask,
            queries=queries,
        )
        return weights.to(q.dtype)

    def flops(self, num_tokens: int) -> int:
        """R (N B D + 8 P m D) per head, P being N rounded up to whole chunks."""
        places = -(-num_tokens // self.chunk_size) * self.chunk_size
        one = num_tokens * self.num_buckets + 8 * places * self.chunk_size
        return self.num_heads * self.rounds * self.head_dim * one

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        sizes = f"num_buckets={self.num_buckets}, chunk_size={self.chunk_size}"
        return f"{sizes}, rounds={self.rounds}"


def _shared(q: Tensor, k: Tensor) -> Tensor:
    """The vector that is query and key, in float32 or float64."""
    if q.shape != k.shape:
        raise ConfigError(
            f"q and k must be of the same tokens with attention='reformer', got {tuple(q.shape)} "
            f"and {tuple(k.shape)}"
        )
    dtype = compute_dtype(q.dtype)
    shared: Tensor = (q.to(dtype) + k.to(dtype)) * 0.5**0.5
    return shared


def reformer(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Softmax over the tokens that are in neighboring chunks in some round."""
    return lsh_reference(
        (q + k) * 0.5**0.5,
        v,
        parameters["rotations"],
        chunk=parameters["chunk_size"],
        scale=q.shape[-1] ** -0.5,
        key_mask=key_mask,
    )
