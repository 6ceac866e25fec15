"""Write a model as an ONNX file that says how it is used, after checking it in ONNX Runtime."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from saccade.errors import ExportError
from saccade.export import checking
from saccade.export.graph import Graph, input_names, quiet, trace
from saccade.export.metadata import describe
from saccade.export.options import (
    ExportOptions,
    ExportReport,
    check_target,
    require_packages,
    write_output,
)
from saccade.models.transformer import Transformer

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["CheckedModel", "build_onnx", "export_onnx", "note_accuracy", "quantized", "session_of"]

MAX_ONE_FILE = (2 << 30) - (1 << 24)
"""Bytes of a model in one file; protobuf holds less than 2 GiB."""

MIN_ASIDE = 1024
"""Bytes of the smallest tensor that is written beside a large model."""


@dataclass(frozen=True)
class CheckedModel:
    """An ONNX model that computes what torch computes, up to `max_error` in a logit."""

    proto: ModelProto
    algorithm: str
    max_error: float

    def write(self, path: Path) -> ExportReport:
        """Write the model."""
        return ExportReport(path, write_onnx(self.proto, path), self.algorithm, self.max_error)


def export_onnx(
    model: Transformer, path: str | Path, options: ExportOptions | None = None
) -> ExportReport:
    """Write a model as an ONNX file.

    The file is checked in ONNX Runtime before it is moved to its place.

    Args:
        model: The model; if it was loaded from a run, the file names its data and recipe.
        path: The file to write.
        options: Precision, opset and the like.

    Raises:
        ExportError: The model has no graph, or the graph computes something else than torch.
        ConfigError: An option does not fit the model, or onnxruntime is not installed.
    """
    options, path = options or ExportOptions(), Path(path)
    check_target(path, suffix=".onnx")
    return build_onnx(model, options).write(path)


def build_onnx(model: Transformer, options: ExportOptions) -> CheckedModel:
    """Make the ONNX model in memory, and check it."""
    require_packages("onnx", "onnxruntime", "onnxscript")
    graph = trace(model, options)
    proto = _translate(graph, model, options)

    def detailed() -> checking.Runner:
        traced = trace(model, options, checking.layers_of(model))
        return _runner(_translate(traced, model, options), model, traced)

    max_error = checking.check(model, options, _runner(proto, model, graph), detailed)
    _store(proto, describe(model, options, graph.choice, max_error))
    return CheckedModel(proto, graph.choice.told, max_error)


def write_onnx(proto: ModelProto, path: Path, *, limit: int = MAX_ONE_FILE) -> int:
    """Write an ONNX model in one file, or its tensors beside it from `limit` on.

    Returns:
        The number of bytes.
    """
    if proto.ByteSize() < limit:
        return write_output(path, proto.SerializeToString())
    beside = path.with_name(f"{path.name}.data")
    check_target(beside, suffix=".data")
    with _tensors_aside(proto, beside.name) as contents:
        size = write_output(beside, lambda file: file.writelines(contents))
        try:
            return size + write_output(path, proto.SerializeToString())
        except BaseException:
            beside.unlink()
            raise


@contextmanager
def _tensors_aside(proto: ModelProto, name: str) -> Iterator[list[bytes]]:
    """Let a model refer to a file of its tensors; yields the content of that file."""
    from onnx import TensorProto

    tensors = [x for x in proto.graph.initializer if len(x.raw_data) >= MIN_ASIDE]
    contents = [x.raw_data for x in tensors]
    offset = 0
    for tensor, content in zip(tensors, contents, strict=True):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", offset), ("length", len(content))):
            tensor.external_data.add(key=key, value=str(value))
        offset += len(content)
    try:
        yield contents
    finally:
        for tensor, content in zip(tensors, contents, strict=True):
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = content


def session_of(proto: ModelProto) -> Any:
    """An ONNX Runtime session on the CPU."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # failures are raised
    settings.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        source: str | bytes = str(Path(folder) / "model.onnx")
        if proto.ByteSize() < MAX_ONE_FILE:
            source = proto.SerializeToString()
        else:
            write_onnx(proto, Path(str(source)))
        return onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])


def _runner(proto: ModelProto, model: Transformer, graph: Graph) -> checking.Runner:
    return checking.run_session(session_of(proto), input_names(model), graph.names)


def _translate(graph: Graph, model: Transformer, options: ExportOptions) -> ModelProto:
    """Translate a graph to ONNX."""
    try:
        with quiet():
            program = torch.onnx.export(
                graph.program,
                graph.inputs,
                input_names=list(input_names(model)),
                output_names=list(graph.names),
                opset_version=options.opset,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter raises many kinds
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(
            f"attention {model.config.attention!r} cannot be exported to ONNX opset "
            f"{options.opset}: {reason}"
        ) from error
    assert program is not None
    proto = program.model_proto
    _name_dimensions(proto, model)
    return proto


def _name_dimensions(proto: ModelProto, model: Transformer) -> None:
    """Name the dynamic dimensions of inputs and outputs for readers."""
    names = ["batch", "channels", "height", "width"]
    if input_names(model)[0] == "tokens":
        names = ["batch", "length", "features"]
    known: dict[str, str] = {}
    for value in proto.graph.input:
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
            if dim.dim_param:
                known.setdefault(dim.dim_param, name)
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_param = known[dim.dim_param]


def _store(proto: ModelProto, facts: dict[str, Any]) -> None:
    """Replace the metadata of a model, and drop notes of the exporter on every node."""
    proto.producer_name = "saccade"
    for node in proto.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in proto.graph.value_info:
        value.ClearField("metadata_props")
    del proto.metadata_props[:]
    for key, fact in facts.items():
        proto.metadata_props.add(key=f"saccade.{key}", value=json.dumps(fact, ensure_ascii=False))


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
