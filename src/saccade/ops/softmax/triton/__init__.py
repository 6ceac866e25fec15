"""Fused softmax attention in Triton for short sequences, forward and backward.

Importing this package needs triton; callers ask `saccade.ops.backends` first.
"""

from saccade.ops.softmax.triton.api import fused

__all__ = ["fused"]
