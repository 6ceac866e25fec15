"""Attention maps of any attention, attention rollout, and overlays of maps on images."""

from saccade.explain.maps import AttentionMaps, Method, attention_maps, rollout
from saccade.explain.sheet import overlay

__all__ = ["AttentionMaps", "Method", "attention_maps", "overlay", "rollout"]
