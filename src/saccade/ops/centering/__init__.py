"""Keys minus their mean over the attended keys."""

from saccade.ops.centering.keys import centered_keys

__all__ = ["centered_keys"]
