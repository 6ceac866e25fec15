"""Trace a model as a graph of torch's own operators (`torch.export`).

The copy that is traced takes the plain path of every attention (`plain_operators`), with the
algorithm that was chosen for it. The batch is dynamic. It is traced with two samples, because torch
treats a batch of one as a constant.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from saccade.errors import ConfigError, ExportError, SaccadeError, shorten
from saccade.export.algorithm import AlgorithmChoice, choose_algorithm, set_algorithm
from saccade.export.options import ExportOptions, chosen_layers
from saccade.layers.positions import interpolate_grid_positions
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.transformer import Transformer
from saccade.models.vision_transformer import VisionTransformer
from saccade.ops.backends import plain_operators

__all__ = ["Graph", "Outputs", "input_names", "quiet", "reference", "samples", "trace"]

MAX_REASON = 300


class Outputs(nn.Module):
    """A model that returns logits, attention maps of some blocks, and outputs of some layers."""

    def __init__(
        self, model: Transformer, maps: Sequence[int] = (), layers: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.model = model
        self.found: dict[str, Tensor] = {}
        for index in maps:
            attn = model.blocks[index].attn
            keep = partial(self._keep_map, f"map_{index}")
            attn.register_forward_pre_hook(keep, with_kwargs=True)
        for name in layers:
            model.get_submodule(name).register_forward_hook(partial(self._keep_output, name))
        self.names = ("logits", *(f"map_{index}" for index in maps), *layers)

    def _keep_map(
        self, name: str, attn: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        masks = {key: options.get(key) for key in ("key_mask", "grid")}
        self.found[name] = attn.attention_weights(*inputs, **masks)  # type: ignore[operator]

    def _keep_output(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        del module, inputs
        self.found[name] = output

    def forward(self, x: Tensor, *key_mask: Tensor) -> tuple[Tensor, ...]:
        """All outputs, in the order of `names`, in float32 or wider."""
        dtype = next(self.model.parameters()).dtype
        logits = self.model(x.to(dtype) if x.is_floating_point() else x, *key_mask)
        found, self.found = {"logits": logits, **self.found}, {}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return tuple(found[name].to(wide) for name in self.names)


@dataclass(frozen=True)
class Graph:
    """A traced model."""

    program: ExportedProgram
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    choice: AlgorithmChoice


def input_names(model: Transformer) -> tuple[str, ...]:
    """Names of the inputs: images, or tokens with their mask."""
    return ("images",) if isinstance(model, VisionTransformer) else ("tokens", "key_mask")


def reference(
    model: Transformer,
    dtype: torch.dtype,
    options: ExportOptions,
    layers: Sequence[str] = (),
) -> Outputs:
    """The model as it is, in evaluation mode and another dtype, with the outputs of a graph."""
    own = _copied(model, options)
    return Outputs(own.to(dtype), chosen_layers(options.maps, len(own.blocks)), layers)


def trace(model: Transformer, options: ExportOptions, layers: Sequence[str] = ()) -> Graph:
    """Trace a model.

    Args:
        model: The model; it is not changed.
        options: What to trace.
        layers: Names of modules whose outputs are outputs of the graph too.

    Raises:
        ExportError: The model has no graph, with the reason.
    """
    _check(model, options)
    choice = choose_algorithm(model, options.algorithm)
    own = _copied(model, options)
    for block in own.blocks:
        set_algorithm(block.attn, choice)
    if options.precision == "fp16":
        own = own.half()
    module = Outputs(own, chosen_layers(options.maps, len(own.blocks)), layers).eval()
    inputs, shapes = _examples(own, options)
    try:
        with torch.no_grad(), plain_operators(), SumsInFloat32(), quiet():
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    except SaccadeError:
        raise
    except Exception as error:  # torch raises many kinds, for code that it cannot trace
        raise ExportError(_refusal(model, options, error)) from error
    return Graph(program, inputs, module.names, choice)


def _check(model: Transformer, options: ExportOptions) -> None:
    """Raise if it is known that the model has no such graph."""
    for block in model.blocks:
        if obstacle := block.attn.core.export_obstacle:
            raise ExportError(f"attention {block.attn.attention!r} cannot be exported: {obstacle}")
        if options.dynamic_size and block.attn.window is not None:
            raise ConfigError(
                "dynamic_size must be False for attention within windows, got True: the layout of "
                "the windows depends on the image size"
            )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep progress, warnings and dumped graphs of torch's exporters off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        unseen = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(unseen),
            contextlib.redirect_stderr(unseen),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _refusal(model: Transformer, options: ExportOptions, error: Exception) -> str:
    reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
    what = f"attention {model.config.attention!r} of {model.name or model.architecture!r}"
    if options.dynamic_size:
        what += f" with dynamic_size=True and pos_embed={model.config.pos_embed!r}"
    return f"{what} cannot be exported: {shorten(reason, MAX_REASON)}"


def _copied(model: Transformer, options: ExportOptions) -> Transformer:
    own = copy.deepcopy(model).cpu().eval()
    own.set_compiled(False)
    own.set_grad_checkpointing(False)
    if options.dynamic_size and isinstance(own, VisionTransformer):
        own.patch_embed.strict_img_size = False
        own.positions = _dynamic_positions(own)  # type: ignore[method-assign, assignment]
    return own


def _dynamic_positions(
    model: VisionTransformer,
) -> Callable[[tuple[int, int]], Tensor | None]:
    """`model.positions` without a special case for the model's own size."""

    def positions(grid: tuple[int, int]) -> Tensor | None:
        table = model.pos_embed
        if isinstance(table, nn.Parameter):
            own = model.patch_embed.grid_size
            return interpolate_grid_positions(table, own, grid, model.num_prefix_positions)
        return None if table is None else model._new_positions(grid).to(table)

    return positions


def _examples(
    model: Transformer, options: ExportOptions
) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Two samples, and which of their dimensions are dynamic.

    With dynamic sizes they do not have the model's own size, for which `positions` has a special
    case.
    """
    batch = {0: Dim("batch", min=1, max=2**20)}
    if not options.dynamic_size:
        inputs = samples(model, 2)
        return inputs, (batch,) if len(inputs) == 1 else (batch, (batch,))
    if isinstance(model, VisionTransformer):
        side, (height, width) = model.patch_embed.stride, model.patch_embed.img_size
        sizes = {2: side * Dim("rows", min=1), 3: side * Dim("columns", min=1)}
        return samples(model, 2, size=(height + side, width + 2 * side)), (batch | sizes,)
    assert isinstance(model, SequenceTransformer)
    lengths = batch | {1: Dim("length", min=1, max=model.max_seq_len)}
    return samples(model, 2, size=max(2, model.max_seq_len // 2)), (lengths, (lengths,))


def samples(
    model: Transformer, batch: int, *, size: tuple[int, int] | int | None = None, seed: int = 0
) -> tuple[Tensor, ...]:
    """Random inputs: images of a height and width, or tokens of a length with a random mask."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, VisionTransformer):
        height, width = size if isinstance(size, tuple) else model.patch_embed.img_size
        shape = (batch, model.patch_embed.in_chans, height, width)
        return (torch.randn(shape, generator=generator),)
    assert isinstance(model, SequenceTransformer)
    length = size if isinstance(size, int) else model.max_seq_len
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    key_mask = torch.arange(length) < lengths[:, None]
    if model.config.embedding == "token":
        symbols = torch.randint(model.config.input_dim, (batch, length), generator=generator)
        return symbols, key_mask
    return torch.randn(batch, length, model.config.input_dim, generator=generator), key_mask


class SumsInFloat32(TorchFunctionMode):
    """Compute sums of half-precision tensors in float32, in graphs that others will run.

    torch's own kernels do so. An operator of ONNX on float16 sums as its runtime likes.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func` with float32 copies of half-precision arguments if it sums."""
        kwargs = dict(kwargs or {})
        if func not in _SUMS or not (args and _is_half(args[0])):
            return func(*args, **kwargs)
        wide = [x.float() if _is_half(x) else x for x in args]
        return func(*wide, **kwargs).to(args[0].dtype)


_SUMS = {
    F.scaled_dot_product_attention,
    F.softmax,
    torch.softmax,
    torch.mean,
    torch.sum,
    Tensor.softmax,
    Tensor.mean,
    Tensor.sum,
}


def _is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
