"""Cores with softmax over few keys in place of all: `linformer`, `nystrom` and `agent`.

    linformer   softmax(q (E k)') (F v)                  E, F learned, for a fixed length
    nystrom     softmax(q L') Z softmax(l k') v          l, L means of runs of q and k
    agent       softmax(q A') softmax(A k') v            A means of runs of q

Each is a composition of softmax attentions, which use the fused kernels of `softmax_attention`.
`ops/landmarks/` has papers, derivations and differences from them.
"""

import math

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.cores import AttentionCore
from saccade.layers.equations import Parameters
from saccade.layers.performers import draw_seed
from saccade.ops.landmarks import iterated_inverse, segment_means
from saccade.ops.landmarks.reference import (
    agent_reference,
    linformer_reference,
    nystrom_reference,
)
from saccade.ops.softmax import softmax_attention, softmax_weights

__all__ = ["AgentCore", "LinformerCore", "NystromCore", "agent", "linformer", "nystrom"]


def _check_count(name: str, count: int) -> int:
    if count < 1:
        raise ConfigError(f"{name} must be at least 1, got {count}")
    return count


class LinformerCore(AttentionCore):
    """Linformer (arXiv:2006.04768), with projections that all heads share.

    Shorter sequences use the first columns of the projections. Rows of weights do not sum to one.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        max_tokens: Longest sequence; models set their own, with the class token.
        rank: Number of projected keys R; a quarter of `max_tokens`, at most 256, by default.
        feature_seed: Seed of the initial projections; drawn from torch's generator by default.
    """

    can_drop_weights = False

    key_projection: nn.Parameter
    value_projection: nn.Parameter

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        max_tokens: int = 1024,
        rank: int | None = None,
        feature_seed: int | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        self.max_tokens = _check_count("max_tokens", max_tokens)
        self.rank = _check_count(
            "rank", min(256, max(1, max_tokens // 4)) if rank is None else rank
        )
        seed = draw_seed() if feature_seed is None else feature_seed
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for name in ("key_projection", "value_projection"):
            drawn = torch.randn(self.rank, max_tokens, generator=generator, device="cpu")
            parameter = nn.Parameter(torch.empty(self.rank, max_tokens))
            with torch.no_grad():
                parameter.copy_(drawn / math.sqrt(max_tokens))
            self.register_parameter(name, parameter)

    def resize(self, tokens: int) -> None:
        """Resample the projections for another longest sequence."""
        if tokens == self.max_tokens:
            return
        for name in ("key_projection", "value_projection"):
            old = getattr(self, name)
            with torch.no_grad():
                new = nn.functional.interpolate(
                    old.detach()[None], size=tokens, mode="linear", align_corners=False
                )[0] * (self.max_tokens / tokens)
            setattr(self, name, nn.Parameter(new, requires_grad=old.requires_grad))
        self.max_tokens = tokens

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Softmax attention over the projected keys and values."""
        keys = self._project(self.key_projection, k, key_mask)
        values = self._project(self.value_projection, v, key_mask)
        return softmax_attention(q, keys, values)

    def _project(self, projection: Tensor, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Mix the tokens: (B, H, S, D) -> (B, H, R, D)."""
        columns = self._columns(projection, x.shape[2]).to(x.dtype)
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None, :, None], 0)
        return columns @ x

    def _columns(self, projection: Tensor, tokens: int) -> Tensor:
        if tokens > self.max_tokens:
            raise ConfigError(
                f"max_tokens must be at least the number of tokens with attention='linformer', got "
                f"{self.max_tokens} for {tokens} tokens; set it in attention_options"
            )
        return projection.narrow(1, 0, tokens)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """softmax(q (E k)') F, which multiplies the values. Rows do not sum to one."""
        keys = self._project(self.key_projection, k, key_mask)
        columns = self._columns(self.value_projection, k.shape[2]).to(q.dtype)
        weights = softmax_weights(q, keys, queries=queries) @ columns
        return weights if key_mask is None else weights.masked_fill(~key_mask[:, None, None], 0)

    def flops(self, num_tokens: int) -> int:
        """8 N R D per head: two projections, two products."""
        return 8 * self.num_heads * num_tokens * self.rank * self.head_dim

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"max_tokens={self.max_tokens}, rank={self.rank}"


def linformer(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights softmax(q (E k)') F."""
    projections = parameters["key_projection"], parameters["value_projection"]
    scale = q.shape[-1] ** -0.5
    return linformer_reference(q, k, v, *projections, scale=scale, key_mask=key_mask)


class NystromCore(AttentionCore):
    """Nyström attention (arXiv:2102.03902), without its convolution.

    # DEVIATION: the paper's landmarks are segments of equal length, for which sequences are padded.
    Here any number of tokens is cut into runs of nearly equal length (`segment_means`).

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        num_landmarks: Number of landmarks M.
        steps: Steps of the iteration for the pseudo-inverse.
    """

    can_drop_weights = False
    equation_options = ("num_landmarks", "steps")

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        num_landmarks: int = 64,
        steps: int = 6,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        self.num_landmarks = _check_count("num_landmarks", num_landmarks)
        self.steps = _check_count("steps", steps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Softmax of queries and landmarks, the inverse, softmax of landmarks and keys."""
        landmark_q, landmark_k, inverse = self._landmarks(q, k, key_mask)
        gathered = softmax_attention(landmark_q.to(v.dtype), k, v, key_mask=key_mask)
        mixed = inverse.to(v.dtype) @ gathered
        return softmax_attention(q, landmark_k.to(v.dtype), mixed)

    def _landmarks(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Landmarks of queries and of keys, (B, H, M, D), and the inverse, (B, H, M, M)."""
        landmark_q, landmark_k = (segment_means(x, self.num_landmarks, key_mask) for x in (q, k))
        middle = softmax_weights(landmark_q, landmark_k)
        return landmark_q, landmark_k, iterated_inverse(middle, self.steps)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The product of the three matrices. Rows need not sum to one and may be negative."""
        landmark_q, landmark_k, inverse = self._landmarks(q, k, key_mask)
        dtype = landmark_q.dtype
        left = softmax_weights(q.to(dtype), landmark_k, queries=queries) @ inverse
        return (left @ softmax_weights(landmark_q, k.to(dtype), key_mask=key_mask)).to(q.dtype)

    def flops(self, num_tokens: int) -> int:
        """12 N M D + 4 M^2 D + 8 steps M^3 per head."""
        m, d = self.num_landmarks, self.head_dim
        one = 12 * num_tokens * m * d + 4 * m * m * d + 8 * self.steps * m**3
        return self.num_heads * one

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"num_landmarks={self.num_landmarks}, steps={self.steps}"


def nystrom(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Softmax of queries and landmarks, the inverse, softmax of landmarks and keys."""
    return nystrom_reference(
        q,
        k,
        v,
        num_landmarks=parameters["num_landmarks"],
        steps=parameters["steps"],
        scale=q.shape[-1] ** -0.5,
        key_mask=key_mask,
    )


def _average(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Softmax attention; in float32 on a CPU computed from its weights, which are few.

    The backward pass of torch's CPU kernel has nearly twice the error of plain operations. Two such
    steps would have a larger error than the accuracy tests allow.
    """
    if q.device.type == "cpu" and q.dtype == torch.float32:
        return softmax_weights(q, k, key_mask=key_mask) @ v
    return softmax_attention(q, k, v, key_mask=key_mask)


class AgentCore(AttentionCore):
    """Agent attention (arXiv:2312.08874), without its position biases and convolution.

    # DEVIATION: the paper pools the queries of an image over its grid. Here they are pooled over
    runs of tokens in their order (`segment_means`), the class token among them, so that sequences
    and masks are accepted.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        num_agents: Number of agents M.
    """

    can_drop_weights = False
    equation_options = ("num_agents",)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        num_agents: int = 49,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        self.num_agents = _check_count("num_agents", num_agents)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Softmax attention of the agents to the keys, and of the queries to the agents."""
        agents = segment_means(q, self.num_agents, key_mask).to(v.dtype)
        gathered = _average(agents, k, v, key_mask)
        return _average(q, agents, gathered)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the product of both matrices; they are convex."""
        agents = segment_means(q, self.num_agents, key_mask)
        left = softmax_weights(q.to(agents.dtype), agents, queries=queries)
        right = softmax_weights(agents, k.to(agents.dtype), key_mask=key_mask)
        return (left @ right).to(q.dtype)

    def flops(self, num_tokens: int) -> int:
        """10 N M D per head: the pooling and four products."""
        return 10 * self.num_heads * num_tokens * self.num_agents * self.head_dim

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"num_agents={self.num_agents}"


def agent(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights softmax(q A') softmax(A k')."""
    scale, count = q.shape[-1] ** -0.5, parameters["num_agents"]
    return agent_reference(q, k, v, num_agents=count, scale=scale, key_mask=key_mask)
