"""Set torch's global flags for a run, and restore them afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from saccade.config import Config
from saccade.errors import ConfigError
from saccade.train.trackers import check_trackers

__all__ = ["check_machine", "set_up_machine", "uses_cuda"]

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
BACKENDS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
)


def check_machine(config: Config) -> None:
    """Raise if this machine cannot run the configuration.

    Raises:
        ConfigError: The precision needs another device, or a tracker is not installed.
    """
    if config.train.precision == "fp16" and not uses_cuda(config):
        raise ConfigError("train.precision='fp16' needs a GPU; use bf16 or fp32 on CPU")
    check_trackers(config.run.trackers)


@contextmanager
def set_up_machine(config: Config) -> Iterator[None]:
    """Set determinism and the precision of matrix products for the whole process, within a block.

    The previous flags are restored afterwards, with two exceptions. cuBLAS may have read
    `CUBLAS_WORKSPACE_CONFIG` already. If the caller set the precision of a single backend, the
    value of `torch.get_float32_matmul_precision` cannot be read before, and so not restored.
    """
    check_machine(config)
    deterministic = config.train.deterministic
    before = _Flags.read()
    try:
        if deterministic:
            os.environ.setdefault(WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = not deterministic
        torch.set_float32_matmul_precision("high" if uses_cuda(config) else "highest")
        yield
    finally:
        before.write()


def uses_cuda(config: Config) -> bool:
    """True if a run with this configuration trains on a GPU."""
    return config.train.device != "cpu" and torch.cuda.is_available()


@dataclass(frozen=True)
class _Flags:
    """The flags that `set_up_machine` changes.

    Attributes:
        precision: float32 matmul precision of all backends; None if they differ.
        precisions: float32 matmul precision of each of `BACKENDS`.
    """

    deterministic: bool
    warn_only: bool
    benchmark: bool
    precision: str | None
    precisions: tuple[str, ...]
    workspace: str | None

    @classmethod
    def read(cls) -> _Flags:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # the backends differ
            precision = None
        return cls(
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            benchmark=torch.backends.cudnn.benchmark,
            precision=precision,
            precisions=tuple(backend.fp32_precision for backend in BACKENDS),
            workspace=os.environ.get(WORKSPACE),
        )

    def write(self) -> None:
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.benchmark = self.benchmark
        if self.precision is not None:
            torch.set_float32_matmul_precision(self.precision)
        for backend, precision in zip(BACKENDS, self.precisions, strict=True):
            backend.fp32_precision = precision
        if self.workspace is None:
            os.environ.pop(WORKSPACE, None)
