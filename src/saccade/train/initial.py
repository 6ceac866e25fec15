"""Initial weights from a file: matching tensors are copied, and their names are recorded."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.io import open_regular
from saccade.models.weight_files import parse_tensors
from saccade.runs import RunFolder

__all__ = ["InitialWeights", "check_initial"]


class Hashed(Protocol):
    """Initial weights of which a run records the hash."""

    @property
    def sha256(self) -> str:
        """The hash of their file."""


@dataclass(frozen=True)
class InitialWeights:
    """The tensors of a safetensors file, and the hash that a run records."""

    name: str
    sha256: str
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, path: str | Path) -> InitialWeights:
        """Read a file.

        Raises:
            ConfigError: The file is missing, or not a whole safetensors file.
        """
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


def check_initial(run: RunFolder, initial: Hashed | None) -> None:
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
