"""The view Learn: every tensor of a forward pass of one picture, with its line of code.

The tensors are those of one real forward pass, taken by hooks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saccade
from saccade.layers import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.block import Block
from saccade.layers.residual import add_norm
from saccade.layers.stems import LinearPatchStem, Stem
from saccade.models import VisionTransformer
from saccade.models.transformer import Transformer
from saccade.serve.look import Focus, check_focus, rounded
from saccade.train.image_inputs import normalize
from saccade.train.inference import Predictor

__all__ = ["MAX_ROWS", "Line", "Shown", "Step", "find_line", "walk"]

MAX_ROWS, MAX_COLUMNS = 260, 96
"""Rows and columns of a matrix that are sent; minimum, maximum and mean are of all of it."""


@dataclass(frozen=True)
class Line:
    """A line of this package's code."""

    file: str
    number: int
    text: str


@dataclass(frozen=True)
class Shown:
    """A tensor that is drawn."""

    name: str
    values: Tensor

    def as_json(self) -> dict[str, Any]:
        """Shape and range of the tensor, and the part of it that is drawn."""
        values = self.values.detach().float()
        shown = values[..., :MAX_ROWS, :MAX_COLUMNS] if values.dim() == 2 else values
        return {
            "name": self.name,
            "shape": list(values.shape),
            "values": rounded(shown),
            "low": float(values.min()),
            "high": float(values.max()),
            "mean": float(values.mean()),
        }


@dataclass(frozen=True)
class Step:
    """One step of the walk; the page explains it by its id."""

    id: str
    tensors: Sequence[Shown]
    line: Line

    def as_json(self) -> dict[str, Any]:
        """The step as JSON values."""
        return {
            "id": self.id,
            "tensors": [tensor.as_json() for tensor in self.tensors],
            "code": {
                "file": self.line.file,
                "line": self.line.number,
                "text": self.line.text,
            },
        }


@dataclass
class _Seen:
    """Inputs and outputs of modules in one pass."""

    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    outputs: dict[nn.Module, Tensor] = field(default_factory=dict)


@torch.no_grad()
def walk(model: VisionTransformer, images: Tensor, focus: Focus) -> list[Step]:
    """The steps from the pixels of one picture, (1, C, H, W), to its probabilities."""
    check_focus(focus, model)
    with _watched(model, focus.layer) as seen:
        logits = model(images)
    steps = [*_embedding(model, images, seen), *_block(model, seen, focus)]
    return [*steps, *_ending(model, seen, logits)]


def _embedding(model: VisionTransformer, images: Tensor, seen: _Seen) -> Iterator[Step]:
    yield Step(
        "pixels",
        [Shown("x", images[0])],
        find_line(normalize, "return (values - mean) / std"),
    )
    patches = seen.outputs[model.patch_embed]
    stem = type(model.patch_embed)
    marker = "self.proj(patches)" if stem is LinearPatchStem else "self.proj(x)"
    yield Step("patches", [Shown("E", patches[0])], find_line(stem, marker))
    if model.cls_token is not None:
        yield Step(
            "class_token",
            [Shown("class token", model.cls_token[0])],
            find_line(Transformer.add_class_token, "torch.cat"),
        )
    table = model.positions(model.patch_embed.grid_size)
    if table is not None:
        yield Step(
            "positions",
            [Shown("P", table[0]), Shown("X", seen.inputs[model.blocks[0]][0])],
            find_line(Transformer.add_positions, "x + table"),
        )


def _block(model: VisionTransformer, seen: _Seen, focus: Focus) -> Iterator[Step]:
    block = model.blocks[focus.layer]
    attn, head = block.attn, focus.head or 0
    tokens = seen.inputs[attn]
    yield Step(
        "norm",
        [Shown("X", seen.inputs[block][0]), Shown("norm(X)", tokens[0])],
        find_line(add_norm, "return x, norm(x)"),
    )
    q, k, v = (part[0, head] for part in attn.heads(tokens))
    yield Step(
        "qkv",
        [Shown("Q", q), Shown("K", k), Shown("V", v)],
        find_line(MultiHeadAttention.packed_heads, "self.qkv(x)"),
    )
    grid = model.patch_embed.grid_size
    weights = attn.attention_weights(tokens, grid=grid)[0, head]
    yield Step("weights", [Shown("A", weights)], _equation_line(attn.attention))
    yield Step(
        "mix",
        [Shown("concat(A V)", seen.inputs[attn.proj][0]), Shown("Z", seen.outputs[attn][0])],
        find_line(MultiHeadAttention.forward, "self.proj(y.flatten(2))"),
    )
    yield Step(
        "mlp",
        [
            Shown("hidden", seen.outputs[block.mlp.act][0]),
            Shown("MLP", seen.outputs[block.mlp][0]),
        ],
        find_line(type(block.mlp).forward, "self.fc1(x)"),
    )
    yield Step(
        "residual",
        [Shown("X", seen.outputs[block][0])],
        find_line(Block.advance, "return x, *_dropped"),
    )


def _ending(model: VisionTransformer, seen: _Seen, logits: Tensor) -> Iterator[Step]:
    yield Step(
        "pool",
        [Shown("features", seen.inputs[model.head])],
        find_line(Transformer.forward_head, "self.pool(x, key_mask)"),
    )
    yield Step(
        "head",
        [Shown("logits", logits), Shown("probabilities", logits.float().softmax(-1))],
        find_line(Predictor.ranked, "softmax(0)"),
    )


@contextmanager
def _watched(model: VisionTransformer, layer: int) -> Iterator[_Seen]:
    """Keep inputs and outputs of the modules of a pass that the steps show."""
    block, seen = model.blocks[layer], _Seen()

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.inputs[module], seen.outputs[module] = inputs[0], output

    parts = (block, block.attn, block.attn.proj, block.mlp, block.mlp.act)
    modules = {model.patch_embed, model.blocks[0], model.head, *parts}
    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _equation_line(attention: str) -> Line:
    """The line of the equation that makes the weights."""
    function = ATTENTIONS[attention].equation_function
    lines, _ = inspect.getsourcelines(inspect.unwrap(function))
    last = [line.strip() for line in lines if "reference(" in line or "return" in line][-1]
    return find_line(function, last)


def find_line(place: type | Callable[..., Any], marker: str) -> Line:
    """The first line with `marker` in the source of a class or function of this package."""
    own = inspect.unwrap(place) if callable(place) and not isinstance(place, type) else place
    lines, start = inspect.getsourcelines(own)
    offset = next((i for i, line in enumerate(lines) if marker in line), None)
    if offset is None and isinstance(place, type) and place is not Stem:
        return find_line(place.__mro__[1], marker)
    assert offset is not None, f"{marker!r} is not in the source of {place!r}"
    source = inspect.getsourcefile(own)
    assert source is not None
    root = Path(saccade.__file__).parent.parent
    file = Path(source).relative_to(root).as_posix()
    return Line(file, max(1, start) + offset, lines[offset].strip())
