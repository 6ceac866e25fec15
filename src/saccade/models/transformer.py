"""What image and sequence transformers share: class token, blocks, pooling, head.

Names of methods and parameters are timm's, so that weights and training scripts go both ways.
Layout (B, N, C); the class token, where there is one, comes first.
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
from saccade.layers.block import NORM_EPS, Block
from saccade.layers.head import build_head
from saccade.layers.mlp import Mlp
from saccade.layers.pooling import AttentionPool
from saccade.layers.residual import is_hooked
from saccade.models.config import Pooling, TransformerConfig, ViTConfig
from saccade.models.hub import HubModel

__all__ = ["Transformer"]


T = TypeVar("T")


def build_block(config: TransformerConfig, index: int) -> Block:
    """Block `index` of a model."""
    window = config.window if isinstance(config, ViTConfig) else None
    shifted = isinstance(config, ViTConfig) and config.shifted and index % 2 == 1
    attn = MultiHeadAttention(
        config.embed_dim,
        config.num_heads,
        config.attention,
        head_dim=config.head_dim,
        qkv_bias=config.qkv_bias,
        attn_drop=config.attn_drop_rate,
        proj_drop=config.proj_drop_rate,
        window=window,
        shifted=shifted,
        attention_options=_attention_options(config, index),
    )
    mlp = Mlp(config.embed_dim, config.mlp_features, config.act, config.proj_drop_rate)
    drop_path = config.drop_path_rate * index / max(1, config.depth - 1)
    return Block(attn, mlp, config.embed_dim, config.init_values, drop_path)


def _attention_options(config: TransformerConfig, index: int) -> dict[str, Any]:
    """The options of block `index`: its own feature seed where the attention draws features."""
    options = dict(config.attention_options)
    if config.feature_seed is not None and "feature_seed" in ATTENTIONS[config.attention].options:
        options.setdefault("feature_seed", config.feature_seed + index)
    return options


def _norm(dim: int, wanted: bool) -> nn.Module:
    return nn.LayerNorm(dim, eps=NORM_EPS) if wanted else nn.Identity()


def _init_linears(part: nn.Module | None, std: float) -> None:
    """Truncated normal weights and zero biases for the linear maps of `part`."""
    for module in () if part is None else part.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _call_block(
    block: Block, x: Tensor, key_mask: Tensor | None, grid: tuple[int, int] | None
) -> Tensor:
    out: Tensor = block(x, key_mask, grid)
    return out


def _is_plain(block: nn.Module) -> bool:
    """Whether it is a block of ours that nobody changed or hooks into."""
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


# torch.compile writes to memory what more than one kernel reads if it takes more than 30 operations
# or 4 inputs, and so a batch norm with its GELU, twice as wide as they came. Forming it again costs
# less on a GPU.
FUSION: dict[str, Any] = {"realize_opcount_threshold": 100, "realize_reads_threshold": 16}

_parts_of: WeakKeyDictionary[nn.Module, dict[Callable[..., Any], Callable[..., Any]]]
_parts_of = WeakKeyDictionary()
_copies = count()


def _compiled(model: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for one model alone.

    torch goes by a function's code and the name of it: with every other model it would hold more
    sizes open, which makes slower kernels, and in the end give up. So each model has its own copy.
    """
    parts = _parts_of.setdefault(model, {})
    if call not in parts:
        assert isinstance(call, FunctionType)
        code = call.__code__.replace(co_name=f"{call.__name__}_{next(_copies)}")
        parts[call] = torch.compile(FunctionType(code, call.__globals__), options=FUSION)
    return parts[call]


class Transformer(HubModel):
    """Pre-norm blocks between an embedding, which subclasses own, and a classifier.

    Args:
        config: All that the model is made of.
        name: Name of the variant, for the saved config.
    """

    blocks: Sequence[Block]
    cls_token: nn.Parameter | None
    pos_embed: Tensor | None

    def __init__(self, config: TransformerConfig, name: str | None = None) -> None:
        super().__init__()
        self.config, self.name = config, name
        self.embed_dim = self.num_features = config.embed_dim
        self.num_prefix_tokens = int(config.class_token)
        self.grad_checkpointing = self.compiled = False
        cls_token = nn.Parameter(torch.empty(1, 1, config.embed_dim))
        self.register_parameter("cls_token", cls_token if config.class_token else None)
        self.pos_drop = nn.Dropout(config.pos_drop_rate)
        blocks = nn.ModuleList(build_block(config, index) for index in range(config.depth))
        self.blocks = blocks  # type: ignore[assignment]
        self._build_classifier()

    def _build_classifier(self) -> None:
        config, dim = self.config, self.embed_dim
        before, after = not config.norm_after_pool, config.norm_after_pool
        self.norm = _norm(dim, config.final_norm and before)
        self.attn_pool = self._new_attention_pool()
        self.fc_norm = _norm(dim, config.final_norm and after)
        self.head_drop = nn.Dropout(config.drop_rate if config.head_hidden_dim is None else 0.0)
        self.head = self._new_head()

    def _new_attention_pool(self) -> AttentionPool | None:
        config = self.config
        if config.global_pool != "map":
            return None
        return AttentionPool(config.embed_dim, config.num_heads, config.mlp_features, config.act)

    def _new_head(self) -> nn.Module:
        config = self.config
        return build_head(
            self.embed_dim, config.num_classes, config.head_hidden_dim, config.act, config.drop_rate
        )

    def _init_weights(self) -> None:
        """Truncated normals for linear maps and learned positions, as timm's ViT starts.

        The embedding and the attention cores keep the start that they chose themselves.
        """
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        if isinstance(self.pos_embed, nn.Parameter):
            nn.init.trunc_normal_(self.pos_embed, std=self.config.init_std)
        blocks = [(block.attn.qkv, block.attn.proj, block.mlp) for block in self.blocks]
        for part in (*chain.from_iterable(blocks), self.attn_pool, self.head):
            _init_linears(part, self.config.init_std)

    def set_positions(self, table: Tensor) -> None:
        """Hold a table (1, N, C) of positions: learned ones as a parameter, others as a buffer."""
        if self.config.pos_embed == "none":
            self.register_parameter("pos_embed", None)
        elif self.config.pos_embed == "learned":
            self.pos_embed = nn.Parameter(table)
        else:
            self.register_buffer("pos_embed", table, persistent=False)

    def add_class_token(self, x: Tensor) -> Tensor:
        """Put the class token, where there is one, in front of (B, N, C)."""
        if self.cls_token is None:
            return x
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)

    def run_block(
        self,
        block: Block,
        x: Tensor,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tensor:
        """One block, compiled and recomputed in the backward pass where the model is set so."""
        call = self.part(_call_block)
        if self.grad_checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(call, block, x, key_mask, grid, use_reentrant=False)
        else:
            out = call(block, x, key_mask, grid)
        return out

    def run_blocks(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """All blocks: tokens, what is still to be added to them, and its factors.

        Compiled blocks leave their last addition to the next one's norm, unless somebody waits for
        a block to be called or has put something else in its place.
        """
        branch = keep = None
        if self.is_compiled and not self.grad_checkpointing and all(map(_is_plain, self.blocks)):
            advance = self.part(_advance)
            for block in self.blocks:
                x, branch, keep = advance(block, x, branch, keep, key_mask, grid)
        else:
            for block in self.blocks:
                x = self.run_block(block, x, key_mask, grid)
        return x, branch, keep

    def pool(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Pool tokens (B, N, C) to (B, C); `key_mask` (B, N) is False on padding."""
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
        """Logits of the tokens that `forward_features` gave.

        Args:
            x: Tokens (B, N, C).
            pre_logits: Whether to stop before the classifier, at (B, C).
            key_mask: (B, N), False on padding.
        """
        x = self.head_drop(self.fc_norm(self.pool(x, key_mask)))
        return x if pre_logits else self.head(x)

    @property
    def num_classes(self) -> int:
        """Number of logits."""
        return self.config.num_classes

    def get_classifier(self) -> nn.Module:
        """The layer that gives the logits."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pooling | None = None) -> None:
        """A new classifier, freshly started; 0 classes for none.

        Args:
            num_classes: Number of logits.
            global_pool: Another pooling; the final norm stays where it is, as in timm.
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
        """Recompute blocks in the backward pass: less memory, one more forward pass."""
        self.grad_checkpointing = enable

    def set_compiled(self, enable: bool = True) -> None:
        """While training, compile the parts: a few compilations serve all blocks."""
        self.compiled = enable

    @property
    def is_compiled(self) -> bool:
        """Whether parts are compiled now."""
        return self.compiled and self.training

    def part(self, call: Callable[..., T], *modules: nn.Module) -> Callable[..., T]:
        """A function that calls a part of the model, compiled where the model is set so.

        Args:
            call: The function.
            modules: Those it calls; it is not compiled where somebody hooks into one.
        """
        hooked = any(map(is_hooked, modules))
        return _compiled(self, call) if self.is_compiled and not hooked else call

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay should leave alone: tokens, positions, head scalars."""
        names = {"cls_token", "pos_embed", "attn_pool.latent"}
        return {
            name
            for name, parameter in self.named_parameters()
            if name in names
            or (".attn.core." in name and sum(side > 1 for side in parameter.shape) <= 1)
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Patterns that sort parameters by depth, for layer-wise learning rates (timm's form)."""
        return {
            "stem": r"^cls_token|pos_embed|patch_embed|token_embed",
            "blocks": r"^blocks\.(\d+)"
            if coarse
            else [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """Tokens above which the efficient Taylor form is used (class token counted)."""
        return self.blocks[0].attn.N0

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        for block in self.blocks:
            block.attn.N0 = tokens
        options = {**self.config.attention_options, "N0": self.N0}
        self.config = replace(self.config, attention_options=options)
