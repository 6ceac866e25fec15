"""Names that the layers accept, without torch: a model's config imports only this module."""

from typing import Literal

__all__ = ["Activation", "Positions", "SequenceEmbedding", "StemName"]

Activation = Literal["gelu", "gelu_tanh"]
Positions = Literal["learned", "sinusoidal_1d", "sinusoidal_2d", "none"]
SequenceEmbedding = Literal["linear", "conv", "conv_pyramid", "token"]
StemName = Literal["patch", "patch_linear", "conv", "conv_pool", "conv_patch", "conv_residual"]
