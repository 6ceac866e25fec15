"""A dry run: everything up to and including one step, with nothing written."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.runs import RunFolder
from saccade.train.distributed import connect
from saccade.train.loop import Trainer
from saccade.train.machine import set_up_machine
from saccade.train.progress import choose_reporter
from saccade.train.run_data import load_training_data
from saccade.train.start import Start, agree, build_trainer, look, tell_failures, tell_finished
from saccade.train.stops import StopRequest

__all__ = ["rehearse"]


def rehearse(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Do what `train` does up to its first step and stop where it would; say what the run would be.

    Args:
        config: What to do.
        out: The run folder, which is looked at; without one there is nothing to look at.
        resume: Rehearse the next step of the run that is there.
        quiet: Do not tell of a run that is finished already.

    Returns:
        Facts about the run; of one that is finished already, its summary.

    Raises:
        ConfigError: As `train` does, and so are the others.
        DataError: The data cannot be used.
        TrainingError: Memory ran out, a process was lost, or the disk is full.
    """
    with set_up_machine(config), closing(connect(config.train.device)) as ranks:
        run = RunFolder(os.devnull if out is None else out)
        see = partial(look, run, config, None, resume=resume)
        start = Start(run) if out is None else agree(ranks, run, see)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        if start.summary:
            return tell_finished(start, reporter)
        make = partial(Trainer, config, load_training_data(config, run), run=run, ranks=ranks)
        trainer = build_trainer(partial(make, reporter=reporter, stop=StopRequest()))
        if out is not None:
            agree(ranks, run, lambda: run.check_writable(config))
        if start.checkpoint is not None:
            trainer.resume(start.checkpoint)
        return _describe(trainer, tell_failures(trainer, trainer.rehearse))


def _describe(trainer: Trainer, first_loss: float) -> dict[str, Any]:
    config, splits, steps = trainer.config, trainer.splits, len(trainer.train_loader)
    return {
        "model": config.model.name,
        "attention": trainer.attention,
        "parameters": trainer.parameters,
        "dataset": splits.info.name,
        "train_images": len(splits.train),
        "val_images": len(splits.val),
        "test_images": len(splits.test),
        "steps_per_epoch": steps,
        "steps": steps * config.train.epochs,
        "device": str(trainer.ranks.device),
        "first_loss": round(first_loss, 4),
    }
