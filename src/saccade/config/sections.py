"""The sections of a configuration: every key, its default and its range.

`saccade.config.load` builds them from YAML and overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    create_model,
    model_validator,
)

__all__ = [
    "CANDIDATES",
    "AugmentConfig",
    "DataConfig",
    "InitConfig",
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
Side = Annotated[int, Field(ge=1, le=16_384)]
CountOrZero = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """A part of the configuration. It is immutable and rejects unknown keys, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The model. `overrides` and `attention_options` are passed to `create_model`.

    Attributes:
        name: Name of a model variant.
        pretrained: Weights to start from: `saccade list weights`. They determine `name` and, unless
            given, `attention`, `overrides` and the image size of data without a fixed size. The
            classifier is reset if the classes differ, and learned positions are resampled.
        attention: Attention to use instead of the variant's own.
        overrides: Fields of the variant to change, such as `depth`.
        attention_options: Options of the attention, such as `num_features`.
    """

    name: str = "vit_cifar"
    pretrained: str | None = None
    attention: str | None = None
    overrides: dict[str, Any] = {}
    attention_options: dict[str, Any] = {}


class DataConfig(Section):
    """The data set and its splits.

    Attributes:
        name: Name of the data set: `saccade list datasets`.
        root: Folder of the data; default: the user's cache.
        image_size: Side to which images of `folder`, `shapes` and `hf:` sets are resized.
        val_fraction: Fraction of the training set held out for validation; 0 trains on all of it.
            A folder with both `val/` and `test/` is validated on its `val/`.
        split_seed: Seed of the validation split. It is separate from `run.seed`, so that runs with
            different seeds share one split.
        num_train: Maximum number of training images, validation images included; for
            generated data sets, the number of items.
        num_test: Maximum number of test images.
        resident_gib: A Hub data set is kept in memory if its decoded images fit into this size;
            a larger one is streamed in every epoch.
        buffer_mib: Size of the shuffle buffer of encoded images, per process, when streaming.
        folds: Number of stratified parts for cross-validation of the training set. `split_seed`
            determines the parts.
        fold: Index of the part that replaces the test set and is not trained on.
        options: Options of a generated or text data set, such as `num_pairs` of `recall`.
        workers: Processes that read image files or generate items; sets in memory need none.
        on_bad_image: `fail` stops at an unreadable image. `skip` leaves it out of the loss and of
            the accuracy.
        max_bad_images: Maximum number of skipped images in a split.
    """

    name: str = "digits"
    root: Path | None = None
    image_size: Side | None = None
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
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fold_is_one_of_folds(self) -> DataConfig:
        if (self.fold is None) != (self.folds is None):
            raise ValueError(f"folds={self.folds} with fold={self.fold}: give both or neither")
        if self.fold is not None and self.folds is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold must be at least 0 and below folds={self.folds}, got {self.fold}"
            )
        return self

    @property
    def has_any_size(self) -> bool:
        """True if the images are resized to `image_size`."""
        return self.name in {"folder", "shapes"} or ":" in self.name

    @property
    def is_without_validation(self) -> bool:
        """True if there is no validation split. False for a folder, which may have a `val/`."""
        return self.val_fraction == 0 and self.name not in ("folder", "text_folder")


class InitConfig(Section):
    """Weights of another training that a run starts from.

    Attributes:
        from: A run folder, a folder of `save_pretrained`, the id of a model on the Hub, or a file
            of weights. The classifier is reset if the classes differ, and learned positions are
            resampled if the resolution or the length differs.
        weights: Which weights of a run folder: the best on validation, or the last. Default: its
            `train.evaluate_with`.
        reset_head: Reset the classifier also if the classes are the same.
    """

    weights: Literal["best", "last"] | None = None
    reset_head: bool = False

    @property
    def source(self) -> str | None:
        """The value of `from`, which is a keyword of Python."""
        found: str | None = getattr(self, "from")
        return found


if not TYPE_CHECKING:
    InitConfig = create_model(
        "InitConfig",
        __base__=InitConfig,
        __doc__=InitConfig.__doc__,
        __module__=__name__,
        **{"from": (str | None, None)},
    )


class AugmentConfig(Section):
    """Augmentation of training images. All of it is off by default.

    Attributes:
        crop_padding: Largest shift of an image in pixels.
        flip: Mirror half of the images.
        erase: Side of the erased square in pixels.
        erase_probability: Probability that a square is erased.
        policy: `trivial` is TrivialAugment (wide), `rand` is RandAugment.
        rand_ops: Operations of RandAugment for each image.
        rand_magnitude: Strength of RandAugment.
        mixup: Alpha of mixup's Beta distribution.
        cutmix: Alpha of cutmix's Beta distribution. If both are set, one is chosen per image.
        mix_probability: Probability that an image is mixed.
        unmixed_fraction: Fraction of the epochs, at the end, in which no image is mixed.
        resized_crop: Smallest and largest area of a random resized crop, as fractions.
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
    unmixed_fraction: Fraction = 0.0
    resized_crop: tuple[Fraction, Fraction] | None = None

    @model_validator(mode="after")
    def _crop_is_a_range(self) -> AugmentConfig:
        if self.resized_crop is not None and not 0 < self.resized_crop[0] <= self.resized_crop[1]:
            raise ValueError(
                "resized_crop must be two areas with 0 < smallest <= largest <= 1, got "
                f"{self.resized_crop}"
            )
        return self


class OptimConfig(Section):
    """Optimizer and learning-rate schedule.

    Attributes:
        name: Optimizer.
        lr: Highest learning rate.
        weight_decay: Decoupled for adamw, lion and muon. It is not applied to biases, norms,
            positions and tokens.
        betas: Decay of the averages of adamw, adam and lion.
        eps: Added to the denominator of adamw and adam.
        momentum: Momentum of sgd and muon.
        nesterov: Nesterov's form of momentum, for sgd and muon.
        muon_lr: Learning rate of muon for hidden matrices; the other parameters use `lr`.
        schedule: `one_cycle` rises for `warmup_epochs` (30 % of the run if that is 0), then falls
            to the end. The other schedules start with `warmup_epochs` of linear warm-up.
        warmup_epochs: Epochs over which the learning rate rises from 0.
        min_lr_ratio: Final learning rate as a fraction of `lr`.
        step_epochs: Epochs between the steps of `step`.
        step_gamma: Factor of the learning rate at each step of `step`.
        plateau_patience: Epochs without improvement before `plateau` lowers the learning rate.
        plateau_factor: Factor of the learning rate when it is lowered.
        clip_norm: Maximum gradient norm; null disables clipping.
        layer_decay: Factor of the learning rate from one block to the block before it. The head
            has `lr`, and the stem the lowest rate. 1 gives equal rates.
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
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> OptimConfig:
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true needs momentum > 0, got momentum=0")
        return self


class TrainConfig(Section):
    """Length, batch size, precision and devices of the training.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images per optimizer step, over all ranks and accumulation steps. An epoch has
            full batches only. The remaining images are dropped; they differ from epoch to epoch.
            A training set smaller than one batch is one step.
        eval_batch_size: Images per step of an evaluation.
        accumulation: Number of micro-batches per rank and step.
        precision: Number format of the forward and backward pass; weights stay in fp32.
        ema_decay: Decay of an exponential moving average of the weights. If set, the average is
            evaluated.
        label_smoothing: Fraction of each target that is distributed over all classes.
        early_stopping_patience: Epochs without a better validation accuracy before stopping.
        compile: Compile stem, blocks and head separately with torch.compile; on a GPU, also the
            preparation of batches.
        cuda_graph: On a single GPU, record a training step as a CUDA graph and replay it, which
            removes launch overhead. Steps in float16 or with `grad_checkpointing` are not recorded.
        grad_checkpointing: Recompute blocks in the backward pass, which saves memory.
        deterministic: Use only operations that repeat bit for bit on a GPU.
        evaluate_with: Weights for the test set: the best on validation, or the last.
        device: `auto` takes a GPU if there is one.
        strategy: How several processes share the model: copies (`ddp`) or parts (`fsdp`).
        teacher: Run folder, or folder of `save_pretrained`, of a model to distill: its
            probabilities on the same augmented images are targets. Its data must be those
            of the run.
        teacher_weight: Weight of the teacher's probabilities in the loss; the labels have the rest.
        teacher_temperature: Temperature of the probabilities of teacher and model in that loss.
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
    teacher: Path | None = None
    teacher_weight: Fraction = 1.0
    teacher_temperature: Positive = 1.0

    @model_validator(mode="after")
    def _batch_is_divisible(self) -> TrainConfig:
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size must be a multiple of accumulation={self.accumulation}, got "
                f"{self.batch_size}"
            )
        return self


class RunConfig(Section):
    """Seed, checkpoints and logs.

    Attributes:
        seed: Seed of initial weights, order and augmentation.
        checkpoint_every_steps: Steps between additional checkpoints within an epoch.
        checkpoint_every_epochs: Epochs between checkpoints.
        keep_last: Number of newest checkpoints to keep.
        log_every_steps: Steps between logged losses; reading the loss synchronizes the device.
        trackers: Trackers that receive the metrics besides `metrics.jsonl`. They need the extra
            `track`, `wandb` or `mlflow`.
        test: Evaluate the test set at the end. Trials of a search do not.
    """

    seed: Seed = 0
    checkpoint_every_steps: Count | None = None
    checkpoint_every_epochs: Count = 1
    keep_last: Count = 2
    log_every_steps: Count = 50
    trackers: tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...] = ()
    test: bool = True


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"must be a number, got {value!r}")
    return value


Number = Annotated[int | float, PlainValidator(_number)]
"""A number that keeps its type: integers stay integers."""


class Range(Section):
    """A range of numbers to search: integers if `low`, `high` and `step` are, else floats.

    Attributes:
        log: Sample on a logarithmic scale.
        step: Distance between candidates; default: the range is continuous.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low must be below high={self.high}, got {self.low}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(
                f"log=true needs low > 0 and no step, got low={self.low}, step={self.step}"
            )
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step must be above 0 and at most high - low, got {self.step}")
        return self

    @property
    def is_whole(self) -> bool:
        """True if the candidates are integers."""
        return all(isinstance(n, int) for n in (self.low, self.high, self.step or 0))


CANDIDATES = ("range", "choices")
"""Tags of the two kinds of candidates in the location of a pydantic error."""


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
            custom_error_message="must be {low: ..., high: ...} or a list of choices",
        ),
    ],
]
"""Keys such as `optim.lr`, each with a range or a list of choices."""


class TuneConfig(Section):
    """Settings of `saccade tune`.

    Attributes:
        sampler: How trials are drawn.
        pruner: Rule that stops bad trials early.
        startup_trials: Number of random trials at the start; they are not pruned.
        warmup_epochs: Epochs of a trial before it can be pruned.
    """

    sampler: Literal["tpe", "random", "grid"] = "tpe"
    pruner: Literal["median", "hyperband", "none"] = "median"
    startup_trials: CountOrZero = 5
    warmup_epochs: CountOrZero = 2
