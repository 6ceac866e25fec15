"""The residual addition and the layer norm after it."""

from saccade.ops.norm.residual import add_norm

__all__ = ["add_norm"]
