"""Tensors to a safetensors file, with the rights of any other file of the user's."""

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
    """Write tensors to a file that whoever may read its neighbours may read.

    Args:
        tensors: By name; contiguous, none of them sharing memory with another.
        path: The file.
        metadata: Text to store beside the tensors.

    Raises:
        OSError: The disk is full or cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode  # as the umask has it; safetensors' own files are their owner's only
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:  # how safetensors tells of a full disk
        number = re.search(r"\(os error (\d+)\)", str(error))
        told = (int(number[1]), os.strerror(int(number[1]))) if number else (str(error),)
        raise OSError(*told) from None
    path.chmod(mode)
