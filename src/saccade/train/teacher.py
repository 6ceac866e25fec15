"""A teacher: the student learns the probabilities of a trained model on the same augmented images.

    loss = (1 - w) CE(targets, student) + w T^2 KL(teacher || student)

with both probabilities at temperature T (arXiv:1503.02531). Student and teacher see identical
views, mixed images included, as arXiv:2106.05237 recommends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.config import Config
from saccade.data import DatasetInfo
from saccade.errors import ConfigError
from saccade.runs import RunFolder
from saccade.train.build import load_weights
from saccade.train.saved_model import is_saved_model, open_saved_model

__all__ = ["Teacher", "read_teacher"]


@dataclass(frozen=True)
class Teacher:
    """A trained model, and how much of the loss it determines."""

    model: nn.Module
    weight: float
    temperature: float

    def __call__(self, images: Tensor) -> Tensor:
        """Logits (B, K) of the teacher."""
        with torch.no_grad():
            logits: Tensor = self.model(images)
        return logits

    def loss(self, logits: Tensor, wanted: Tensor, valid: Tensor, own: Tensor) -> Tensor:
        """The sum of the losses of the valid rows; `own` is that of the targets alone."""
        log_p, log_q = ((x.float() / self.temperature).log_softmax(1) for x in (logits, wanted))
        apart = F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(1)
        taught = self.temperature**2 * (apart * valid).sum()
        return (1 - self.weight) * own + self.weight * taught


def read_teacher(config: Config, info: DatasetInfo, device: torch.device) -> Teacher | None:
    """The teacher of a run; None without `train.teacher`."""
    path = config.train.teacher
    if path is None:
        return None
    model, known = _open(path)
    faults = [
        name
        for name in ("class_names", "image_size", "channels")
        if getattr(known, name) != getattr(info, name)
    ]
    if not faults and not np.allclose(
        (*known.mean, *known.std), (*info.mean, *info.std), atol=1e-4
    ):
        faults = ["mean and std"]
    if faults:
        raise ConfigError(
            f"train.teacher={str(path)!r} must be trained on the data of the run, got other "
            f"{', '.join(faults)}"
        )
    model = model.to(device).eval().requires_grad_(False)
    if config.train.compile:
        model.set_compiled(True)  # type: ignore[operator]
    return Teacher(model, config.train.teacher_weight, config.train.teacher_temperature)


def _open(path: Path) -> tuple[nn.Module, DatasetInfo]:
    if is_saved_model(path):
        return open_saved_model(path)[:2]
    return load_weights(RunFolder.open(path))[:2]
