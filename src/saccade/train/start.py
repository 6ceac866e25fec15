"""Starting and resuming a run: the folder, the processes, and how a run that fails says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from saccade.config import Config, differences
from saccade.data.decoding import is_lost_worker
from saccade.errors import (
    ConfigError,
    FullDiskError,
    Preempted,
    SaccadeError,
    Stopped,
    TrainingError,
    writing_error,
)
from saccade.runs import Checkpoint, RunFolder
from saccade.train.build import describe_data
from saccade.train.distributed import Ranks, connect
from saccade.train.environment import describe_environment
from saccade.train.initial import InitialWeights, check_initial
from saccade.train.loop import EpochWatcher, Trainer
from saccade.train.machine import set_up_machine
from saccade.train.memory import batch_that_fits, too_many_images, unless_out_of_memory
from saccade.train.progress import Reporter, choose_reporter
from saccade.train.run_data import load_training_data
from saccade.train.stops import stop_signals
from saccade.train.trackers import open_trackers

__all__ = ["Start", "agree", "build_trainer", "look", "tell_failures", "tell_finished", "train"]

T = TypeVar("T")

CHANGEABLE = {
    "data.root",
    "data.workers",
    "data.on_bad_image",
    "data.max_bad_images",
    "train.device",
    "train.strategy",
    "train.accumulation",
    "train.eval_batch_size",
    "train.compile",
    "train.cuda_graph",
    "train.grad_checkpointing",
    "run.checkpoint_every_steps",
    "run.checkpoint_every_epochs",
    "run.keep_last",
    "run.log_every_steps",
    "run.trackers",
}
"""Keys that a resumed run may change: they say how to compute, not what.

What to do about bad images is among them, since a run may meet the first one in its last test.
"""


RESUMABLE = "what was saved before is intact, go on with --resume"


@dataclass
class Start:
    """What the main process found: the checkpoint to go on from, damage, or a finished run."""

    run: RunFolder
    checkpoint: Checkpoint | None = None
    faults: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The step to go on after; 0 for a run that begins."""
        return self.checkpoint.step if self.checkpoint else 0


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    on_epoch: EpochWatcher | None = None,
    initial: str | Path | None = None,
) -> dict[str, Any]:
    """Train one model and leave a run folder.

    What is set in torch for the run (`set_up_machine`) is set back at its end, and after an error.

    Args:
        config: What to do.
        out: The run folder; it must not hold a run unless `resume` is set.
        resume: Go on from the newest intact checkpoint; start afresh where there is no run yet.
        quiet: Show no progress.
        on_epoch: Called in every process with each epoch's row of `metrics.jsonl` once it is
            written; it may raise `Stopped` to end the run.
        initial: A safetensors file to start from: tensors of the same name and shape are taken, the
            others start as they would. `initial.json` says which.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        ConfigError: The configuration, or the folder, cannot be used.
        DataError: The data cannot.
        TrainingError: A step was not finite, memory ran out, a process was lost, or the disk is
            full (`FullDiskError`).
        Preempted: A signal asked to stop; the run is saved and can be resumed.
        Stopped: `on_epoch` asked to stop.
    """
    with (
        set_up_machine(config),
        closing(connect(config.train.device)) as ranks,
        ExitStack() as held,
    ):
        run = RunFolder(out)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        weights = InitialWeights.read(initial) if initial is not None else None
        see = partial(look, run, config, weights, resume=resume)
        start = agree(ranks, run, see)
        if start.summary:
            return tell_finished(start, reporter)
        splits = load_training_data(config, run)
        with stop_signals() as stop:
            make = partial(Trainer, config, splits, run=run, ranks=ranks, reporter=reporter)
            trainer = build_trainer(partial(make, stop=stop, on_epoch=on_epoch, initial=weights))
            # Not before the model is built: a misspelt name leaves no folder behind.
            start = agree(ranks, run, lambda: _prepare(run, config, see, held))
            return tell_finished(start, reporter) if start.summary else _train(trainer, start)


def tell_finished(start: Start, reporter: Reporter) -> dict[str, Any]:
    """Say that a run is finished already; give its summary."""
    reporter.note(f"{str(start.run.path)!r} is finished already: nothing to do")
    return start.summary


def build_trainer(make: Callable[[], Trainer]) -> Trainer:
    """Make the trainer, which moves the model and data that stay in memory to the device."""
    told = "out of memory before the first step: use a smaller model, image size or data.num_train"
    return unless_out_of_memory(make, lambda: TrainingError(told))


def _train(trainer: Trainer, start: Start) -> dict[str, Any]:
    reporter = trainer.reporter
    if trainer.ranks.is_main:
        trainer.trackers = open_trackers(
            trainer.config.run.trackers,
            start.run.path,
            start.step,
        )
    for fault in start.faults:
        reporter.note(f"passed over a damaged checkpoint: {fault}")
    if start.checkpoint is not None:
        reporter.note(f"going on from {start.checkpoint.path.name}")
    elif start.faults:
        reporter.note("no checkpoint is left that can be read: starting again from the first step")
    try:
        return _guarded(trainer, start)
    finally:
        reporter.close()
        for tracker in trainer.trackers:
            tracker.close()


def agree(ranks: Ranks, run: RunFolder, act: Callable[[], T]) -> T:
    """Do something to the folder in the main process and tell the others what came of it."""
    value, fault = None, None
    if ranks.is_main:
        try:
            value = act()
        except SaccadeError as error:
            fault = error
        except OSError as error:
            told = f"--out {str(run.path)!r}: cannot write there"
            fault = writing_error(told, error, ConfigError)
    is_full = isinstance(fault, FullDiskError)
    value, message, is_full = ranks.from_main((value, fault and str(fault), is_full))
    if message is not None:
        raise (FullDiskError if is_full else ConfigError)(message)
    return cast(T, value)


def look(run: RunFolder, config: Config, initial: InitialWeights | None, *, resume: bool) -> Start:
    """See what is in the folder; change nothing."""
    if not (resume and run.exists()):
        run.check_free()
        return Start(run)
    _check_same(run.config(), config)
    checkpoint, faults = run.newest_intact()
    if checkpoint is None or initial is not None:
        check_initial(run, initial)
    return Start(run, checkpoint, faults, run.summary())


def _prepare(run: RunFolder, config: Config, see: Callable[[], Start], held: ExitStack) -> Start:
    """Hold the folder until `held` is closed; make it, or clear it of what a killed process left.

    Until it is held another process may go on with the run, so it is looked at once more.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    held.enter_context(run.locked())
    start = see()
    if not run.exists():
        RunFolder.create(run.path, config)
    elif not start.summary:
        run.note_data_root(config.data.root)
        run.clear_leftovers(newest=start.checkpoint.step if start.checkpoint else -1)
        if start.checkpoint is None:
            if start.faults:
                run.set_aside_metrics()
            else:
                run.rewind_metrics(0)
    return start


def _check_same(saved: Config, asked: Config) -> None:
    """Refuse to resume with another configuration than the run was started with."""
    changes = differences(saved, asked, ignored=CHANGEABLE)
    if changes:
        raise ConfigError(f"--resume: the run was started with another {', '.join(changes)}")


def _describe(trainer: Trainer, start: Start) -> None:
    """Write what the data and the machine are."""
    run, here = start.run, describe_environment(trainer.ranks)
    run.write("dataset.json", describe_data(trainer.splits.info))
    if trainer.initial is not None and start.checkpoint is None:
        run.write("initial.json", trainer.initial)
    known = run.environment()
    if not known:
        run.write("environment.json", {**here, "seed": trainer.config.run.seed, "resumed": []})
    else:
        resumed = [*known["resumed"], {**here, "step": start.step}]
        run.write("environment.json", {**known, "resumed": resumed})


def _fit(trainer: Trainer, start: Start) -> dict[str, Any]:
    """Train from where the run stands to its end, and write all of the folder."""
    if start.checkpoint is not None:
        trainer.resume(start.checkpoint)
    if trainer.ranks.is_main:
        if start.checkpoint is not None:
            trainer.rewind_metrics()
        _describe(trainer, start)
    trainer.write_status("running")
    summary = trainer.fit()
    if trainer.ranks.is_main:
        start.run.write("summary.json", summary)
    trainer.write_status("finished")
    return summary


def _guarded(trainer: Trainer, start: Start) -> dict[str, Any]:
    """Train, and note in `status.json` what stops the run."""
    try:
        return tell_failures(trainer, lambda: _written(trainer, start))
    except Preempted as error:
        _try_status(trainer, "preempted", str(error))
        raise
    except Stopped as error:
        _try_status(trainer, "stopped", str(error))
        raise
    except Exception as error:
        told = str(error) if isinstance(error, SaccadeError) else f"{type(error).__name__}: {error}"
        _try_status(trainer, "failed", told)
        raise


def _written(trainer: Trainer, start: Start) -> dict[str, Any]:
    try:
        return _fit(trainer, start)
    except OSError as error:
        told = f"cannot write to {str(start.run.path)!r}"
        raise writing_error(told, error, TrainingError, RESUMABLE) from None


def tell_failures(trainer: Trainer, act: Callable[[], T]) -> T:
    """Let a trainer act; turn what memory or other processes do to it into one error."""
    try:
        return unless_out_of_memory(act, lambda: _out_of_memory(trainer))
    except RuntimeError as error:
        lost = "" if isinstance(error, SaccadeError) else _lost_process(error, trainer.ranks)
        if not lost:
            raise
        raise TrainingError(f"lost {lost}; {RESUMABLE}") from None


def _lost_process(error: BaseException, ranks: Ranks) -> str:
    """Which process is gone, where that is what an error says; empty where it is not.

    Either one that reads images, or, after a collective that failed, the one at its other end.
    """
    if is_lost_worker(error):
        return f"a process that reads images: {' '.join(str(error).split()).rstrip('.')}"
    words = ("Connection closed by peer", "Connection reset", "Broken pipe", "NCCL")
    is_peer = ranks.world_size > 1 and any(word in str(error) for word in words)
    return "another process of the run" if is_peer else ""


def _try_status(trainer: Trainer, state: str, message: str) -> None:
    try:
        trainer.write_status(state, message)
    except OSError:
        return


def _out_of_memory(trainer: Trainer) -> TrainingError:
    train, info, ranks = trainer.config.train, trainer.splits.info, trainer.ranks
    piece = train.batch_size // (ranks.world_size * train.accumulation)
    stepper = trainer.stepper
    shape = (piece, info.channels, *info.image_size)
    fits = batch_that_fits(stepper.network, shape, ranks.device, stepper.autocast)
    least = -(-piece // max(1, fits))
    pieces = train.accumulation * next(n for n in range(least, piece + 1) if piece % n == 0)
    return too_many_images(
        f"{piece} images at once do not fit on {ranks.device}",
        fits,
        f"train.accumulation={pieces} to keep train.batch_size={train.batch_size}, or "
        f"train.batch_size={fits * ranks.world_size}",
    )
