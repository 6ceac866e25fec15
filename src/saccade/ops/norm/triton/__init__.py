"""Residual addition and layer norm fused in Triton, forward and backward.

Importing this package needs triton; callers ask `saccade.ops.norm.add_norm`, which knows whether
it is there.
"""

from saccade.ops.norm.triton.api import fused

__all__ = ["fused"]
