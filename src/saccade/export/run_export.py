"""Export the model of a run, or of a saved folder, in one of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saccade.data import make_loader
from saccade.errors import ConfigError, ExportError, UnknownNameError
from saccade.export.onnx_file import build_onnx, note_accuracy, quantized, session_of, write_onnx
from saccade.export.options import ExportOptions, ExportReport, Format, check_target
from saccade.export.torch_files import export_hub, export_pt2
from saccade.models import load_model as load_saved
from saccade.models.transformer import Transformer
from saccade.runs import RunFolder
from saccade.train import load_model
from saccade.train.inference import Predictor, data_to_evaluate, load_part

__all__ = ["export_run", "load_exportable"]

Batches = Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]


def export_run(
    source: RunFolder | Path,
    out: Path,
    *,
    kind: Format = "onnx",
    options: ExportOptions | None = None,
    quantize: str | None = None,
    weights: Literal["best", "last"] | None = None,
    data_root: Path | None = None,
) -> ExportReport:
    """Export a trained model.

    Args:
        source: A finished run, or a folder of `save_pretrained`.
        out: The file, or the folder for the Hub, to write.
        kind: `onnx`, `pt2` or `hub`.
        options: Options of the graph.
        quantize: `int8` for int8 weights; its accuracy on the test images is measured and noted.
        weights: `best` or `last` of a run; None for what the run evaluates with.
        data_root: The folder of the run's data, if it has moved; for `quantize`.
    """
    options = options or ExportOptions()
    if quantize not in (None, "int8"):
        raise UnknownNameError("quantization", str(quantize), ["int8"])
    if quantize and (kind != "onnx" or options.precision != "fp32"):
        raise ConfigError(
            f"quantize must be unset with format={kind!r} and precision={options.precision!r}, got "
            f"{quantize!r}; it needs 'onnx' and 'fp32'"
        )
    if kind == "hub" and options != ExportOptions():
        raise ConfigError("format 'hub' stores the model itself: it takes no options of a graph")
    if kind == "hub" and out.exists():
        raise ConfigError(f"out must be a new folder, got {str(out)!r}, which exists")
    if kind != "hub":
        check_target(out, suffix=f".{kind}")
    model = load_exportable(source, weights)
    if kind == "hub":
        return export_hub(model, out)
    if kind == "pt2":
        return export_pt2(model, out, options)
    checked = build_onnx(model, options)
    if quantize is None:
        return checked.write(out)
    small = quantized(checked.proto)
    measured = _accuracies(
        {"fp32": session_of(checked.proto), "int8": session_of(small)},
        _test_batches(source, weights, data_root),
    )
    note_accuracy(small, measured)
    cost = 100 * (measured["fp32"] - measured["int8"])
    note = (
        f"int8 classifies {100 * measured['int8']:.2f} % of the test images correctly, float32 "
        f"{100 * measured['fp32']:.2f} %: it costs {cost:.2f} points"
    )
    size = write_onnx(small, out)
    return ExportReport(out, size, checked.algorithm, checked.max_error, notes=(note,))


def load_exportable(
    source: RunFolder | Path, weights: Literal["best", "last"] | None = None
) -> Transformer:
    """The model of a finished run, or of a saved folder."""
    if isinstance(source, RunFolder):
        if not source.is_finished():
            status, epochs = source.status(), source.config().train.epochs
            raise ConfigError(
                f"run must be finished to be exported, got {str(source.path)!r} "
                f"({status.get('state', 'without a status.json')}; {status.get('epoch', 0)} of "
                f"{epochs} epochs done); `saccade train --resume` finishes it"
            )
        model: Any = load_model(source, weights)[0]
    else:
        if weights is not None:
            raise ConfigError(f"weights must be unset for a saved model, got {weights!r}")
        model = load_saved(source)
    assert isinstance(model, Transformer)
    return model


def _test_batches(source: RunFolder | Path, weights: str | None, data_root: Path | None) -> Batches:
    """Normalized test images of a run, with their labels."""
    predictor = Predictor(source, weights=weights, device="cpu")
    data = data_to_evaluate(source, root=data_root)
    part = load_part(predictor, data, "test")
    loader = make_loader(
        part,
        predictor.info,
        batch_size=256,
        augment=None,
        seed=0,
        device=predictor.device,
        shuffle=False,
        workers=0,
    )
    for batch in loader.epoch(0):
        valid = batch.valid
        yield batch.images[valid].numpy(), batch.targets[valid].numpy()


def _accuracies(sessions: dict[str, Any], batches: Batches) -> dict[str, float]:
    """Accuracy of each session on the same images."""
    right, count = dict.fromkeys(sessions, 0), 0
    for images, labels in batches:
        count += len(labels)
        for name, session in sessions.items():
            logits = session.run(["logits"], {"images": images})[0]
            right[name] += int((logits.argmax(axis=1) == labels).sum())
    if not count:
        raise ExportError("quantize needs test images, and the run has none")
    return {name: found / count for name, found in right.items()}
