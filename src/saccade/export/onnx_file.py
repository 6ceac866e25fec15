"""Write a model as an ONNX file that says how it is used, after checking it in ONNX Runtime."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from saccade.errors import ExportError
from saccade.export import checking
from saccade.export.graph import Graph, input_names, quiet, trace
from saccade.export.metadata import describe
from saccade.export.options import ExportOptions
from saccade.export.output import check_target, write_output
from saccade.export.packages import require_packages
from saccade.export.report import ExportReport
from saccade.models.transformer import Transformer

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["CheckedModel", "build_onnx", "export_onnx", "session_of"]

MAX_ONE_FILE = (2 << 30) - (1 << 24)
"""Bytes of a model in one file; protobuf holds less than 2 GiB."""


class CheckedModel:
    """An ONNX model that computes what torch computes.

    Args:
        proto: The model.
        graph: The graph it was made from.
        max_error: Largest difference of a logit from torch.
    """

    def __init__(self, proto: ModelProto, graph: Graph, max_error: float) -> None:
        self.proto, self.max_error = proto, max_error
        choice = graph.choice
        self.algorithm = f"{choice.algorithm}: {choice.reason}" if choice.algorithm else ""

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
    return CheckedModel(proto, graph, max_error)


def write_onnx(proto: ModelProto, path: Path) -> int:
    """Write an ONNX model in one file, or its tensors beside it from 2 GiB; return the bytes."""
    if proto.ByteSize() < MAX_ONE_FILE:
        return write_output(path, proto.SerializeToString())
    from onnx.external_data_helper import convert_model_to_external_data, set_external_data

    aside = io.BytesIO()
    name = f"{path.name}.data"
    convert_model_to_external_data(proto, all_tensors_to_one_file=True, location=name)
    for tensor in proto.graph.initializer:
        if tensor.HasField("raw_data") and tensor.external_data:
            set_external_data(tensor, name, offset=aside.tell(), length=len(tensor.raw_data))
            aside.write(tensor.raw_data)
            tensor.ClearField("raw_data")
    size = write_output(path.with_name(name), aside.getvalue())
    return size + write_output(path, proto.SerializeToString())


def session_of(proto: ModelProto | bytes) -> Any:
    """An ONNX Runtime session on the CPU."""
    import onnxruntime

    content = proto if isinstance(proto, bytes) else proto.SerializeToString()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def _runner(proto: ModelProto, model: Transformer, graph: Graph) -> checking.Runner:
    names = {"inputs": input_names(model), "outputs": graph.names}
    return checking.run_of(session_of(proto), names)


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
