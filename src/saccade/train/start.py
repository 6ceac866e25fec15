"""Start or resume a run: check the folder, build the trainer, train, report failures.

The functions stand in the order in which a run calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

from saccade.config import Config, differences
from saccade.data.decoding import is_lost_worker
from saccade.environment import describe_run
from saccade.errors import (
    ConfigError,
    DamagedRunError,
    FullDiskError,
    Preempted,
    RunLockedError,
    SaccadeError,
    Stopped,
    TakenOver,
    TrainingError,
    writing_error,
)
from saccade.io import make_folder
from saccade.runs import NO_MANIFEST, Checkpoint, RunFolder
from saccade.train.build import describe_data
from saccade.train.cost import describe_cost
from saccade.train.distributed import Ranks, connect
from saccade.train.initial import InitialWeights, check_initial
from saccade.train.loop import EpochWatcher, Trainer
from saccade.train.memory import batch_that_fits, too_many_images, translate_out_of_memory
from saccade.train.progress import Reporter, SilentReporter, choose_reporter
from saccade.train.run_data import batch_note, load_training_data, record_run_split
from saccade.train.signals import stop_signals
from saccade.train.torch_flags import set_up_machine
from saccade.train.trackers import open_trackers

__all__ = [
    "Start",
    "build_trainer",
    "inspect_folder",
    "report_cost",
    "report_finished",
    "run_on_main",
    "train",
    "translate_errors",
]

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
"""Keys that may differ when a run is resumed: they change how the run computes, not its result.

The keys for bad images are included because the first bad image may only turn up in the final test.
"""

RESTORE_HINT = "restore the original files, or delete the folder to train the run again"
RESUMABLE = "the saved checkpoints are intact, go on with --resume"


@dataclass
class Start:
    """The state of a run folder before training, as the main process found it.

    Attributes:
        checkpoint: The checkpoint to resume from; None to train from the first step.
        faults: Descriptions of newer checkpoints that are damaged.
        damage: Descriptions of damaged files of a finished run, which will be repaired.
        summary: The summary of a finished, undamaged run; empty otherwise.
        logged: Step and kind of the rows that trackers have already.
    """

    run: RunFolder
    checkpoint: Checkpoint | None = None
    faults: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    logged: set[tuple[int, str]] = field(default_factory=set)

    @property
    def step(self) -> int:
        """The number of steps already done; 0 for a new run."""
        return self.checkpoint.step if self.checkpoint else 0


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    on_epoch: EpochWatcher | None = None,
    initial: str | Path | InitialWeights | None = None,
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
            copied; the others are initialized as usual. `initial.json` lists both.
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
    with (
        set_up_machine(config),
        closing(connect(config.train.device)) as ranks,
        ExitStack() as held,
    ):
        run = RunFolder(out)
        reporter = choose_reporter(is_main=ranks.is_main, quiet=quiet)
        weights = translate_out_of_memory(partial(_read_initial, initial), _too_little_memory)
        inspect = partial(inspect_folder, run, config, weights, resume=resume)
        start = run_on_main(ranks, run, inspect)
        if start.summary:
            return report_finished(start, reporter)
        splits = translate_out_of_memory(
            partial(load_training_data, config, run), _too_little_memory
        )
        with stop_signals() as stop:
            make = partial(make_trainer, config, splits, run=run, ranks=ranks, reporter=reporter)
            trainer = build_trainer(partial(make, stop=stop, on_epoch=on_epoch, initial=weights))
            # Created only after the model is built, so that a misspelled name leaves no folder.
            start = run_on_main(ranks, run, lambda: _prepare(run, config, inspect, held))
            return report_finished(start, reporter) if start.summary else _train(trainer, start)


def _read_initial(given: str | Path | InitialWeights | None) -> InitialWeights | None:
    if given is None or isinstance(given, InitialWeights):
        return given
    return InitialWeights.read(given)


def run_on_main(ranks: Ranks, run: RunFolder, act: Callable[[], T]) -> T:
    """Call `act` in the main process; return its result or raise its error in every process."""
    value, fault = None, None
    if ranks.is_main:
        try:
            value = act()
        except SaccadeError as error:
            fault = error
        except OSError as error:
            place = f"--out {str(run.path)!r}: cannot write there"
            fault = writing_error(place, error, ConfigError)
    kinds: tuple[type[SaccadeError], ...] = (FullDiskError, RunLockedError, TakenOver)
    kind = next((kind for kind in kinds if isinstance(fault, kind)), ConfigError)
    message = str(fault) if fault is not None else None
    is_transient = fault is not None and fault.is_transient
    value, message, kind, is_transient = ranks.from_main((value, message, kind, is_transient))
    if message is not None:
        raised = kind(message)
        raised.is_transient = is_transient
        raise raised
    return cast(T, value)


def inspect_folder(
    run: RunFolder, config: Config, initial: InitialWeights | None, *, resume: bool
) -> Start:
    """Read the state of the run folder; nothing is written."""
    if not (resume and run.exists()):
        run.check_free()
        return Start(run)
    _check_same(run.config(), config)
    checkpoint, faults = run.newest_intact()
    if checkpoint is None or initial is not None:
        check_initial(run, initial)
    damage = run.damage()
    if run.is_finished() and not damage:
        return Start(run, checkpoint, faults, summary=run.summary())
    if damage and not run.is_mendable():
        why = "no checkpoint is left to repair it from" if checkpoint is None else RESTORE_HINT
        raise DamagedRunError(run.path, [*damage.values(), why])
    logged = {(row["step"], row["kind"]) for row in run.metrics()} if config.run.trackers else set()
    return Start(run, checkpoint, faults, list(damage.values()), logged=logged)


def _check_same(saved: Config, asked: Config) -> None:
    """Raise if the configuration differs from the one that the run was started with."""
    changes = differences(saved, asked, ignored=CHANGEABLE)
    if changes:
        raise ConfigError(
            f"--resume: these settings must be those of the run, got {', '.join(changes)}; change "
            "them back, or train a new run in another folder"
        )


def report_finished(start: Start, reporter: Reporter) -> dict[str, Any]:
    """Report that the run is already finished; return its summary."""
    unchecked = "" if start.run.has_manifest() else f" ({NO_MANIFEST})"
    reporter.note(f"{str(start.run.path)!r} is finished already: nothing to do{unchecked}")
    return start.summary


def build_trainer(make: Callable[[], Trainer]) -> Trainer:
    """Make the trainer, which moves the model and in-memory data to the device."""
    return translate_out_of_memory(make, _too_little_memory)


def _too_little_memory() -> TrainingError:
    return TrainingError(
        "out of memory before the first step: use a smaller model, image size or data.num_train"
    )


def _prepare(
    run: RunFolder, config: Config, inspect: Callable[[], Start], held: ExitStack
) -> Start:
    """Lock the folder until `held` is closed; create it, or clean up after a killed process.

    Another process may have continued the run before the lock was taken, so the folder is inspected
    again.
    """
    make_folder(run.path)
    held.enter_context(run.locked())
    start = inspect()
    if not run.exists():
        RunFolder.create(run.path, config)
    elif not start.summary:
        run.reopen()
        run.note_data_root(config.data.root)
        run.clear_leftovers(newest=start.checkpoint.step if start.checkpoint else -1)
        if start.checkpoint is None:
            if start.faults:
                run.set_aside_metrics()
            else:
                run.rewind_metrics(0)
    return start


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
    reporter = trainer.reporter
    if trainer.ranks.is_main:
        trainer.trackers = open_trackers(trainer.config, start.run.path, start.step, start.logged)
    for fault in start.damage:
        reporter.note(f"repairing the finished run: {fault}")
    report_cost(trainer, start)
    for fault in start.faults:
        reporter.note(f"skipped a damaged checkpoint: {fault}")
    if start.checkpoint is not None:
        reporter.note(f"resuming from {start.checkpoint.path.name}")
    elif start.faults:
        reporter.note("no readable checkpoint is left: starting again from the first step")
    try:
        return _guarded(trainer, start)
    finally:
        reporter.close()
        for tracker in trainer.trackers:
            tracker.close()


def _guarded(trainer: Trainer, start: Start) -> dict[str, Any]:
    """Train; if the run is stopped or fails, write the reason to `status.json`."""
    try:
        return translate_errors(trainer, lambda: _written(trainer, start))
    except TakenOver:
        raise  # `status.json` now belongs to the other process
    except Preempted as error:
        _try_status(trainer, "preempted", str(error))
        raise
    except Stopped as error:
        _try_status(trainer, "stopped", str(error))
        raise
    except Exception as error:
        is_ours = isinstance(error, SaccadeError)
        message = str(error) if is_ours else f"{type(error).__name__}: {error}"
        _try_status(trainer, "failed", message)
        raise


def _try_status(trainer: Trainer, state: str, message: str) -> None:
    try:
        trainer.write_status(state, message)
    except (OSError, TakenOver):
        return


def _written(trainer: Trainer, start: Start) -> dict[str, Any]:
    try:
        return _fit(trainer, start)
    except OSError as error:
        place = f"cannot write to {str(start.run.path)!r}"
        raise writing_error(place, error, TrainingError, RESUMABLE) from None


def translate_errors(trainer: Trainer, act: Callable[[], T]) -> T:
    """Call `act`; raise `TrainingError` if memory runs out or another process is lost."""
    try:
        return translate_out_of_memory(act, lambda: _out_of_memory(trainer))
    except RuntimeError as error:
        lost = "" if isinstance(error, SaccadeError) else _lost_process(error, trainer.ranks)
        if not lost:
            raise
        raise TrainingError(f"lost {lost}; {RESUMABLE}") from None


def _lost_process(error: BaseException, ranks: Ranks) -> str:
    """Description of the process whose loss caused the error; empty for any other error.

    It is either a data worker, or, after a failed collective, another process of the run.
    """
    if is_lost_worker(error):
        return f"a process that reads images: {' '.join(str(error).split()).rstrip('.')}"
    words = ("Connection closed by peer", "Connection reset", "Broken pipe", "NCCL")
    is_peer = ranks.world_size > 1 and any(word in str(error) for word in words)
    return "another process of the run" if is_peer else ""


def _out_of_memory(trainer: Trainer) -> TrainingError:
    """The error of a step that ran out of memory, with a batch size and accumulation that fit."""
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


def _fit(trainer: Trainer, start: Start) -> dict[str, Any]:
    """Train to the end, from the checkpoint if there is one, and write the run folder."""
    if start.checkpoint is not None:
        trainer.resume(start.checkpoint)
    if trainer.ranks.is_main:
        if start.checkpoint is not None:
            trainer.rewind_metrics(start.checkpoint)
        _describe(trainer, start)
    trainer.write_status("running")
    summary = trainer.fit()
    if trainer.ranks.is_main:
        start.run.finish(summary, trainer.status("finished"))
    return summary


def _describe(trainer: Trainer, start: Start) -> None:
    """Write the descriptions of the data, the split, the initial weights and the machine."""
    run, here = start.run, describe_run(trainer.ranks.device, trainer.ranks.world_size)
    for warning in record_run_split(run, trainer.splits):
        trainer.reporter.note(warning)
    if not run.holds("dataset.json"):
        run.write("dataset.json", describe_data(trainer.splits.info))
    if trainer.initial is not None and start.checkpoint is None:
        run.write("initial.json", trainer.initial)
    known = run.environment()
    if not known:
        seed, run_id = trainer.config.run.seed, uuid4().hex
        run.write("environment.json", {**here, "seed": seed, "run_id": run_id, "resumed": []})
    else:
        resumed = [*known["resumed"], {**here, "step": start.step}]
        run.write("environment.json", {**known, "resumed": resumed})
