"""Sizes of tiles and what the device holds, for the launches of all families."""

import functools

import torch

__all__ = ["capability", "ceil_div", "multiprocessors", "power_of_two"]


def ceil_div(n: int, size: int) -> int:
    """How many parts of a size n takes."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 16, as products want it."""
    return max(16, 1 << (n - 1).bit_length())


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many the device has; the interpreter plays an H200."""
    if device.type != "cuda":
        return 132
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@functools.cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of the device; the interpreter plays an H200."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
