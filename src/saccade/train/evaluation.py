"""Evaluation as exact integer counts, the same on any number of processes.

Accuracy is a ratio of two integers that are summed over batches and ranks; rows that only pad a
batch (`valid` is False) count nowhere. Every image's prediction is kept, in the order of the split.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from saccade.data import Loader
from saccade.errors import TrainingError
from saccade.train.distributed import Ranks
from saccade.train.memory import batch_that_fits, too_many_images, unless_out_of_memory

__all__ = ["Evaluation", "evaluate", "evaluate_fitting"]

CALIBRATION_BINS = 15


Seen = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""A batch's index, valid, targets, predicted classes and confidences, each (B,)."""


class EpochSource(Protocol):
    """What evaluation asks of a loader."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Any:
        """The batches of one epoch."""


@dataclass(frozen=True)
class Evaluation:
    """Counts over a whole split.

    Attributes:
        correct: Images whose most likely class is right.
        correct_top5: Images whose class is among the five most likely.
        count: Images.
        loss_sum: Sum of the cross entropies.
        confusion: (K, K) counts, true class by row.
        bin_counts: Images by confidence of the prediction, in equal bins.
        bin_correct: Right ones among them.
        bin_confidence: Sums of their confidences.
        predictions: `target` and `predicted` (int32) and `confidence` (float32), one entry an
            image of the split; `predicted` is -1 for an image that could not be read.
        seconds: Time it took.
    """

    correct: int
    correct_top5: int
    count: int
    loss_sum: float
    confusion: Tensor
    bin_counts: Tensor
    bin_correct: Tensor
    bin_confidence: Tensor
    predictions: dict[str, NDArray[Any]]
    seconds: float

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy as a fraction."""
        return self.correct / max(1, self.count)

    @property
    def accuracy_top5(self) -> float:
        """Top-5 accuracy as a fraction."""
        return self.correct_top5 / max(1, self.count)

    @property
    def loss(self) -> float:
        """Mean cross entropy."""
        return self.loss_sum / max(1, self.count)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: |accuracy - confidence| averaged over the bins."""
        gaps = (self.bin_correct - self.bin_confidence).abs().sum()
        return float(gaps) / max(1, self.count)

    @property
    def class_accuracy(self) -> list[float | None]:
        """Accuracy for each true class; None for one without images."""
        rows = zip(self.confusion.diagonal().tolist(), self.confusion.sum(1).tolist(), strict=True)
        return [right / count if count else None for right, count in rows]


def evaluate_fitting(
    model: nn.Module,
    loader: Loader,
    *,
    ranks: Ranks,
    autocast: torch.dtype | None,
    advice: str,
) -> Evaluation:
    """Do as `evaluate` does; where memory runs out, say how many images at once would fit.

    Args:
        model: As for `evaluate`.
        loader: As there.
        ranks: As there.
        autocast: As there.
        advice: What to set then; `{}` stands for how many fit, over all processes.

    Raises:
        TrainingError: Memory ran out.
    """
    info = loader.info
    size = min(loader.batch_size, len(loader.split))

    def tell() -> TrainingError:
        shape = (size, info.channels, *info.image_size)
        fits = batch_that_fits(model.eval(), shape, ranks.device, autocast, backward=False)
        asked = f"{size} images at once do not fit on {ranks.device} in evaluation"
        return too_many_images(asked, fits, advice.format(fits * ranks.world_size))

    classes = info.num_classes
    return unless_out_of_memory(
        lambda: evaluate(model, loader, num_classes=classes, ranks=ranks, autocast=autocast), tell
    )


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: EpochSource,
    *,
    num_classes: int,
    ranks: Ranks,
    autocast: torch.dtype | None = None,
) -> Evaluation:
    """Run the model over a split and count, over all processes.

    Args:
        model: As it is called in training; left in the mode it was in.
        loader: Batches of this process's share.
        num_classes: Length of a row of logits.
        ranks: The processes to sum over.
        autocast: Lower precision for the forward pass, if any.
    """
    was_training = model.training
    model.eval()
    start = time.perf_counter()
    counts = torch.zeros(3, dtype=torch.int64, device=ranks.device)
    confusion = torch.zeros(num_classes**2, dtype=torch.int64, device=ranks.device)
    bins = torch.zeros(2, CALIBRATION_BINS, dtype=torch.int64, device=ranks.device)
    sums = torch.zeros(1 + CALIBRATION_BINS, dtype=torch.float64, device=ranks.device)
    seen: list[Seen] = []
    for batch in loader.epoch(0):
        with torch.autocast(ranks.device.type, autocast, enabled=autocast is not None):
            logits = model(batch.images).float()  # (B, K)
        valid = batch.valid.long()
        loss = F.cross_entropy(logits, batch.targets, reduction="none").double()
        confidence, predicted = logits.softmax(1).nan_to_num(0.0).max(1)
        right = (predicted == batch.targets).long() * valid
        top5 = (logits.topk(min(5, num_classes)).indices == batch.targets[:, None]).any(1)
        counts += torch.stack([right.sum(), (top5.long() * valid).sum(), valid.sum()])
        confusion.index_add_(0, batch.targets * num_classes + predicted, valid)
        place = (confidence * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
        bins[0].index_add_(0, place, valid)
        bins[1].index_add_(0, place, right)
        sums[0] += (loss * valid).sum()
        sums[1:].index_add_(0, place, confidence.double() * valid)
        seen.append((batch.index, batch.valid, batch.targets, predicted, confidence))
    model.train(was_training)
    correct, correct_top5, count = ranks.sum(counts).tolist()
    confusion, bins, sums = ranks.sum(confusion).cpu(), ranks.sum(bins).cpu(), ranks.sum(sums).cpu()
    return Evaluation(
        correct=correct,
        correct_top5=correct_top5,
        count=count,
        loss_sum=float(sums[0]),
        confusion=confusion.view(num_classes, num_classes),
        bin_counts=bins[0],
        bin_correct=bins[1],
        bin_confidence=sums[1:],
        predictions=_in_order(seen, ranks),
        seconds=time.perf_counter() - start,
    )


def _in_order(seen: list[Seen], ranks: Ranks) -> dict[str, NDArray[Any]]:
    """The predictions of all processes, each at its image's place in the split.

    Every image is valid in one place of one process, so a sum over processes is a merge.
    """
    index, valid, targets, predicted, confidence = (
        torch.cat([batch[column] for batch in seen]) for column in range(5)
    )
    (size,) = ranks.highest(int(index.max()) + 1)
    places = index[valid]
    classes = torch.zeros(2, size, dtype=torch.int32, device=index.device)
    classes[0, places] = targets[valid].int() + 1
    classes[1, places] = predicted[valid].int() + 1  # 0 stays where no image was read
    sureness = torch.zeros(size, device=index.device)
    sureness[places] = confidence[valid].float()
    target, chosen = ranks.sum(classes).cpu().numpy() - np.int32(1)
    return {
        "target": target,
        "predicted": chosen,
        "confidence": ranks.sum(sureness).cpu().numpy(),
    }
