"""The weights that every variant of a seed starts from: those the baseline's model is born with."""

from __future__ import annotations

import os

import torch

from saccade.data import DatasetInfo
from saccade.models.weight_files import write_tensors
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.train import build_model
from saccade.train.distributed import full

__all__ = ["write_initial_weights"]


def write_initial_weights(folder: ComparisonFolder, info: DatasetInfo) -> None:
    """Write the file of each seed that has none; machines that start together keep the first."""
    plan = folder.plan
    for seed in plan.seeds:
        path = folder.initial(seed)
        if path.exists():
            continue
        path.parent.mkdir(exist_ok=True)
        torch.manual_seed(seed)
        fold = None if plan.folds is None else 0
        network = build_model(plan.config(Job(plan.baseline, seed, fold)), info)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        write_tensors({name: full(t) for name, t in network.state_dict().items()}, aside)
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            continue
        finally:
            aside.unlink()
