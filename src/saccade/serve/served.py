"""The models that are served: runs, folders of `save_pretrained`, and the runs of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.errors import ConfigError, SaccadeError
from saccade.explain.hooks import check_model
from saccade.explain.images import Album, pixels_at
from saccade.models import VisionTransformer
from saccade.serve.pictures import Picture, PictureError, as_png, model_pixels
from saccade.serve.swaps import Swaps
from saccade.train.image_inputs import normalize
from saccade.train.inference import Predictor
from saccade.train.saved_model import data_of, load_saved_data

__all__ = ["Sample", "ServedModel", "open_models"]

MAX_SAMPLES = 12
ClassProbability = tuple[str, float]


@dataclass(frozen=True)
class Sample:
    """A picture of the model's own test set, as PNG."""

    content: bytes
    name: str
    label: str


@dataclass
class ServedModel:
    """One model of the page.

    Attributes:
        id: Its name in URLs, made from the name of its folder.
        accuracy: Test accuracy, if the run measured it.
    """

    id: str
    predictor: Predictor
    swaps: Swaps
    accuracy: float | None = None
    samples: list[Sample] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def model(self) -> VisionTransformer:
        """The network."""
        return self.swaps.model

    @torch.inference_mode()
    def classify(self, pictures: Sequence[Picture]) -> list[list[ClassProbability] | PictureError]:
        """Classes and probabilities of pictures, most probable first, in one forward pass.

        A picture that cannot be decoded gives its error and does not disturb the others.
        """
        decoded = [self._decoded(picture) for picture in pictures]
        pixels = [own for own in decoded if isinstance(own, Tensor)]
        ranked = iter(self._ranked(torch.stack(pixels)) if pixels else ())
        return [next(ranked) if isinstance(own, Tensor) else own for own in decoded]

    def _decoded(self, picture: Picture) -> Tensor | PictureError:
        try:
            return model_pixels(picture, self.predictor.info)
        except PictureError as error:
            return error

    def _ranked(self, pixels: Tensor) -> Iterator[list[ClassProbability]]:
        """Classes of uint8 pictures (B, 3, H, W)."""
        images = normalize(pixels, self.predictor.info)
        logits = self.model(images.to(self.predictor.device))
        probabilities, orders = logits.float().softmax(1).sort(descending=True)
        names = self.predictor.info.class_names
        for row, order in zip(probabilities.tolist(), orders.tolist(), strict=True):
            yield [(names[index], p) for index, p in zip(order, row, strict=True)]

    def as_json(self) -> dict[str, Any]:
        """What a client must know about the model; no path is among it."""
        model, info = self.model, self.predictor.info
        config = model.config
        rows, columns = model.patch_embed.grid_size
        return {
            "id": self.id,
            "name": model.name or "custom",
            "attention": config.attention,
            "dataset": info.name,
            "class_names": list(info.class_names),
            "image_size": list(info.image_size),
            "channels": info.channels,
            "grid": [rows, columns],
            "prefix_tokens": model.num_prefix_tokens,
            "depth": len(model.blocks),
            "heads": config.num_heads,
            "head_dim": model.blocks[0].attn.head_dim,
            "width": config.embed_dim,
            "stem": config.stem,
            "pooling": config.global_pool,
            "parameters": sum(own.numel() for own in model.parameters()),
            "accuracy": self.accuracy,
            "samples": [
                {"picture": picture.id, "name": sample.name, "label": sample.label}
                for sample, picture in zip(self.samples, self.pictures, strict=True)
            ],
        }


def open_models(paths: Iterable[Path], *, device: str = "auto") -> list[ServedModel]:
    """Open every run, saved model and comparison; ids are unique.

    Raises:
        ConfigError: A folder is none of them, or its model is not an image classifier.
    """
    found: list[ServedModel] = []
    for path in paths:
        for name, folder in _runs_in(path):
            found.append(_open(folder, _unique(name, [model.id for model in found]), device))
    if not found:
        raise ConfigError("RUN must be one or more folders with a trained model, got none")
    return found


def _runs_in(path: Path) -> Iterator[tuple[str, Path]]:
    """The name and folder of each model in a folder: itself, or the runs of a comparison."""
    if not (path / "study.json").is_file():
        yield path.absolute().name, path
        return
    from saccade.study.comparison import ComparisonFolder

    study = ComparisonFolder.open(path)
    seeds: dict[str, Path] = {}
    for job in study.plan.jobs():
        run = study.run(job)
        if run.exists() and run.is_finished():
            seeds.setdefault(job.attention, run.path)
    if not seeds:
        raise ConfigError(f"{str(path)!r} must have a finished run, got a study without one")
    yield from seeds.items()


def _open(path: Path, name: str, device: str) -> ServedModel:
    predictor = Predictor(path, device=device)
    model = check_model(predictor.model).eval().requires_grad_(False)
    served = ServedModel(name, predictor, Swaps(model), _accuracy(predictor))
    try:
        served.samples = list(_samples(predictor))
    except (SaccadeError, OSError):  # its data are not on this machine: pictures can be dropped
        served.samples = []
    return served


def _accuracy(predictor: Predictor) -> float | None:
    if predictor.run is not None:
        found = predictor.run.summary().get("test_accuracy")
    else:
        model = check_model(predictor.model)
        found = ((model.trained or {}).get("result") or {}).get("accuracy")
    return None if found is None else float(found)


def _samples(predictor: Predictor) -> Iterator[Sample]:
    """The first test pictures of different classes."""
    info = predictor.info
    if predictor.run is not None:
        split = Album(predictor.run, info).part("test")
    else:
        split = load_saved_data(predictor.path, info, data_of(predictor.path)).test
    seen: set[int] = set()
    for index in range(len(split)):
        label = int(split.labels[index])
        if label in seen:
            continue
        seen.add(label)
        yield Sample(as_png(pixels_at(split, index)), f"test:{index}", info.class_names[label])
        if len(seen) in (MAX_SAMPLES, info.num_classes):
            return


def _unique(name: str, taken: Sequence[str]) -> str:
    """A name of letters, digits, dots and dashes that is not taken."""
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"
    numbered = (f"{slug}-{number}" for number in range(2, len(taken) + 3))
    return slug if slug not in taken else next(one for one in numbered if one not in taken)
