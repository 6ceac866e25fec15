"""How a run fails: errors become one-line messages, and `status.json` gets the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from saccade.data.decoding import is_lost_worker
from saccade.errors import (
    ConfigError,
    FullDiskError,
    Preempted,
    RunLockedError,
    SaccadeError,
    Stopped,
    TakenOver,
    TrainingError,
    writing_error,
)
from saccade.runs import RunFolder
from saccade.train.distributed import Ranks
from saccade.train.loop import Trainer
from saccade.train.memory import batch_that_fits, too_many_images, translate_out_of_memory

__all__ = ["before_training", "record_failures", "run_on_main", "translate_errors"]

T = TypeVar("T")

RESUMABLE = "the saved checkpoints are intact, go on with --resume"


def before_training(act: Callable[[], T]) -> T:
    """Load or build something; raise `TrainingError` if memory runs out."""
    return translate_out_of_memory(act, _too_little_memory)


def _too_little_memory() -> TrainingError:
    return TrainingError(
        "out of memory before the first step: use a smaller model, image size or data.num_train"
    )


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


@contextmanager
def record_failures(trainer: Trainer) -> Iterator[None]:
    """If the run is stopped or fails within the block, write the reason to `status.json`."""
    try:
        yield
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
    shape = (piece, *info.input_shape)
    fits = batch_that_fits(stepper.network, shape, ranks.device, stepper.autocast)
    least = -(-piece // max(1, fits))
    pieces = train.accumulation * next(n for n in range(least, piece + 1) if piece % n == 0)
    return too_many_images(
        f"{piece} images at once do not fit on {ranks.device}",
        fits,
        f"train.accumulation={pieces} to keep train.batch_size={train.batch_size}, or "
        f"train.batch_size={fits * ranks.world_size}",
    )
