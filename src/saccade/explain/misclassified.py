"""Mistakes of a run's model on its test set: the most confident ones, and confused classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saccade.data import Split
from saccade.errors import DataError
from saccade.runs import Predictions, RunFolder, read_predictions
from saccade.train.inference import Predictor

__all__ = [
    "ConfusedPair",
    "Mistake",
    "confident_mistakes",
    "confused_pairs",
    "predictions_of",
]

BATCH = 256


@dataclass(frozen=True)
class Mistake:
    """A test image by its index, its true class, and the predicted class."""

    place: int
    target: int
    predicted: int
    confidence: float


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes and the mistakes between them in each direction, most confident first."""

    first: int
    second: int
    first_as_second: list[Mistake]
    second_as_first: list[Mistake]

    @property
    def count(self) -> int:
        """Number of mistakes in both directions."""
        return len(self.first_as_second) + len(self.second_as_first)


def predictions_of(
    run: RunFolder,
    test: Split,
    num_classes: int,
    *,
    weights: str | None = None,
    device: str = "auto",
) -> Predictions:
    """Predictions of a run's model for its test set, read from the run or computed again.

    Args:
        run: The run folder.
        test: The test split of its data.
        num_classes: Number of classes.
        weights: `best` or `last` to compute the predictions again. By default those of the run are
            read; if there are none, they are computed with its `train.evaluate_with`.
        device: `auto`, `cpu` or `cuda`.
    """
    stored = read_predictions(run, num_classes) if weights is None else None
    if stored is None:
        predictor = Predictor(run, weights=weights, device=device)
        result = predictor.evaluate(test, batch_size=BATCH, advice="--device cpu")
        stored = Predictions.of(result.predictions)
    # Test images that are not in the split come last and are not judged; old runs do not have them.
    labels = np.concatenate([test.labels.numpy(), np.full(len(test.left_out), -1)])
    fits = len(stored.target) in {len(test), len(labels)}
    judged = np.flatnonzero(stored.judged) if fits else None
    if judged is None or not np.array_equal(stored.target[judged], labels[judged]):
        raise DataError(
            f"the test set of {str(run.path)!r} must have the labels of its stored predictions, "
            "got others; the data has changed since the run"
        )
    return stored


def confident_mistakes(predictions: Predictions, count: int) -> list[Mistake]:
    """The most confident mistakes."""
    return [_mistake(predictions, place) for place in predictions.wrong[:count]]


def confused_pairs(predictions: Predictions, count: int) -> list[ConfusedPair]:
    """The pairs of classes with the most mistakes between them, in both directions."""
    mistakes = [_mistake(predictions, place) for place in predictions.wrong]
    pairs: dict[tuple[int, int], list[Mistake]] = {}
    for mistake in mistakes:
        low, high = sorted((mistake.target, mistake.predicted))
        pairs.setdefault((low, high), []).append(mistake)
    ranked = sorted(pairs.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [
        ConfusedPair(
            low,
            high,
            [mistake for mistake in found if mistake.target == low],
            [mistake for mistake in found if mistake.target == high],
        )
        for (low, high), found in ranked[:count]
    ]


def _mistake(predictions: Predictions, place: int) -> Mistake:
    return Mistake(
        int(place),
        int(predictions.target[place]),
        int(predictions.predicted[place]),
        float(predictions.confidence[place]),
    )
