"""`export`, and ONNX files in `predict` and `evaluate`: as users call them, and without torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.data.held_out import load_held_out
from saccade.errors import ConfigError, DataError
from saccade.runs import RunFolder
from tests.cli.conftest import Saccade
from tests.train.tiny_runs import unfinish
from tests.waiting import PATIENCE_S

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not to be imported here")

sys.meta_path.insert(0, NoTorch())
from saccade.cli import main
main(sys.argv[1:])
"""


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes with images of several sizes and modes."""
    root = tmp_path_factory.mktemp("pictures")
    draws = np.random.default_rng(0)
    for label in ("a", "b"):
        (root / label).mkdir()
        for number in range(10):
            pixels = draws.integers(256, size=(9 + number, 30 - number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(
                root / label / f"{number}.{'png' if number % 2 else 'jpg'}"
            )
    return root


def test_predict_without_torch(saccade: Saccade, run: Path, exported: Path, pictures: Path) -> None:
    found = without_torch("predict", exported, pictures, "--json", "--top", 10)
    assert (found.returncode, found.stderr) == (0, "")
    _, shown, _ = saccade("predict", run, pictures, "--json", "--top", 10)
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    wanted = [json.loads(line) for line in shown.splitlines()]
    assert len(rows) == len(wanted) == 20
    for row, other in zip(rows, wanted, strict=True):
        assert row["image"] == other["image"]
        own = {x["class"]: x["probability"] for x in row["classes"]}
        assert own == pytest.approx(
            {x["class"]: x["probability"] for x in other["classes"]}, abs=1e-5
        )


def test_evaluate_without_torch(saccade: Saccade, run: Path, exported: Path) -> None:
    found = without_torch("evaluate", exported, "--data", "digits", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    code, shown, told = saccade("evaluate", run, "--data", "digits", "--json")
    assert code == 0, told
    own, other = json.loads(found.stdout), json.loads(shown)
    assert own.keys() == other.keys()
    for key in ("count", "correct", "confusion", "class_accuracy", "class_names"):
        assert own[key] == other[key]
    for key in ("accuracy", "accuracy_top5", "loss", "calibration_error"):
        assert own[key] == pytest.approx(other[key], abs=1e-5)


def test_imports_of_a_user() -> None:
    words = "import sys; from saccade.export import OnnxClassifier; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_held_out_images_are_those_of_the_loader(pictures: Path) -> None:
    for name, root in (("digits", None), ("folder", pictures)):
        own = load_held_out(name, root)
        wanted = load_splits(DataConfig(name=name, root=root, image_size=8 if root else None)).test
        pixels, labels = next(own.batches(len(wanted), 8))
        assert labels.tolist() == wanted.labels.tolist()
        theirs = [
            wanted.images[i] if wanted.images is not None else wanted.source.read(i)
            for i in range(len(wanted))
        ]
        np.testing.assert_array_equal(pixels, np.stack([x.numpy() for x in theirs]))
    with pytest.raises(ConfigError, match="made with torch"):
        load_held_out("shapes")
    with pytest.raises(ConfigError, match="unknown data set 'digitz'"):
        load_held_out("digitz")
    with pytest.raises(DataError, match="no such folder"):
        load_held_out("folder", pictures / "none")


def test_export_of_a_run(saccade: Saccade, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    code, shown, told = saccade("export", run, "--out", out, "--quantize", "int8")
    assert (code, told) == (0, "")
    assert "largest difference from torch" in shown
    assert "% of the test images correctly, float32" in shown
    proto = onnx.load(out)
    assert "MatMulInteger" in {node.op_type for node in proto.graph.node}
    facts = {x.key: json.loads(x.value) for x in proto.metadata_props}
    assert facts["saccade.model"]["precision"] == "int8"
    assert facts["saccade.model"]["accuracy"].keys() == {"fp32", "int8"}
    trained = facts["saccade.provenance"]["trained"]
    assert trained["result"]["count"] == 61
    assert str(run) not in json.dumps(facts)
    code, shown, _ = saccade("export", run, "--out", tmp_path / "m", "--format", "hub", "--json")
    assert (code, json.loads(shown)["path"]) == (0, str(tmp_path / "m"))
    assert "95 % interval" in (tmp_path / "m" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--opset", "99"], "opset must be an integer from 18 to 23, got 99"),
        (["--format", "onxx"], "unknown format 'onxx': did you mean 'onnx'?"),
        (["--precision", "fp8"], "unknown precision 'fp8'"),
        (["--quantize", "int8", "--precision", "fp16"], "quantize must be unset"),
        (["--with-maps", "7"], "maps must name blocks from 0 to 0"),
        (["--format", "pt2"], "out must be a file named *.pt2"),
    ],
)
def test_wrong_options(
    saccade: Saccade, run: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    code, shown, line = saccade("export", run, "--out", tmp_path / "m.onnx", *words)
    assert (code, shown) == (2, "")
    assert told in line
    assert len(line.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run(saccade: Saccade, run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    unfinish(RunFolder(copied))
    code, _, told = saccade("export", copied, "--out", tmp_path / "m.onnx")
    assert code == 2
    assert "run must be finished to be exported" in told.splitlines()[-1]
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("kind", ["onnx", "pt2", "hub"])
def test_a_full_disk(saccade: Saccade, run: Path, full_disk: Path, kind: str) -> None:
    out = full_disk / ("m" if kind == "hub" else f"m.{kind}")
    code, shown, told = saccade("export", run, "--out", out, "--format", kind)
    assert (code, shown) == (4, "")
    assert told == f"saccade: cannot write {str(out)!r}: No space left on device\n"
    assert [path.name for path in full_disk.iterdir()] == ["filling"]


def test_bad_onnx_files_are_one_line(saccade: Saccade, exported: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(exported.read_bytes()[:500])
    for words in (["predict", cut, cut], ["evaluate", cut]):
        code, shown, told = saccade(*words)
        assert (code, shown) == (3, "")
        assert told == f"saccade: {str(cut)!r} is not an ONNX file, or is cut short\n"
    code, _, told = saccade("predict", exported, cut, "--weights", "best")
    assert (code, told) == (2, "saccade: weights must be unset for an ONNX file, got 'best'\n")
    code, _, told = saccade("evaluate", exported)
    assert code == 2
    assert "trained with its own test images" in told
    code, _, told = saccade("evaluate", exported, "--data", "cifar10", "--split", "val")
    assert (code, told) == (2, "saccade: split must be 'test' for an ONNX file, got 'val'\n")
