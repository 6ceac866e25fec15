"""The figures of a run's data: training samples, confused pairs, confident mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from saccade.config import AugmentConfig, Config
from saccade.data import Splits, make_loader
from saccade.explain.data_figures import draw_mistakes, draw_pairs, draw_samples
from saccade.explain.images import denormalize, pixels_at
from saccade.explain.misclassified import (
    Mistake,
    confident_mistakes,
    confused_pairs,
    predictions_of,
)
from saccade.explain.sheet import Sheet
from saccade.runs import Predictions, RunFolder
from saccade.train.run_data import load_run_data

__all__ = ["DataPicture", "data_pictures"]

SAMPLES, PAIRS, MISTAKES = 24, 5, 24


@dataclass(frozen=True)
class DataPicture:
    """A figure and the numbers in it.

    Attributes:
        name: `samples`, `confused_pairs` or `confident_mistakes`.
        draw: Draws the figure.
        facts: The numbers, as JSON values.
    """

    name: str
    draw: Callable[[], Sheet]
    facts: dict[str, Any]


def data_pictures(
    run: RunFolder, *, weights: str | None = None, device: str = "auto"
) -> Iterator[DataPicture]:
    """Yield the three figures of a run.

    Args:
        run: The run folder.
        weights: `best` or `last`; the run's `train.evaluate_with` by default.
        device: `auto`, `cpu` or `cuda`.
    """
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
