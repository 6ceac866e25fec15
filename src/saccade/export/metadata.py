"""The metadata of an exported file, as JSON values by key.

| key | content |
|---|---|
| `format` | version of this table |
| `model` | architecture, variant, attention and its algorithm, precision, opset, error |
| `preprocessing` | how an image becomes the input; null for sequences |
| `class_names` | names of the logits |
| `provenance` | versions, date, and the record of the training |
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from saccade.export.algorithm import AlgorithmChoice, num_tokens
from saccade.export.options import ExportOptions, chosen_layers
from saccade.models.transformer import Transformer
from saccade.models.vision_transformer import VisionTransformer
from saccade.version import __version__

__all__ = ["FORMAT_VERSION", "describe"]

FORMAT_VERSION = 1


def describe(
    model: Transformer, options: ExportOptions, choice: AlgorithmChoice, max_error: float
) -> dict[str, Any]:
    """The facts about an exported model."""
    config = model.config
    names = config.class_names or [str(number) for number in range(config.num_classes)]
    return {
        "format": FORMAT_VERSION,
        "model": {
            "architecture": model.architecture,
            "variant": model.name,
            "attention": config.attention,
            "attention_options": dict(config.attention_options),
            "algorithm": choice.algorithm or None,
            "algorithm_reason": choice.reason,
            "tokens": num_tokens(model),
            "parameters": sum(p.numel() for p in model.parameters()),
            "precision": options.precision,
            "opset": options.opset,
            "dynamic_size": options.dynamic_size,
            "maps": list(chosen_layers(options.maps, len(model.blocks))),
            "max_error": max_error,
        },
        "preprocessing": _preprocessing(model),
        "class_names": list(names),
        "provenance": {
            "saccade": __version__,
            "torch": torch.__version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "trained": None if model.trained is None else dict(model.trained),
        },
    }


def _preprocessing(model: Transformer) -> dict[str, Any] | None:
    if not isinstance(model, VisionTransformer):
        return None
    config = model.config
    return {
        "image_size": list(config.img_size),
        "channels": config.in_chans,
        "crop": "largest centered square",
        "resize": "bilinear with antialiasing, to the longer side of image_size, then its center",
        "layout": "NCHW, RGB, values from 0 to 1, then (x - mean) / std",
        "mean": list(config.mean),
        "std": list(config.std),
    }
