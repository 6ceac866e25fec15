"""Open an ONNX file of somebody else: checked before ONNX Runtime sees it, and without torch.

A file is refused if it is not an ONNX model of `saccade export`, if it refers to data outside its
folder, or if it has sub-graphs (loops), which no exported model has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from saccade.errors import ConfigError, DataError, reading_error, shorten
from saccade.export.classifier import OnnxClassifier
from saccade.io import RECORD_LIMITS, check_regular, open_regular, parse_json

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = ["Classifier", "open_classifier"]

MAX_BYTES = 2 << 30  # protobuf holds less
MAX_SIDE = 8192  # pixels of an image that a model asks for
MAX_CLASSES = 1_000_000
PREFIX = "saccade."


class Classifier(OnnxClassifier):
    """A checked classifier, and what its file says about itself."""

    def __init__(self, path: Path, facts: dict[str, Any], providers: tuple[str, ...]) -> None:
        self.path, self.facts = path, facts
        super().__init__(path, providers)


def open_classifier(path: Path, *, device: str = "auto") -> Classifier:
    """Open an exported classifier.

    Args:
        path: The file.
        device: `cpu`, `cuda`, or `auto`, which is the CPU.

    Raises:
        DataError: The file is missing, broken, hostile, or not an image classifier of saccade.
        ConfigError: The device or a package is missing.
    """
    providers = _providers(device)
    facts = _facts(_load(path), path)
    _check_facts(facts, path)
    try:
        model = Classifier(path, facts, providers)
    except Exception as error:  # ONNX Runtime raises many kinds
        raise DataError(f"{str(path)!r} cannot be run: {_line(error)}") from None
    inputs, outputs = model.session.get_inputs(), model.session.get_outputs()
    if [x.name for x in inputs] != ["images"] or "logits" not in [x.name for x in outputs]:
        raise DataError(f"{str(path)!r} must take 'images' and give 'logits'")
    return model


def _providers(device: str) -> tuple[str, ...]:
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}")
    if device != "cuda":
        return ("CPUExecutionProvider",)
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ConfigError(
            "device='cuda' needs ONNX Runtime for CUDA (pip install onnxruntime-gpu); use "
            "device='cpu'"
        )
    return ("CUDAExecutionProvider", "CPUExecutionProvider")


def _load(path: Path) -> ModelProto:
    """Parse the file without its external data, and check what it refers to."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size >= MAX_BYTES:
                raise DataError(f"{str(path)!r} must be smaller than 2 GiB")
            content = file.read()
    except OSError as error:
        raise reading_error(path, error, DataError) from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise DataError(f"{str(path)!r} is not an ONNX file, or is cut short") from None
    if not proto.graph.node:
        raise DataError(f"{str(path)!r} is not an ONNX file, or is cut short")
    for tensor in _tensors(proto, path):
        _check_location(tensor, path)
    return proto


def _tensors(message: Any, path: Path) -> Iterator[TensorProto]:
    """All tensors with external data; raise for a sub-graph."""
    import onnx
    from google.protobuf.message import Message

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if isinstance(value, Message) else value:
            if isinstance(part, onnx.GraphProto) and not isinstance(message, onnx.ModelProto):
                raise DataError(
                    f"{str(path)!r} must not contain loops or branches, which saccade does not "
                    "export"
                )
            if isinstance(part, onnx.TensorProto):
                if part.external_data or part.data_location == onnx.TensorProto.EXTERNAL:
                    yield part
            else:
                yield from _tensors(part, path)


def _check_location(tensor: TensorProto, path: Path) -> None:
    """Raise unless the data of a tensor lies in a regular file in the folder of the model."""
    places = [entry.value for entry in tensor.external_data if entry.key == "location"]
    for place in places or [""]:
        folder = path.parent.resolve()
        inside = PurePosixPath(place)
        found = (folder / place).resolve()
        if not place or inside.is_absolute() or ".." in inside.parts or found.parent != folder:
            raise DataError(
                f"{str(path)!r} must keep its data in its own folder, got the location "
                f"{shorten(repr(place), 200)}"
            )
        try:
            check_regular(found)
        except OSError as error:
            raise reading_error(found, error, DataError) from None


def _facts(proto: ModelProto, path: Path) -> dict[str, Any]:
    """The metadata of saccade, parsed."""
    stored = {
        entry.key.removeprefix(PREFIX): entry.value
        for entry in proto.metadata_props
        if entry.key.startswith(PREFIX)
    }
    if not stored:
        raise DataError(f"{str(path)!r} was not written by `saccade export`: it has no metadata")
    return {
        key: parse_json(
            text, f"{PREFIX}{key} of {str(path)!r}", limits=RECORD_LIMITS, kind=DataError
        )
        for key, text in stored.items()
    }


def _check_facts(facts: dict[str, Any], path: Path) -> None:
    """Check the parts of the metadata that are used to classify an image."""
    names, given = facts.get("class_names"), facts.get("preprocessing")
    where = f"metadata of {str(path)!r}"
    if facts.get("format") != 1:
        raise DataError(
            f"{where}: format must be 1, got {facts.get('format')!r}; a newer saccade wrote it"
        )
    if given is None:
        raise DataError(f"{str(path)!r} must be an image classifier, got a model of sequences")
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise DataError(f"{where}: class_names must be a list of names")
    if not (isinstance(given, dict) and 0 < len(names) <= MAX_CLASSES):
        raise DataError(f"{where}: preprocessing must be a mapping, and class_names not empty")
    size: Any = given.get("image_size")
    channels = given.get("channels")
    if not (_is_list(size, 2, int) and 0 < min(size) <= max(size) <= MAX_SIDE):
        raise DataError(f"{where}: image_size must be two sides of at most {MAX_SIDE} pixels")
    if channels not in (1, 3):
        raise DataError(f"{where}: channels must be 1 or 3, got {channels!r}")
    for key in ("mean", "std"):
        if not _is_list(given.get(key), channels, int, float):
            raise DataError(f"{where}: {key} must be {channels} numbers")


def _is_list(values: Any, length: int, *kinds: type) -> bool:
    """True for a list of this length whose items have one of the types; bool is no int here."""
    is_list = isinstance(values, list) and len(values) == length
    return is_list and all(type(value) in kinds for value in values)


def _line(error: Exception) -> str:
    return shorten(" ".join(str(error).split()) or type(error).__name__, 300)
