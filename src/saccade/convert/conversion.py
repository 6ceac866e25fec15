"""Convert a softmax ViT: diagnose, swap, distill, and write a run folder with a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from saccade.config import Config, DataConfig
from saccade.convert.diagnosis import Diagnosis, diagnose, measure_speed
from saccade.convert.distil import BLOCK_SHARE, DistillingTrainer
from saccade.convert.page import write_page
from saccade.convert.plan import fit_to_budget, run_config
from saccade.convert.source import Source, open_source
from saccade.convert.student import build_student, default_options, student_config
from saccade.data import Split, Splits, load_splits, make_loader
from saccade.environment import device_name
from saccade.errors import ConfigError
from saccade.models import VisionTransformer
from saccade.runs import RunFolder
from saccade.stats import paired_difference
from saccade.train import train
from saccade.train.distributed import Ranks, connect
from saccade.train.evaluation import Evaluation, evaluate_fitting
from saccade.train.initialize import InitialWeights
from saccade.train.run_data import load_run_data
from saccade.train.saved_model import other_data
from saccade.train.torch_flags import set_up_machine

__all__ = ["Conversion", "Inspection", "convert", "inspect"]

DIAGNOSED_IMAGES = 128
EVALUATED_AT_ONCE = 500


@dataclass(frozen=True)
class Inspection:
    """A diagnosis and both accuracies, before any training.

    Attributes:
        source: The softmax model.
        student: The same weights with the new attention, not trained.
        splits: The data.
        diagnosis: The layers.
        teacher: Evaluation of the source on the test images.
        zero_shot: Evaluation of the student on them.
    """

    source: Source
    student: VisionTransformer
    splits: Splits
    diagnosis: Diagnosis
    teacher: Evaluation
    zero_shot: Evaluation

    def as_json(self) -> dict[str, Any]:
        """The diagnosis and both accuracies as JSON values."""
        config = self.student.config
        return {
            "source": self.source.name,
            "source_kind": self.source.kind,
            "source_fingerprint": self.source.fingerprint,
            "attention": config.attention,
            "attention_options": dict(config.attention_options),
            "softmax_blocks": list(config.softmax_blocks),
            "local_conv": config.local_conv,
            "data": self.splits.info.name,
            "diagnosis": self.diagnosis.as_json(),
            "teacher_accuracy": self.teacher.accuracy,
            "zero_shot_accuracy": self.zero_shot.accuracy,
            "zero_shot_difference": _difference(self.zero_shot.predictions, self.teacher),
            "test_count": self.teacher.count,
        }


@dataclass(frozen=True)
class Conversion:
    """A finished conversion.

    Attributes:
        run: The run folder of the student.
        page: The page about it.
        record: Content of `conversion.json`, with the results.
    """

    run: Path
    page: Path
    record: Mapping[str, Any]


def inspect(
    source: str | Path,
    attention: str = "taylor",
    *,
    data: str | None = None,
    data_root: Path | None = None,
    weights: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    keep_softmax: int = 0,
    local: bool = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> tuple[Inspection, DataConfig]:
    """Diagnose a model and evaluate it before and after the swap; nothing is trained or written.

    Args:
        source: As in `open_source`.
        attention: The new attention.
        data: Name of a data set or a folder of images; None for the data of a run.
        data_root: Folder of the data.
        weights: File of weights, for models of timm and transformers.
        options: Options of the attention.
        keep_softmax: Number of layers that keep softmax: those with the largest output error.
        local: Add a depthwise convolution of the values to the converted layers.
        seed: Seed of random features.
        device: Where to compute.

    Raises:
        ConfigError: The source or an argument cannot be used.
        DataError: The data has other classes or image sizes than the model.
    """
    chosen = default_options(attention, options)
    found = open_source(source, weights)
    teacher = found.model
    if not 0 <= keep_softmax < len(teacher.blocks):
        raise ConfigError(
            f"--keep-softmax must be from 0 to {len(teacher.blocks) - 1}, got {keep_softmax}"
        )
    wanted = _data_config(found, data, data_root)
    splits = _load(found, wanted)
    found.check_data(splits.info)
    where = connect(device).device
    teacher.to(where)
    config = teacher.config
    images = _images(splits, config.mean, config.std, where)
    make = partial(student_config, config, attention, chosen, local=local, seed=seed)
    student = build_student(teacher, make(), images)
    diagnosis = diagnose(teacher, student, images)
    if keep_softmax:
        kept = make(keep=diagnosis.hardest(keep_softmax))
        student = build_student(teacher, kept, images)
    known = replace(splits.info, mean=config.mean, std=config.std)
    splits = replace(splits, info=known)
    evaluate = partial(_evaluate, split=splits.test, splits=splits, device=where)
    both = evaluate(teacher), evaluate(student)
    return Inspection(found, student, splits, diagnosis, *both), wanted


def convert(
    source: str | Path,
    attention: str = "taylor",
    *,
    out: str | Path,
    minutes: float = 2.0,
    overrides: Sequence[str] = (),
    scratch: bool = False,
    resume: bool = False,
    quiet: bool = False,
    tell: Callable[[Inspection], None] | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    **settings: Any,
) -> Conversion:
    """Convert a softmax ViT and write a run folder.

    Args:
        source: As in `open_source`.
        attention: The new attention.
        out: The run folder to create.
        minutes: Time of the distillation; `train.epochs` in `overrides` takes precedence.
        overrides: Settings of `optim`, `train` and `augment`, such as `optim.lr=0.0005`.
        scratch: Also train the same model from random weights for as many epochs, in the folder
            `OUT-scratch`, for comparison.
        resume: Continue an interrupted conversion in `out`.
        quiet: Show no progress.
        tell: Called with what is known before training.
        seed: Seed of the run and of random features.
        device: Where to compute.
        **settings: The other arguments of `inspect`.

    Raises:
        ConfigError: The source, an argument or the folder cannot be used.
        DataError: The data has other classes or image sizes than the model.
        TrainingError: A step was not finite, or memory ran out.
    """
    out = Path(out)
    if minutes <= 0:
        raise ConfigError(f"--minutes must be above 0, got {minutes:g}")
    run = RunFolder(out)
    if not (resume and run.exists()):
        run.check_free()
    known, data = inspect(source, attention, seed=seed, device=device, **settings)
    if tell is not None:
        tell(known)
    initial = _initial(known)
    if resume and run.exists():
        config = run.config()
    else:
        config = _plan(known, data, initial, minutes, overrides, seed, device)
    with closing(connect(device)) as ranks:
        speeds = measure_speed(known.source.model, known.student, ranks.device)
        record = {
            **known.as_json(),
            "minutes": minutes,
            "block_share": BLOCK_SHARE,
            "speed": [asdict(speed) for speed in speeds],
            "device": device_name(ranks.device),
        }
    trainer = partial(DistillingTrainer, teacher=known.source.model, record=record)
    summary = train(config, out, resume=resume, quiet=quiet, initial=initial, make_trainer=trainer)
    results = {
        "recovered_accuracy": summary["test_accuracy"],
        "seconds": summary["seconds"],
        "epochs": summary["epochs"],
        "recovered_difference": _difference(run.predictions(), known.teacher),
    }
    if scratch:
        plain = train(config, Path(f"{out}-scratch"), resume=resume, quiet=quiet)
        results |= {"scratch_accuracy": plain["test_accuracy"], "scratch_seconds": plain["seconds"]}
    record |= results
    return Conversion(out, write_page(out, record), record)


def _plan(
    known: Inspection,
    data: DataConfig,
    initial: InitialWeights,
    minutes: float,
    overrides: Sequence[str],
    seed: int,
    device: str,
) -> Config:
    config = run_config(
        known.source,
        known.student.config,
        data,
        seed=seed,
        device=device,
        minutes=minutes,
        overrides=overrides,
    )
    if any(override.startswith("train.epochs=") for override in overrides):
        return config
    with set_up_machine(config), closing(connect(config.train.device)) as ranks:
        splits, source = known.splits, known.source
        return fit_to_budget(config, splits, source, initial, minutes=minutes, ranks=ranks)


def _data_config(source: Source, name: str | None, root: Path | None) -> DataConfig:
    """The data to convert with."""
    if name is None:
        if source.config is None:
            raise ConfigError(f"--data must name the data of {source.name!r}, which is unknown")
        own = source.config.data
        return own.model_copy(update={"root": root}) if root is not None else own
    side = source.model.config.img_size[0]
    if Path(name).is_dir():
        return other_data("folder", Path(name), side)
    return other_data(name, root, side)


def _load(source: Source, data: DataConfig) -> Splits:
    """The splits of a run if the data is its own, else new ones."""
    if source.run is not None and source.config is not None:
        own = source.config.data
        if own.model_copy(update={"root": None}) == data.model_copy(update={"root": None}):
            return load_run_data(source.run, data)
    return load_splits(data)


def _images(
    splits: Splits, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> Tensor:
    """The first training images, normalized, not augmented."""
    info = replace(splits.info, mean=mean, std=std)
    loader = make_loader(
        splits.train,
        info,
        batch_size=min(DIAGNOSED_IMAGES, len(splits.train)),
        augment=None,
        seed=0,
        device=device,
        shuffle=False,
        workers=0,
    )
    images: Tensor = next(iter(loader.epoch(0))).images
    return images


def _evaluate(
    model: VisionTransformer, *, split: Split, splits: Splits, device: torch.device
) -> Evaluation:
    if not len(split):
        raise ConfigError("--data must have test images, got none")
    loader = make_loader(
        split,
        splits.info,
        batch_size=EVALUATED_AT_ONCE,
        augment=None,
        seed=0,
        device=device,
        shuffle=False,
    )
    autocast = torch.bfloat16 if device.type == "cuda" else None
    return evaluate_fitting(
        model, loader, ranks=Ranks(device), autocast=autocast, advice="train.eval_batch_size={}"
    )


def _initial(known: Inspection) -> InitialWeights:
    state = known.student.state_dict()
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}
    return InitialWeights(known.source.name, sha256(save(tensors)).hexdigest(), tensors)


def _difference(predictions: Mapping[str, Any], teacher: Evaluation) -> dict[str, float]:
    """Accuracy minus the teacher's on the same images, with a 95 % interval."""
    theirs = teacher.predictions
    judged = (predictions["predicted"] >= 0) & (theirs["predicted"] >= 0)
    own, base = (
        np.asarray(p["predicted"] == p["target"])[judged][None] for p in (predictions, theirs)
    )
    found = paired_difference(own, base)
    return {"value": float(found.mean), "low": float(found.low), "high": float(found.high)}
