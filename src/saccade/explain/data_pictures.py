"""The figures of a run's data: training samples, confused pairs, confident mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from saccade.config import AugmentConfig, Config
from saccade.data import Split, Splits, make_loader
from saccade.errors import DataError
from saccade.explain.data_figures import (
    ConfusedPair,
    Mistake,
    draw_mistakes,
    draw_pairs,
    draw_samples,
)
from saccade.explain.images import denormalize, pixels_at
from saccade.explain.sheet import Sheet
from saccade.runs import Predictions, RunFolder, read_predictions
from saccade.train.inference import Predictor
from saccade.train.run_data import load_run_data

__all__ = [
    "DataPicture",
    "confident_mistakes",
    "confused_pairs",
    "data_pictures",
    "predictions_of",
]

SAMPLES, PAIRS, MISTAKES = 24, 5, 24


@dataclass(frozen=True)
class DataPicture:
    """A figure and the numbers in it.

    Attributes:
        name: `samples`, `confused_pairs` or `confident_mistakes`.
    """

    name: str
    draw: Callable[[], Sheet]
    facts: dict[str, Any]


def data_pictures(
    run: RunFolder, *, weights: str | None = None, device: str = "auto"
) -> Iterator[DataPicture]:
    """Yield the three figures of a run."""
    config, name = run.config(), run.path.absolute().name
    splits = load_run_data(run, parts=("train", "test"))
    yield _samples(name, config, splits)
    classes = splits.info.num_classes
    predictions = predictions_of(run, splits.test, classes, weights=weights, device=device)
    subtitle = f"{len(predictions.wrong):,} of {predictions.num_judged:,} test images wrong"
    if predictions.num_skipped:
        subtitle += f", {predictions.num_skipped:,} could not be read"
    yield from _mistakes(name, splits, predictions, subtitle)


def _samples(name: str, config: Config, splits: Splits) -> DataPicture:
    """The first images of the first epoch that can be read, as stored and as given to the model."""
    loader = make_loader(
        splits.train,
        splits.info,
        batch_size=min(SAMPLES, len(splits.train)),
        augment=config.augment,
        seed=config.run.seed,
        device="cpu",
        shuffle=True,
    )
    batch, names = next(loader.epoch(0)), splits.info.class_names
    shown = [row for row, is_read in enumerate(batch.valid.tolist()) if is_read]
    places = batch.index[shown].tolist()
    stored = [pixels_at(splits.train, place).float() / 255 for place in places]
    labels = [names[int(splits.train.labels[place])] for place in places]
    targets = [_target_name(target, names) for target in batch.targets[shown]]
    trained = list(denormalize(batch.images[shown], splits.info))
    sides = {
        "as stored": list(zip(stored, labels, strict=True)),
        describe_augmentation(config.augment): list(zip(trained, targets, strict=True)),
    }
    facts = {"images": [f"train:{place}" for place in places], "classes": labels}
    return DataPicture("samples", partial(draw_samples, name, sides), facts)


def _target_name(target: Tensor, names: Sequence[str]) -> str:
    """A class name, or the names and shares of the classes of a mixed image."""
    if target.dim() == 0:
        return names[int(target)]
    shares = {names[place]: float(target[place]) for place in target.nonzero()[:, 0].tolist()}
    return " + ".join(f"{share:.1f} {name}" for name, share in shares.items())


def _mistakes(
    name: str, splits: Splits, predictions: Predictions, subtitle: str
) -> Iterator[DataPicture]:
    names = splits.info.class_names

    def image_of(place: int) -> Tensor:
        return pixels_at(splits.test, place).float() / 255

    def facts(mistake: Mistake) -> dict[str, Any]:
        return {
            "image": f"test:{mistake.place}",
            "truth": names[mistake.target],
            "predicted": names[mistake.predicted],
            "probability": mistake.confidence,
        }

    pairs = confused_pairs(predictions, PAIRS)
    yield DataPicture(
        "confused_pairs",
        partial(draw_pairs, name, pairs, subtitle, names, image_of),
        {
            "pairs": [
                {
                    "classes": [names[pair.first], names[pair.second]],
                    "count": pair.count,
                    "mistakes": [*map(facts, pair.first_as_second + pair.second_as_first)],
                }
                for pair in pairs
            ]
        },
    )
    confident = confident_mistakes(predictions, MISTAKES)
    yield DataPicture(
        "confident_mistakes",
        partial(draw_mistakes, name, confident, subtitle, names, image_of),
        {"mistakes": [*map(facts, confident)]},
    )


def describe_augmentation(config: AugmentConfig) -> str:
    """The augmentation of the training images, by its configuration keys."""
    changed = config.model_dump(exclude_defaults=True)
    words = [key if value is True else f"{key} {value}" for key, value in changed.items()]
    return "as trained: " + (", ".join(words) or "no augmentation")


BATCH = 256


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
