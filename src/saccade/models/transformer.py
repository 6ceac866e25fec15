"""Base class of image and sequence transformers: class token, blocks, pooling, head.

Methods and parameters have timm's names, so weights and training scripts work with both libraries.
Layout (B, N, C); the class token, if any, comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.block import Block
from saccade.layers.head import build_head
from saccade.layers.mlp import Mlp
from saccade.layers.pooling import AttentionPool
from saccade.layers.residual import is_hooked
from saccade.models.config import Pooling, TransformerConfig, ViTConfig
from saccade.models.hub import HubModel
from saccade.models.size_limits import count_tokens

__all__ = ["Transformer"]


T = TypeVar("T")


def build_block(config: TransformerConfig, index: int) -> Block:
    """Build block `index` of a model."""
    window = config.window if isinstance(config, ViTConfig) else None
    shifted = isinstance(config, ViTConfig) and config.shifted and index % 2 == 1
    is_softmax = index in config.softmax_blocks
    attn = MultiHeadAttention(
        config.embed_dim,
        config.num_heads,
        "softmax" if is_softmax else config.attention,
        head_dim=config.head_dim,
        qkv_bias=config.qkv_bias,
        attn_drop=config.attn_drop_rate,
        proj_drop=config.proj_drop_rate,
        window=window,
        shifted=shifted,
        local_conv=None if is_softmax else config.local_conv,
        is_line=not isinstance(config, ViTConfig),
        attention_options=_attention_options(config, index),
    )
    mlp = Mlp(
        config.embed_dim,
        config.mlp_features,
        config.act,
        config.proj_drop_rate,
        config.act_drop_rate,
    )
    drop_path = config.drop_path_rate * index / max(1, config.depth - 1)
    return Block(attn, mlp, config.embed_dim, config.init_values, drop_path, config.norm_eps)


def _attention_options(config: TransformerConfig, index: int) -> dict[str, Any]:
    """Attention options of block `index`, with its own seed for random features."""
    if index in config.softmax_blocks:
        return {}
    options = dict(config.attention_options)
    if config.feature_seed is not None and "feature_seed" in ATTENTIONS[config.attention].options:
        options.setdefault("feature_seed", config.feature_seed + index)
    if "max_tokens" in ATTENTIONS[config.attention].options:
        options.setdefault("max_tokens", count_tokens(config))
    return options


def _norm(config: TransformerConfig, wanted: bool) -> nn.Module:
    return nn.LayerNorm(config.embed_dim, eps=config.norm_eps) if wanted else nn.Identity()


def _init_linears(part: nn.Module | None, std: float) -> None:
    """Initialize the linear layers of `part` with truncated normal weights and zero biases."""
    for module in () if part is None else part.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _call_block(
    block: Block,
    x: Tensor,
    key_mask: Tensor | None,
    grid: tuple[int, int] | None,
    attn_mask: Tensor | None,
) -> Tensor:
    masks = {} if attn_mask is None else {"attn_mask": attn_mask}
    out: Tensor = block(x, key_mask, grid, **masks)
    return out


def _is_plain(block: nn.Module) -> bool:
    """True for an unmodified `Block` without hooks."""
    return type(block) is Block and "forward" not in vars(block) and not is_hooked(block)


def _advance(
    block: Block,
    x: Tensor,
    branch: Tensor | None,
    keep: Tensor | None,
    key_mask: Tensor | None,
    grid: tuple[int, int] | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    return block.advance(x, branch, keep, key_mask, grid)


# By default torch.compile stores a value that several kernels read if it takes more than 30
# operations or 4 inputs. That includes batch norm with GELU, stored at twice the input's width.
# Higher limits make it recompute such values, which is cheaper on a GPU.
FUSION: dict[str, Any] = {"realize_opcount_threshold": 100, "realize_reads_threshold": 16}

_parts_of: WeakKeyDictionary[nn.Module, dict[Callable[..., Any], Callable[..., Any]]]
_parts_of = WeakKeyDictionary()
_copies = count()


def _compiled(model: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for one model only.

    torch.compile caches by the code object. If models shared it, each new model would make more
    sizes dynamic, which gives slower kernels, and would finally hit the recompilation limit.
    Therefore each model compiles its own copy of the function.
    """
    parts = _parts_of.setdefault(model, {})
    if call not in parts:
        assert isinstance(call, FunctionType)
        code = call.__code__.replace(co_name=f"{call.__name__}_{next(_copies)}")
        parts[call] = torch.compile(FunctionType(code, call.__globals__), options=FUSION)
    return parts[call]


class Transformer(HubModel):
    """Pre-norm transformer blocks and a classifier; subclasses add the embedding.

    Args:
        config: Configuration of the model.
        name: Name of the variant, for the saved config.
    """

    blocks: Sequence[Block]
    cls_token: nn.Parameter | None
    pos_embed: Tensor | None

    def __init__(self, config: TransformerConfig, name: str | None = None) -> None:
        super().__init__()
        self.config, self.name = config, name
        self.embed_dim = self.num_features = self.head_hidden_size = config.embed_dim
        self.num_prefix_tokens = int(config.class_token)
        self.grad_checkpointing = self.compiled = self.compiled_evaluation = False
        cls_token = nn.Parameter(torch.empty(1, 1, config.embed_dim))
        self.register_parameter("cls_token", cls_token if config.class_token else None)
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        blocks = nn.ModuleList(build_block(config, index) for index in range(config.depth))
        self.blocks = blocks  # type: ignore[assignment]
        self._build_classifier()

    def _build_classifier(self) -> None:
        config = self.config
        before, after = not config.norm_after_pool, config.norm_after_pool
        self.norm = _norm(config, config.final_norm and before)
        self.attn_pool = self._new_attention_pool()
        self.fc_norm = _norm(config, config.final_norm and after)
        self.head_drop = nn.Dropout(config.drop_rate if config.head_hidden_dim is None else 0.0)
        self.head = self._new_head()

    def _new_attention_pool(self) -> AttentionPool | None:
        config = self.config
        if config.global_pool != "map":
            return None
        return AttentionPool(
            config.embed_dim, config.num_heads, config.mlp_features, config.act, config.norm_eps
        )

    def _new_head(self) -> nn.Module:
        config = self.config
        return build_head(
            self.embed_dim, config.num_classes, config.head_hidden_dim, config.act, config.drop_rate
        )

    def _init_weights(self) -> None:
        """Initialize linear layers and learned positions with truncated normals, as timm does.

        The embedding and the attention cores keep their own initialization.
        """
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        if isinstance(self.pos_embed, nn.Parameter):
            nn.init.trunc_normal_(self.pos_embed, std=self.config.init_std)
        blocks = [(block.attn.qkv, block.attn.proj, block.mlp) for block in self.blocks]
        for part in (*chain.from_iterable(blocks), self.attn_pool, self.head):
            _init_linears(part, self.config.init_std)

    def set_positions(self, table: Tensor) -> None:
        """Set the position table (1, N, C): a parameter if it is learned, else a buffer."""
        if self.config.pos_embed == "none":
            self.register_parameter("pos_embed", None)
        elif self.config.pos_embed == "learned":
            self.pos_embed = nn.Parameter(table)
        else:
            self.register_buffer("pos_embed", table, persistent=False)

    @property
    def num_prefix_positions(self) -> int:
        """Number of entries in the position table before those of the embedded tokens."""
        return 0 if self.config.no_embed_class else self.num_prefix_tokens

    def add_positions(self, x: Tensor, table: Tensor | None) -> Tensor:
        """Prepend the class token to embedded tokens and add positions.

        Args:
            x: Embedded tokens (B, N, C).
            table: Positions (1, num_prefix_positions + N, C), or None.
        """
        if table is not None and self.config.no_embed_class:
            return self.add_class_token(x + table)
        x = self.add_class_token(x)
        return x if table is None else x + table

    def add_class_token(self, x: Tensor) -> Tensor:
        """Prepend the class token, if any, to (B, N, C)."""
        if self.cls_token is None:
            return x
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)

    def run_block(
        self,
        block: Block,
        x: Tensor,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Run one block, with compilation and gradient checkpointing if they are enabled."""
        call = self.part(_call_block)
        inputs = (block, x, key_mask, grid, attn_mask)
        if self.grad_checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(call, *inputs, use_reentrant=False)
        else:
            out = call(*inputs)
        return out

    def run_blocks(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run all blocks; return the tokens, a pending residual branch and its factors.

        Compiled blocks leave their last residual addition to the next norm, which fuses the two.
        Nothing is pending without compilation, with gradient checkpointing, with an `attn_mask`, or
        if a block has hooks or is of another class than `Block`.
        """
        branch = keep = None
        is_plain = attn_mask is None and all(map(_is_plain, self.blocks))
        if self.is_compiled and not self.grad_checkpointing and is_plain:
            advance = self.part(_advance)
            for block in self.blocks:
                x, branch, keep = advance(block, x, branch, keep, key_mask, grid)
        else:
            for block in self.blocks:
                x = self.run_block(block, x, key_mask, grid, attn_mask)
        return x, branch, keep

    def pool(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Pool tokens (B, N, C) to (B, C); unchanged if `global_pool` is empty.

        Args:
            x: Tokens (B, N, C).
            key_mask: (B, N), False on padding.
        """
        if not self.config.global_pool:
            return x
        if self.config.global_pool == "token":
            return x[:, 0]
        x = x[:, self.num_prefix_tokens :]
        if key_mask is not None:
            key_mask = key_mask[:, self.num_prefix_tokens :]
        if self.attn_pool is not None:
            pooled: Tensor = self.attn_pool(x, key_mask)
            return pooled
        if key_mask is None:
            return x.mean(dim=1)
        keep = key_mask[..., None].to(x.dtype)
        return (x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)

    def forward_head(
        self, x: Tensor, pre_logits: bool = False, key_mask: Tensor | None = None
    ) -> Tensor:
        """Compute logits from the output of `forward_features`.

        Args:
            x: Tokens (B, N, C).
            pre_logits: Return the input of the classifier, (B, C), or (B, N, C) if `global_pool`
                is empty.
            key_mask: (B, N), False on padding.
        """
        x = self.head_drop(self.fc_norm(self.pool(x, key_mask)))
        return x if pre_logits else self.head(x)

    @property
    def num_classes(self) -> int:
        """Number of logits."""
        return self.config.num_classes

    @property
    def global_pool(self) -> Pooling:
        """Pooling of the tokens; empty for none."""
        return self.config.global_pool

    def get_classifier(self) -> nn.Module:
        """The classifier layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pooling | None = None) -> None:
        """Replace the classifier by a newly initialized one.

        Args:
            num_classes: Number of logits; 0 for no classifier.
            global_pool: New pooling; None keeps the present one. The final norm stays in place, as
                in timm.
        """
        old = self.config
        self.config = replace(
            old,
            num_classes=num_classes,
            class_names=None,
            global_pool=old.global_pool if global_pool is None else global_pool,
            fc_norm=old.norm_after_pool,
        )
        like = next(self.parameters())
        if self.config.global_pool != old.global_pool:
            self.attn_pool = self._new_attention_pool()
            _init_linears(self.attn_pool, self.config.init_std)
        self.head = self._new_head()
        _init_linears(self.head, self.config.init_std)
        for part in (self.attn_pool, self.head):
            if part is not None:
                part.to(like.device, like.dtype).train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in the backward pass; saves memory and costs one more forward pass."""
        self.grad_checkpointing = enable

    def set_compiled(self, enable: bool = True, *, evaluation: bool = False) -> None:
        """Compile embedding, blocks and head separately during training; blocks share code.

        Args:
            enable: Compile, or stop compiling.
            evaluation: Compile in evaluation mode too.
        """
        self.compiled, self.compiled_evaluation = enable, enable and evaluation

    @property
    def is_compiled(self) -> bool:
        """True if compilation is enabled for the present mode, training or evaluation."""
        return self.compiled and (self.training or self.compiled_evaluation)

    def part(self, call: Callable[..., T], *modules: nn.Module) -> Callable[..., T]:
        """The function, compiled if compilation is enabled.

        Args:
            call: A function that calls a part of the model.
            modules: Modules that it calls. If one has hooks, the function is not compiled, so that
                the hooks run.
        """
        hooked = any(map(is_hooked, modules))
        return _compiled(self, call) if self.is_compiled and not hooked else call

    def resize_attentions(self) -> None:
        """Adapt attentions of a fixed length to the configuration's number of tokens."""
        if "max_tokens" in self.config.attention_options:
            return  # set by hand
        tokens = count_tokens(self.config)
        for block in self.blocks:
            block.attn.core.resize(tokens)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: tokens, positions, vectors of attentions."""
        names = {"cls_token", "pos_embed", "attn_pool.latent"}
        return {
            name
            for name, parameter in self.named_parameters()
            if name in names
            or (".attn.core." in name and sum(side > 1 for side in parameter.shape) <= 1)
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Patterns that group parameters by depth for layer-wise learning rates, as in timm."""
        return {
            "stem": r"^cls_token|pos_embed|patch_embed|token_embed",
            "blocks": r"^blocks\.(\d+)"
            if coarse
            else [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """Number of tokens, with the class token, above which the efficient Taylor form runs."""
        return self._with_attention()[0].N0

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        for attn in self._with_attention():
            attn.N0 = tokens
        options = {**self.config.attention_options, "N0": self.N0}
        self.config = replace(self.config, attention_options=options)

    def _with_attention(self) -> list[MultiHeadAttention]:
        """The layers that have `config.attention`; all if `softmax_blocks` names every block."""
        kept = self.config.softmax_blocks
        layers = [block.attn for i, block in enumerate(self.blocks) if i not in kept]
        return layers or [block.attn for block in self.blocks]
