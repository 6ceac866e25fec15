"""Make a model that ships from a run: float16 weights, card, threshold, accuracy and provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.data import Splits, make_loader
from saccade.errors import ConfigError
from saccade.models import VisionTransformer
from saccade.runs import Predictions, RunFolder
from saccade.train.build import build_model, load_weights, read_data_description
from saccade.train.confidence import MAX_ERROR, calibrate_threshold
from saccade.train.distributed import Ranks
from saccade.train.evaluation import Evaluation, evaluate
from saccade.train.run_data import load_run_data
from saccade.train.saved_model import describe_run

__all__ = ["ship_run"]

BATCH_SIZE = 500
CPU = torch.device("cpu")


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
    record["unsure"] = threshold.as_record() | _on_test(tested, threshold.below)
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
