"""A dry run: everything up to and including one step, with nothing written."""

from __future__ import annotations

from typing import Any

import torch

from saccade.config import Config
from saccade.data import load_splits, make_loader
from saccade.train.build import build_model
from saccade.train.distributed import connect
from saccade.train.machine import set_up_machine
from saccade.train.step import Stepper

__all__ = ["rehearse"]


def rehearse(config: Config) -> dict[str, Any]:
    """Load the data, build the model and take one step; say what the run would be."""
    with set_up_machine(config):
        return _rehearse(config)


def _rehearse(config: Config) -> dict[str, Any]:
    ranks = connect(config.train.device)
    splits = load_splits(config.data)
    torch.manual_seed(config.run.seed)
    network = build_model(config, splits.info).to(ranks.device)
    loader = make_loader(
        splits.train,
        splits.info,
        batch_size=config.train.batch_size,
        augment=config.augment,
        seed=config.run.seed,
        device=ranks.device,
        shuffle=True,
        drop_last=len(splits.train) >= config.train.batch_size,
        workers=config.data.workers,
    )
    loss = Stepper(network, config, ranks).run(next(loader.epoch(0)), 0, 1.0)
    return {
        "model": config.model.name,
        "attention": network.config.attention,  # type: ignore[union-attr]
        "parameters": sum(p.numel() for p in network.parameters()),
        "dataset": splits.info.name,
        "train_images": len(splits.train),
        "val_images": len(splits.val),
        "test_images": len(splits.test),
        "steps_per_epoch": len(loader),
        "steps": len(loader) * config.train.epochs,
        "device": str(ranks.device),
        "first_loss": round(float(loss), 4),
    }
