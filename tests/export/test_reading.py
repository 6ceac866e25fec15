"""Files of strangers: damaged, hostile, or not ours; each is one line and exit code 3."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from saccade.errors import DataError, ExportError
from saccade.export import OnnxClassifier, export_onnx
from saccade.export.inference import classify_file
from saccade.export.onnx_file import write_onnx
from saccade.export.reading import open_classifier
from tests.export.models import image_model, sequence_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    return export_onnx(image_model("taylor", class_names=tuple("abcde")), path).path


@pytest.fixture
def spoiled(model: Path, tmp_path: Path) -> Callable[[Callable[[onnx.ModelProto], object]], Path]:
    def make(change: Callable[[onnx.ModelProto], object]) -> Path:
        proto = onnx.load(model)
        change(proto)
        path = tmp_path / "spoiled.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    return make


def test_the_model_itself_opens(model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    Image.fromarray(np.arange(48 * 20 * 3, dtype=np.uint8).reshape(20, 48, 3)).save(picture)
    found = classify_file(open_classifier(model), str(picture))
    assert found == OnnxClassifier(model).classify(picture)
    assert sum(probability for _, probability in found) == pytest.approx(1)


@pytest.mark.parametrize("length", [0, 1, 100, -100])
def test_a_damaged_file(model: Path, tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(model.read_bytes()[:length])
    with pytest.raises(DataError, match="cut short"):
        open_classifier(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        open_classifier(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(DataError, match="not an ONNX file"):
        open_classifier(tmp_path / "text.onnx")


def external(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        tensor = next(x for x in proto.graph.initializer if len(x.dims) == 2)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


@pytest.mark.parametrize("place", ["/etc/passwd", "../secret", "a/../../secret", "link", ""])
def test_data_outside_the_folder(
    spoiled: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, place: str
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_bytes(bytes(10_000))
    path = spoiled(external(place))
    (path.parent / "link").symlink_to(secret)
    with pytest.raises(DataError, match="must keep its data in its own folder"):
        open_classifier(path)


def test_data_inside_the_folder_is_read(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(model), path, save_as_external_data=True, location="d", size_threshold=200)
    image = Image.new("RGB", (16, 16), "red")
    assert open_classifier(path).classify(image) == OnnxClassifier(model).classify(image)


def test_a_large_model_has_its_tensors_beside_it(model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    before = proto.SerializeToString()
    size = write_onnx(proto, tmp_path / "large.onnx", limit=1000)
    assert proto.SerializeToString() == before
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"large.onnx", "large.onnx.data"}
    assert sum(sizes.values()) == size
    assert sizes["large.onnx.data"] > 5000
    image = Image.new("RGB", (16, 16), "red")
    own = open_classifier(tmp_path / "large.onnx").classify(image)
    assert own == OnnxClassifier(model).classify(image)


def test_a_loop(spoiled: Callable[..., Path]) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    node = onnx.helper.make_node("Loop", ["", ""], [], body=body)
    with pytest.raises(DataError, match="loops or branches"):
        open_classifier(spoiled(lambda proto: proto.graph.node.append(node)))


def stored(key: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        entry = next(x for x in proto.metadata_props if x.key == f"saccade.{key}")
        entry.value = value if isinstance(value, str) else json.dumps(value)

    return change


GOOD = {"image_size": [16, 16], "channels": 3, "mean": [0, 0, 0], "std": [1, 1, 1]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda proto: proto.ClearField("metadata_props"), "not written by `saccade export`"),
        (stored("class_names", "[" * 100_000), "nested too deeply"),
        (stored("class_names", "{"), "not valid JSON"),
        (stored("class_names", [1, 2]), "class_names must be a list of names"),
        (stored("class_names", []), "not empty"),
        (stored("format", 2), "format must be 1"),
        (stored("preprocessing", GOOD | {"image_size": [10**9, 4]}), "image_size must be"),
        (stored("preprocessing", GOOD | {"channels": 4}), "channels must be 1 or 3"),
        (stored("preprocessing", GOOD | {"mean": ["x", 0, 0]}), "mean must be 3 numbers"),
        (lambda proto: proto.graph.node.pop(), "cannot be run"),
    ],
)
def test_wrong_content(
    spoiled: Callable[..., Path], change: Callable[[onnx.ModelProto], object], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        open_classifier(spoiled(change))


def test_outputs_that_are_not_finite(spoiled: Callable[..., Path], tmp_path: Path) -> None:
    def change(proto: onnx.ModelProto) -> None:
        tensor = next(x for x in proto.graph.initializer if list(x.dims) == [5])
        tensor.raw_data = np.full(5, np.nan, np.float32).tobytes()

    picture = tmp_path / "picture.png"
    Image.new("RGB", (16, 16)).save(picture)
    with pytest.raises(ExportError, match="outputs must be finite"):
        classify_file(open_classifier(spoiled(change)), str(picture))


def test_a_model_of_sequences(tmp_path: Path) -> None:
    path = export_onnx(sequence_model(), tmp_path / "words.onnx").path
    with pytest.raises(DataError, match="must be an image classifier"):
        open_classifier(path)


def test_the_class_alone_is_a_program(model: Path, tmp_path: Path) -> None:
    """`classifier.py` needs nothing else of saccade, so that users can copy it."""
    import saccade.export.classifier as copied

    source = Path(copied.__file__)
    shutil.copy(source, tmp_path / "classifier.py")
    text = source.read_text()
    assert "saccade." not in text.replace('"saccade.', "").replace("saccade export", "")
    assert len(text.splitlines()) < 85
