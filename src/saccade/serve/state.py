"""What the routes share: models, pictures, the queue, and the reading of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import Request

from saccade.errors import UnknownNameError
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.cores import TaylorCore
from saccade.report.style import series_tone
from saccade.serve.batching import Compute
from saccade.serve.guard import Settings
from saccade.serve.look import Focus, look
from saccade.serve.pictures import (
    Picture,
    PictureError,
    PictureStore,
    check,
    model_input,
    too_many_bytes,
)
from saccade.serve.served import ServedModel
from saccade.serve.swaps import Swap
from saccade.version import __version__

__all__ = ["DEFAULT_ATTENTIONS", "SlowBodyError", "State"]

DEFAULT_ATTENTIONS = ("softmax", "taylor", "performer")
DISCARDED = 4
"""A body may be this many times too large and is still read, so that the client gets an answer."""


class SlowBodyError(Exception):
    """A request body did not arrive in time."""


@dataclass
class State:
    """Everything that a request can reach.

    Attributes:
        models: The models by id, in the order of the command line.
    """

    settings: Settings
    models: dict[str, ServedModel]
    pictures: PictureStore
    compute: Compute
    reports: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for model in self.models.values():
            found = [self.pictures.add_sample(sample.content) for sample in model.samples]
            model.pictures = found

    def model(self, name: str | None) -> ServedModel:
        """A model by id; the first by default."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UnknownNameError("model", name, self.models)
        return self.models[name]

    async def picture(self, request: Request, kept: str | None, *, keep: bool = False) -> Picture:
        """The picture of a request: a kept one by id, or the one in the body."""
        if kept is not None:
            return self.pictures.get(kept)
        content = await self._body(request)
        return self.pictures.add(content) if keep else check(content, self.settings)

    async def _body(self, request: Request) -> bytes:
        """Read the body, and no more of it than is accepted."""
        content, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.settings.max_bytes:
                        content += chunk
                    elif size > DISCARDED * self.settings.max_bytes:
                        break
        except TimeoutError:
            raise SlowBodyError from None
        if size > self.settings.max_bytes:
            raise PictureError(too_many_bytes(self.settings), 413)
        return bytes(content)

    async def classify(self, model: ServedModel, picture: Picture) -> list[tuple[str, float]]:
        """Classes of a picture by probability, computed with other pictures that wait."""
        ranked: list[tuple[str, float]]
        ranked = await self.compute.batched(model.id, picture, model.classify)
        return ranked

    def explain(
        self, model: ServedModel, picture: Picture, swaps: Sequence[Swap], focus: Focus
    ) -> dict[str, Any]:
        """The answer of the view Look."""
        info = model.predictor.info
        images = model_input(picture, info)[None].to(model.predictor.device)
        panels = look([(swap, model.swaps.get(swap)) for swap in swaps], images, focus)
        return {
            "model": model.id,
            "picture": picture_json(picture),
            "layer": focus.layer,
            "head": focus.head,
            "panels": [panel.as_json(info.class_names) for panel in panels],
        }

    def catalog(self) -> dict[str, Any]:
        """The answer of `/api/models`."""
        return {
            "version": __version__,
            "models": [model.as_json() for model in self.models.values()],
            "attentions": [_attention(name) for name in ATTENTIONS],
            "studies": [
                {"name": name, "report": f"/reports/{place}"}
                for place, (name, _) in enumerate(self.reports)
            ],
            "max_bytes": self.settings.max_bytes,
            "max_pixels": self.settings.max_pixels,
        }

    @cached_property
    def example(self) -> dict[str, Any] | None:
        """The first picture of the first model, explained before anybody asks."""
        model = self.model(None)
        if not model.pictures:
            return None
        focus = Focus(len(model.model.blocks) - 1, None)
        swaps = [Swap(name) for name in DEFAULT_ATTENTIONS]
        return self.explain(model, model.pictures[0], swaps, focus)


def picture_json(picture: Picture) -> dict[str, Any]:
    """A picture without its bytes."""
    return {
        "id": picture.id,
        "width": picture.width,
        "height": picture.height,
        "format": picture.format,
    }


def _attention(name: str) -> dict[str, Any]:
    entry, tone = ATTENTIONS[name], series_tone(name)
    return {
        "name": name,
        "summary": entry.summary,
        "weight": entry.weight.replace("\\|", "|"),
        "linear": entry.linear,
        "untrained": entry.untrained,
        "has_order": issubclass(entry.core_class, TaylorCore),
        "light": tone.light,
        "dark": tone.dark,
    }
