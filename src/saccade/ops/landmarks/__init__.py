"""Attention through a few landmarks: means of runs of tokens, a pseudo-inverse, EVA."""

from saccade.ops.landmarks.inverse import iterated_inverse
from saccade.ops.landmarks.segments import segment_means

__all__ = ["iterated_inverse", "segment_means"]
