"""Compare an exported graph with torch, and find the layer where a difference begins.

The graph runs with 1, 2 and 5 samples. Every output is compared with the model itself, which takes
its ordinary path and not the one of the graph, in float64 and in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.errors import ExportError, shorten
from saccade.export.graph import reference, samples
from saccade.export.options import MAX_ERROR, ExportOptions
from saccade.models.transformer import Transformer
from saccade.models.vision_transformer import VisionTransformer

__all__ = ["BATCHES", "Runner", "check", "guarded", "layers_of", "run_module", "run_session"]

BATCHES = (1, 2, 5)

Arrays = Sequence[NDArray[Any]]
Runner = Callable[[tuple[Tensor, ...]], Arrays]
"""Runs an exported graph: inputs to outputs, in the order of the graph's names."""


def check(
    model: Transformer, options: ExportOptions, run: Runner, detailed: Callable[[], Runner]
) -> float:
    """Check the outputs of a graph; return the largest error of a logit.

    Args:
        model: The model that was exported.
        options: The options of the graph.
        run: Runs the graph.
        detailed: Makes a runner of the same graph whose outputs are followed by those of
            `layers_of(model)`; called if there is a difference, to name the layer where it begins.

    Raises:
        ExportError: An output differs by more than `MAX_ERROR`, or is not finite where the model's
            is.
    """
    limit, worst = MAX_ERROR[options.precision], 0.0
    references = [reference(model, dtype, options) for dtype in (torch.float64, torch.float32)]
    for inputs in _inputs(model, options):
        found = run(inputs)
        for wanted in references:
            expected = run_module(wanted)(inputs)
            errors = [_error(x, y, options) for x, y in zip(found, expected, strict=True)]
            for name, error in zip(wanted.names, errors, strict=True):
                if not error <= limit:
                    layer = _locate(model, options, detailed(), inputs)
                    raise ExportError(
                        f"the exported model must agree with torch to {limit:g} "
                        f"({options.precision}), got a difference of {error:.2g} in {name!r} with "
                        f"{len(inputs[0])} samples; it begins in layer {layer!r}"
                    )
            worst = max(worst, errors[0])
    return worst


def _locate(
    model: Transformer, options: ExportOptions, run: Runner, inputs: tuple[Tensor, ...]
) -> str:
    """The first layer whose output differs from torch by more than `MAX_ERROR`."""
    layers = layers_of(model)
    wanted = reference(model, torch.float64, options, layers)
    found, expected = (r(inputs)[-len(layers) :] for r in (run, run_module(wanted)))
    for name, x, y in zip(layers, found, expected, strict=True):
        if not _error(x, y, options) <= MAX_ERROR[options.precision]:
            return name
    return "logits"


def layers_of(model: Transformer) -> list[str]:
    """Names of the layers that are compared, in the order in which they run."""
    embedding = "patch_embed" if isinstance(model, VisionTransformer) else "token_embed"
    blocks = [f"blocks.{i}.{part}" for i in range(len(model.blocks)) for part in ("attn", "mlp")]
    ends = ["attn_pool"] if model.attn_pool is not None else []
    return [embedding, *blocks, "norm", *ends, "fc_norm", "head"]


def _inputs(model: Transformer, options: ExportOptions) -> Iterator[tuple[Tensor, ...]]:
    for batch in BATCHES:
        yield samples(model, batch, seed=batch)
    if not options.dynamic_size:
        return
    if isinstance(model, VisionTransformer):
        height, width = model.patch_embed.img_size
        side = model.patch_embed.stride
        yield samples(model, 2, size=(height + side, width + 3 * side))
    else:
        yield samples(model, 2, size=max(2, model.config.max_seq_len // 2))  # type: ignore[attr-defined]


def _error(found: NDArray[Any], expected: NDArray[Any], options: ExportOptions) -> float:
    """The largest difference; NaN if an output is not finite, infinite if its shape differs."""
    if found.shape != expected.shape:
        return float("inf")
    if found.size == 0:
        return 0.0
    error = float(np.abs(found - expected).max())
    if options.precision == "fp32":
        return error
    return error / max(1.0, float(np.abs(expected).max()))


def run_module(module: Callable[..., Sequence[Tensor]]) -> Runner:
    """A runner of a module of torch."""
    return torch.no_grad()(lambda inputs: [x.numpy() for x in module(*inputs)])


def run_session(session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Runner:
    """A runner of an ONNX Runtime session, by the names of its inputs and outputs."""

    def run(given: tuple[Tensor, ...]) -> Arrays:
        fed = {name: x.numpy() for name, x in zip(inputs, given, strict=True)}
        found: Arrays = session.run(list(outputs), fed)
        return found

    return guarded(run, "does not run in ONNX Runtime with inputs of")


def guarded(run: Runner, told: str) -> Runner:
    """The runner, whose errors become an `ExportError` with the shapes of the inputs."""

    def guarded_run(inputs: tuple[Tensor, ...]) -> Arrays:
        try:
            return run(inputs)
        except Exception as error:  # torch and ONNX Runtime raise many kinds
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            reason = shorten(" ".join(str(error).split()), 200)
            raise ExportError(f"the exported model {told} {shapes}: {reason}") from error

    return guarded_run
