"""Evaluate a trained model on a split, and classify single images or sequences with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from PIL import Image
from torch import Tensor, nn

from saccade.config import DataConfig
from saccade.data import DatasetInfo, make_loader
from saccade.data import Split as Part
from saccade.data.images import printable, read_image
from saccade.data.sequence_sets import gray_levels
from saccade.data.text_folder import read_text_bytes
from saccade.errors import ConfigError, DataError, UnknownNameError, near_matches, shorten
from saccade.runs import RunFolder
from saccade.train.build import load_weights
from saccade.train.distributed import Ranks, connect
from saccade.train.evaluation import Evaluation, evaluate_fitting
from saccade.train.guard import check_outputs, outputs_error
from saccade.train.image_inputs import as_input
from saccade.train.run_data import load_run_data
from saccade.train.run_summary import measured_speed
from saccade.train.saved_model import (
    data_of,
    is_saved_model,
    load_saved_data,
    open_saved_model,
    other_data,
    unsure_below,
)
from saccade.train.step import PRECISIONS

__all__ = [
    "Predictor",
    "as_sequence",
    "data_to_evaluate",
    "evaluate_run",
    "load_part",
    "open_sequence",
]

Split = Literal["train", "val", "test"]
Which = Literal["best", "last"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


def evaluate_run(
    run: RunFolder | str | Path,
    *,
    split: str = "test",
    weights: str | None = None,
    device: str = "auto",
    batch_size: int = 512,
    data: DataConfig | None = None,
) -> dict[str, Any]:
    """Evaluate a run's model on a split of its data.

    Args:
        run: The run folder, or a folder of `save_pretrained`.
        split: `train`, `val` or `test`.
        weights: `best` or `last`; by default as the run's `train.evaluate_with` says.
        device: `auto`, `cpu` or `cuda`.
        batch_size: Images per batch.
        data: The run's data at another place, or other data with the same classes and image size.
            The run must not have been trained on any of its images.

    Returns:
        Accuracies, counts and seconds as JSON values.

    Raises:
        DataError: The data has other classes, or other images, than the run was trained on.
        TrainingError: The model's outputs are not finite, or memory ran out.
    """
    _check("split", split, Split)
    predictor = Predictor(run, weights=weights, device=device)
    info = predictor.info
    result = predictor.evaluate(load_part(predictor, data, split), batch_size=batch_size)
    return {
        "run": str(predictor.path),
        "split": split,
        "input": info.noun,
        "weights": predictor.weights,
        "count": result.count,
        "skipped": result.skipped,
        "correct": result.correct,
        "accuracy": result.accuracy,
        "accuracy_top5": result.accuracy_top5,
        "loss": result.loss,
        "calibration_error": result.calibration_error,
        **measured_speed(result.count, result.seconds),
        "device": str(predictor.device),
        "class_names": list(info.class_names),
        "class_accuracy": dict(zip(info.class_names, result.class_accuracy, strict=True)),
        "confusion": result.confusion.tolist(),
    }


def data_to_evaluate(
    folder: RunFolder | str | Path, *, name: str | None = None, root: Path | None = None
) -> DataConfig | None:
    """The `data` argument of `evaluate_run`; None for the run's own data at its own place."""
    if is_saved_model(folder):
        return data_of(cast(str | Path, folder), name=name, root=root)
    own = RunFolder.open(folder).config().data
    if name is None:
        return own.model_copy(update={"root": root}) if root else None
    return other_data(name, root, own.image_size, like=own)


def load_part(predictor: Predictor, data: DataConfig | None, split: str) -> Part:
    """One split of the data; it must have images, and the classes of the model."""
    run = predictor.run
    if run is None:
        data = data or data_of(predictor.path)
        part: Part = getattr(load_saved_data(predictor.path, predictor.info, data), split)
    else:
        data = data or run.config().data
        part = getattr(load_run_data(run, data, parts=(split,), other=True), split)
    if not len(part):
        reason = f": data.val_fraction={data.val_fraction}" if split == "val" else ""
        raise ConfigError(f"split={split!r} is empty{reason}")
    return part


class Predictor:
    """A trained model, ready to classify single images.

    Args:
        run: A run folder, or a folder of `save_pretrained`.
        weights: `best` or `last`; by default as the run's `train.evaluate_with` says. Must be None
            for a saved model, which has one set of weights.
        device: `auto`, `cpu` or `cuda`.

    Attributes:
        unsure_below: Predictions with a lower confidence are unsure; None if no threshold was
            calibrated. Pretrained models have one.
    """

    def __init__(
        self, run: RunFolder | str | Path, *, weights: str | None = None, device: str = "auto"
    ) -> None:
        _check("device", device, DeviceChoice)
        self.device = connect(cast(DeviceChoice, device)).device
        self.run: RunFolder | None = None
        self.weights: Literal["best", "last", "saved"] = "saved"
        self.unsure_below: float | None = None
        model: nn.Module
        if is_saved_model(run):
            if weights is not None:
                raise ConfigError(f"weights must be None for a saved model, got {weights!r}")
            self.path = Path(cast(str | Path, run))
            saved, self.info, self._config = open_saved_model(self.path)
            model, self.unsure_below = saved, unsure_below(saved)
        else:
            self.run = RunFolder.open(run)
            self.path = self.run.path
            if weights is not None:
                _check("weights", weights, Which)
            model, self.info, file = load_weights(self.run, cast(Which | None, weights))
            self.weights = "best" if file.stem == "best" else "last"
            self._config = self.run.config()
        self.model = model.to(self.device)

    @torch.no_grad()
    def classes(self, image: Image.Image | str | Path | Tensor) -> list[tuple[str, float]]:
        """All classes with their probabilities for one input, most likely first.

        Args:
            image: For a sequence model, symbols (N,) or the path of a file. Else a PIL image, the
                path of a file, uint8 pixels (C, H, W) of any size, or a float tensor (C, H, W) that
                is normalized and has the model's image size.

        Raises:
            DataError: The file is missing or not an image.
            ConfigError: `image` has another type or shape.
        """
        if self.info.is_sequence:
            given = as_sequence(image, self.info)
        else:
            given = as_input(image, self.info)
        images = given[None].to(self.device)
        logits = self.model(images)  # (1, K)
        check_outputs(self.model, images, logits)
        return self.ranked(logits[0])

    def ranked(self, logits: Tensor) -> list[tuple[str, float]]:
        """All classes with their probabilities, most likely first, for logits (K,)."""
        probability, order = logits.float().softmax(0).sort(descending=True)
        names = [self.info.class_names[i] for i in order.tolist()]
        return list(zip(names, probability.tolist(), strict=True))

    def evaluate(
        self, part: Part, *, batch_size: int, advice: str = "--batch-size={}"
    ) -> Evaluation:
        """Run the model over a split, in the precision of its training.

        `advice` is shown if memory runs out; see `evaluate_fitting`.
        """
        loader = make_loader(
            part,
            self.info,
            batch_size=batch_size,
            augment=None,
            seed=0,
            device=self.device,
            shuffle=False,
            workers=self._config.data.workers,
        )
        on_gpu = self.device.type == "cuda"
        precision = PRECISIONS[self._config.train.precision] if on_gpu else None
        result = evaluate_fitting(
            self.model,
            loader,
            ranks=Ranks(device=self.device),
            autocast=precision,
            advice=advice,
        )
        if not math.isfinite(result.loss):
            with torch.autocast(self.device.type, precision, enabled=precision is not None):
                raise outputs_error(self.model, (batch.images for batch in loader.epoch(0)))
        return result


def _check(argument: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise UnknownNameError(argument, value, get_args(choices))


def open_sequence(name: str | Path, info: DatasetInfo) -> Tensor:
    """Read a file as symbols (N,), int64."""
    path = Path(name)
    if info.kind == "pixels":
        side = math.isqrt(info.max_length)
        return gray_levels(read_image(path, side)[None])[0].long()
    content = read_text_bytes(path)
    if info.kind == "bytes":
        return torch.from_numpy(content[: info.max_length].copy()).long()
    places = {symbol: place for place, symbol in enumerate(info.symbols)}
    found = []
    for word in content.tobytes().decode().split():
        if word not in places:
            near = near_matches(word, info.symbols)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise DataError(
                f"{printable(path)} must have symbols of {info.name}, got "
                f"{shorten(repr(word), 60)}{hint}"
            )
        found.append(places[word])
    try:
        return as_sequence(found, info)
    except ConfigError as error:
        raise DataError(f"{printable(path)}: {error}") from None


def as_sequence(given: object, info: DatasetInfo) -> Tensor:
    """Convert symbols, or the path of a file, to the input (N,) of a sequence model."""
    if isinstance(given, (str, Path)):
        return open_sequence(given, info)
    if not isinstance(given, (Tensor, list, tuple)):
        raise ConfigError(
            f"a sequence must be symbols or the path of a file, got {type(given).__name__}"
        )
    symbols: Any = torch.as_tensor(given)
    if symbols.dim() != 1 or symbols.is_floating_point() or not len(symbols):
        raise ConfigError(
            f"a sequence must be integers of shape (tokens,), got {symbols.dtype} of shape "
            f"{tuple(symbols.shape)}"
        )
    is_fixed, longest = info.pad_symbol is None, info.max_length
    if len(symbols) > longest or (is_fixed and len(symbols) != longest):
        wanted = f"{longest}" if is_fixed else f"at most {longest}"
        raise ConfigError(f"a sequence must have {wanted} symbols, got {len(symbols)}")
    low, high = int(symbols.min()), int(symbols.max())
    if low < 0 or high >= info.num_symbols:
        raise ConfigError(
            f"a sequence must have symbols from 0 to {info.num_symbols - 1}, got "
            f"{low if low < 0 else high}"
        )
    found: Tensor = symbols.long()
    return found
