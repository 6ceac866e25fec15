"""The shapes of requests and answers, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from saccade.serve.swaps import Order

__all__ = [
    "AttentionOut",
    "ExplainOut",
    "LatencyOut",
    "ModelOut",
    "ModelsOut",
    "PictureOut",
    "PredictOut",
    "Problem",
    "WalkOut",
    "image_body",
]


class Problem(BaseModel):
    """What went wrong, in words."""

    detail: str


class ClassOut(BaseModel):
    """A class with its probability."""

    name: str
    probability: float


class PictureOut(BaseModel):
    """A picture that the server keeps in memory."""

    id: str
    width: int
    height: int
    format: str


class SampleOut(BaseModel):
    """A test picture of the model's own data."""

    picture: str
    name: str
    label: str


class ModelOut(BaseModel):
    """A model that is served."""

    id: str
    name: str
    attention: str
    dataset: str
    class_names: list[str]
    image_size: list[int]
    channels: int
    grid: list[int] = Field(description="Rows and columns of the patch tokens.")
    prefix_tokens: int = Field(description="Tokens before the patches: 1 with a class token.")
    depth: int
    heads: int
    head_dim: int
    width: int
    stem: str
    pooling: str
    parameters: int
    accuracy: float | None = Field(description="Test accuracy as a fraction, if measured.")
    samples: list[SampleOut]


class AttentionOut(BaseModel):
    """An attention that a model can be given."""

    name: str
    summary: str
    weight: str
    linear: bool
    untrained: str | None = Field(
        description="Why it cannot be swapped in: what is missing before training; null if it can."
    )
    has_order: bool = Field(description="True if `order` changes it.")
    light: str = Field(description="Its color on light pages.")
    dark: str = Field(description="Its color on dark pages.")


class StudyOut(BaseModel):
    """A study whose report is served."""

    name: str
    report: str


class ModelsOut(BaseModel):
    """Everything a client needs to begin."""

    version: str
    models: list[ModelOut]
    attentions: list[AttentionOut]
    studies: list[StudyOut]
    max_bytes: int
    max_pixels: int


class PredictOut(BaseModel):
    """A prediction, classes by probability."""

    model: str
    picture: str
    classes: list[ClassOut]


class PanelOut(BaseModel):
    """What one attention makes of the picture."""

    attention: str
    order: Order | None
    temperature: float
    classes: list[ClassOut]
    lens: list[list[float]] = Field(
        description="Probabilities, in the order of the model's classes, if the model ended before "
        "the first block (row 0) or after each block."
    )
    queries: list[int] = Field(description="The tokens whose rows are in `weights`.")
    weights: list[list[float]] = Field(description="Attention weights, a row for each query.")
    reading: list[float] = Field(description="The row that the classifier reads.")
    rollout: list[float]
    negative: float = Field(description="Fraction of the weights below zero.")
    variation: list[list[float]] | None = Field(
        description="Total variation to the first attention by layer and head; null for the first."
    )


class ExplainOut(BaseModel):
    """A picture seen with several attentions on the same weights."""

    model: str
    picture: PictureOut
    layer: int
    head: int | None
    panels: list[PanelOut]


class CodeOut(BaseModel):
    """A line of this package."""

    file: str
    line: int
    text: str


class TensorOut(BaseModel):
    """A tensor, or its first rows and columns."""

    name: str
    shape: list[int]
    values: list[Any]
    low: float
    high: float
    mean: float


class StepOut(BaseModel):
    """A step from the pixels to the probabilities."""

    id: str
    tensors: list[TensorOut]
    code: CodeOut


class WalkOut(BaseModel):
    """All steps of one picture."""

    model: str
    picture: PictureOut
    layer: int
    head: int
    steps: list[StepOut]


class LatencyOut(BaseModel):
    """Milliseconds of one forward pass of one picture on this machine."""

    model: str
    attention: str
    median_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int


def image_body(*, required: bool) -> dict[str, Any]:
    """The OpenAPI description of a body that is an image file."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    kinds = ("png", "jpeg", "webp", "gif", "bmp")
    content = {f"image/{kind}": schema for kind in kinds} | {"application/octet-stream": schema}
    return {"requestBody": {"required": required, "content": content}}
