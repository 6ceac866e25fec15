"""The sections of a configuration: every key, its default and its range.

It reads like a table; `saccade.config` turns YAML and overrides into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    model_validator,
)

__all__ = [
    "CANDIDATES",
    "AugmentConfig",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "Range",
    "RunConfig",
    "SearchSpace",
    "Section",
    "TrainConfig",
    "TuneConfig",
]

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """A part of the configuration: immutable, finite numbers only, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """Which network to build; `overrides` and `attention_options` go to `create_model`.

    Attributes:
        attention: Token mixing to use instead of the variant's own.
        overrides: Arguments of the variant to change, such as `depth`.
        attention_options: Arguments of the attention, such as `num_features`.
    """

    name: str = "vit_cifar"
    attention: str | None = None
    overrides: dict[str, Any] = {}
    attention_options: dict[str, Any] = {}


class DataConfig(Section):
    """Which images to learn from, and how they are split.

    Attributes:
        root: Folder of the data; the user's cache where it is left out.
        val_fraction: Part of the training set held out; 0 trains on all of it. A folder that has
            its own `val/` beside `test/` is validated on that.
        split_seed: Seed of that split, apart from `run.seed` so that seeds share one split.
        num_train: Use only so many training images, validation included.
        resident_gib: Hub sets whose decoded images take no more than this are kept in memory;
            larger ones are streamed, epoch by epoch.
        buffer_mib: Encoded images of a streamed set that a process holds, to shuffle them.
        folds: Cut the training set into so many stratified parts, by `split_seed`, ...
        fold: ... of which this one is tested on instead of the test set, and not trained on.
    """

    name: str = "digits"
    root: Path | None = None
    image_size: Count | None = None
    val_fraction: BelowOne = 0.1
    split_seed: Seed = 0
    workers: CountOrZero = 4
    on_bad_image: Literal["fail", "skip"] = "fail"
    max_bad_images: CountOrZero = 10
    num_train: Count | None = None
    num_test: Count | None = None
    resident_gib: NonNegative = 16.0
    buffer_mib: Positive = 1024.0
    folds: Annotated[int, Field(ge=2)] | None = None
    fold: CountOrZero | None = None

    @model_validator(mode="after")
    def _fold_is_one_of_folds(self) -> DataConfig:
        if (self.fold is None) != (self.folds is None):
            raise ValueError(f"folds={self.folds} with fold={self.fold}: give both or neither")
        if self.fold is not None and self.folds is not None and self.fold >= self.folds:
            raise ValueError(f"fold={self.fold}: wants 0 <= fold < folds={self.folds}")
        return self

    @property
    def is_without_validation(self) -> bool:
        """Whether there is surely no validation split; a folder may have a `val/` of its own."""
        return self.val_fraction == 0 and self.name != "folder"


class AugmentConfig(Section):
    """What happens to a training image; everything is off unless asked for.

    Attributes:
        erase: Side of the square that is blanked, in pixels.
        mixup: Alpha of mixup's Beta distribution.
        cutmix: Alpha of cutmix's; with both, each image takes one of them.
        mix_probability: Share of the images that are mixed at all.
        resized_crop: Smallest and largest area of a random resized crop.
    """

    crop_padding: CountOrZero = 0
    flip: bool = False
    erase: CountOrZero = 0
    erase_probability: Fraction = 1.0
    policy: Literal["none", "trivial", "rand"] = "none"
    rand_ops: Count = 2
    rand_magnitude: Annotated[int, Field(ge=0, le=30)] = 9
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    mix_probability: Fraction = 1.0
    resized_crop: tuple[Fraction, Fraction] | None = None

    @model_validator(mode="after")
    def _crop_is_a_range(self) -> AugmentConfig:
        if self.resized_crop is not None and not 0 < self.resized_crop[0] <= self.resized_crop[1]:
            raise ValueError(
                f"resized_crop={self.resized_crop}: wants 0 < smallest <= largest <= 1"
            )
        return self


class OptimConfig(Section):
    """How the weights move.

    Attributes:
        weight_decay: Decoupled for adamw, lion and muon; biases, norms, positions and tokens are
            spared.
        momentum: Of sgd and muon.
        schedule: `one_cycle` rises for `warmup_epochs` (30 % of the run where that is 0) and falls
            to the end; the others start with `warmup_epochs` of linear warm-up.
        min_lr_ratio: The last learning rate as a fraction of `lr`.
        clip_norm: Largest gradient norm; no clipping where it is left out.
        muon_lr: Learning rate of the hidden matrices; `lr` is for the rest.
    """

    name: Literal["adamw", "sgd", "adam", "lion", "muon"] = "adamw"
    lr: Positive = 1e-3
    weight_decay: NonNegative = 0.05
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8
    momentum: BelowOne = 0.9
    nesterov: bool = True
    muon_lr: Positive = 0.02
    schedule: Literal["cosine", "one_cycle", "step", "plateau", "constant"] = "cosine"
    warmup_epochs: NonNegative = 0.0
    min_lr_ratio: Fraction = 0.0
    step_epochs: Count = 30
    step_gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    plateau_patience: Count = 5
    plateau_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    clip_norm: Positive | None = 1.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimConfig:
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true needs momentum > 0, got momentum=0")
        return self


class TrainConfig(Section):
    """How long, in what pieces and in what precision.

    Attributes:
        batch_size: Images an optimiser step sees, over all ranks and accumulation steps.
        accumulation: Pieces each rank cuts its share of the batch into.
        ema_decay: Decay of the averaged weights that are then evaluated; off where left out.
        early_stopping_patience: Epochs without a better validation accuracy before stopping.
        compile: Compile stem, blocks and head with torch.compile, each on its own, and on a GPU
            what makes batches.
        cuda_graph: On one GPU, record a step once and play it again, so that the host does not
            hold up the device. Steps in float16 or with `grad_checkpointing` are not recorded.
        evaluate_with: Weights the test set sees: the best on validation, or the last.
    """

    epochs: Count = 10
    batch_size: Count = 128
    eval_batch_size: Count = 512
    accumulation: Count = 1
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    label_smoothing: BelowOne = 0.0
    compile: bool = False
    cuda_graph: bool = True
    grad_checkpointing: bool = False
    deterministic: bool = False
    early_stopping_patience: Count | None = None
    evaluate_with: Literal["best", "last"] = "best"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    strategy: Literal["ddp", "fsdp"] = "ddp"

    @model_validator(mode="after")
    def _batch_is_divisible(self) -> TrainConfig:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} cannot be cut into accumulation="
                f"{self.accumulation} equal pieces"
            )
        return self


class RunConfig(Section):
    """Seed, checkpoints and logs.

    Attributes:
        checkpoint_every_steps: Also save in the middle of an epoch.
        keep_last: Checkpoints kept beside the best one.
        log_every_steps: Steps between two reads of the loss; each read waits for the device.
        trackers: Where metrics go besides `metrics.jsonl`; they need the `track` extra.
        test: Measure the test set at the end; the trials of a search leave it alone.
    """

    seed: Seed = 0
    checkpoint_every_steps: Count | None = None
    checkpoint_every_epochs: Count = 1
    keep_last: Count = 2
    log_every_steps: Count = 50
    trackers: tuple[Literal["tensorboard", "trackio"], ...] = ()
    test: bool = True


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"wants a number, got {value!r}")
    return value


Number = Annotated[int | float, PlainValidator(_number)]
"""A number that stays whole where it was written so."""


class Range(Section):
    """Numbers to search: whole ones where `low`, `high` and `step` are, fractions otherwise.

    Attributes:
        log: Search the logarithm, so that each power of ten gets the same share.
        step: Distance between two candidates; every number in the range where it is left out.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(
                f"log=true wants low > 0 and no step, got low={self.low}, step={self.step}"
            )
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step={self.step} is not between 0 and high - low")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the candidates are whole numbers."""
        return all(isinstance(n, int) for n in (self.low, self.high, self.step or 0))


CANDIDATES = ("range", "choices")
"""What pydantic calls the two kinds of candidates in the path of a fault."""


def _range_or_choices(value: Any) -> str | None:
    if isinstance(value, Range | Mapping):
        return "range"
    return "choices" if isinstance(value, list) and value else None


SearchSpace = dict[
    str,
    Annotated[
        Annotated[Range, Tag("range")] | Annotated[list[Any], Tag("choices")],
        Discriminator(
            _range_or_choices,
            custom_error_type="neither",
            custom_error_message="wants {low: ..., high: ...} or a list of choices",
        ),
    ],
]
"""Keys such as `optim.lr`, each with a range or a list of choices."""


class TuneConfig(Section):
    """How `saccade tune` walks the search space.

    Attributes:
        startup_trials: Trials drawn at random, and never pruned, before there is enough to learn
            from.
        warmup_epochs: Epochs of a trial before it can be pruned.
    """

    sampler: Literal["tpe", "random", "grid"] = "tpe"
    pruner: Literal["median", "hyperband", "none"] = "median"
    startup_trials: CountOrZero = 5
    warmup_epochs: CountOrZero = 2
