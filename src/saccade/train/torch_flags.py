"""Set torch's global flags for a run, and restore them afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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
    with ExitStack() as flags:
        _restore_flags(flags)
        if deterministic:
            os.environ.setdefault(WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = not deterministic
        torch.set_float32_matmul_precision("high" if uses_cuda(config) else "highest")
        yield


def _restore_flags(flags: ExitStack) -> None:
    """Let the stack restore the present flags, those of single backends after those of all."""
    if WORKSPACE not in os.environ:
        flags.callback(os.environ.pop, WORKSPACE, None)
    for backend in BACKENDS:
        flags.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
    with suppress(RuntimeError):  # the backends differ
        flags.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    flags.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    flags.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def uses_cuda(config: Config) -> bool:
    """True if a run with this configuration trains on a GPU."""
    return config.train.device != "cpu" and torch.cuda.is_available()
