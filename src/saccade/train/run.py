"""A run from its configuration to its summary.

`train` has all steps: set up the machine, inspect the folder, load the data, build the model,
lock the folder, train, test, finish. The functions below it stand in the order in which it calls
them. `start.py` has the folder, `loop.py` the epochs, `step.py` a step, `checkpoint.py` what is
saved, `failures.py` the errors. `dry_run` does the same up to one step and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from saccade.config import Config
from saccade.environment import describe_run
from saccade.errors import TrainingError, writing_error
from saccade.runs import RunFolder
from saccade.train.cost import describe_cost
from saccade.train.distributed import connect
from saccade.train.failures import (
    RESUMABLE,
    before_training,
    record_failures,
    run_on_main,
    translate_errors,
)
from saccade.train.initialize import (
    InitialWeights,
    Pretrained,
    describe_start,
    read_start,
    with_pretrained_model,
)
from saccade.train.loop import EpochWatcher, Trainer
from saccade.train.progress import SilentReporter, choose_reporter
from saccade.train.run_data import batch_note, load_training_data, record_run_split
from saccade.train.signals import StopRequest, stop_signals
from saccade.train.start import Start, inspect_folder, prepare_folder, report_finished
from saccade.train.torch_flags import set_up_machine
from saccade.train.trackers import open_trackers

__all__ = ["dry_run", "report_cost", "train"]


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    on_epoch: EpochWatcher | None = None,
    initial: str | Path | InitialWeights | Pretrained | None = None,
    make_trainer: Callable[..., Trainer] = Trainer,
) -> dict[str, Any]:
    """Train one model and write its run folder.

    Torch's global flags are set by `set_up_machine` and restored afterwards, also after an error.

    Args:
        config: The configuration of the run.
        out: The run folder. It must not contain a run unless `resume` is set.
        resume: Continue from the newest intact checkpoint, or start a new run if there is none.
        quiet: Show no progress.
        on_epoch: Called in every process with each epoch's row of `metrics.jsonl` after it is
            written. It may raise `Stopped` to end the run.
        initial: A safetensors file with initial weights. Tensors that match in name and shape are
            copied; the others are initialized as usual. `initial.json` lists both. It takes the
            place of `init.from`, whose weights it must include.
        make_trainer: Makes the trainer from the arguments of `Trainer`.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ConfigError: The configuration or the folder cannot be used.
        DataError: The data cannot be used.
        TrainingError: A step was not finite, memory ran out, a process was lost, or the disk is
            full (`FullDiskError`).
        Preempted: The run was stopped by a signal. It is saved and can be resumed.
        Stopped: `on_epoch` stopped the run.
    """
    config = with_pretrained_model(config)
    with (
        set_up_machine(config),
        closing(connect(config.train.device)) as ranks,
        ExitStack() as held,
    ):
        run = RunFolder(out)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        weights = before_training(partial(read_start, config, run, initial, resume=resume))
        inspect = partial(inspect_folder, run, config, weights, resume=resume)
        start = run_on_main(ranks, run, inspect)
        if start.summary:
            return report_finished(start, reporter)
        splits = before_training(partial(load_training_data, config, run))
        with stop_signals() as stop:
            make = partial(make_trainer, config, splits, run=run, ranks=ranks, reporter=reporter)
            trainer = before_training(partial(make, stop=stop, on_epoch=on_epoch, initial=weights))
            # Created only after the model is built, so that a misspelled name leaves no folder.
            start = run_on_main(ranks, run, lambda: prepare_folder(run, config, inspect, held))
            if start.summary:
                return report_finished(start, reporter)
            with closing(reporter), _open_trackers(trainer, start), record_failures(trainer):
                _announce(trainer, start)
                return translate_errors(trainer, lambda: _train(trainer, start))


@contextmanager
def _open_trackers(trainer: Trainer, start: Start) -> Iterator[None]:
    """Send the rows of metrics to the trackers of the run, in the main process."""
    if trainer.ranks.is_main:
        trainer.trackers = open_trackers(trainer.config, start.run.path, start.step, start.logged)
    try:
        yield
    finally:
        for tracker in trainer.trackers:
            tracker.close()


def _announce(trainer: Trainer, start: Start) -> None:
    """Report what is repaired, skipped or resumed, and what the run will cost."""
    reporter = trainer.reporter
    for fault in start.damage:
        reporter.note(f"repairing the finished run: {fault}")
    report_cost(trainer, start)
    for fault in start.faults:
        reporter.note(f"skipped a damaged checkpoint: {fault}")
    if start.checkpoint is not None:
        reporter.note(f"resuming from {start.checkpoint.path.name}")
    elif trainer.initial is not None and "reset" in trainer.initial:
        reporter.note(describe_start(trainer.initial))
    elif start.faults:
        reporter.note("no readable checkpoint is left: starting again from the first step")


def report_cost(trainer: Trainer, start: Start) -> None:
    """Report a batch larger than the training set and, for a new run, the time of an epoch."""
    reporter, ranks = trainer.reporter, trainer.ranks
    if note := batch_note(trainer.config, trainer.splits):
        reporter.note(note)
    if start.checkpoint is not None or type(reporter) is SilentReporter:
        return
    if note := describe_cost(trainer.config, trainer.splits, ranks.device, ranks.world_size):
        reporter.note(note)


def _train(trainer: Trainer, start: Start) -> dict[str, Any]:
    """Train to the end, from the checkpoint if there is one, and write the run folder."""
    try:
        if start.checkpoint is not None:
            trainer.resume(start.checkpoint)
        if trainer.ranks.is_main:
            if start.checkpoint is not None:
                trainer.rewind_metrics(start.checkpoint)
            _write_descriptions(trainer, start)
        trainer.write_status("running")
        summary = trainer.fit()
        if trainer.ranks.is_main:
            start.run.finish(summary, trainer.status("finished"))
        return summary
    except OSError as error:
        place = f"cannot write to {str(start.run.path)!r}"
        raise writing_error(place, error, TrainingError, RESUMABLE) from None


def _write_descriptions(trainer: Trainer, start: Start) -> None:
    """Write the descriptions of the data, the split, the initial weights and the machine."""
    run, here = start.run, describe_run(trainer.ranks.device, trainer.ranks.world_size)
    for warning in record_run_split(run, trainer.splits):
        trainer.reporter.note(warning)
    if not run.holds("dataset.json"):
        run.write("dataset.json", asdict(trainer.splits.info))
    if trainer.initial is not None and start.checkpoint is None:
        run.write("initial.json", trainer.initial)
    known = run.environment()
    if not known:
        seed, run_id = trainer.config.run.seed, uuid4().hex
        first = {**here, "seed": seed, "run_id": run_id, "resumed": []}
        if trainer.initial is not None:
            first["init"] = {key: trainer.initial[key] for key in ("file", "sha256")}
        run.write("environment.json", first)
    else:
        resumed = [*known["resumed"], {**here, "step": start.step}]
        run.write("environment.json", {**known, "resumed": resumed})


def dry_run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Do what `train` does up to and including one step, with the same errors; write nothing.

    With `resume` it is the next step of the run in `out`; None as `out` inspects no folder.

    Returns:
        Facts about the run; its summary if it is already finished.
    """
    config = with_pretrained_model(config)
    with set_up_machine(config), closing(connect(config.train.device)) as ranks:
        run = RunFolder(os.devnull if out is None else out)
        resume = resume and out is not None
        weights = before_training(partial(read_start, config, run, None, resume=resume))
        inspect = partial(inspect_folder, run, config, weights, resume=resume)
        start = Start(run) if out is None else run_on_main(ranks, run, inspect)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        if start.summary:
            return report_finished(start, reporter)
        splits = load_training_data(config, run)
        make = partial(Trainer, config, splits, run=run, ranks=ranks, reporter=reporter)
        trainer = before_training(partial(make, stop=StopRequest(), initial=weights))
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
