"""Output shape, parameters, FLOPs and activation memory of each part of a model.

Shapes and memory come from a forward pass with fake tensors, which have a shape and a device but no
data. Memory is the size of the tensors that autograd saves for the backward pass, without
parameters; each storage is counted once.

FLOPs are computed by formula. A multiply-add counts as two. Norms, activations, biases and softmax
are not counted, as in `torch.utils.flop_counter`. Each attention counts the products of its own
mechanism. A Taylor model counts the form, direct or efficient, that runs at that number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.hooks import RemovableHandle

from saccade.errors import ConfigError
from saccade.layers.head import head_flops
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.vision_transformer import VisionTransformer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ModelSummary", "PartSummary", "count_flops", "model_summary"]

Model = VisionTransformer | SequenceTransformer


@dataclass(frozen=True)
class PartSummary:
    """One row of the summary: a part of the model.

    Args:
        name: Path of the part within the model.
        kind: Short description.
        shape: Shape of its output.
        params: Number of parameters.
        flops: FLOPs of the forward pass for the batch.
        activation_bytes: Bytes that autograd saves for the backward pass of the batch.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    params: int
    flops: int
    activation_bytes: int


@dataclass(frozen=True)
class ModelSummary:
    """The rows of a model and their sums, printed as a table.

    Args:
        title: Name and attention of the model.
        batch_size: Batch size for FLOPs and memory.
        parts: The rows, from input to output.
    """

    title: str
    batch_size: int
    parts: tuple[PartSummary, ...]

    @property
    def params(self) -> int:
        """Number of parameters of the model."""
        return sum(part.params for part in self.parts)

    @property
    def flops(self) -> int:
        """FLOPs of the forward pass for the batch."""
        return sum(part.flops for part in self.parts)

    @property
    def activation_bytes(self) -> int:
        """Bytes that autograd saves for the backward pass of the batch."""
        return sum(part.activation_bytes for part in self.parts)

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(title=f"{self.title}, batch of {self.batch_size}", show_footer=True)
        table.add_column("part", "total")
        table.add_column("kind")
        table.add_column("output")
        table.add_column("parameters", f"{self.params:,}", justify="right")
        table.add_column("MFLOPs", f"{self.flops / 1e6:,.1f}", justify="right")
        table.add_column("activations MiB", _mib(self.activation_bytes), justify="right")
        for part in self.parts:
            shape = " x ".join(map(str, part.shape))
            numbers = (f"{part.params:,}", f"{part.flops / 1e6:,.1f}", _mib(part.activation_bytes))
            table.add_row(part.name, part.kind, shape, *numbers)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=110, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"


def model_summary(model: Model, *, batch_size: int = 1, seq_len: int | None = None) -> ModelSummary:
    """Summarize shapes, parameters, FLOPs and activation memory of every part of a model.

    Args:
        model: A model, on any device; it is not run.
        batch_size: Batch size for FLOPs and memory.
        seq_len: Length of the sequences, default `max_seq_len`.
    """
    flops = count_flops(model, seq_len)
    twin = _meta_twin(model)
    device = next(model.parameters()).device
    with FakeTensorMode(allow_non_fake_inputs=True):
        twin.to_empty(device="cpu" if device.type == "meta" else device)
        ledger = _Ledger(twin)
        with ledger.watch():
            twin(_empty_input(twin, batch_size, seq_len))
    parts = tuple(
        PartSummary(
            name=name,
            kind=kind,
            shape=ledger.shapes[name],
            params=params,
            flops=flops.get(name, 0) * batch_size,
            activation_bytes=ledger.kept_bytes[name],
        )
        for name, kind, params in _parts(model)
    )
    title = f"{model.name or model.architecture}, {model.config.attention}"
    return ModelSummary(title, batch_size, parts)


def _parts(model: Model) -> Iterator[tuple[str, str, int]]:
    """Name, kind and number of parameters of every part, from input to output."""
    config = model.config
    own = sum(parameter.numel() for parameter in model.parameters(recurse=False))
    if isinstance(model, VisionTransformer):
        yield "patch_embed", f"stem {model.config.stem}", _count(model.patch_embed)
    else:
        yield "token_embed", f"embedding {model.config.embedding}", _count(model.token_embed)
    yield "positions", f"{config.pos_embed} positions", own
    for index, block in enumerate(model.blocks):
        attention = f"{block.attn.attention}, {config.num_heads} heads"
        yield f"blocks.{index}.attn", attention, _count(block.norm1, block.attn, block.ls1)
        mlp = f"MLP, {config.mlp_features} hidden"
        yield f"blocks.{index}.mlp", mlp, _count(block.norm2, block.mlp, block.ls2)
    yield "norm", type(model.norm).__name__, _count(model.norm)
    if model.attn_pool is not None:
        yield "attn_pool", "attention pooling", _count(model.attn_pool)
    yield "head", type(model.head).__name__, _count(model.fc_norm, model.head)


def _count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _meta_twin(model: Model) -> Model:
    """A copy of the model on the meta device, in training mode."""
    with torch.device("meta"):
        twin = type(model).from_config(model.config)
    for mine, other in zip(twin.blocks, model.blocks, strict=True):
        if hasattr(other.attn, "N0"):
            mine.attn.N0 = other.attn.N0
    twin.set_grad_checkpointing(model.grad_checkpointing)
    return twin.to(next(model.parameters()).dtype).train()


def _empty_input(model: Model, batch_size: int, seq_len: int | None) -> Tensor:
    like = next(model.parameters())
    if isinstance(model, VisionTransformer):
        return like.new_empty(batch_size, model.config.in_chans, *model.config.img_size)
    tokens = model.max_seq_len if seq_len is None else seq_len
    if model.config.embedding == "token":
        return like.new_empty(batch_size, tokens, dtype=torch.long)
    return like.new_empty(batch_size, tokens, model.config.input_dim)


class _Ledger:
    """Records output shapes and saved activations of each part during a forward pass.

    A checkpointed block saves only its input, which counts for the part that computed it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kept_bytes = {name: 0 for name, _, _ in _parts(model)}
        self._part = next(iter(self.kept_bytes))
        tensors = [*model.parameters(), *model.buffers()]
        self._seen = {storage._cdata: storage for storage in map(Tensor.untyped_storage, tensors)}

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = storage
            self.kept_bytes[self._part] += storage.nbytes()
        return tensor

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Install the hooks during a forward pass."""
        hooks = list(self._hooks())
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
            yield
        for hook in hooks:
            hook.remove()

    def _hooks(self) -> Iterator[RemovableHandle]:
        """Register the hooks of every part."""
        model = self.model
        embedding = model.get_submodule(self._part)
        yield from self._part_hooks(self._part, embedding, embedding)
        yield from self._part_hooks("positions", model.pos_drop, model.pos_drop)
        for index, block in enumerate(model.blocks):
            yield from self._part_hooks(f"blocks.{index}.attn", block.norm1, block.attn)
            yield from self._part_hooks(f"blocks.{index}.mlp", block.norm2, block.mlp)
        yield from self._part_hooks("norm", model.norm, model.norm)
        if model.attn_pool is not None:
            yield from self._part_hooks("attn_pool", model.attn_pool, model.attn_pool)
        yield from self._part_hooks("head", model.fc_norm, model.head)

    def _part_hooks(
        self, name: str, begins: nn.Module, gives: nn.Module
    ) -> Iterator[RemovableHandle]:
        """Register hooks for the part that starts at `begins` and whose output `gives` computes."""

        def begin(module: nn.Module, args: object) -> None:
            self._part = name

        def note(module: nn.Module, args: object, output: Tensor) -> None:
            self.shapes[name] = tuple(output.shape)

        yield begins.register_forward_pre_hook(begin)
        yield gives.register_forward_hook(note)


def count_flops(model: Model, seq_len: int | None = None) -> dict[str, int]:
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


def _embedding_flops(model: Model, seq_len: int | None) -> tuple[dict[str, int], int]:
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
