"""Write a model as the folder that the Hugging Face Hub stores: weights, config, model card."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import torch

from saccade.errors import ConfigError, ExportError, writing_error
from saccade.export import checking
from saccade.export.graph import Outputs
from saccade.export.options import ExportOptions
from saccade.export.report import ExportReport
from saccade.io import make_folder, sync
from saccade.models.factory import load_model
from saccade.models.transformer import Transformer

__all__ = ["export_hub"]


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

    def runner(layers: Sequence[str]) -> checking.Runner:
        loaded = Outputs(load_model(folder), layers=layers)

        @torch.no_grad()
        def run(inputs: tuple[torch.Tensor, ...]) -> checking.Arrays:
            return [x.numpy() for x in loaded(*inputs)]

        return run

    return checking.check(
        model, ExportOptions(), runner(()), lambda: runner(checking.layers_of(model))
    )
