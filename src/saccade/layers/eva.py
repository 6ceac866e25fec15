"""The core of `eva`: softmax over a window of keys and over one key for each run of tokens.

`ops/landmarks/eva.py` has the equations, the paper and differences from it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.cores import AttentionCore
from saccade.layers.equations import Parameters
from saccade.layers.performers import draw_seed
from saccade.ops.arguments import in_full_precision
from saccade.ops.landmarks import segment_means
from saccade.ops.landmarks.eva import eva_attention, eva_reference, eva_weights
from saccade.ops.landmarks.reference import means_reference

__all__ = ["EvaCore", "eva"]

_NORM_EPS = 1e-5
_PARTS = ("query", "key")


class EvaCore(AttentionCore):
    """EVA, efficient attention via control variates (arXiv:2302.04542).

    The mean query q_c and the mean key k_c of a run go through a linear layer and a layer norm
    each, which all heads share: K_c = norm(W_k k_c), W_c = (norm(W_q q_c) + K_c) / 2.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        window_tokens: Tokens of a window.
        num_landmarks: Number of runs.
        feature_seed: Seed of the initial weights; drawn from torch's generator by default.
    """

    can_drop_weights = False
    equation_options = ("window_tokens", "num_landmarks")

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        window_tokens: int = 49,
        num_landmarks: int = 49,
        feature_seed: int | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        for name, value in (("window_tokens", window_tokens), ("num_landmarks", num_landmarks)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self.window_tokens, self.num_landmarks = window_tokens, num_landmarks
        seed = draw_seed() if feature_seed is None else feature_seed
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for part in _PARTS:
            drawn = torch.randn(head_dim, head_dim, generator=generator, device="cpu")
            weight = nn.Parameter(torch.empty(head_dim, head_dim))
            with torch.no_grad():
                weight.copy_(drawn * head_dim**-0.5)
            self.register_parameter(f"{part}_weight", weight)
            for name, fill in (("bias", 0.0), ("gain", 1.0), ("shift", 0.0)):
                vector = nn.Parameter(torch.full((head_dim,), fill))
                self.register_parameter(f"{part}_{name}", vector)

    def _adapted(self, means: Tensor, part: str) -> Tensor:
        """Linear layer and layer norm of the means of runs."""
        names = (f"{part}_{name}" for name in ("weight", "bias", "gain", "shift"))
        return _linear_norm(means, *(getattr(self, name) for name in names))

    def _runs(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and directions of the runs, (B, H, m, D)."""
        means = (segment_means(x, self.num_landmarks, key_mask) for x in (q, k))
        query, key = (self._adapted(x, part) for x, part in zip(means, _PARTS, strict=True))
        return key, (query + key) / 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """One softmax over a window and the runs."""
        runs = self._runs(q, k, key_mask)
        return eva_attention(q, k, v, *runs, window=self.window_tokens, key_mask=key_mask)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Weights of the window, plus those of the runs, distributed over their tokens."""
        runs = self._runs(q, k, key_mask)
        return eva_weights(
            q, k, *runs, window=self.window_tokens, key_mask=key_mask, queries=queries
        )

    def flops(self, num_tokens: int) -> int:
        """Means of runs, their layers and summaries, and both parts of the softmax."""
        d, m, w = self.head_dim, self.num_landmarks, self.window_tokens
        places = -(-num_tokens // w) * w
        means, layers, summaries = 4 * num_tokens * m * d, 4 * m * d * d, 4 * num_tokens * m * d
        softmax = 4 * places * w * d + 2 * (num_tokens + places) * m * d
        return self.num_heads * (means + layers + summaries + softmax)

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"window_tokens={self.window_tokens}, num_landmarks={self.num_landmarks}"


@in_full_precision
def _linear_norm(x: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    weight, bias, gain, shift = (own.to(x.dtype) for own in (weight, bias, gain, shift))
    return F.layer_norm(F.linear(x, weight, bias), bias.shape, gain, shift, _NORM_EPS)


def eva(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Softmax over a window and the runs, whose keys and directions are computed literally."""
    adapted = []
    for x, part in ((q, "query"), (k, "key")):
        means = means_reference(x, parameters["num_landmarks"], key_mask)
        y = torch.einsum("bhcd,ed->bhce", means, parameters[f"{part}_weight"])
        y = y + parameters[f"{part}_bias"]
        centered = y - y.mean(dim=-1, keepdim=True)
        variance = (centered**2).mean(dim=-1, keepdim=True)
        normed = centered / (variance + _NORM_EPS).sqrt()
        adapted.append(normed * parameters[f"{part}_gain"] + parameters[f"{part}_shift"])
    directions = (adapted[0] + adapted[1]) / 2
    return eva_reference(
        q,
        k,
        v,
        adapted[1],
        directions,
        window=parameters["window_tokens"],
        scale=q.shape[-1] ** -0.5,
        key_mask=key_mask,
    )
