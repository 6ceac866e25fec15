"""FLOPs of each part of a model, computed by formula.

A multiply-add counts as two. Norms, activations, biases and softmax are not counted, as in
`torch.utils.flop_counter`. Each attention counts the products of its own mechanism. A Taylor model
counts the form, direct or efficient, that runs at that number of tokens.
"""

from __future__ import annotations

from saccade.errors import ConfigError
from saccade.layers.head import head_flops
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.vision_transformer import VisionTransformer

__all__ = ["count_flops"]


def count_flops(
    model: VisionTransformer | SequenceTransformer, seq_len: int | None = None
) -> dict[str, int]:
    """FLOPs of every part for one sample, in the forward pass. Their sum is the model's.

    Args:
        model: A model, on any device.
        seq_len: Length of the sequence, default `max_seq_len`. Must be None for image models.
    """
    flops, tokens = _embedding_flops(model, seq_len)
    total = tokens + model.num_prefix_tokens
    grid = (1, tokens)
    if not isinstance(model, SequenceTransformer):
        grid = model.patch_embed.grid_size
    for index, block in enumerate(model.blocks):
        flops[f"blocks.{index}.attn"] = block.attn.flops(total, grid=grid)
        flops[f"blocks.{index}.mlp"] = block.mlp.flops(total)
    if model.attn_pool is not None:
        flops["attn_pool"] = model.attn_pool.flops(tokens)
    flops["head"] = head_flops(model.head)
    return flops


def _embedding_flops(
    model: VisionTransformer | SequenceTransformer, seq_len: int | None
) -> tuple[dict[str, int], int]:
    """FLOPs of the embedding, and its number of tokens."""
    if isinstance(model, SequenceTransformer):
        tokens = model.max_seq_len if seq_len is None else seq_len
        return {"token_embed": model.token_embed.flops(tokens)}, tokens
    if seq_len is not None:
        raise ConfigError(
            f"seq_len must be None for an image model, got {seq_len}; its number of tokens follows "
            "from img_size"
        )
    return {"patch_embed": model.patch_embed.flops()}, model.patch_embed.num_patches
