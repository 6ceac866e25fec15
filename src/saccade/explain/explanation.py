"""The prediction of a run's model for one image, with its attention maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.errors import ConfigError
from saccade.explain.hooks import check_model
from saccade.explain.images import Album, Picture, denormalize
from saccade.explain.maps import AttentionMaps, Method, attention_maps, choose, describe_map
from saccade.runs import RunFolder
from saccade.train.inference import Predictor

__all__ = ["Explainer", "Explanation"]

MAX_LAYERS = 4


@dataclass(frozen=True)
class Explanation:
    """A model's prediction for an image, and its attention maps.

    Attributes:
        image: (C, H, W) in 0..1, resized as for the model.
        classes: Every class and its probability, most probable first.
        maps: Attention maps of this image, on the CPU.
    """

    run: str
    attention: str
    picture: str
    image: Tensor
    classes: list[tuple[str, float]]
    truth: str | None
    maps: AttentionMaps

    def as_json(self, top: int = 5) -> dict[str, Any]:
        """The numbers as JSON values, with the `top` most probable classes."""
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
    """Computes predictions and attention maps of a run's model.

    Args:
        run: The run folder, or the path of a folder of `save_pretrained`.
        method: As in `attention_maps`.
        layers: Layers to show; by default up to four, evenly spaced from first to last.
        heads: Heads to show; all by default.
        weights: `best` or `last`; the run's `train.evaluate_with` by default.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(
        self,
        run: RunFolder | Path,
        *,
        method: Method = "rollout",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        weights: str | None = None,
        device: str = "auto",
    ) -> None:
        self._predictor = Predictor(run, weights=weights, device=device)
        if self._predictor.info.is_sequence:
            raise ConfigError(
                "RUN must have an image model to be explained, got a model of "
                f"{self._predictor.info.input_words}; attention_weights of its layers gives the "
                "weights of a sequence"
            )
        self.model = check_model(self._predictor.model)
        depth = len(self.model.blocks)
        self.layers = choose("layers", spread(depth) if layers is None else layers, depth)
        self.heads = choose("heads", heads, self.model.config.num_heads)
        self.method, self.name = method, self._predictor.path.absolute().name
        self.album = Album(run, self._predictor.info)

    def explain(self, picture: Picture) -> Explanation:
        """Predict the classes of an image and compute its attention maps."""
        info, image = self._predictor.info, picture.image.to(self._predictor.device)
        maps = attention_maps(
            self.model, image[None], layers=self.layers, heads=self.heads, method=self.method
        )
        return Explanation(
            run=self.name,
            attention=self.model.config.attention,
            picture=Path(picture.name).name,
            image=denormalize(picture.image, info),
            classes=self._predictor.ranked(maps.logits[0]),
            truth=None if picture.label is None else info.class_names[picture.label],
            maps=replace(maps, weights=maps.weights.cpu(), summary=maps.summary.cpu()),
        )


def spread(depth: int) -> list[int]:
    """Indices of up to four layers, evenly spaced from first to last."""
    count = min(depth, MAX_LAYERS)
    return [round(step * (depth - 1) / max(1, count - 1)) for step in range(count)]
