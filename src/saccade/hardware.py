"""What people call a device."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["cpu_name", "device_name"]


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor."""
    if device.type != "cuda":
        return cpu_name()
    from torch.cuda import get_device_name

    return get_device_name(device)


def cpu_name() -> str:
    """The model of the processor, or its architecture where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
