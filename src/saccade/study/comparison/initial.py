"""Initial weights of each seed, taken from the baseline's model and shared by all attentions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.errors import ConfigError, TrainingError, writing_error
from saccade.io import check_regular
from saccade.models.weight_files import write_tensors
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.train import build_model
from saccade.train.distributed import full
from saccade.train.initialize import read_configured

__all__ = ["write_initial_weights"]


def write_initial_weights(folder: ComparisonFolder, info: DatasetInfo) -> None:
    """Write the missing weight files, one per seed.

    Raises:
        ConfigError: An existing file is damaged.
        TrainingError: The disk is full or cannot be written.
    """
    plan = folder.plan
    for seed in plan.seeds:
        path = folder.initial(seed)
        if path.exists():
            _check_whole(path)
            continue
        torch.manual_seed(seed)
        fold = None if plan.folds is None else 0
        config = plan.config(Job(plan.baseline, seed, fold))
        network = build_model(config, info)
        if (start := read_configured(config)) is not None:
            start.fill(network, reset_head=config.init.reset_head)
        try:
            _write_whole(path, {name: full(t) for name, t in network.state_dict().items()})
        except OSError as error:
            message = f"cannot write {str(path)!r}"
            raise writing_error(message, error, TrainingError, "go on with --resume") from None


def _check_whole(path: Path) -> None:
    """Raise if a weight file is damaged."""
    try:
        check_regular(path)
        with safe_open(path, "pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error}); delete it to write it again"
        ) from None


def _write_whole(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file atomically."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_tensors(tensors, aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
