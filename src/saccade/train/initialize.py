"""Weights as the start of a run: those of another training (`init.from`), or any file.

`read_pretrained` reads a run folder, a folder of `save_pretrained` (also of the Hub) or a file of
weights. `Pretrained.fill` copies its tensors into a new model:

- The classifier is reset if the classes differ.
- Learned positions are resampled if the resolution or the length differs, bicubic for images and
  linear for sequences. Sinusoids belong to the new model and are not copied.
- Parameters of an attention (`attn.core`) that the source lacks keep their initial values.
- Any other difference is an error.

`InitialWeights` copies what matches in name and shape, as the runs of a comparison need it.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from saccade.config import Config, with_values
from saccade.errors import ConfigError, listed, near_matches, shorten
from saccade.integrations.checkpoints import read_checkpoint
from saccade.integrations.layouts import detect_layout, from_layout
from saccade.io import open_regular, sha256_file
from saccade.layers.positions import resample_grid_positions, resample_line_positions
from saccade.models import MODELS, SequenceTransformer, VisionTransformer
from saccade.models.hub import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    check_weights_hash,
    fetch_folder,
    read_config,
)
from saccade.models.pretrained import pretrained_folder
from saccade.models.weight_files import parse_tensors
from saccade.runs import RunFolder
from saccade.train.build import SET_ELSEWHERE, load_weights

__all__ = [
    "InitialWeights",
    "Pretrained",
    "check_initial",
    "describe_start",
    "fill_start",
    "read_configured",
    "read_pretrained",
    "read_start",
    "with_pretrained_model",
]

Model = VisionTransformer | SequenceTransformer
MAX_MESSAGE = 400  # characters
_HEAD, _CORE, _POSITIONS = "head.", ".attn.core.", "pos_embed"
_INPUTS = {"patch_embed.proj.weight", "patch_embed.proj.0.weight"}
"""The first convolution of image models, whose second dimension is the number of channels."""


@dataclass(frozen=True)
class Pretrained:
    """Weights to start from, under the names of this library.

    Attributes:
        name: Name that the user gave.
        kind: A run folder, a folder of a saved model, or a file.
        layout: The layout of the tensors at the source; see `saccade.integrations.layouts`.
        sha256: The hash of the file of weights, which a run records.
        tensors: The tensors by name, on the CPU.
        class_names: The classes, in the order of the logits; None if unknown.
        grid: Rows and columns of the patches of an image model; None if unknown.
        key: The key of the configuration that names them, for errors.
    """

    name: str
    kind: Literal["run", "saved model", "file"]
    layout: str
    sha256: str
    tensors: Mapping[str, Tensor]
    class_names: tuple[str, ...] | None = None
    grid: tuple[int, int] | None = None
    key: Literal["init.from", "model.pretrained"] = "init.from"

    @torch.no_grad()
    def fill(self, network: nn.Module, *, reset_head: bool = False) -> dict[str, Any]:
        """Copy the tensors into a newly built model, on the CPU.

        Args:
            network: The model.
            reset_head: Keep the model's own classifier also if the classes are the same.

        Returns:
            The record that a run writes to `initial.json`: the source, its hash, and the names of
            the tensors that were taken, resampled (with both shapes), reset, left at their initial
            values (`own`) and not used.

        Raises:
            ConfigError: The weights do not fit the model.
        """
        assert isinstance(network, Model)
        self._check_finite()
        state, own = dict(self.tensors), network.state_dict()
        reset = self._reset_head(network, state, own, force=reset_head)
        resampled = self._resample(network, state, own)
        missing = [key for key in own if key not in state and key not in reset]
        kept = [key for key in missing if _CORE in key]
        unused = [
            key
            for key in state
            if key not in own and (_CORE in key or key.startswith(_HEAD) or key == _POSITIONS)
        ]
        other = [k for k in state if k in own and _CORE in k and state[k].shape != own[k].shape]
        self._check(own, {k: t for k, t in state.items() if k not in {*reset, *unused, *other}})
        taken = [key for key in own if key in state and key not in {*reset, *other}]
        for key in taken:
            own[key].copy_(state[key])
        return {
            "file": self.name,
            "sha256": self.sha256,
            "kind": self.kind,
            "layout": self.layout,
            "taken": taken,
            "resampled": resampled,
            "reset": reset,
            "own": sorted([*kept, *other]),
            "unused": sorted(unused),
        }

    def _check_finite(self) -> None:
        """Raise if a weight is NaN or infinite, with which no step can be taken."""
        for key, tensor in self.tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ConfigError(
                    f"{self.key}={self.name!r} must have finite weights, got NaN or infinity in "
                    f"{key!r}"
                )

    def _reset_head(
        self, network: Model, state: Mapping[str, Tensor], own: Mapping[str, Tensor], *, force: bool
    ) -> list[str]:
        """The names of the classifier's tensors if it must stay as it is initialized."""
        mine = [key for key in own if key.startswith(_HEAD)]
        names = network.config.class_names
        known = self.class_names is not None and names is not None
        same_classes = not known or self.class_names == names
        fits = all(key in state and state[key].shape == own[key].shape for key in mine)
        return mine if force or not (fits and same_classes) else []

    def _resample(
        self, network: Model, state: dict[str, Tensor], own: Mapping[str, Tensor]
    ) -> dict[str, list[list[int]]]:
        """Replace learned positions of another size in `state`; return old and new shapes."""
        old, new = state.get(_POSITIONS), own.get(_POSITIONS)
        if old is None or new is None or old.shape == new.shape:
            return {}
        if old.dim() != 3 or old.shape[2] != new.shape[2]:
            return {}  # `_check` names the difference
        prefix = network.num_prefix_positions
        if isinstance(network, SequenceTransformer):
            table = resample_line_positions(old, new.shape[1] - prefix, prefix)
        else:
            grid = self.grid or self._square(old.shape[1] - prefix)
            if grid[0] * grid[1] + prefix != old.shape[1]:
                return {}
            table = resample_grid_positions(old, grid, network.patch_embed.grid_size, prefix)
        state[_POSITIONS] = table
        return {_POSITIONS: [list(old.shape), list(table.shape)]}

    def _square(self, count: int) -> tuple[int, int]:
        side = math.isqrt(max(0, count))
        if side * side != count:
            raise ConfigError(
                f"{self.key}={self.name!r} must have positions of a square grid of patches to be "
                f"resampled, got {count} positions; a run folder or a saved model records its grid"
            )
        return side, side

    def _check(self, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
        """Raise unless all tensors of the model but those of attentions and the head are given."""
        faults = []
        for key, tensor in own.items():
            if key in given:
                if key in _INPUTS and given[key].shape[1:2] != tensor.shape[1:2]:
                    raise ConfigError(
                        f"{self.key}={self.name!r} must have the input channels of the data, "
                        f"{tensor.shape[1]}, got {given[key].shape[1]}"
                    )
                if given[key].shape != tensor.shape:
                    shapes = f"{tuple(given[key].shape)} instead of {tuple(tensor.shape)}"
                    faults.append(f"{key!r} of shape {shapes}")
            elif _CORE not in key and not key.startswith(_HEAD):
                near = near_matches(key, [name for name in given if name not in own])
                hint = f" (it has {' and '.join(map(repr, near[:1]))})" if near else ""
                faults.append(f"no {key!r}{hint}")
        missing = len(faults)
        faults += [f"{key!r}, which has no place" for key in given if key not in own]
        if faults:
            shown = faults[:2] if missing else faults[:3]
            told = shorten(listed(shown), MAX_MESSAGE)
            number = "1 difference" if len(faults) == 1 else f"{len(faults)} differences"
            raise ConfigError(
                f"{self.key}={self.name!r} must have the weights of the model, got {number}: {told}"
            )


@dataclass(frozen=True)
class InitialWeights:
    """The tensors of a safetensors file, of which those that fit are copied into a model."""

    name: str
    sha256: str
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, path: str | Path) -> InitialWeights:
        """Read a file."""
        try:
            with open_regular(Path(path)) as file:
                content = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(content)
            tensors = parse_tensors(content)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"initial weights {str(path)!r}: {reason}") from None
        except ConfigError as error:
            raise ConfigError(
                f"initial weights {str(path)!r}: not a whole safetensors file ({error})"
            ) from None
        return cls(Path(path).name, hashlib.sha256(content).hexdigest(), tensors)

    @torch.no_grad()
    def fill(self, network: nn.Module) -> dict[str, Any]:
        """Copy tensors of the same name and shape into the network; return the record of it.

        Other tensors of the network, such as the features of its attention, keep their values. The
        record is written to `initial.json`.

        Raises:
            ConfigError: No tensor fits.
        """
        taken, own = [], []
        for name, tensor in network.state_dict().items():
            given = self.tensors.get(name)
            if given is not None and given.shape == tensor.shape:
                tensor.copy_(given)
                taken.append(name)
            else:
                own.append(name)
        if not taken:
            raise ConfigError(
                f"initial weights {self.name!r}: none of its {len(self.tensors)} tensors has the "
                f"name and shape of a tensor of the model, such as {own[0]!r}"
            )
        return {"file": self.name, "sha256": self.sha256, "taken": taken, "own": own}


def read_pretrained(
    source: str | Path, weights: Literal["best", "last"] | None = None
) -> Pretrained:
    """Read weights to start from.

    Args:
        source: A run folder; a folder of `save_pretrained`, or the id of a model on the Hub; a
            safetensors file or a PyTorch file of tensors, in any layout of
            `saccade.integrations.layouts`.
        weights: `best` or `last` weights of a run; by default as its `train.evaluate_with` says.

    Raises:
        ConfigError: There is nothing to read, or it does not hold the weights of a transformer.
    """
    path = Path(source)
    if path.is_dir() and RunFolder(path).exists():
        return _from_run(path, str(source), weights)
    if weights is not None:
        raise ConfigError(
            f"init.weights must be null for init.from={str(source)!r}, which is no run folder, "
            f"got {weights!r}"
        )
    if path.is_file():
        return _from_file(path, str(source), "file")
    if path.is_dir() and not (path / CONFIG_FILE).is_file():
        raise ConfigError(
            f"init.from must be a run folder, a folder with {CONFIG_FILE} or a file of weights, "
            f"got the folder {str(source)!r}"
        )
    if not path.is_dir() and (path.suffix or str(source).count("/") != 1):
        raise ConfigError(f"init.from must exist, got {str(source)!r}")
    return _from_folder(fetch_folder(str(source)), str(source))


def _from_run(path: Path, name: str, weights: Literal["best", "last"] | None) -> Pretrained:
    model, info, file = load_weights(RunFolder.open(path), weights)
    assert isinstance(model, Model)
    grid = model.patch_embed.grid_size if isinstance(model, VisionTransformer) else None
    tensors = load_file(file)
    return Pretrained(
        name, "run", "saccade", sha256_file(file), tensors, tuple(info.class_names), grid
    )


def _from_folder(folder: Path, name: str) -> Pretrained:
    record, file = read_config(folder), folder / WEIGHTS_FILE
    known = _from_file(file, name, "saved model")
    check_weights_hash(folder, record)
    names, side, patch = (record.get(key) for key in ("class_names", "img_size", "patch_size"))
    sizes = [*side, patch] if isinstance(side, list) and len(side) == 2 else []
    is_known = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
    grid = (sizes[0] // sizes[2], sizes[1] // sizes[2]) if is_known else None
    classes = tuple(map(str, names)) if isinstance(names, list) else None
    return Pretrained(name, known.kind, known.layout, known.sha256, known.tensors, classes, grid)


def _from_file(path: Path, name: str, kind: Literal["saved model", "file"]) -> Pretrained:
    given = read_checkpoint(path)
    try:
        layout = detect_layout(given)
    except ConfigError as error:
        raise ConfigError(f"init.from={name!r}: {error}") from None
    return Pretrained(name, kind, layout, sha256_file(path), from_layout(given, layout))


def read_start(
    config: Config,
    run: RunFolder,
    given: str | Path | InitialWeights | Pretrained | None,
    *,
    resume: bool,
) -> InitialWeights | Pretrained | None:
    """The weights that a run starts from: the given ones, else those of `init.from`.

    A run that resumes from a checkpoint does not need `init.from`, which may be gone by then.
    """
    if isinstance(given, (str, Path)):
        return InitialWeights.read(given)
    if given is not None or (not config.init.source and not config.model.pretrained):
        return given
    if resume and run.exists() and run.newest_intact()[0] is not None:
        return None
    return read_configured(config)


def check_initial(run: RunFolder, initial: InitialWeights | Pretrained | None) -> None:
    """Raise if a run without checkpoint started from other weights than the given ones."""
    recorded = run.initial().get("sha256")
    given = initial.sha256 if initial is not None else None
    if recorded is not None and given is None:
        raise ConfigError(
            f"{str(run.path)!r} started from given weights ({run.initial()['file']}) and has no "
            "checkpoint: continue it with the command that it was started with"
        )
    if recorded is not None and given != recorded:
        raise ConfigError(f"{str(run.path)!r} started from other weights than those given")


def read_configured(config: Config) -> Pretrained | None:
    """The weights of `model.pretrained` or `init.from`; None if neither is set."""
    if (name := config.model.pretrained) is not None:
        found = read_pretrained(pretrained_folder(name))
        return replace(found, name=name, key="model.pretrained")
    source = config.init.source
    return None if source is None else read_pretrained(source, config.init.weights)


def with_pretrained_model(config: Config) -> Config:
    """The configuration with the architecture of `model.pretrained`; unchanged without it.

    The run's configuration then describes its model whole, so that its folder can be used where the
    pretrained weights are not.
    """
    name = config.model.pretrained
    if name is None:
        return config
    if config.init.source is not None:
        raise ConfigError(
            f"init.from must be null with model.pretrained={name!r}: give one of both"
        )
    record = read_config(pretrained_folder(name))
    variant, given = str(record["name"]), config.model
    own = MODELS[variant].config
    overrides = {
        spec.name: record[spec.name]
        for spec in fields(own)
        if spec.name in record
        and spec.name not in {*SET_ELSEWHERE, "feature_seed"}
        and _plain(getattr(own, spec.name)) != record[spec.name]
    }
    same_attention = given.attention in {None, record["attention"]}
    options = record["attention_options"] if same_attention else {}
    changes: dict[str, Any] = {
        "model.name": variant,
        "model.attention": given.attention or record["attention"],
        "model.overrides": overrides | given.overrides,
        "model.attention_options": {**options, **given.attention_options},
    }
    if config.data.image_size is None and config.data.has_any_size:
        changes["data.image_size"] = record["img_size"][0]
    return with_values(config, changes)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def fill_start(
    network: nn.Module, config: Config, initial: InitialWeights | Pretrained | None
) -> dict[str, Any] | None:
    """Copy initial weights into a new network; return the record, or None without weights."""
    if isinstance(initial, Pretrained):
        return initial.fill(network, reset_head=config.init.reset_head)
    return None if initial is None else initial.fill(network)


def describe_start(record: Mapping[str, Any]) -> str:
    """A line about the record of `Pretrained.fill`, for the log."""
    parts = [f"{len(record['taken'])} tensors of {record['file']!r}"]
    for key, (old, new) in record["resampled"].items():
        parts.append(f"{key} resampled from {old[1]} to {new[1]} positions")
    if record["reset"]:
        parts.append("classifier reset")
    if record["own"]:
        parts.append(f"{len(record['own'])} tensors of attentions initialized")
    if record["unused"]:
        parts.append(f"{len(record['unused'])} tensors not used")
    return f"starting from {'; '.join(parts)}"
