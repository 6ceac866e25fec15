"""What attentions through few landmarks need: means of runs of tokens, and a pseudo-inverse."""

from saccade.ops.landmarks.inverse import iterated_inverse
from saccade.ops.landmarks.segments import segment_means

__all__ = ["iterated_inverse", "segment_means"]
