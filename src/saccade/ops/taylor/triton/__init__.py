"""Fused Taylor attention in Triton, both algorithms, forward and backward.

Importing this package needs triton; callers ask `saccade.ops.backends` first.
"""

from saccade.ops._triton.launch import INTERPRETED
from saccade.ops.taylor.triton.api import fused
from saccade.ops.taylor.triton.direct_packed import fused_packed, is_short

__all__ = ["INTERPRETED", "fused", "fused_packed", "is_short"]
