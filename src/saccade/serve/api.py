"""The JSON API: models, predictions, and what the four views of the page show."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from saccade.bench.clock import time_calls
from saccade.explain.images import denormalize
from saccade.serve import measure
from saccade.serve.batching import BusyError, TookTooLongError
from saccade.serve.look import Focus
from saccade.serve.pictures import as_png, model_input
from saccade.serve.schemas import (
    ExplainOut,
    LatencyOut,
    ModelsOut,
    PictureOut,
    PredictOut,
    Problem,
    WalkOut,
    image_body,
)
from saccade.serve.served import ServedModel
from saccade.serve.state import DEFAULT_ATTENTIONS, State, picture_json
from saccade.serve.swaps import MAX_TEMPERATURE, MIN_TEMPERATURE, Order, Swap
from saccade.serve.walk import walk

__all__ = ["make_api"]

MAX_PANELS = 4
LATENCY_SECONDS = 0.5
Model = Annotated[str | None, Query(description="Id of a model; the first by default.")]
Kept = Annotated[
    str | None, Query(max_length=64, description="Id of a kept picture; no body is needed then.")
]
Layer = Annotated[int | None, Query(ge=0, le=10_000, description="Block; the last by default.")]
Head = Annotated[int | None, Query(ge=0, le=10_000, description="Head; the mean by default.")]
Temperature = Annotated[
    float, Query(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE, description="Divides the scores.")
]
Names = Annotated[
    list[str] | None,
    Query(max_length=MAX_PANELS, description="Attentions; the first is the reference."),
]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (401, "The token is missing."),
        (403, "The request comes from another origin."),
        (404, "The model or picture is not there."),
        (408, "The picture did not arrive in time."),
        (413, "The picture is too large."),
        (415, "The picture is in no accepted format."),
        (421, "The Host header does not name this server."),
        (422, "An argument or the picture cannot be used."),
        (503, "Too much to do; Retry-After says when to try again."),
    )
}


def make_api(state: State) -> APIRouter:
    """The routes below `/api`."""
    router = APIRouter(prefix="/api", responses=PROBLEMS)
    _add_models(router, state)  # first, because routes are searched in order
    _add_catalog(router, state)
    _add_views(router, state)
    _add_measure(router, state)
    return router


def _add_catalog(router: APIRouter, state: State) -> None:
    catalog, example = JSONResponse(state.catalog()), JSONResponse(state.example)

    @router.get("/models", response_model=ModelsOut)
    async def models() -> Response:
        """List the models, attentions and studies."""
        return catalog

    @router.get("/example", response_model=ExplainOut | None)
    async def first_example() -> Response:
        """Return the first sample explained, computed when the server started."""
        return example

    @router.post("/pictures", response_model=PictureOut, openapi_extra=image_body(required=True))
    async def keep_picture(request: Request) -> Response:
        """Keep a picture in memory and return its id."""
        return JSONResponse(picture_json(await state.picture(request, None, keep=True)))

    @router.get(
        "/pictures/{picture}",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}, "description": "The picture as PNG."}},
    )
    async def kept_picture(picture: str, model: Model = None) -> Response:
        """Return a kept picture as a model receives it: cropped and resized."""
        served, found = state.model(model), state.pictures.get(picture)

        def draw() -> bytes:
            info = served.predictor.info
            pixels = denormalize(model_input(found, info), info).mul(255).round()
            return as_png(pixels)

        content = await state.compute.alone(draw)
        headers = {"cache-control": "private, max-age=3600"}
        return Response(content, media_type="image/png", headers=headers)


def _add_models(router: APIRouter, state: State) -> None:
    @router.post("/predict", response_model=PredictOut, openapi_extra=image_body(required=False))
    async def predict(request: Request, model: Model = None, picture: Kept = None) -> Response:
        """Classify a picture. Requests that wait at the same time are computed in one batch."""
        served = state.model(model)
        found = await state.picture(request, picture)
        ranked = await state.classify(served, found)
        classes = [{"name": name, "probability": p} for name, p in ranked]
        return JSONResponse({"model": served.id, "picture": found.id, "classes": classes})

    @router.post("/latency", response_model=LatencyOut)
    async def latency(model: Model = None, attention: str | None = None) -> Response:
        """Time one forward pass of one picture on this machine."""
        served = state.model(model)
        swap = Swap(attention or served.model.config.attention)

        def measure_it() -> dict[str, Any]:
            network, info = served.swaps.get(swap), served.predictor.info
            device = served.predictor.device
            size = (1, info.channels, *info.image_size)
            images = next(network.parameters()).new_zeros(size)
            timing = time_calls(lambda: network(images), device, seconds=LATENCY_SECONDS)
            return {
                "model": served.id,
                "attention": swap.attention,
                "median_ms": timing.median_ms,
                "p20_ms": timing.p20_ms,
                "p80_ms": timing.p80_ms,
                "repeats": timing.repeats,
            }

        return JSONResponse(await state.compute.alone(measure_it))


def _add_views(router: APIRouter, state: State) -> None:
    @router.post("/explain", response_model=ExplainOut, openapi_extra=image_body(required=False))
    async def explain(
        request: Request,
        model: Model = None,
        picture: Kept = None,
        attention: Names = None,
        order: Order | None = None,
        temperature: Temperature = 1.0,
        layer: Layer = None,
        head: Head = None,
        query: Annotated[int | None, Query(ge=0, le=10**9, description="A token.")] = None,
    ) -> Response:
        """Look at a picture with several attentions on the same weights."""
        served = state.model(model)
        swaps = [Swap(name, temperature, order) for name in attention or DEFAULT_ATTENTIONS]
        found = await state.picture(request, picture, keep=True)
        focus = Focus(_layer(served, layer), head, query)
        answer = await state.compute.alone(lambda: state.explain(served, found, swaps, focus))
        return JSONResponse(answer)

    @router.post("/walk", response_model=WalkOut, openapi_extra=image_body(required=False))
    async def walk_through(
        request: Request,
        model: Model = None,
        picture: Kept = None,
        layer: Layer = None,
        head: Annotated[int, Query(ge=0, le=10_000, description="Head.")] = 0,
    ) -> Response:
        """Follow a picture through the model, step by step, with every tensor."""
        served = state.model(model)
        found = await state.picture(request, picture, keep=True)
        focus = Focus(0 if layer is None else layer, head)

        def follow() -> list[dict[str, Any]]:
            images = model_input(found, served.predictor.info)[None]
            steps = walk(served.model, images.to(served.predictor.device), focus)
            return [step.as_json() for step in steps]

        answer = {
            "model": served.id,
            "picture": picture_json(found),
            "layer": focus.layer,
            "head": head,
            "steps": await state.compute.alone(follow),
        }
        return JSONResponse(answer)


def _add_measure(router: APIRouter, state: State) -> None:
    is_measuring = False

    @router.post(
        "/measure",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
                "description": "One JSON object a line: a time, or the crossings so far.",
            }
        },
    )
    async def measure_here(
        head_dim: measure.HeadDim = 16,
        max_tokens: Annotated[int, Query(ge=128, le=measure.MAX_TOKENS)] = 4096,
    ) -> Response:
        """Time attention on this machine; points are sent as they are found."""
        nonlocal is_measuring
        if is_measuring:
            raise BusyError
        is_measuring = True
        device = state.model(None).predictor.device.type

        async def lines() -> AsyncIterator[bytes]:
            nonlocal is_measuring
            times: measure.Times = {}
            try:
                for point in measure.next_points(head_dim, max_tokens, times, device):
                    yield _line(await state.compute.alone(point))
                    yield _line({"crossings": measure.crossings(times)})
                yield _line({"done": True})
            except (BusyError, TookTooLongError):
                yield _line({"error": "the server is too busy to measure; try again"})
            finally:
                is_measuring = False

        return StreamingResponse(lines(), media_type="application/x-ndjson")


def _layer(served: ServedModel, layer: int | None) -> int:
    return len(served.model.blocks) - 1 if layer is None else layer


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
