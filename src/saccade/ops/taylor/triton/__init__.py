"""Fused Taylor attention in Triton, both algorithms, forward and backward.

Importing this package needs triton; callers ask `saccade.ops.backends` first.
"""

from saccade.ops.launches import INTERPRETED
from saccade.ops.taylor.triton.operators import fused

__all__ = ["INTERPRETED", "fused"]
