"""How a run fails: errors become one-line messages, and `status.json` gets the reason.

If memory runs out, the message says how many images would fit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import nn

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
    is_out_of_memory,
    writing_error,
)
from saccade.runs import RunFolder
from saccade.train.distributed import Ranks

if TYPE_CHECKING:
    from saccade.train.loop import Trainer

__all__ = [
    "batch_that_fits",
    "before_training",
    "record_failures",
    "run_on_main",
    "too_many_images",
    "translate_errors",
    "translate_out_of_memory",
]

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


def translate_out_of_memory(act: Callable[[], T], make_error: Callable[[], TrainingError]) -> T:
    """Return `act()`; if it runs out of memory, raise `make_error()` instead."""
    try:
        return act()
    except BaseException as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler, because the traceback keeps the tensors alive.
    raise make_error()


def too_many_images(asked: str, fits: int, advice: str) -> TrainingError:
    """The error of a batch that does not fit into memory.

    Args:
        asked: A clause that names the number of images and the device, such as "8 images at once do
            not fit on cuda".
        fits: The number of images that fit; 0 if not even one does.
        advice: The setting that uses this number.
    """
    message = f"out of memory: {asked}"
    if not fits:
        return TrainingError(f"{message}, and neither does one; use a smaller model or image size")
    return TrainingError(f"{message}, {fits} do: use {advice}")


def batch_that_fits(
    model: nn.Module,
    shape: tuple[int, ...],
    device: torch.device,
    autocast: torch.dtype | None,
    *,
    backward: bool = True,
) -> int:
    """The largest batch size of size/2, size/4, ... that fits into memory; 0 if none does.

    `shape` is that of the batch that did not fit: (B, C, H, W), or (B, N) for sequences.
    """
    size = shape[0] // 2
    while size:
        model.zero_grad(set_to_none=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        with torch.set_grad_enabled(backward):
            runs = _runs(model, (size, *shape[1:]), device, autocast)
        if runs:
            break
        size //= 2
    return size


def _runs(
    model: nn.Module, shape: tuple[int, ...], device: torch.device, autocast: torch.dtype | None
) -> bool:
    """True if one pass fits; a separate function, so that a failed graph is freed."""
    try:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            dtype = torch.int64 if len(shape) == 2 else torch.float32
            logits = model(torch.zeros(shape, dtype=dtype, device=device))
        loss = logits.float().logsumexp(1).sum()
        if loss.requires_grad:
            loss.backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
