"""A run's answer for one image, with the maps behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.explain.inputs import Album, Picture, shown
from saccade.explain.maps import AttentionMaps, Method, attention_maps, choose
from saccade.explain.measures import describe_map
from saccade.explain.observation import check_model
from saccade.runs import RunFolder
from saccade.train.inspection import Predictor

__all__ = ["Explainer", "Explanation"]

MOST_LAYERS = 4


@dataclass(frozen=True)
class Explanation:
    """What a model says of an image, and what it looked at.

    Attributes:
        run: Name of the run.
        attention: Its mechanism.
        picture: What the image is called.
        image: (C, H, W) in 0..1, as the model sees it.
        classes: Every class and its probability, likeliest first.
        truth: The true class, where that is known.
        maps: Of this one image, on the CPU.
    """

    run: str
    attention: str
    picture: str
    image: Tensor
    classes: list[tuple[str, float]]
    truth: str | None
    maps: AttentionMaps

    def as_json(self, top: int = 5) -> dict[str, Any]:
        """The numbers as JSON values."""
        maps = self.maps
        layers = [
            {"layer": layer, **describe_map(weights.mean(dim=0), maps.grid)}
            | {
                "heads": [
                    {"head": head, **describe_map(row, maps.grid)}
                    for head, row in zip(maps.heads, weights, strict=True)
                ]
            }
            for layer, weights in zip(maps.layers, maps.weights[0], strict=True)
        ]
        return {
            "image": self.picture,
            "run": self.run,
            "attention": self.attention,
            "truth": self.truth,
            "classes": [{"class": name, "probability": p} for name, p in self.classes[:top]],
            "method": maps.method,
            "summary": describe_map(maps.summary[0], maps.grid),
            "layers": layers,
        }


class Explainer:
    """A run's model, ready to say what it looks at.

    Args:
        run: The run folder.
        method: As in `attention_maps`.
        layers: Those whose heads are shown; by default up to four, spread from first to last.
        heads: Those that are shown; all by default.
        weights: `best` or `last`; the run's own choice by default.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        method: Method = "rollout",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        weights: str | None = None,
        device: str = "auto",
    ) -> None:
        self._predictor = Predictor(run, weights=weights, device=device)
        self.model = check_model(self._predictor.model)
        depth = len(self.model.blocks)
        self.layers = choose("layers", spread(depth) if layers is None else layers, depth)
        self.heads = choose("heads", heads, self.model.config.num_heads)
        self.method, self.name = method, run.path.absolute().name
        self.album = Album(run, self._predictor.info)

    def explain(self, picture: Picture) -> Explanation:
        """The answer for one image."""
        info, image = self._predictor.info, picture.image.to(self._predictor.device)
        maps = attention_maps(
            self.model, image[None], layers=self.layers, heads=self.heads, method=self.method
        )
        return Explanation(
            run=self.name,
            attention=self.model.config.attention,
            picture=Path(picture.name).name,
            image=shown(picture.image, info),
            classes=self._predictor.ranked(maps.logits[0]),
            truth=None if picture.label is None else info.class_names[picture.label],
            maps=replace(maps, weights=maps.weights.cpu(), summary=maps.summary.cpu()),
        )


def spread(depth: int) -> list[int]:
    """Up to four layers from the first to the last."""
    count = min(depth, MOST_LAYERS)
    return [round(step * (depth - 1) / max(1, count - 1)) for step in range(count)]
