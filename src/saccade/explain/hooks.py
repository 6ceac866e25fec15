"""One forward pass with hooks that keep the inputs of attention layers, and their gradients.

The pass uses the fast path, including fused kernels and linear-time algorithms. Only the tokens
that enter the chosen layers are kept, N x C numbers per layer. Every row of the attention map can
be computed from them, even if the attention itself never forms the map.

With a gradient, a row of the map becomes relu(dy/dA * A) for the logit y of the target class
(arXiv:2103.15679, eq. 5). The fast path does not form A, so autograd gives no dy/dA. But the output
of a head is o_i = f_i sum_j A_ij v_j, hence dy/dA_ij = f_i (dy/do_i).v_j. The factor f_i (output
scaling of TaylorShift) is the output of the head if every value is 1. It is 1 for attentions whose
rows need not sum to one (`Attention.rows`), the weights of which are what multiplies the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS, MultiHeadAttention
from saccade.models import VisionTransformer
from saccade.ops.arguments import compute_dtype
from saccade.train.guard import check_outputs

__all__ = ["LayerInput", "Observation", "check_model", "observe"]


@dataclass(frozen=True)
class LayerInput:
    """Input of one attention layer, from which rows of its map are computed.

    Attributes:
        tokens: Its input, (B, N, C).
        grid: Rows and columns of the patch tokens.
        gradient: dy/do of the outputs o of its heads, (B, N, H * D); None for plain attention.
    """

    attn: MultiHeadAttention
    tokens: Tensor
    grid: tuple[int, int]
    gradient: Tensor | None = None

    @torch.no_grad()
    def rows(self, queries: Tensor) -> Tensor:
        """The map rows of chosen queries, (B, H, Q, N); with `gradient`, relu(dy/dA * A)."""
        weights = self.attn.attention_weights(self.tokens, queries=queries, grid=self.grid)
        if self.gradient is None:
            return weights
        slopes, values = self._slopes_and_values
        return F.relu(weights.mul_(slopes[:, :, queries] @ values.mT))

    @cached_property
    def _slopes_and_values(self) -> tuple[Tensor, Tensor]:
        """f_i dy/do_i and v_j, (B, H, N, D) each."""
        assert self.gradient is not None
        q, k, v = self.attn.heads(self.tokens)
        slopes = self.gradient.view(*self.tokens.shape[:2], *v.shape[1::2]).transpose(1, 2)
        if ATTENTIONS[self.attn.attention].rows == "free":
            return slopes, v
        # One column would suffice, but torch has no fused softmax attention for D != E.
        factor = self.attn.attend(q, k, torch.ones_like(v), grid=self.grid)
        return slopes * factor, v


@dataclass(frozen=True)
class Observation:
    """The results of a forward pass with hooks.

    Attributes:
        logits: (B, K).
        readout: (B, N), weight of each token in the pooled features: 1 for a class token, equal
            weights for an average, the weights of an attention pooling. Sums to one.
    """

    logits: Tensor
    readout: Tensor
    layers: tuple[LayerInput, ...]


def check_model(model: nn.Module) -> VisionTransformer:
    """Return the model; raise if it is not a `VisionTransformer`."""
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"model must be a VisionTransformer, got {type(model).__name__}")
    if not model.global_pool:
        raise ConfigError("model.global_pool must be 'token', 'avg' or 'map' for maps, got ''")
    return model


def observe(
    model: VisionTransformer,
    images: Tensor,
    layers: Sequence[int],
    *,
    gradient: bool = False,
    target: Tensor | None = None,
) -> Observation:
    """Run a model in evaluation mode and keep the inputs of its attention layers.

    Args:
        model: The model; it is not changed.
        images: (B, in_chans, height, width), normalized.
        layers: Indices of blocks, ascending.
        gradient: True also differentiates the logits of the target classes.
        target: (B,), the target classes; the predicted ones by default.
    """
    attentions = [model.blocks[index].attn for index in layers]
    with _hooked(model, attentions) as seen, torch.set_grad_enabled(gradient):
        logits = model(images.detach().requires_grad_() if gradient else images)
        check_outputs(model, images, logits)
        gradients: Sequence[Tensor | None] = [None] * len(attentions)
        if gradient:
            target = logits.argmax(dim=1) if target is None else target
            chosen = logits.gather(1, target[:, None]).sum()
            gradients = torch.autograd.grad(chosen, [seen[attn.proj] for attn in attentions])
    grid = model.patch_embed.grid_size
    found = [
        LayerInput(attn, seen[attn].detach(), grid, slope)
        for attn, slope in zip(attentions, gradients, strict=True)
    ]
    return Observation(logits.detach(), _readout(model, logits.detach(), seen), tuple(found))


@contextmanager
def _hooked(
    model: VisionTransformer, attentions: Sequence[MultiHeadAttention]
) -> Iterator[dict[nn.Module, Tensor]]:
    """Set evaluation mode and register hooks; yield the dict that the hooks fill with inputs."""
    seen: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[module] = inputs[0]

    hooked: list[nn.Module] = [part for attn in attentions for part in (attn, attn.proj)]
    hooked += [] if model.attn_pool is None else [model.attn_pool]
    handles = [module.register_forward_pre_hook(keep) for module in hooked]
    was_training, was_checkpointing = model.training, model.grad_checkpointing
    model.eval().set_grad_checkpointing(False)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training).set_grad_checkpointing(was_checkpointing)


@torch.no_grad()
def _readout(model: VisionTransformer, like: Tensor, seen: dict[nn.Module, Tensor]) -> Tensor:
    """The weight of every token in the pooled features, (B, N)."""
    prefix = model.num_prefix_tokens
    tokens = prefix + model.patch_embed.num_patches
    shares = like.new_zeros(len(like), tokens, dtype=compute_dtype(like.dtype))
    if model.config.global_pool == "token":
        shares[:, 0] = 1
    elif model.attn_pool is None:
        shares[:, prefix:] = 1 / model.patch_embed.num_patches
    else:
        shares[:, prefix:] = model.attn_pool.attention_weights(seen[model.attn_pool]).mean(dim=1)
    return shares
