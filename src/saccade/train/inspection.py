"""A finished run at work: its measures on a split, and its answers for single images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data import Split as Part
from saccade.data import make_loader
from saccade.errors import ConfigError, UnknownNameError
from saccade.runs import RunFolder
from saccade.train.build import load_weights
from saccade.train.distributed import Ranks, connect
from saccade.train.evaluation import Evaluation, evaluate_fitting
from saccade.train.guard import check_outputs, outputs_error
from saccade.train.run_data import load_run_data
from saccade.train.step import PRECISIONS

__all__ = ["Predictor", "evaluate_run"]

Split = Literal["train", "val", "test"]
Which = Literal["best", "last"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


def evaluate_run(
    run: RunFolder | str | Path,
    *,
    split: str = "test",
    weights: str | None = None,
    device: str = "auto",
    batch_size: int = 512,
    data: DataConfig | None = None,
) -> dict[str, Any]:
    """Measure a run's model on a split of its data.

    Args:
        run: The run folder.
        split: `train`, `val` or `test`.
        weights: `best` or `last`; the run's own choice by default.
        device: `auto`, `cpu` or `cuda`.
        batch_size: Images at once.
        data: Other data than the run's, with the same classes and images of the same size.

    Returns:
        Fractions, counts and seconds as JSON values.

    Raises:
        DataError: The data has other classes, or other images, than the run was trained on.
        TrainingError: The model's outputs are not finite, or memory ran out.
    """
    _check("split", split, Split)
    run = RunFolder.open(run)
    config = run.config()
    predictor = Predictor(run, weights=weights, device=device)
    info = predictor.info
    part = _load_part(run, data or config.data, split)
    result = predictor.evaluate(part, batch_size=batch_size)
    return {
        "run": str(run.path),
        "split": split,
        "weights": predictor.weights,
        "count": result.count,
        "correct": result.correct,
        "accuracy": result.accuracy,
        "accuracy_top5": result.accuracy_top5,
        "loss": result.loss,
        "calibration_error": result.calibration_error,
        "seconds": round(result.seconds, 4),
        "img_per_s": round(result.count / result.seconds, 1),
        "device": str(predictor.device),
        "class_accuracy": dict(zip(info.class_names, result.class_accuracy, strict=True)),
        "confusion": result.confusion.tolist(),
    }


def _load_part(run: RunFolder, data: DataConfig, split: str) -> Part:
    """One split of the data, which has to have images and the run's classes."""
    part: Part = getattr(load_run_data(run, data), split)
    if not len(part):
        why = f": data.val_fraction={data.val_fraction}" if split == "val" else ""
        raise ConfigError(f"split={split!r} is empty{why}")
    return part


class Predictor:
    """A run's model, ready to classify single images.

    Args:
        run: The run folder.
        weights: `best` or `last`; the run's own choice by default.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(
        self, run: RunFolder | str | Path, *, weights: str | None = None, device: str = "auto"
    ) -> None:
        run = RunFolder.open(run)
        self.device = connect(_device(device)).device
        model, self.info, file = load_weights(run, _which(weights))
        self.weights: Which = "best" if file.stem == "best" else "last"
        self.model = model.to(self.device)
        self._config = run.config()

    @torch.no_grad()
    def classes(self, image: Tensor) -> list[tuple[str, float]]:
        """Every class and its probability, likeliest first, for one (C, H, W) image."""
        images = image[None].to(self.device)
        logits = self.model(images)  # (1, K)
        check_outputs(self.model, images, logits)
        return self.ranked(logits[0])

    def ranked(self, logits: Tensor) -> list[tuple[str, float]]:
        """Every class and its probability, likeliest first, by the (K,) logits of an image."""
        probability, order = logits.float().softmax(0).sort(descending=True)
        names = [self.info.class_names[i] for i in order.tolist()]
        return list(zip(names, probability.tolist(), strict=True))

    def evaluate(
        self, part: Part, *, batch_size: int, advice: str = "--batch-size={}"
    ) -> Evaluation:
        """Run the model over a split, in the precision of its training.

        `advice` is what to say where memory runs out (`evaluate_fitting`).
        """
        loader = make_loader(
            part,
            self.info,
            batch_size=batch_size,
            augment=None,
            seed=0,
            device=self.device,
            shuffle=False,
            workers=self._config.data.workers,
        )
        on_gpu = self.device.type == "cuda"
        precision = PRECISIONS[self._config.train.precision] if on_gpu else None
        result = evaluate_fitting(
            self.model,
            loader,
            ranks=Ranks(device=self.device),
            autocast=precision,
            advice=advice,
        )
        if not math.isfinite(result.loss):
            with torch.autocast(self.device.type, precision, enabled=precision is not None):
                raise outputs_error(self.model, (batch.images for batch in loader.epoch(0)))
        return result


def _check(argument: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise UnknownNameError(argument, value, get_args(choices))


def _which(weights: str | None) -> Which | None:
    if weights is not None:
        _check("weights", weights, Which)
    return cast(Which | None, weights)


def _device(device: str) -> DeviceChoice:
    _check("device", device, DeviceChoice)
    return cast(DeviceChoice, device)
