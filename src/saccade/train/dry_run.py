"""A dry run: everything up to and including one training step, without writing anything."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.runs import RunFolder
from saccade.train.distributed import connect
from saccade.train.failures import before_training, run_on_main, translate_errors
from saccade.train.initialize import read_start, with_pretrained_model
from saccade.train.loop import Trainer
from saccade.train.progress import choose_reporter
from saccade.train.run import report_cost
from saccade.train.run_data import load_training_data
from saccade.train.signals import StopRequest
from saccade.train.start import Start, inspect_folder, report_finished
from saccade.train.torch_flags import set_up_machine

__all__ = ["dry_run"]


def dry_run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Do what `train` does up to and including one step, with the same errors; write nothing.

    Args:
        config: The configuration of the run.
        out: The run folder to inspect; None inspects no folder.
        resume: Take the next step of the run in `out`.
        quiet: Do not report that the run is already finished.

    Returns:
        Facts about the run; its summary if it is already finished.

    Raises:
        ConfigError: The configuration or the folder cannot be used.
        DataError: The data cannot be used.
        TrainingError: Memory ran out, a process was lost, or the disk is full.
    """
    config = with_pretrained_model(config)
    with set_up_machine(config), closing(connect(config.train.device)) as ranks:
        run = RunFolder(os.devnull if out is None else out)
        read = partial(read_start, config, run, None, resume=resume and out is not None)
        weights = before_training(read)
        inspect = partial(inspect_folder, run, config, weights, resume=resume)
        start = Start(run) if out is None else run_on_main(ranks, run, inspect)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        if start.summary:
            return report_finished(start, reporter)
        make = partial(Trainer, config, load_training_data(config, run), run=run, ranks=ranks)
        parts = {"reporter": reporter, "stop": StopRequest(), "initial": weights}
        trainer = before_training(partial(make, **parts))
        if out is not None:
            run_on_main(ranks, run, lambda: run.check_writable(config))
        if start.checkpoint is not None:
            trainer.resume(start.checkpoint)
        report_cost(trainer, start)
        return _describe(trainer, translate_errors(trainer, trainer.dry_run))


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
