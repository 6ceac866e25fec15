"""Linear attention with positive feature maps, such as Performer."""

from saccade.ops.linear.attention import linear_attention, linear_weights
from saccade.ops.linear.feature_maps import (
    elu,
    exp,
    favor_softmax,
    ftheta_mix,
    ftheta_mlp,
    gelu,
    relu,
)
from saccade.ops.linear.performer import FeatureMap, performer_attention, random_features
from saccade.ops.linear.projection import orthogonal_projection

__all__ = [
    "FeatureMap",
    "elu",
    "exp",
    "favor_softmax",
    "ftheta_mix",
    "ftheta_mlp",
    "gelu",
    "linear_attention",
    "linear_weights",
    "orthogonal_projection",
    "performer_attention",
    "random_features",
    "relu",
]
