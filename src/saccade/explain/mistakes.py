"""What a run's model gets wrong on its test set: surest mistakes, and classes it mixes up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saccade.data import Split
from saccade.errors import DataError
from saccade.runs import RunFolder
from saccade.train.inspection import Predictor

__all__ = [
    "ConfusedPair",
    "Mistake",
    "Predictions",
    "confident_mistakes",
    "confused_pairs",
    "read_predictions",
]

BATCH = 256


@dataclass(frozen=True)
class Predictions:
    """One entry a test image, in the order of the split; -1 is said of one that cannot be read."""

    target: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def wrong(self) -> NDArray[np.int64]:
        """Places of the mistakes, the surest first."""
        places = np.flatnonzero((self.predicted != self.target) & (self.predicted >= 0))
        return places[np.argsort(-self.confidence[places], kind="stable")]

    @property
    def readable(self) -> int:
        """Images that a class was said of."""
        return int((self.predicted >= 0).sum())


@dataclass(frozen=True)
class Mistake:
    """A test image, its class, and what the model took it for."""

    place: int
    target: int
    predicted: int
    confidence: float


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes, and the mistakes between them in each direction, the surest first."""

    first: int
    second: int
    first_as_second: list[Mistake]
    second_as_first: list[Mistake]

    @property
    def count(self) -> int:
        """Mistakes in both directions."""
        return len(self.first_as_second) + len(self.second_as_first)


def read_predictions(
    run: RunFolder, test: Split, *, weights: str | None = None, device: str = "auto"
) -> Predictions:
    """What a run's model says of its test set: as the run left it, else the model is run again.

    Args:
        run: The run folder.
        test: The test split of its data.
        weights: `best` or `last`; the run's own choice, and its own record, by default.
        device: `auto`, `cpu` or `cuda`.
    """
    stored = run.predictions() if weights is None else {}
    if not stored:
        predictor = Predictor(run, weights=weights, device=device)
        stored = predictor.evaluate(test, batch_size=BATCH, advice="--device cpu").predictions
    if not np.array_equal(stored["target"], test.labels.numpy()):
        raise DataError(f"{str(run.path)!r}: its predictions are not of the data that is there now")
    return Predictions(
        stored["target"].astype(np.int64),
        stored["predicted"].astype(np.int64),
        stored["confidence"].astype(np.float64),
    )


def confident_mistakes(predictions: Predictions, count: int) -> list[Mistake]:
    """The mistakes that the model was surest of."""
    return [_mistake(predictions, place) for place in predictions.wrong[:count]]


def confused_pairs(predictions: Predictions, count: int) -> list[ConfusedPair]:
    """The pairs of classes with most mistakes between them, either way."""
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
