"""Learning-rate schedules as pure functions of the step, so that they have no state to save.

Each returns the factor on the optimizer's base learning rate at a step (0 is the first). `plateau`
also depends on how often validation stopped improving, which the trainer counts.
"""

from __future__ import annotations

import math

from saccade.config import OptimConfig

__all__ = ["learning_rate_factor"]

ONE_CYCLE_START = 1 / 25  # of the peak
ONE_CYCLE_RISE = 0.3  # of the run, if `warmup_epochs` is 0


def learning_rate_factor(
    optim: OptimConfig, step: int, *, steps_per_epoch: int, epochs: int, reductions: int = 0
) -> float:
    """The factor on the base learning rate at `step`.

    Args:
        optim: The schedule and its settings.
        step: Optimizer steps done so far.
        steps_per_epoch: Optimizer steps in an epoch.
        epochs: Epochs in the run.
        reductions: How often `plateau` has reduced the rate.
    """
    total = steps_per_epoch * epochs
    warmup = optim.warmup_epochs * steps_per_epoch
    if optim.schedule == "one_cycle":
        return _one_cycle(step, warmup or ONE_CYCLE_RISE * total, total, optim.min_lr_ratio)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if optim.schedule == "cosine":
        done = (step - warmup) / max(1, total - warmup)
        return _anneal(1.0, optim.min_lr_ratio, done)
    if optim.schedule == "step":
        return float(optim.step_gamma ** (step // (optim.step_epochs * steps_per_epoch)))
    if optim.schedule == "plateau":
        return float(max(optim.plateau_factor**reductions, optim.min_lr_ratio))
    return 1.0


def _one_cycle(step: int, rise: float, total: int, last: float) -> float:
    if step < rise:
        return _anneal(ONE_CYCLE_START, 1.0, step / rise)
    return _anneal(1.0, last, (step - rise) / max(1.0, total - rise))


def _anneal(start: float, end: float, done: float) -> float:
    """Half a cosine wave from `start` at 0 to `end` at 1, and `end` after that."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
