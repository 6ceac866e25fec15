"""Centered keys fused in Triton, forward and backward. Importing this package needs triton."""

from saccade.ops.centering.triton.center import fused

__all__ = ["fused"]
