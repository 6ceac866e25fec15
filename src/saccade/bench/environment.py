"""What a benchmark ran on: hardware, driver, versions, git revision, command line."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from saccade.errors import ConfigError
from saccade.hardware import cpu_name, device_name
from saccade.version import __version__

__all__ = ["describe_environment", "hardware_slug", "resolve_device"]

PACKAGES = ("torch", "triton", "numpy", "performer-pytorch")


def resolve_device(name: str) -> torch.device:
    """The device of a name; `auto` is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}; accepted: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda'; torch finds no CUDA device here, 'cpu' would work")
    return torch.device(name)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Everything that a number depends on, as JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.type,
        "device_name": device_name(device),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(device),
        "driver": _driver() if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "saccade": __version__,
        "packages": {name: _version(name) for name in PACKAGES},
        "git_revision": _git_revision(),
        "command": shlex.join(["saccade", *_without_folder(sys.argv[1:])]),
    }


def _without_folder(arguments: Sequence[str]) -> list[str]:
    """What was typed, less `--out` and its folder: that belongs to one machine."""
    kept, words = [], iter(arguments)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return kept


def hardware_slug(device: torch.device) -> str:
    """A short name for files: `h200`, `cpu`."""
    if device.type != "cuda":
        return device.type
    words = re.sub(r"(?i)\b(nvidia|amd|geforce|tesla)\b", "", device_name(device)).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "gpu"


def _memory_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return round(torch.cuda.get_device_properties(device).total_memory / 2**30, 1)
    if not hasattr(os, "sysconf"):
        return 0.0
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    return _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _git_revision() -> str | None:
    """The commit of this file, `+` if tracked files beside it changed; None outside git."""
    here = ("git", "-C", str(Path(__file__).parents[1]))
    revision = _ask(*here, "rev-parse", "HEAD")
    if revision is None:
        return None
    return revision + ("+" if _ask(*here, "status", "--porcelain", "-uno", ".") else "")


def _ask(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None
