"""Evaluation by exact integer counts, which do not depend on the number of processes.

Accuracy is the ratio of two integers that are summed over batches and ranks. Rows that pad a batch
(`valid` is False) are not counted. The prediction of every image is kept, in the split's order.
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
from saccade.train.failures import batch_that_fits, too_many_images, translate_out_of_memory

__all__ = ["Evaluation", "evaluate", "evaluate_fitting"]

CALIBRATION_BINS = 15


Seen = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""A batch's index, valid, targets, predicted classes and confidences, each (B,)."""


class EpochSource(Protocol):
    """The part of a loader that evaluation uses."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Any:
        """The batches of one epoch."""

    @property
    def num_left_out(self) -> int:
        """Number of images that could not be read and are in no batch."""


@dataclass(frozen=True)
class Evaluation:
    """Counts over a whole split.

    Attributes:
        correct: Images whose most likely class is correct.
        correct_top5: Images whose class is among the five most likely.
        count: Images that were evaluated.
        loss_sum: Sum of the cross entropies.
        confusion: (K, K) counts, true class by row.
        bin_counts: Images by confidence of the prediction, in bins of equal width.
        bin_correct: Correct predictions in each bin.
        bin_confidence: Sum of the confidences in each bin.
        predictions: `target` and `predicted` (int32) and `confidence` (float32), one entry an
            image of the split; `predicted` is -1 for an image that could not be read. Images that
            are not in the split for that reason follow after the others.
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
    def skipped(self) -> int:
        """Images that could not be read, and are not counted."""
        return len(self.predictions["target"]) - self.count

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
        """Accuracy of each true class; None for a class without images."""
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
    """Call `evaluate`; if memory runs out, the error says how many images at once would fit.

    Args:
        model: See `evaluate`.
        loader: See `evaluate`.
        ranks: See `evaluate`.
        autocast: See `evaluate`.
        advice: The setting to change, with `{}` for the number of images that fit, over all
            processes.

    Raises:
        TrainingError: Memory ran out.
    """
    info = loader.info
    size = min(loader.batch_size, len(loader.split))

    def make_error() -> TrainingError:
        shape = (size, *info.input_shape)
        fits = batch_that_fits(model.eval(), shape, ranks.device, autocast, backward=False)
        asked = f"{size} images at once do not fit on {ranks.device} in evaluation"
        return too_many_images(asked, fits, advice.format(fits * ranks.world_size))

    classes = info.num_classes
    return translate_out_of_memory(
        lambda: evaluate(model, loader, num_classes=classes, ranks=ranks, autocast=autocast),
        make_error,
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
    """Run the model over a split and sum the counts over all processes.

    Args:
        model: The network as it is called in training; its training mode is restored.
        loader: The batches of this process.
        num_classes: Number of logits of an image.
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
        predictions=_in_order(seen, ranks, loader.num_left_out),
        seconds=time.perf_counter() - start,
    )


def _in_order(seen: list[Seen], ranks: Ranks, num_left_out: int) -> dict[str, NDArray[Any]]:
    """The predictions of all processes, in the order of the split.

    Every image is valid once, in one process, so that a sum over processes merges them.
    """
    index, valid, targets, predicted, confidence = (
        torch.cat([batch[column] for batch in seen]) for column in range(5)
    )
    (size,) = ranks.highest(int(index.max()) + 1)
    size += num_left_out
    places = index[valid]
    classes = torch.zeros(2, size, dtype=torch.int32, device=index.device)
    classes[0, places] = targets[valid].int() + 1
    classes[1, places] = predicted[valid].int() + 1  # 0: the image could not be read
    certainty = torch.zeros(size, device=index.device)
    certainty[places] = confidence[valid].float()
    target, chosen = ranks.sum(classes).cpu().numpy() - np.int32(1)
    return {
        "target": target,
        "predicted": chosen,
        "confidence": ranks.sum(certainty).cpu().numpy(),
    }
