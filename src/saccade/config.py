"""The configuration of one run: its sections, their checks, and how YAML and overrides become one.

Every key is checked and an unknown one is refused with its nearest neighbours. Reading needs no
torch, so that a report or a `--help` stays cheap.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from saccade.errors import ConfigError, UnknownNameError, near_matches

__all__ = [
    "CONFIG_VERSION",
    "AugmentConfig",
    "Config",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "TrainConfig",
    "dump_config",
    "list_recipes",
    "load_config",
    "make_config",
    "recipe_text",
    "with_overrides",
]

CONFIG_VERSION = 1

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
        val_fraction: Part of the training set held out; 0 trains on all of it.
        split_seed: Seed of that split, apart from `run.seed` so that seeds share one split.
        num_train: Use only so many training images, validation included.
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
        schedule: `cosine` and `constant` start with `warmup_epochs` of linear warm-up; `one_cycle`
            rises for `warmup_epochs` (30 % of the run where that is 0) and falls to the end.
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
    """

    seed: Seed = 0
    checkpoint_every_steps: Count | None = None
    checkpoint_every_epochs: Count = 1
    keep_last: Count = 2
    log_every_steps: Count = 50
    trackers: tuple[Literal["tensorboard", "trackio"], ...] = ()


class Config(Section):
    """Everything that decides a run."""

    version: int = CONFIG_VERSION
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _sharding_is_possible(self) -> Config:
        if self.train.strategy == "fsdp":
            if self.optim.name == "muon":
                raise ValueError("optim.name='muon' needs whole matrices: use train.strategy=ddp")
            if self.train.precision == "fp16":
                raise ValueError("train.precision='fp16' with strategy='fsdp': use bf16")
        return self

    @model_validator(mode="after")
    def _validation_where_needed(self) -> Config:
        if self.data.val_fraction > 0:
            return self
        if self.optim.schedule == "plateau":
            raise ValueError("optim.schedule='plateau' watches validation: data.val_fraction is 0")
        if self.train.early_stopping_patience is not None:
            raise ValueError(
                "train.early_stopping_patience watches validation: data.val_fraction is 0"
            )
        return self


def make_config(values: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check plain values and build the configuration.

    Args:
        values: Sections, as read from YAML.
        source: Where they came from; it opens the error message.

    Raises:
        ConfigError: Names every key at fault, its value and what is accepted.
    """
    version = values.get("version", CONFIG_VERSION)
    if isinstance(version, int) and version > CONFIG_VERSION:
        raise ConfigError(
            f"{source}: version={version} was written by a newer saccade; this one reads up to "
            f"version {CONFIG_VERSION}. Upgrade saccade to use it"
        )
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(_explain(error))}") from None


def load_config(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe by name, or a YAML file by path, and apply `section.key=value` overrides."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ConfigError(f"no such config file: {str(path)!r}")
        text = path.read_text(encoding="utf-8", errors="replace")
    else:
        text = recipe_text(str(name_or_path))
    values = _parse_yaml(text, source=str(name_or_path))
    for override in overrides:
        _apply(values, override)
    return make_config(values, source=str(name_or_path))


def with_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """A copy of the configuration with `section.key=value` overrides applied."""
    values = config.model_dump(mode="json")
    for override in overrides:
        _apply(values, override)
    return make_config(values)


def dump_config(config: Config) -> str:
    """The whole configuration as YAML, defaults written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def list_recipes() -> list[str]:
    """The names of the recipes that come with saccade, sorted."""
    folder = files("saccade") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def recipe_text(name: str) -> str:
    """A recipe's YAML as it is written, header comment included."""
    if name not in (known := list_recipes()):
        raise UnknownNameError("recipe", name, known)
    return (files("saccade") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


class _StrictLoader(yaml.SafeLoader):
    """A safe YAML loader that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is written twice")
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, *, source: str) -> dict[str, Any]:
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict | None):
        raise ConfigError(f"{source}: wants a mapping of sections, got {type(values).__name__}")
    return values or {}


def _apply(values: dict[str, Any], override: str) -> None:
    """Set the dotted key of one `section.key=value` in nested dictionaries."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r}: wants section.key=value")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from None
    if len(parts) == 1 and parts[0] != "version":
        raise ConfigError(f"override {override!r}: wants section.key=value{_hint(parts[0])}")
    for part in parts[:-1]:
        inner = values.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {part!r} is a value, not a section")
        values[part] = values = dict(inner or {})
    values[parts[-1]] = value


def _key_paths() -> Iterator[str]:
    for section, field in Config.model_fields.items():
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section):
            yield from (f"{section}.{key}" for key in kind.model_fields)


def _hint(path: str) -> str:
    """The known keys that look like `path`, or that are called so in another section."""
    known = list(_key_paths())
    same_name = [key for key in known if key.endswith(f".{path.rpartition('.')[2]}")]
    sections = [] if "." in path else near_matches(path, Config.model_fields)
    near = sections or same_name or near_matches(path, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _explain(error: ValidationError) -> Iterator[str]:
    """One phrase for each fault that pydantic found."""
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            section = Config.model_fields.get(path.partition(".")[0])
            kind = section.annotation if section else Config
            fields = getattr(kind, "model_fields", Config.model_fields)
            yield f"unknown key {path!r}{_hint(path)} Accepted: {', '.join(fields)}"
        elif fault["type"] == "value_error":
            yield fault["msg"].removeprefix("Value error, ")
        else:
            reason = fault["msg"][0].lower() + fault["msg"][1:]
            yield f"{path}={fault['input']!r}: {reason}"
