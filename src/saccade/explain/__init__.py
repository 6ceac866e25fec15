"""What a model looks at: attention maps of every mechanism, rolled out, laid over the image."""

from saccade.explain.maps import AttentionMaps, Method, attention_maps, rollout
from saccade.explain.overlay import overlay

__all__ = ["AttentionMaps", "Method", "attention_maps", "overlay", "rollout"]
