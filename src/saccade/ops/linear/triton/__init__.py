"""Linear attention fused on the GPU: features are formed in registers and never stored.

Forward two passes (keys, queries), backward three; see the README of `ops/linear`. This package
needs triton: import it where it is used.
"""

from saccade.ops._triton.launch import INTERPRETED
from saccade.ops.linear.triton.api import fused

__all__ = ["INTERPRETED", "fused"]
