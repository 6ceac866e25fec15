"""The closed choices of the layers, apart from the layers: a model's config needs no torch."""

from typing import Literal

__all__ = ["Activation", "Positions", "SequenceEmbedding", "StemName"]

Activation = Literal["gelu", "gelu_tanh"]
Positions = Literal["learned", "sinusoidal_1d", "sinusoidal_2d", "none"]
SequenceEmbedding = Literal["linear", "conv", "token"]
StemName = Literal["patch", "patch_linear", "conv", "conv_pool", "conv_patch", "conv_residual"]
