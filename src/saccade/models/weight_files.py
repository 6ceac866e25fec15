"""Write tensors to a safetensors file with the usual file permissions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

__all__ = ["write_tensors"]


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file whose permissions follow the umask.

    Args:
        tensors: Contiguous tensors by name; no two may share memory.
        path: The file.
        metadata: Text to store with the tensors.

    Raises:
        OSError: The disk is full or cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode  # follows the umask; safetensors creates files with mode 0600
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:  # raised for a full disk, among others
        number = re.search(r"\(os error (\d+)\)", str(error))
        details = (int(number[1]), os.strerror(int(number[1]))) if number else (str(error),)
        raise OSError(*details) from None
    path.chmod(mode)
