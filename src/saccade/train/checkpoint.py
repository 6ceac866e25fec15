"""Copies of the weights, and checkpoints: all that a run needs to continue with the same results.

    model.safetensors       live weights and buffers
    average.safetensors     their moving average, if the run keeps one
    best.safetensors        the weights that did best on validation so far
    optimizer.safetensors   `<optimizer>/<slot>/<parameter>`
    generators.safetensors  states of torch's generators in the main process; a training step
                            does not use them, since it seeds its own numbers (`step.py`)
    trainer.json            position, loss scaler, states of Python's and NumPy's generators

`saccade.runs` writes the folder atomically. Tensors have the names of the unwrapped model, so that
a checkpoint fits any number of processes, sharded or not, compiled or not. The copies of a run, its
moving average and the best weights so far, are on the model's device, and sharded if it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.errors import TrainingError
from saccade.io import read_json_object, write_json
from saccade.models.weight_files import write_tensors
from saccade.runs import RunFolder
from saccade.train.distributed import Ranks, full, like

__all__ = [
    "MovingAverage",
    "Position",
    "TrainingState",
    "Weights",
    "restore",
    "save",
    "snapshot",
    "swapped_in",
]

Weights = dict[str, Tensor]
"""Tensors with the keys of the model's `state_dict`."""


def snapshot(model: nn.Module) -> Weights:
    """A copy of the model's current weights and buffers."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def swapped_in(model: nn.Module, weights: Weights | None) -> Iterator[None]:
    """Give the model other weights within a block; None changes nothing."""
    if weights is None:
        yield
        return
    own, live = model.state_dict(), snapshot(model)
    _fill(own, weights)
    try:
        yield
    finally:
        _fill(own, live)


class MovingAverage:
    """The exponential moving average of the weights, buffers included.

    A step keeps the fraction (1 + step) / (10 + step) of the old average, at most `decay`, so that
    the random initial weights soon lose their influence.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = snapshot(model)
        live = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        floating = [name for name, tensor in live.items() if tensor.is_floating_point()]
        sharded = [name for name in floating if hasattr(live[name], "to_local")]
        whole = [name for name in floating if name not in sharded]  # buffers are never sharded
        self._pairs = [
            ([self.weights[name] for name in names], [live[name] for name in names])
            for names in (sharded, whole)
            if names
        ]
        counts = [name for name in live if name not in floating]
        self._counts = [self.weights[name] for name in counts]
        self._live_counts = [live[name] for name in counts]

    def share(self, step: int) -> float:
        """Weight of the live weights in the update after optimizer step `step` (1 is the first)."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, share: Tensor) -> None:
        """Move the average toward the live weights by the fraction `share`, a scalar tensor."""
        for averages, live in self._pairs:
            ways = torch._foreach_sub(live, averages)
            torch._foreach_mul_(ways, share)
            torch._foreach_add_(averages, ways)
        if self._counts:
            torch._foreach_copy_(self._counts, self._live_counts)


@torch.no_grad()
def _fill(live: Weights, given: Weights) -> None:
    for name, tensor in live.items():
        tensor.copy_(like(given[name], tensor))


@dataclass
class Position:
    """The progress of a run.

    Attributes:
        epoch: Epochs done.
        batch: Batches done in the current epoch.
        step: Optimizer steps done.
        loss_sum: Sum of the losses of the images seen in the current epoch.
        correct: Correct predictions among them.
        seen: Images seen in the current epoch.
        seconds: Time spent on the run, interruptions excluded.
        best_accuracy: Best validation accuracy so far.
        best_epoch: Epochs done when `best_accuracy` was reached.
        stale_epochs: Epochs since the last improvement.
        plateau_epochs: Epochs since the last improvement or reduction of the learning rate.
        reductions: How often `plateau` reduced the learning rate.
        metric_rows: Rows in `metrics.jsonl`.
        peak_memory_mib: Peak memory of any epoch; None if the system does not report it.
        peak_memory_shared: True if that includes memory of earlier runs in the same process.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    seen: int = 0
    seconds: float = 0.0
    best_accuracy: float | None = None
    best_epoch: int = 0
    stale_epochs: int = 0
    plateau_epochs: int = 0
    reductions: int = 0
    metric_rows: int = 0
    peak_memory_mib: float | None = None
    peak_memory_shared: bool = False


@dataclass
class TrainingState:
    """The live objects that a checkpoint saves and restores."""

    model: nn.Module
    optimizers: list[Optimizer]
    position: Position
    average: Weights | None
    best: Weights | None
    scaler: torch.amp.GradScaler


def save(run: RunFolder, state: TrainingState, ranks: Ranks, *, keep: int) -> None:
    """Write a checkpoint of the current step, then delete old ones; every process must call it."""
    files: dict[str, Weights] = {"model": _whole(state.model.state_dict())}
    if state.average is not None:
        files["average"] = _whole(state.average)
    if state.best is not None:
        files["best"] = _whole(state.best)
    files["optimizer"] = _whole(_optimizer_tensors(state))
    files["generators"] = _generator_states()
    if not ranks.is_main:
        return
    for name, tensor in files["model"].items():
        if not tensor.isfinite().all():
            raise TrainingError(
                f"{name} is not finite after step {state.position.step}; no checkpoint was saved. "
                "Try a lower optim.lr"
            )
    with run.new_checkpoint(state.position.step) as folder:
        for name, tensors in files.items():
            write_tensors(tensors, folder / f"{name}.safetensors")
        host = {
            "position": asdict(state.position),
            "scaler": state.scaler.state_dict(),
            "python": random.getstate(),
            "numpy": _numpy_state(),
        }
        write_json(folder / "trainer.json", host, indent=None)
    run.rotate(keep)


def restore(folder: Path, state: TrainingState) -> None:
    """Load a checkpoint folder into the live objects."""
    host = read_json_object(folder / "trainer.json")
    state.position = Position(**host["position"])
    _fill(state.model.state_dict(), load_file(folder / "model.safetensors"))
    if state.average is not None:
        _fill(state.average, load_file(folder / "average.safetensors"))
    if (folder / "best.safetensors").exists():
        state.best = snapshot(state.model)
        _fill(state.best, load_file(folder / "best.safetensors"))
    _restore_optimizers(state, load_file(folder / "optimizer.safetensors"))
    state.scaler.load_state_dict(host["scaler"])
    _restore_generators(load_file(folder / "generators.safetensors"))
    version, internal, gauss = host["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = host["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))


def _whole(tensors: dict[str, Tensor]) -> Weights:
    return {name: full(tensor) for name, tensor in tensors.items()}


def _optimizer_tensors(state: TrainingState) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {p: name for name, p in state.model.named_parameters()}
    return {
        f"{number}/{slot}/{names[p]}": value
        for number, optimizer in enumerate(state.optimizers)
        for p, slots in optimizer.state.items()
        for slot, value in slots.items()
    }


def _restore_optimizers(state: TrainingState, saved: Weights) -> None:
    params = dict(state.model.named_parameters())
    for number, optimizer in enumerate(state.optimizers):
        own = [p for group in optimizer.param_groups for p in group["params"]]
        index = {p: i for i, p in enumerate(own)}
        slots: dict[int, dict[str, Any]] = {}
        for key, value in saved.items():
            owner, slot, name = key.split("/", 2)
            if int(owner) == number:
                p = params[name]
                placed = like(value, p) if value.shape == p.shape else value
                slots.setdefault(index[p], {})[slot] = placed
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _generator_states() -> Weights:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_generators(states: Weights) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _numpy_state() -> list[Any]:
    kind, keys, *rest = np.random.get_state()
    return [kind, np.asarray(keys).tolist(), *rest]
