"""What a run ran on: versions, hardware, git revision."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from saccade.hardware import device_name
from saccade.train.distributed import Ranks
from saccade.version import __version__

__all__ = ["describe_environment"]

PACKAGES = ("torch", "numpy", "accelerate", "safetensors", "triton")


def describe_environment(ranks: Ranks) -> dict[str, Any]:
    """Versions, hardware, git revision and time, as JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "saccade": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device_name(ranks.device),
        "cuda": torch.version.cuda,
        "world_size": ranks.world_size,
        "git_revision": _git_revision(),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "saccade"), *sys.argv[1:]],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    """The commit that this file was checked out from, `+` if files changed; None outside git."""
    folder = Path(__file__).parent
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return revision + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
