"""Choose a recipe for a user's folder of images from their number, sizes and classes.

The recipe trains from scratch on one machine: a small transformer with a convolutional stem, at
most 257 tokens per image, and enough epochs for about 1,000 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from saccade.config import Config, list_recipes, load_config, make_config, with_overrides
from saccade.data.folder_files import class_names, scan, split_folders
from saccade.data.images import IMAGE_SUFFIXES, BadImageError, opened, printable
from saccade.errors import ConfigError, DataError

__all__ = ["FolderFacts", "choose_recipe", "inspect_folder", "is_image_folder", "resolve_recipe"]

_SAMPLED = 200
_MAX_SIDE = 224
_TOKENS_A_SIDE = 8
_STEPS = 1000
FINE_TUNING = {"lr": 0.001, "layer_decay": 0.7}
_SIZES = (  # maximum number of training images, width, depth, heads
    (2_000, 96, 4, 4),
    (20_000, 192, 6, 6),
    (math.inf, 256, 8, 8),
)


@dataclass(frozen=True)
class FolderFacts:
    """The facts about a folder that determine its recipe.

    Attributes:
        root: The folder.
        num_train: Number of images to train and validate on; all images if there is no test folder.
        num_classes: Number of classes.
        smallest_class: Number of images of the smallest class.
        side: Median length in pixels of the shorter side, over up to 200 images.
        has_test: True if there is a test or validation folder.
    """

    root: Path
    num_train: int
    num_classes: int
    smallest_class: int
    side: int
    has_test: bool


def is_image_folder(name_or_path: str | Path) -> bool:
    """True if a recipe argument is a folder and not the name of a recipe.

    Raises:
        ConfigError: It is the folder of a run, a comparison or a search.
    """
    path = Path(name_or_path)
    if str(name_or_path) in list_recipes() or not path.is_dir():
        return False
    for name in ("config.yaml", "study.json"):
        if (path / name).exists():
            raise ConfigError(
                f"RECIPE must be a recipe's name, a YAML file or a folder of images, got "
                f"{printable(path)!r}, which holds results; resume it with --resume --out"
            )
    return True


def resolve_recipe(
    name_or_path: str | Path,
    overrides: Iterable[str] = (),
    tell: Callable[[str], None] = lambda line: None,
) -> Config:
    """Return the configuration of a recipe, YAML file or image folder, with overrides applied.

    Args:
        name_or_path: The name of a recipe, or the path of a YAML file or image folder.
        overrides: Changes, as `section.key=value`.
        tell: Called with each line of the description of a recipe chosen for a folder.

    Raises:
        ConfigError: The argument is none of these, or an override is wrong.
        DataError: The folder has no images in classes.
    """
    if not is_image_folder(name_or_path):
        return load_config(name_or_path, overrides)
    overrides = list(overrides)
    facts = inspect_folder(Path(name_or_path))
    recipe, text = choose_recipe(facts, pretrained=any(map(_names_weights, overrides)))
    for line in text.splitlines():
        if line.startswith("# "):
            tell(f"{printable(name_or_path)}: {line[2:]}")
    tell(f"`saccade init {printable(name_or_path)}` writes this recipe as a file to edit")
    return with_overrides(recipe, overrides)


def inspect_folder(root: Path) -> FolderFacts:
    """Count a folder's images and read the headers of a sample.

    Raises:
        DataError: There are fewer than two classes, a class has no images, or no image of the
            sample can be read.
    """
    folders = split_folders(root)
    train = folders["train"]
    found: list[Path] = []
    smallest = math.inf
    for name in class_names(train):
        images = [p for p in scan(train / name) if p.suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            raise DataError(f"class {name!r} is empty: no image in {printable(train / name)}")
        smallest = min(smallest, len(images))
        found += images
    sides = sorted(_sides(found[:: -(-len(found) // _SAMPLED)]))
    if not sides:
        raise DataError(f"{printable(root)}: of the sampled images none can be read")
    side = sides[len(sides) // 2]
    classes = len(class_names(train))
    return FolderFacts(root, len(found), classes, int(smallest), side, len(folders) > 1)


def _sides(paths: Sequence[Path]) -> Iterator[int]:
    """Yield the shorter side of each readable image."""
    for path in paths:
        try:
            with opened(path) as image:
                yield min(image.size)
        except BadImageError:
            continue


def _names_weights(override: str) -> bool:
    key, _, value = override.partition("=")
    return key.strip() == "model.pretrained" and value.strip() not in {"", "null"}


def choose_recipe(facts: FolderFacts, *, pretrained: bool = False) -> tuple[Config, str]:
    """Return the recipe of a folder, and its YAML with explanatory comments.

    With `pretrained` the recipe fine-tunes weights, which determine model and image size: the rate
    is lower, and lower still in early layers.
    """
    patch, size = _patch_and_size(facts.side)
    kept = facts.num_train * (0.9 if facts.has_test else 0.72)  # after hold-out
    batch = 2 ** max(3, min(7, round(math.log2(max(kept / 20, 1)))))
    epochs = max(10, min(100, math.ceil(_STEPS * batch / max(kept, 1))))
    width, depth, heads = next(row[1:] for row in _SIZES if kept <= row[0])
    stem = {"stem": "conv_patch"} if patch > 1 else {"stem": "conv"}
    values: dict[str, Any] = {
        "model": {
            "name": "vit_cifar",
            "overrides": {
                **stem,
                "patch_size": patch,
                "embed_dim": width,
                "depth": depth,
                "num_heads": heads,
                "class_token": False,
                "global_pool": "avg",
                "pos_drop_rate": 0.0,
                "proj_drop_rate": 0.0,
            },
        },
        "data": {"name": "folder", "root": str(facts.root.absolute()), "image_size": size},
        "augment": {"crop_padding": max(1, size // 8)},
        "optim": {"lr": 0.002, "weight_decay": 0.05, "schedule": "one_cycle"},
        "train": {
            "epochs": epochs,
            "batch_size": batch,
            "eval_batch_size": 4 * batch,
            "label_smoothing": 0.1,
        },
        "search": {
            "optim.lr": {"low": 0.0003, "high": 0.01, "log": True},
            "optim.weight_decay": {"low": 0.001, "high": 0.5, "log": True},
            "model.overrides.drop_path_rate": {"low": 0.0, "high": 0.3, "step": 0.05},
        },
    }
    if pretrained:
        values |= {"model": {}, "data": {"name": "folder", "root": str(facts.root.absolute())}}
        values["optim"] |= FINE_TUNING
        values["augment"] = {"crop_padding": 4}
        size = patch = 0
    comment = "\n".join(f"# {line}" for line in _explain(facts, size, patch, batch, epochs))
    return make_config(values), f"{comment}\n{yaml.safe_dump(values, sort_keys=False)}"


def _patch_and_size(side: int) -> tuple[int, int]:
    """Return the patch size, a power of two, and the image size, a multiple of the patch size."""
    side = max(4, min(side, _MAX_SIDE))
    patch = 2 ** max(0, min(4, round(math.log2(side / _TOKENS_A_SIDE))))
    return patch, side // patch * patch


def _explain(facts: FolderFacts, size: int, patch: int, batch: int, epochs: int) -> Iterator[str]:
    """Yield the lines that describe the chosen recipe."""
    yield f"{facts.num_train:,} images in {facts.num_classes} classes, about {facts.side} pixels"
    sizes = (
        f"image size {size}, patch {patch}: {(size // patch) ** 2} tokens"
        if size
        else (f"fine-tuning with layer_decay {FINE_TUNING['layer_decay']}")
    )
    yield f"{sizes}; batch {batch}, {epochs} epochs"
    yield "images are not flipped; if left and right do not matter, add augment.flip=true"
    if facts.smallest_class < 10:
        yield f"a class has only {facts.smallest_class} images: its accuracy will be unreliable"
