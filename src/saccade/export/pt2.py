"""Write a model as a `torch.export` file (.pt2), after checking it.

Such a file is code: whoever loads it runs what it says. ONNX files and the Hub's folder are not.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from torch import Tensor

from saccade.errors import ConfigError, ExportError, shorten
from saccade.export import checking
from saccade.export.algorithm import AlgorithmChoice
from saccade.export.graph import Graph, quiet, trace
from saccade.export.metadata import describe
from saccade.export.options import ExportOptions
from saccade.export.output import check_target, write_output
from saccade.export.report import ExportReport
from saccade.models.transformer import Transformer

__all__ = ["METADATA_FILE", "export_pt2"]

METADATA_FILE = "saccade.json"
"""Name of the facts about the model inside the file (`extra_files` of `torch.export.load`)."""

WARNING = "a .pt2 file is code: load only files that you trust (torch.export.load runs them)"


def export_pt2(
    model: Transformer, path: str | Path, options: ExportOptions | None = None
) -> ExportReport:
    """Write a model as a `torch.export` file.

    Arguments and errors as for `export_onnx`; `opset` must be the default.
    """
    options, path = options or ExportOptions(), Path(path)
    check_target(path, suffix=".pt2")
    if options.opset != ExportOptions().opset:
        raise ConfigError(f"opset is for ONNX files, got {options.opset} with format 'pt2'")
    graph = trace(model, options)
    content = _saved(graph, {})

    def detailed() -> checking.Runner:
        return _run_of(_saved(trace(model, options, checking.layers_of(model)), {}))

    max_error = checking.check(model, options, _run_of(content), detailed)
    facts = describe(model, options, graph.choice, max_error)
    size = write_output(path, _saved(graph, {METADATA_FILE: json.dumps(facts)}))
    return ExportReport(path, size, _said(graph.choice), max_error, notes=(WARNING,))


def _saved(graph: Graph, extra_files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with quiet():
        torch.export.save(graph.program, content, extra_files=extra_files)
    return content.getvalue()


def _run_of(content: bytes) -> checking.Runner:
    """Load a file as a user does, and run it."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def run(inputs: tuple[Tensor, ...]) -> checking.Arrays:
        try:
            return [x.numpy() for x in module(*inputs)]
        except (AssertionError, RuntimeError) as error:  # a condition of the graph does not hold
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            reason = shorten(" ".join(str(error).split()), 200)
            raise ExportError(
                f"the exported model does not take inputs of {shapes}: {reason}"
            ) from error

    return run


def _said(choice: AlgorithmChoice) -> str:
    return f"{choice.algorithm}: {choice.reason}" if choice.algorithm else ""
