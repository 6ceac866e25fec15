"""Read checkpoints of other libraries, and load them into models of saccade.

Two kinds of file are read: safetensors, and PyTorch files of tensors (`torch.load` with
`weights_only=True`). A pickle that would run code is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from saccade.errors import ConfigError, listed, shorten
from saccade.integrations.layouts import detect_layout, from_layout
from saccade.io import check_regular
from saccade.models.hub import clean_state_dict

__all__ = ["Loaded", "load_checkpoint", "read_checkpoint"]

_NESTED = ("state_dict", "model", "model_state_dict", "teacher", "module")
"""Keys below which training scripts keep the weights."""


@dataclass(frozen=True)
class Loaded:
    """What `load_checkpoint` did.

    Attributes:
        layout: Layout of the file.
        own: Parameters of attentions that the file lacks; they kept their values.
    """

    layout: str
    own: tuple[str, ...]


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a file, on the CPU, under the names that the file has.

    Raises:
        ConfigError: The file is missing, of another kind, or a pickle that would run code.
    """
    path = Path(path)
    try:
        check_regular(path)
        found: Any = load_file(path) if _is_safetensors(path) else _load_pickle(path)
    except OSError as error:
        raise ConfigError(f"weights {str(path)!r}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RuntimeError, EOFError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"weights {str(path)!r}: {_first_line(error)}") from None
    for key in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    is_flat = isinstance(found, Mapping) and all(isinstance(key, str) for key in found)
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)} if is_flat else {}
    if not tensors:
        raise ConfigError(f"weights {str(path)!r} must hold tensors by name, got none")
    return clean_state_dict(tensors)


def _is_safetensors(path: Path) -> bool:
    """True for a file that starts with the length of a JSON object."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _load_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"weights {str(path)!r} must be a safetensors file or a PyTorch file of tensors; a "
            f"pickle with other objects is refused, because it can run code ({_reason(error)})"
        ) from None


def _reason(error: Exception) -> str:
    """The object that torch refused, out of its long message."""
    for line in str(error).splitlines():
        if "GLOBAL" in line or "Unsupported" in line:
            return shorten(line.strip().removeprefix("WeightsUnpickler error: "), 120)
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return shorten((str(error).splitlines() or [type(error).__name__])[0], 160)


def load_checkpoint(
    model: nn.Module, weights: str | Path | Mapping[str, Tensor], layout: str | None = None
) -> Loaded:
    """Load the weights of another library into a model of saccade.

    The parameters of an attention, below `attn.core`, may be missing: a softmax checkpoint loads
    into a model with any attention.

    Args:
        model: The model.
        weights: A file, or tensors by name.
        layout: One of `LAYOUTS`; None to detect it.

    Raises:
        ConfigError: The file cannot be read, or its tensors do not fit the model.
    """
    given = weights if isinstance(weights, Mapping) else read_checkpoint(weights)
    layout = layout or detect_layout(given)
    state, own = from_layout(given, layout), model.state_dict()
    missing = [key for key in own if key not in state]
    kept = tuple(key for key in missing if ".attn.core." in key)
    faults = [f"no {key!r}" for key in missing if key not in kept]
    faults += [f"{key!r} has no place" for key in state if key not in own]
    faults += [
        f"{key!r} is {tuple(tensor.shape)} instead of {tuple(own[key].shape)}"
        for key, tensor in state.items()
        if key in own and tensor.shape != own[key].shape
    ]
    if faults:
        raise ConfigError(
            f"weights in the layout {layout!r} must fit the model, got {len(faults)} differences: "
            f"{listed(faults[:3])}"
        )
    model.load_state_dict(state, strict=False)
    return Loaded(layout, kept)
