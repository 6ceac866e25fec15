"""Write a model as a `torch.export` file (.pt2) or as a folder for the Hub, after checking it.

A .pt2 file is code: whoever loads it runs what it says. ONNX files and the Hub's folder are not.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch

from saccade.errors import ConfigError, ExportError, writing_error
from saccade.export import checking
from saccade.export.graph import Graph, Outputs, quiet, trace
from saccade.export.metadata import describe
from saccade.export.options import ExportOptions, ExportReport, check_target, write_output
from saccade.io import make_folder, sync
from saccade.models.factory import load_model
from saccade.models.transformer import Transformer

__all__ = ["METADATA_FILE", "export_hub", "export_pt2"]

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
    return ExportReport(path, size, graph.choice.told, max_error, notes=(WARNING,))


def _saved(graph: Graph, extra_files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with quiet():
        torch.export.save(graph.program, content, extra_files=extra_files)
    return content.getvalue()


def _run_of(content: bytes) -> checking.Runner:
    """Load a file as a user does, and run it."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    return checking.guarded(checking.run_module(module), "does not take inputs of")


def export_hub(model: Transformer, path: str | Path) -> ExportReport:
    """Write a model as a folder that `from_pretrained` loads and `push_to_hub` sends.

    The folder is written aside, loaded again and compared with the model before it gets its name.

    Args:
        model: The model; if it was loaded from a run, its card describes the run.
        path: The folder to write; it must not exist.
    """
    path = Path(path)
    if path.exists():
        raise ConfigError(f"out must be a new folder, got {str(path)!r}, which exists")
    aside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        make_folder(aside)
        model.save_pretrained(aside)
        max_error = _check(model, aside)
        for file in aside.iterdir():
            sync(file)
        aside.rename(path)
        sync(path.parent)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ExportError) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    size = sum(file.stat().st_size for file in path.iterdir())
    return ExportReport(path, size, "", max_error)


def _check(model: Transformer, folder: Path) -> float:
    """Load the folder and compare its outputs with those of the model."""

    def runner(layers: Sequence[str] = ()) -> checking.Runner:
        return checking.run_module(Outputs(load_model(folder), layers=layers))

    return checking.check(
        model, ExportOptions(), runner(), lambda: runner(checking.layers_of(model))
    )
