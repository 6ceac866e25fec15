"""Make a model that ships from a finished run, and list it in the index.

    python benchmarks/ship_weights.py RUN NAME TITLE [--weights FILE] [--repository] [--default]

RUN is a run folder, or a .tar.gz of `collect_run.py`, whose weights are --weights. NAME is
`<variant>.<training>`. The model goes into the package, or with --repository into `weights/`. The
accuracy and the threshold are measured here, with the float16 weights, on the CPU.

Predictions with a confidence below the threshold are called unsure. It is chosen on validation
images, as in selection with guaranteed risk (arXiv:1705.08500). Candidates are the thresholds that
accept fixed shares of the images, the most confident ones. The error among the accepted images has
the exact binomial bound of Clopper and Pearson at level (1 - level) / number of candidates. The
lowest threshold with a bound of at most `max_error` is chosen. So the bound holds for it with
probability `level`, for new images of the same kind. It says nothing about images of other kinds.

DEVIATION: the paper searches the thresholds by bisection. The bound is loose for few images, so
that bisection from the middle fails for small validation sets that pass as a whole.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.special import betaincinv
from torch import Tensor

from saccade.data import Splits, make_loader
from saccade.errors import ConfigError
from saccade.io import read_json_object, sha256_file, write_json
from saccade.models import VisionTransformer
from saccade.models.pretrained import INDEX, PACKAGED, REPOSITORY
from saccade.runs import Predictions, RunFolder
from saccade.train.build import build_model, load_weights, read_data_description
from saccade.train.distributed import Ranks
from saccade.train.evaluation import Evaluation, evaluate
from saccade.train.run_data import load_run_data
from saccade.train.saved_model import describe_run

FILES = ("config.json", "model.safetensors")
BATCH_SIZE = 500
CPU = torch.device("cpu")
MAX_ERROR = 0.02
LEVEL = 0.95
SHARES = (1.0, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of the images that the candidate thresholds accept."""


def ship_run(
    run: RunFolder,
    out: Path,
    *,
    tensors: dict[str, Tensor] | None = None,
    max_error: float = MAX_ERROR,
    test_again: bool = True,
) -> dict[str, Any]:
    """Write a run's model as a folder of `save_pretrained` in float16.

    The accuracy and the threshold in its record were measured with the rounded weights, the
    threshold on the validation images and the accuracy on the test images.

    Args:
        run: A finished run.
        out: The folder to write.
        tensors: Weights of the run, if its checkpoints are elsewhere.
        max_error: See `calibrate_threshold`.
        test_again: Measure the accuracy with the rounded weights; else the record has the accuracy
            that the run measured before they were rounded, and says so.

    Returns:
        The record, as in `config.json`.

    Raises:
        ConfigError: The run is not finished, a weight is not finite in float16, or no threshold
            reaches `max_error`.
        DataError: The data cannot be loaded, or is not that of the run.
    """
    if not run.is_finished():
        raise ConfigError(f"{str(run.path)!r} must be a finished run")
    info = read_data_description(run)
    if tensors is None:
        source, info, _ = load_weights(run)
        tensors = source.state_dict()
    model = build_model(run.config(), info).eval()
    halves = {name: _half(name, value) for name, value in tensors.items()}
    model.load_state_dict(halves)
    assert isinstance(model, VisionTransformer)
    splits = load_run_data(run, parts=("val", "test") if test_again else ("val",))
    val = _evaluate(model, splits, "val")
    known = Predictions.of(val.predictions).judged_only()
    threshold = calibrate_threshold(known.confidence, known.right, max_error=max_error)
    found = _evaluate(model, splits, "test").predictions if test_again else run.predictions()
    tested = Predictions.of(found).judged_only()
    summary = run.summary()
    record = describe_run(run, model, info, "best" if summary["selected"] == "best" else "last")
    record["result"] = {
        "accuracy": tested.accuracy,
        "count": tested.num_judged,
        "weights": "float16" if test_again else "as trained, before rounding to float16",
    }
    record["unsure"] = asdict(threshold) | _on_test(tested, threshold.below)
    model.trained = record
    (out / "README.md").unlink(missing_ok=True)  # an existing card would be kept
    model.half().save_pretrained(out)
    return record


def _half(name: str, value: Tensor) -> Tensor:
    """A tensor in float16, if it is floating; it must be finite there."""
    if not value.is_floating_point():
        return value.contiguous()
    half = value.half().contiguous()
    if not torch.isfinite(half).all():
        raise ConfigError(f"{name} must be finite in float16, got infinity or NaN")
    return half


def _evaluate(model: VisionTransformer, splits: Splits, part: str) -> Evaluation:
    """Run the model over a split on the CPU, in float32."""
    loader = make_loader(
        getattr(splits, part),
        splits.info,
        batch_size=BATCH_SIZE,
        augment=None,
        seed=0,
        device="cpu",
        shuffle=False,
    )
    return evaluate(model, loader, num_classes=splits.info.num_classes, ranks=Ranks(CPU))


def _on_test(tested: Predictions, below: float) -> dict[str, int]:
    """How many test images are not unsure, and how many of these are wrong."""
    accepted = tested.confidence >= below
    wrong = accepted & ~tested.right
    return {"test_accepted": int(accepted.sum()), "test_errors": int(wrong.sum())}


@dataclass(frozen=True)
class Threshold:
    """A threshold on the confidence, and how it was chosen.

    Attributes:
        below: Predictions with a lower confidence are unsure.
        max_error: Upper bound of the error of the other predictions.
        level: Probability with which the bound holds.
        count: Number of images on which it was chosen.
        accepted: Number of these that are not unsure.
        errors: Wrong predictions among the accepted ones.
    """

    below: float
    max_error: float
    level: float
    count: int
    accepted: int
    errors: int


def calibrate_threshold(
    confidence: NDArray[np.floating[Any]],
    correct: NDArray[np.bool_],
    *,
    max_error: float = MAX_ERROR,
    level: float = LEVEL,
) -> Threshold:
    """The lowest threshold whose accepted images are wrong in at most `max_error` of the cases.

    Args:
        confidence: The probability of each predicted class, (m,).
        correct: True for correct predictions, (m,).
        max_error: Largest acceptable error among the accepted images.
        level: Probability with which the bound holds.

    Raises:
        ConfigError: No threshold reaches `max_error`: the model is too weak or there are too few
            images.
    """
    count = len(confidence)
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence, wrong = confidence[order], np.cumsum(~correct[order])
    for share in SHARES:
        accepted = _with_ties(sorted_confidence, max(1, round(share * count)))
        errors = int(wrong[accepted - 1])
        if _bound(errors, accepted, (1 - level) / len(SHARES)) <= max_error:
            below = float(sorted_confidence[accepted - 1])
            return Threshold(below, max_error, level, count, accepted, errors)
    raise ConfigError(
        f"max_error must be reachable with {count} images, got {max_error}: the model is too weak, "
        "or there are too few validation images"
    )


def _with_ties(confidence: NDArray[np.floating[Any]], accepted: int) -> int:
    """The number of images that are at least as confident as image `accepted - 1`."""
    return int(np.searchsorted(-confidence, -confidence[accepted - 1], side="right"))


def _bound(errors: int, count: int, level: float) -> float:
    """Upper bound of a share by Clopper and Pearson, which holds with probability 1 - `level`."""
    if errors == count:
        return 1.0
    return float(betaincinv(errors + 1, count - errors, 1 - level))


def ship(run: RunFolder, given: argparse.Namespace) -> None:
    """Write the folder of the model and its entry in the index."""
    name, package = given.name, not given.repository
    folder = (PACKAGED if package else REPOSITORY) / name
    tensors = load_file(given.weights) if given.weights else None
    record = ship_run(
        run, folder, tensors=tensors, max_error=given.max_error, test_again=not given.tested
    )
    index = read_json_object(PACKAGED / INDEX)
    row = {
        "title": given.title.format(accuracy=f"{100 * record['result']['accuracy']:.2f} %"),
        "in_package": package,
        "sha256": {file: sha256_file(folder / file) for file in FILES},
    }
    index["weights"][name] = row
    if given.default:
        index["default"] = name
    write_json(PACKAGED / INDEX, index)
    print(json.dumps({"folder": str(folder), **row, **record["result"], **record["unsure"]}))


def main() -> None:
    """Read the command line and ship the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("title", help="one line; {accuracy} is replaced")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--repository", action="store_true")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--max-error", type=float, default=MAX_ERROR)
    parser.add_argument("--tested", action="store_true", help="take the run's test accuracy")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = given.run
        if path.is_file():
            with tarfile.open(path) as tar:
                tar.extractall(scratch, filter="data")
            (path,) = Path(scratch).iterdir()
        ship(RunFolder(path), given)


if __name__ == "__main__":
    main()
