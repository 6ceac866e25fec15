"""Setting torch up as a configuration wants it, or saying that this machine cannot."""

from __future__ import annotations

import os

import torch

from saccade.config import Config
from saccade.errors import ConfigError
from saccade.train.trackers import check_trackers

__all__ = ["set_up_machine"]


def set_up_machine(config: Config) -> None:
    """Choose determinism and the precision of products, for the whole process.

    Raises:
        ConfigError: The precision needs another device, or a tracker is not installed.
    """
    use_cuda = config.train.device != "cpu" and torch.cuda.is_available()
    if config.train.precision == "fp16" and not use_cuda:
        raise ConfigError("train.precision='fp16' needs a GPU; use bf16 or fp32 on CPU")
    check_trackers(config.run.trackers)
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.train.deterministic)
    torch.backends.cudnn.benchmark = not config.train.deterministic
    torch.set_float32_matmul_precision("high" if use_cuda else "highest")
