"""The run that a conversion trains: its configuration, and its length from a time budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saccade.config import Config, DataConfig, make_config, with_overrides, with_values
from saccade.convert.distil import DistillingTrainer
from saccade.convert.source import Source
from saccade.data import Splits
from saccade.errors import ConfigError
from saccade.models import MODELS, ViTConfig
from saccade.runs import RunFolder
from saccade.train.build import SET_ELSEWHERE
from saccade.train.distributed import Ranks
from saccade.train.initialize import InitialWeights
from saccade.train.progress import SilentReporter
from saccade.train.signals import StopRequest

__all__ = ["fit_to_budget", "run_config"]

FALLBACK_VARIANT = "vit_small_patch16_224"
SAFETY = 0.85  # share of the budget that is planned; validation and start-up need the rest
TIMED_STEPS = 12  # the first half warms up: a GPU captures its graph after a few steps
COMPILED_MINUTES = 1.0  # compilation takes half a minute where its cache is empty
SECTIONS = ("optim", "train", "augment")
_OPTIM = {
    "name": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.01,
    "schedule": "cosine",
    "warmup_epochs": 0.25,
    "clip_norm": 1.0,
}


def run_config(
    source: Source,
    student: ViTConfig,
    data: DataConfig,
    *,
    seed: int,
    device: str,
    minutes: float,
    overrides: Sequence[str] = (),
) -> Config:
    """The configuration of the student's run.

    Augmentation and batch size are those of the source's run; a source without one gets shifts by
    an eighth of the image.

    Args:
        source: The softmax model.
        student: Configuration of the student.
        data: The data for the distillation.
        seed: Seed of the run.
        device: `auto`, `cpu` or `cuda`.
        minutes: Time of the training. From `COMPILED_MINUTES` on, a GPU runs compiled code.
        overrides: Settings of `optim`, `train` and `augment`, such as `optim.lr=0.0005`.
    """
    base = source.config
    side = min(student.img_size)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    values: dict[str, Any] = {
        "model": _model_section(base, student),
        "data": data.model_dump(mode="json"),
        "augment": base.augment.model_dump(mode="json")
        if base is not None
        else {"crop_padding": max(1, side // 8)},
        "optim": dict(_OPTIM),
        "train": {
            "epochs": 1,
            "batch_size": base.train.batch_size if base is not None else 128,
            "eval_batch_size": base.train.eval_batch_size if base is not None else 512,
            "precision": "bf16" if on_gpu else "fp32",
            "compile": on_gpu and minutes >= COMPILED_MINUTES,
            "device": device,
            "evaluate_with": "last" if data.is_without_validation else "best",
        },
        "run": {"seed": seed},
    }
    for override in overrides:
        if override.partition(".")[0] not in SECTIONS:
            raise ConfigError(
                f"overrides must be of {', '.join(SECTIONS)}, got {override!r}: a conversion sets "
                "the other sections"
            )
    return with_overrides(make_config(values, source="conversion"), overrides)


def _model_section(base: Config | None, student: ViTConfig) -> dict[str, Any]:
    """`model` of the configuration: a variant, and every field in which the student differs."""
    name = base.model.name if base is not None else FALLBACK_VARIANT
    variant = MODELS[name].config
    assert isinstance(variant, ViTConfig)
    skipped = {*SET_ELSEWHERE, "feature_seed"}
    overrides = {
        spec.name: _plain(getattr(student, spec.name))
        for spec in fields(ViTConfig)
        if spec.name not in skipped and getattr(student, spec.name) != getattr(variant, spec.name)
    }
    return {
        "name": name,
        "attention": student.attention,
        "attention_options": dict(student.attention_options),
        "overrides": overrides,
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def fit_to_budget(
    config: Config,
    splits: Splits,
    source: Source,
    initial: InitialWeights,
    *,
    minutes: float,
    ranks: Ranks,
) -> Config:
    """Choose the number of epochs, or of images in a single epoch, that fit into a time.

    The speed is measured with a few steps of either stage. The time of the first steps, which
    compile, is subtracted, up to three quarters of the budget.
    """
    make = partial(DistillingTrainer, run=RunFolder(Path("unused")), ranks=ranks)
    trainer = make(
        config,
        splits,
        teacher=source.model,
        initial=initial,
        reporter=SilentReporter(),
        stop=StopRequest(),
    )
    starts, seconds = zip(*(_time_steps(trainer, blocks) for blocks in (True, False)), strict=True)
    per_epoch = len(trainer.train_loader) * sum(seconds) / 2
    planned = SAFETY * 60 * minutes
    budget = max(planned - sum(starts), planned / 4)
    changes: dict[str, Any] = {"train.epochs": max(1, int(budget / per_epoch))}
    if per_epoch > budget:
        images = int(budget / per_epoch * len(splits.train))
        held = 1 - config.data.val_fraction
        changes["data.num_train"] = max(config.train.batch_size, int(images / held))
    return with_values(config, changes)


def _time_steps(trainer: DistillingTrainer, blocks: bool) -> tuple[float, float]:
    """Seconds that the first steps of a stage take more than later ones, and those of a step."""
    trainer.stepper.network.train()
    trainer.stepper.block_steps = 1 if blocks else 0
    batches = trainer.train_loader.epoch(0)
    times = []
    for _, batch in zip(range(TIMED_STEPS), batches, strict=False):
        start = time.perf_counter()
        float(trainer.stepper.run(batch, 0, 1.0))
        times.append(time.perf_counter() - start)
    later = sorted(times[len(times) // 2 :])
    median = later[len(later) // 2]
    return max(0.0, sum(times) - len(times) * median), median
