"""Configurations that other guides use, built as models and recipes of saccade.

ViT from scratch (github.com/tintn/vision-transformer-from-scratch) configures its model and its
training with a dictionary. `from_scratch_config` accepts it as it is. `FROM_SCRATCH_KEYS` says what
each key becomes; docs/reference/from-scratch.md is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from saccade.config import Config, make_config
from saccade.errors import ConfigError, UnknownNameError
from saccade.models import VisionTransformer, create_model

__all__ = ["FROM_SCRATCH_KEYS", "FromScratch", "FromScratchKey", "from_scratch_config"]

VARIANT = "vit_micro_patch4_32"


@dataclass(frozen=True)
class FromScratchKey:
    """A key of the guide's configuration.

    Attributes:
        default: Its value in the guide.
        kind: What is accepted.
        becomes: What it becomes here, for the table in the documentation.
    """

    default: Any
    kind: str
    becomes: str


COUNT = "an integer of at least 1"
COUNT_OR_ZERO = "an integer of at least 0"
POSITIVE = "a positive number"
RATE = "a number in [0, 1)"
BOOL = "True or False"
NAME = "a name that can be a folder"

FROM_SCRATCH_KEYS: dict[str, FromScratchKey] = {
    "patch_size": FromScratchKey(4, COUNT, "`patch_size`"),
    "hidden_size": FromScratchKey(48, COUNT, "`embed_dim`"),
    "num_hidden_layers": FromScratchKey(4, COUNT, "`depth`"),
    "num_attention_heads": FromScratchKey(4, COUNT, "`num_heads`"),
    "intermediate_size": FromScratchKey(192, COUNT, "`mlp_hidden_dim`"),
    "hidden_dropout_prob": FromScratchKey(
        0.0, RATE, "`pos_drop_rate` and `proj_drop_rate`; none inside the MLP (`act_drop_rate=0`)"
    ),
    "attention_probs_dropout_prob": FromScratchKey(0.0, RATE, "`attn_drop_rate`"),
    "initializer_range": FromScratchKey(0.02, POSITIVE, "`init_std`"),
    "image_size": FromScratchKey(32, COUNT, "`img_size`; in training, the size of the data"),
    "num_classes": FromScratchKey(10, COUNT, "`num_classes`; in training, those of the data"),
    "num_channels": FromScratchKey(3, COUNT, "`in_chans`; in training, those of the data"),
    "qkv_bias": FromScratchKey(True, BOOL, "`qkv_bias`"),
    "use_faster_attention": FromScratchKey(
        True, BOOL, "nothing: one projection computes q, k and v of all heads in either case"
    ),
    "exp_name": FromScratchKey(
        "vit-with-100-epochs", NAME, "`out`: the run folder `runs/<exp_name>`"
    ),
    "batch_size": FromScratchKey(32, COUNT, "`train.batch_size`"),
    "epochs": FromScratchKey(100, COUNT, "`train.epochs`"),
    "lr": FromScratchKey(1e-4, POSITIVE, "`optim.lr`, constant, AdamW with weight decay 0.01"),
    "save_model_every": FromScratchKey(
        0,
        COUNT_OR_ZERO,
        "`run.checkpoint_every_epochs`; 0 keeps only the last checkpoint, another number all",
    ),
}
"""The keys of the guide in its order."""


class FromScratch(NamedTuple):
    """What a configuration of the guide becomes.

    Attributes:
        model: The untrained model. Its outputs equal those of the guide's model for equal weights.
        recipe: The configuration of a training run.
        out: Run folder.
    """

    model: VisionTransformer
    recipe: Config
    out: Path


def from_scratch_config(config: Mapping[str, Any], *, data: str = "cifar10") -> FromScratch:
    """Build the model and the recipe of a configuration of ViT from scratch.

    Missing keys have the guide's values. The configuration has no keys for validation images and
    augmentation: the recipe trains on all training images without augmentation, and evaluates the
    last weights on the test set.

    Args:
        config: Keys of `FROM_SCRATCH_KEYS` with their values.
        data: Name of the data set of the recipe.

    Raises:
        UnknownNameError: A key does not exist; the message suggests similar ones.
        ConfigError: A value is invalid.
    """
    for key in config:
        if key not in FROM_SCRATCH_KEYS:
            raise UnknownNameError("key of ViT from scratch", key, FROM_SCRATCH_KEYS)
    values = {key: config.get(key, entry.default) for key, entry in FROM_SCRATCH_KEYS.items()}
    _check(values)
    fields = _model_fields(values)
    shape = {"img_size": values["image_size"], "in_chans": values["num_channels"]}
    model = create_model(VARIANT, num_classes=values["num_classes"], **shape, **fields)
    assert isinstance(model, VisionTransformer)
    return FromScratch(model, _recipe(values, fields, data), Path("runs", values["exp_name"]))


def _model_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of the variant; size, channels and classes come from elsewhere."""
    return {
        "patch_size": values["patch_size"],
        "embed_dim": values["hidden_size"],
        "depth": values["num_hidden_layers"],
        "num_heads": values["num_attention_heads"],
        "mlp_hidden_dim": values["intermediate_size"],
        "pos_drop_rate": values["hidden_dropout_prob"],
        "proj_drop_rate": values["hidden_dropout_prob"],
        "act_drop_rate": 0.0,
        "attn_drop_rate": values["attention_probs_dropout_prob"],
        "init_std": values["initializer_range"],
        "qkv_bias": values["qkv_bias"],
        "final_norm": False,
    }


def _recipe(values: Mapping[str, Any], fields: Mapping[str, Any], data: str) -> Config:
    epochs, every = values["epochs"], values["save_model_every"]
    sized = data in ("folder", "shapes") or data.startswith("hf:")
    return make_config(
        {
            "model": {"name": VARIANT, "overrides": dict(fields)},
            "data": {
                "name": data,
                "val_fraction": 0.0,
                "image_size": values["image_size"] if sized else None,
            },
            "optim": {
                "name": "adamw",
                "lr": values["lr"],
                "weight_decay": 0.01,
                "schedule": "constant",
                "clip_norm": None,
            },
            "train": {
                "epochs": epochs,
                "batch_size": values["batch_size"],
                "evaluate_with": "last",
            },
            "run": {
                "checkpoint_every_epochs": min(every, epochs) or epochs,
                "keep_last": epochs // every + 1 if every else 1,
            },
        },
        source="from_scratch_config",
    )


def _check(values: Mapping[str, Any]) -> None:
    """Check kinds and ranges under the guide's own names."""
    for key, entry in FROM_SCRATCH_KEYS.items():
        if not _is_of(entry.kind, values[key]):
            raise ConfigError(f"{key} must be {entry.kind}, got {values[key]!r}")
    for whole, part in (("image_size", "patch_size"), ("hidden_size", "num_attention_heads")):
        if values[whole] % values[part]:
            raise ConfigError(
                f"{part} must be a divisor of {whole}={values[whole]}, got {values[part]}"
            )


def _is_of(kind: str, value: Any) -> bool:
    if kind == BOOL:
        return isinstance(value, bool)
    if kind == NAME:
        return (
            isinstance(value, str)
            and value not in ("", ".", "..")
            and not set(value) & set("/\\\0")
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind in (COUNT, COUNT_OR_ZERO):
        return isinstance(value, int) and value >= (1 if kind == COUNT else 0)
    return 0 <= value < 1 if kind == RATE else 0 < value < float("inf")
