"""Moments of a run that tests wait for.

The run itself acts after a step, because polling from another process is too slow on a busy
machine.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from saccade.train.loop import Trainer


@contextmanager
def after_each_step(act: Callable[[Trainer], None]) -> Iterator[None]:
    """Call a function after each step of every run in this process."""
    go_on = Trainer._after_step

    def after_step(trainer: Trainer, loss: torch.Tensor) -> None:
        act(trainer)
        go_on(trainer, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_after_step", after_step)
        yield


@contextmanager
def signal_at(step: int, number: signal.Signals) -> Iterator[None]:
    """Send this process a signal after a step of the run in it."""

    def send(trainer: Trainer) -> None:
        if trainer.at.step == step:
            signal.raise_signal(number)

    with after_each_step(send):
        yield


def held(met: Callable[[Trainer], bool], body: Callable[..., None], *arguments: object) -> None:
    """Body of a child process: another body, whose runs pause from some moment on.

    A signal that asks a run to stop lets it go on; until then, or until the process is killed, the
    moment lasts.
    """

    def wait(trainer: Trainer) -> None:
        while met(trainer) and not trainer.stop.signal:
            time.sleep(0.01)

    with after_each_step(wait):
        body(*arguments)


def dying_after(steps: int, body: Callable[..., None], *arguments: object) -> None:
    """Body of a child process: another body, killed after so many steps."""
    left = iter(range(steps))

    def die(trainer: Trainer) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    with after_each_step(die):
        body(*arguments)


def dying_at_sync(number: int, body: Callable[..., None], *arguments: object) -> None:
    """Body of a child process: another body, killed when it syncs a file for the n-th time."""
    left, sync = iter(range(number - 1)), os.fsync

    def die(descriptor: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", die)
        body(*arguments)
