"""What `saccade predict` and `saccade evaluate` do with an ONNX file, without torch."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.data.held_out import HeldOut, load_held_out
from saccade.data.images import MAX_FILE_BYTES, opened, opened_bytes, read_square
from saccade.errors import ConfigError, DataError, ExportError
from saccade.export.reading import Classifier, open_classifier

__all__ = ["classify_file", "evaluate_classifier", "evaluate_onnx"]

BINS = 15


def classify_file(model: Classifier, name: str) -> list[tuple[str, float]]:
    """All classes with their probabilities for an image file, or `-` for stdin.

    Raises:
        DataError: The image cannot be read.
    """
    side = max(model.input["image_size"])
    if name == "-":
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        with opened_bytes(content, "stdin") as image:
            return _finite(model, model.classify(read_square(image, "stdin", side)))
    with opened(Path(name)) as image:
        return _finite(model, model.classify(read_square(image, name, side)))


def _finite(model: Classifier, ranked: list[tuple[str, float]]) -> list[tuple[str, float]]:
    if not np.isfinite([probability for _, probability in ranked]).all():
        raise ExportError(f"{str(model.path)!r}: its outputs must be finite, got NaN or infinity")
    return ranked


def evaluate_onnx(
    path: Path,
    *,
    data: str | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    batch_size: int = 512,
) -> dict[str, Any]:
    """Evaluate an ONNX file on the test images of a data set.

    Returns:
        What `saccade evaluate` reports about a run.
    """
    model = open_classifier(path, device=device)
    held_out = load_held_out(_data_name(model, data, data_root), data_root)
    _check_classes(model, held_out)
    return evaluate_classifier(model, held_out, batch_size=batch_size) | {
        "run": str(path),
        "device": "cuda" if device == "cuda" else "cpu",
    }


def _data_name(model: Classifier, data: str | None, root: Path | None) -> str:
    """The data set to evaluate on: the named one, or that of the training."""
    if data is not None:
        return data
    trained = (model.facts.get("provenance") or {}).get("trained") or {}
    config = (trained.get("config") or {}).get("data") or {}
    name = config.get("name")
    if not isinstance(name, str):
        raise ConfigError(
            f"{str(model.path)!r} does not say what it was trained on: name the data, as in --data "
            "cifar10, or --data folder --data-root DIR"
        )
    if name == "folder" and root is None:
        raise ConfigError(
            f"{str(model.path)!r} was trained on a folder of images: name it, as in --data-root DIR"
        )
    if config.get("folds") is not None or config.get("num_test") is not None:
        raise ConfigError(
            f"{str(model.path)!r} was trained with its own test images (data.folds or "
            f"data.num_test): evaluate its run, or name the data, as in --data {name}"
        )
    return name


def _check_classes(model: Classifier, held_out: HeldOut) -> None:
    """Raise if the classes or the image size of the data are not those of the model."""
    faults = []
    if list(held_out.class_names) != model.class_names:
        faults.append(f"{len(held_out.class_names)} other classes")
    if held_out.pixels is not None:
        wanted = [model.input["channels"], *model.input["image_size"]]
        if list(held_out.pixels.shape[1:]) != wanted:
            faults.append(f"images of {list(held_out.pixels.shape[1:])}, not {wanted}")
    if faults:
        fault = ", ".join(faults)
        raise DataError(f"{held_out.name!r} does not fit the model {str(model.path)!r}: {fault}")


def evaluate_classifier(
    model: Classifier, held_out: HeldOut, *, batch_size: int = 512
) -> dict[str, Any]:
    """Accuracy, loss, calibration and confusion of a model on test images."""
    side = max(model.input["image_size"])
    start = time.perf_counter()
    rows = [
        _judged(model.logits(_normalized(model, pixels)), labels)
        for pixels, labels in held_out.batches(batch_size, side)
    ]
    seconds = time.perf_counter() - start
    columns = (np.concatenate(column) for column in zip(*rows, strict=True))
    labels, predicted, confidence, top5, loss = columns
    if not np.isfinite(loss).all():
        raise ExportError(f"{str(model.path)!r}: its outputs must be finite, got NaN or infinity")
    names, right = model.class_names, labels == predicted
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    counts = confusion.sum(axis=1)
    shares = [int(confusion[i, i]) / int(n) if n else None for i, n in enumerate(counts)]
    return {
        "run": "",
        "split": "test",
        "input": "image",
        "weights": str(model.facts.get("model", {}).get("precision", "")),
        "count": len(labels),
        "skipped": 0,
        "correct": int(right.sum()),
        "accuracy": float(right.mean()),
        "accuracy_top5": float(top5.mean()),
        "loss": float(loss.mean()),
        "calibration_error": _calibration_error(confidence, right),
        "seconds": round(seconds, 4),
        "img_per_s": round(len(labels) / seconds, 1),
        "device": "cpu",
        "class_names": names,
        "class_accuracy": dict(zip(names, shares, strict=True)),
        "confusion": confusion.tolist(),
    }


def _normalized(model: Classifier, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The inputs of uint8 images (B, C, H, W), as `OnnxClassifier.prepare` makes them."""
    (height, width), channels = model.input["image_size"], model.input["channels"]
    row, column = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
    values = pixels[:, :, row : row + height, column : column + width].astype(np.float32)
    values /= np.float32(255)
    if channels == 1 and values.shape[1] == 3:
        luma = np.array([0.299, 0.587, 0.114], np.float32)
        values = (values * luma[:, None, None]).sum(1, keepdims=True)
    mean, std = (np.array(model.input[key], np.float32)[:, None, None] for key in ("mean", "std"))
    return (values - mean) / std


def _judged(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Labels, predicted classes, confidences, top-5 hits and losses of a batch."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    predicted = shifted.argmax(axis=1)
    rows = np.arange(len(labels))
    best = np.argsort(-shifted, axis=1, kind="stable")[:, :5]
    top5 = (best == labels[:, None]).any(axis=1)
    confidence = np.exp(shifted[rows, predicted] - log_sum)
    return labels, predicted, confidence, top5, log_sum - shifted[rows, labels]


def _calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """|accuracy - confidence| averaged over bins of equal width."""
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(place, right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))
