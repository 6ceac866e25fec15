"""Dynamic int8 quantization of an ONNX model, and the accuracy that it costs."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["note_accuracy", "quantized"]

PRODUCTS = ["MatMul", "Gemm"]
"""Operators that become int8; a convolution with int8 weights is slower in ONNX Runtime."""


def quantized(proto: ModelProto) -> ModelProto:
    """A copy whose linear layers have int8 weights, one scale a column.

    Their inputs are quantized when the model runs. Products of two activations, such as q.k, stay
    in float32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = onnx.ModelProto()
    source.CopyFrom(proto)
    del source.graph.value_info[:]  # shapes of weights that the quantizer transposes
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises pre-processing, which changes nothing here
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "int8.onnx"
            quantize_dynamic(
                source,
                out,
                op_types_to_quantize=PRODUCTS,
                per_channel=True,
                weight_type=QuantType.QInt8,
                extra_options={"MatMulConstBOnly": True},
            )
            found = onnx.load(out)
    finally:
        root.setLevel(level)
    _note_precision(found, proto)
    return found


def note_accuracy(proto: ModelProto, accuracy: Mapping[str, float]) -> None:
    """Add accuracies on the test images, by precision, to the metadata."""
    for entry in proto.metadata_props:
        if entry.key == "saccade.model":
            entry.value = json.dumps(json.loads(entry.value) | {"accuracy": dict(accuracy)})


def _note_precision(found: ModelProto, source: ModelProto) -> None:
    """Keep the metadata, with another precision."""
    del found.metadata_props[:]
    found.producer_name = source.producer_name
    for entry in source.metadata_props:
        value = entry.value
        if entry.key == "saccade.model":
            facts: dict[str, Any] = json.loads(value)
            value = json.dumps(facts | {"precision": "int8", "max_error": None})
        found.metadata_props.add(key=entry.key, value=value)
