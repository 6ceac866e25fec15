"""How much of a map lies on the object: `shapes` has exact masks, so it can be counted.

The weight of a patch is spread evenly over its pixels; its mass on the foreground is the share that
falls on pixels of the shape. Equal weights give the shape's share of the image, and a trained model
is compared with the same model before training, on the same images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saccade.data import DatasetInfo, Split, shapes_masks
from saccade.errors import ConfigError
from saccade.explain.inputs import pixels_at
from saccade.explain.maps import METHODS, Method, attention_maps
from saccade.explain.observation import check_model
from saccade.runs import RunFolder
from saccade.train.build import build_model
from saccade.train.inspection import Predictor
from saccade.train.pictures import normalise
from saccade.train.run_data import load_run_data

__all__ = ["foreground_mass", "mass_on_foreground", "measure_foreground"]

BATCH = 50
CONFIDENCE_Z = 1.96  # 95 % of a normal distribution


@dataclass(frozen=True)
class Masked:
    """Images (R, C, H, W) as a model takes them, and where their shapes are, (R, H, W)."""

    images: Tensor
    masks: Tensor


def mass_on_foreground(patches: Tensor, masks: Tensor) -> Tensor:
    """The share of each map (R, rows, columns) that lies in its mask, bool (R, H, W): (R,).

    A map without any weight, such as a gradient's that is negative throughout, counts as even.
    """
    height, width = masks.shape[1:]
    rows, columns = patches.shape[1:]
    covered = masks.double().view(-1, rows, height // rows, columns, width // columns)
    weights = patches.double().cpu()
    weights = torch.where(weights.sum(dim=(1, 2), keepdim=True) == 0, 1.0, weights)
    return (weights * covered.mean(dim=(2, 4))).sum(dim=(1, 2)) / weights.sum(dim=(1, 2))


def foreground_mass(model: nn.Module, data: Masked, method: Method) -> Tensor:
    """The mass on the foreground of every image's summary map, (R,)."""
    found = []
    batches = zip(torch.split(data.images, BATCH), torch.split(data.masks, BATCH), strict=True)
    for images, masks in batches:
        maps = attention_maps(model, images, method=method)
        found.append(mass_on_foreground(maps.on_grid(maps.summary), masks))
    return torch.cat(found)


def measure_foreground(
    run: RunFolder,
    *,
    count: int = 200,
    weights: str | None = None,
    device: str = "auto",
    each: Callable[[Sequence[Method]], Iterable[Method]] = iter,
) -> dict[str, Any]:
    """The mass on the foreground before and after training, by each method, as JSON values.

    Args:
        run: A run on the data set `shapes`.
        count: Test images, from the first on.
        weights: `best` or `last`; the run's own choice by default.
        device: `auto`, `cpu` or `cuda`.
        each: Goes through the methods, and may show how far it is.
    """
    config = run.config()
    if config.data.name != "shapes":
        raise ConfigError(
            f"--foreground: the run's data set is {config.data.name!r}; only shapes has masks"
        )
    predictor = Predictor(run, weights=weights, device=device)
    trained = check_model(predictor.model)
    test = load_run_data(run).test
    data = _with_masks(test, predictor.info, min(count, len(test)), predictor.device)
    torch.manual_seed(config.run.seed)
    fresh = build_model(config, predictor.info).to(predictor.device)
    methods = {}
    for method in each(METHODS):
        before, after = (foreground_mass(m, data, method) for m in (fresh, trained))
        methods[method] = {
            "untrained": _interval(before),
            "trained": _interval(after),
            "gain": _interval(after - before),
        }
    return {
        "run": str(run.path),
        "attention": trained.config.attention,
        "test_accuracy": run.summary().get("test_accuracy"),
        "images": len(data.masks),
        "uniform": _interval(data.masks.double().mean(dim=(1, 2))),
        "methods": methods,
    }


def _with_masks(test: Split, info: DatasetInfo, count: int, device: torch.device) -> Masked:
    images = torch.stack([normalise(pixels_at(test, place), info) for place in range(count)])
    assert test.origin is not None
    return Masked(images.to(device), shapes_masks(test.origin[:count], info.image_size[0], "test"))


def _interval(values: Tensor) -> dict[str, float]:
    """Mean over the images and its 95 % interval."""
    mean, spread = float(values.mean()), float(values.std(correction=1))
    half = CONFIDENCE_Z * spread / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}
