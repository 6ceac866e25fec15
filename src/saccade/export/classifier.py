"""Classify images with an exported ONNX model. Needs numpy, Pillow and onnxruntime: copy this file.

The model file holds everything else: the class names, and how an image becomes its input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageOps

__all__ = ["OnnxClassifier"]


class OnnxClassifier:
    """An image classifier in ONNX Runtime.

    Args:
        path: A file written by `saccade export`. Open untrusted files with `saccade predict`, which
            checks them first.
        providers: Execution providers of ONNX Runtime, in the order of preference.
    """

    def __init__(
        self, path: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)
    ) -> None:
        self.session = onnxruntime.InferenceSession(str(path), providers=list(providers))
        stored = self.session.get_modelmeta().custom_metadata_map
        self.class_names: list[str] = json.loads(stored["saccade.class_names"])
        self.input: dict[str, Any] = json.loads(stored["saccade.preprocessing"])

    def prepare(self, image: Image.Image | str | Path) -> NDArray[np.float32]:
        """The input for one image, (C, H, W): upright, centered square, resized, normalized."""
        height, width = self.input["image_size"]
        side = max(height, width)
        if not isinstance(image, Image.Image):
            with Image.open(image) as file:
                file.draft("RGB", (2 * side, 2 * side))  # JPEG only: decodes at a lower resolution
                image = ImageOps.exif_transpose(file).convert("RGB")
        shorter = min(image.size)
        left, top = (image.width - shorter) / 2, (image.height - shorter) / 2
        box = (left, top, left + shorter, top + shorter)
        square = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=box)
        row, column = (side - height) // 2, (side - width) // 2
        values = np.asarray(square, np.float32).transpose(2, 0, 1) / np.float32(255)
        values = values[:, row : row + height, column : column + width]
        if self.input["channels"] == 1:
            luma = np.array([0.299, 0.587, 0.114], np.float32)
            values = (values * luma[:, None, None]).sum(0, keepdims=True)
        mean, std = (np.array(self.input[key], np.float32) for key in ("mean", "std"))
        return (values - mean[:, None, None]) / std[:, None, None]

    def logits(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (B, K) of prepared images (B, C, H, W)."""
        found: NDArray[np.float32] = self.session.run(["logits"], {"images": images})[0]
        return found

    def classify(self, image: Image.Image | str | Path) -> list[tuple[str, float]]:
        """All classes with their probabilities for one image, most likely first."""
        logits = self.logits(self.prepare(image)[None])[0].astype(np.float64)
        weights = np.exp(logits - logits.max())
        order = np.argsort(-weights, kind="stable")
        return [(self.class_names[i], float(weights[i] / weights.sum())) for i in order]
