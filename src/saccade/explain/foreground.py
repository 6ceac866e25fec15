"""The share of an attention map on the object, measured on `shapes`, which has exact masks.

The weight of a patch is divided evenly among its pixels. The mass on the foreground is the share of
the map on pixels of the shape. A uniform map has the shape's share of the image area as its mass. A
trained model is compared with its untrained initialization on the same images.
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
from saccade.explain.hooks import check_model
from saccade.explain.images import pixels_at
from saccade.explain.maps import METHODS, Method, attention_maps
from saccade.runs import RunFolder
from saccade.train.build import build_model
from saccade.train.image_inputs import normalize
from saccade.train.inference import Predictor
from saccade.train.run_data import load_run_data

__all__ = ["foreground_mass", "mass_on_foreground", "measure_foreground"]

BATCH = 50
CONFIDENCE_Z = 1.96  # 95 % of a normal distribution


@dataclass(frozen=True)
class MaskedImages:
    """Normalized images (R, C, H, W) and the masks of their shapes (R, H, W)."""

    images: Tensor
    masks: Tensor


def mass_on_foreground(patches: Tensor, masks: Tensor) -> Tensor:
    """The share of each map (R, rows, columns) inside its mask, bool (R, H, W): (R,).

    A map of zeros, such as a gradient map without positive values, counts as uniform.
    """
    height, width = masks.shape[1:]
    rows, columns = patches.shape[1:]
    covered = masks.double().view(-1, rows, height // rows, columns, width // columns)
    weights = patches.double().cpu()
    weights = torch.where(weights.sum(dim=(1, 2), keepdim=True) == 0, 1.0, weights)
    return (weights * covered.mean(dim=(2, 4))).sum(dim=(1, 2)) / weights.sum(dim=(1, 2))


def foreground_mass(model: nn.Module, data: MaskedImages, method: Method) -> Tensor:
    """The mass on the foreground of the summary map of each image, (R,)."""
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
    """The mass on the foreground before and after training, for each method, as JSON values.

    Args:
        run: A run on the data set `shapes`.
        count: Number of test images, starting with the first.
        weights: `best` or `last`; the run's `train.evaluate_with` by default.
        device: `auto`, `cpu` or `cuda`.
        each: Iterates over the methods, for example with a progress bar.
    """
    config = run.config()
    if config.data.name != "shapes":
        raise ConfigError(
            f"data.name must be 'shapes' for --foreground, got {config.data.name!r}; only shapes "
            "has masks"
        )
    predictor = Predictor(run, weights=weights, device=device)
    trained = check_model(predictor.model)
    test = load_run_data(run, parts=("test",)).test
    data = _with_masks(test, predictor.info, min(count, len(test)), predictor.device)
    torch.manual_seed(config.run.seed)
    untrained = build_model(config, predictor.info).to(predictor.device)
    methods = {}
    for method in each(METHODS):
        before, after = (foreground_mass(m, data, method) for m in (untrained, trained))
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


def _with_masks(test: Split, info: DatasetInfo, count: int, device: torch.device) -> MaskedImages:
    images = torch.stack([normalize(pixels_at(test, place), info) for place in range(count)])
    assert test.origin is not None
    return MaskedImages(
        images.to(device), shapes_masks(test.origin[:count], info.image_size[0], "test")
    )


def _interval(values: Tensor) -> dict[str, float]:
    """The mean over the images with its 95 % interval."""
    mean, spread = float(values.mean()), float(values.std(correction=1))
    half = CONFIDENCE_Z * spread / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}
