"""One description of the machine: devices, hardware, driver, versions, git revision, command."""

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
from typing import TYPE_CHECKING, Any

from saccade.errors import ConfigError
from saccade.version import __version__

if TYPE_CHECKING:
    import torch

__all__ = [
    "cpu_name",
    "describe_environment",
    "describe_run",
    "device_name",
    "hardware_slug",
    "resolve_device",
]

PACKAGES = ("torch", "triton", "numpy", "accelerate", "safetensors", "performer-pytorch")


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the GPU if there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' needs a GPU, and torch finds none here: use device='cpu'")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the CPU."""
    if device.type != "cuda":
        return cpu_name()
    from torch.cuda import get_device_name

    return get_device_name(device)


def cpu_name() -> str:
    """Return the model name of the CPU, or its architecture if the model is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return everything that a measured number depends on, as JSON values."""
    import torch

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
        "command": shlex.join([*_program(), *_without_folder(sys.argv[1:])]),
    }


def describe_run(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return the environment of a training run, in the form of `environment.json`.

    There `device` is the name of the device and `command` the list of arguments as typed.
    """
    facts = describe_environment(device)
    facts["torch_threads"] = facts.pop("threads")
    facts["device"] = facts.pop("device_name")
    facts["world_size"] = world_size
    program = Path(sys.argv[0]).name.replace("__main__.py", "saccade")
    return facts | {"command": [program, *sys.argv[1:]]}


def _program() -> list[str]:
    """The start of the command line: `saccade`, or a script such as `python -m benchmarks.x`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("benchmarks."):
        return ["python", "-m", spec.name]
    script = Path(sys.argv[0])
    if script.parent.name == "benchmarks":
        return ["python", f"benchmarks/{script.name}"]
    return ["saccade"]


def _without_folder(arguments: Sequence[str]) -> list[str]:
    """Drop `--out` and its folder, which belong to one machine."""
    kept, words = [], iter(arguments)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return kept


def hardware_slug(device: torch.device) -> str:
    """Return a short name for files: `h200`, `cpu`."""
    if device.type != "cuda":
        return device.type
    words = re.sub(r"(?i)\b(nvidia|amd|geforce|tesla)\b", "", device_name(device)).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "gpu"


def _memory_gib(device: torch.device) -> float:
    if device.type == "cuda":
        import torch

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
    return _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _git_revision() -> str | None:
    """Return the commit, with `+` if tracked source files changed; None outside git."""
    here = ("git", "-C", str(Path(__file__).parent))
    revision = _first_line(*here, "rev-parse", "HEAD")
    if revision is None:
        return None
    return revision + ("+" if _first_line(*here, "status", "--porcelain", "-uno", ".") else "")


def _first_line(*command: str) -> str | None:
    """Return the first line that a command prints, or None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else None
