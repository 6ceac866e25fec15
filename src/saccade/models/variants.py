"""The table of named models; `source` names the origin of their numbers.

Sources: TaylorIR (its README and code); TaylorShift (arXiv:2403.02920 and its code); Efficient
Transformers on CIFAR-10 (a course project on arXiv:2009.14794); VisTransformer (a tutorial on
arXiv:2010.11929); ViT from scratch (github.com/tintn/vision-transformer-from-scratch); timm
(github.com/huggingface/pytorch-image-models).

docs/published.md lists the differences from these sources. When the numbers of a row change,
`upgrades.py` keeps the former ones, for models and runs saved with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from saccade.models.config import SequenceConfig, TransformerConfig, ViTConfig, override
from saccade.models.pretrained import list_pretrained
from saccade.registry import Registry

__all__ = ["MODELS", "Variant", "list_models", "vit_sizes"]


@dataclass(frozen=True)
class Variant:
    """A row of the table of models.

    Args:
        config: Configuration of the model.
        source: Origin of its numbers.
    """

    config: TransformerConfig
    source: str


vit_sizes: dict[str, dict[str, int]] = {
    "na": {"embed_dim": 96, "depth": 2, "num_heads": 2},
    "mu": {"embed_dim": 144, "depth": 6, "num_heads": 3},
    "Ti": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "S": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "B": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "L": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}

_CIFAR = ViTConfig(
    num_classes=10,
    img_size=(32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

# DEVIATION: TaylorIR's README states an FFN of four times the width. Its parameter counts match 768
# hidden features at every width, which is the default here. mlp_hidden_dim=None follows the README.
_TAYLORIR = replace(
    _CIFAR,
    norm_eps=1e-5,
    attention="taylor",
    stem="conv",
    patch_size=1,
    pos_embed="sinusoidal_1d",
    mlp_hidden_dim=768,
    head_hidden_dim=768,
    drop_rate=0.1,
    pos_drop_rate=0.1,
    proj_drop_rate=0.1,
    attn_drop_rate=0.1,
)

_TAYLORSHIFT = ViTConfig(
    attention="taylorshift",
    no_embed_class=True,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)

_VIT_CIFAR = replace(
    _CIFAR,
    patch_size=4,
    embed_dim=256,
    depth=8,
    num_heads=8,
    mlp_ratio=2.0,
    pos_drop_rate=0.1,
    proj_drop_rate=0.1,
)

# DEVIATION: the source flattens this feature map to one token. Here its 16x16 positions are tokens.
_HYBRID_CIFAR = replace(_VIT_CIFAR, stem="conv_pool", patch_size=2)

_RESIDUAL_CIFAR = replace(
    _CIFAR,
    stem="conv_residual",
    patch_size=4,
    embed_dim=256,
    depth=5,
    num_heads=8,
    mlp_ratio=2.0,
    class_token=False,
    global_pool="avg",
)

_LIGHT_VIT = ViTConfig(
    num_classes=10,
    img_size=(28, 28),
    in_chans=1,
    stem="patch_linear",
    patch_size=4,
    embed_dim=8,
    depth=2,
    num_heads=2,
    pos_embed="sinusoidal_1d",
    norm_eps=1e-5,
    mean=(0.1307,),
    std=(0.3081,),
)

_VIT_MICRO = replace(
    _CIFAR,
    patch_size=4,
    embed_dim=48,
    depth=4,
    num_heads=4,
    mlp_hidden_dim=192,
    act="gelu_tanh",
    act_drop_rate=0.0,
    norm_eps=1e-5,
)

_TAYLORIR_SIZES = {
    "small": {"embed_dim": 128, "depth": 4, "num_heads": 4},
    "base": {"embed_dim": 192, "depth": 6, "num_heads": 6},
    "large": {"embed_dim": 256, "depth": 8, "num_heads": 8},
}

# TaylorShift states width, depth, heads, MLP ratio, 4000 bytes for IMDB and 1024 pixels for CIFAR.
# The Long Range Arena (arXiv:2011.04006) states 2000 tokens for ListOps and 32x32 for Pathfinder.
# The 18 symbols are the digits, operators and brackets of ListOps and three special symbols.
_SEQUENCES = {
    task: SequenceConfig(
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        mlp_ratio=mlp_ratio,
        max_seq_len=length,
        input_dim=symbols,
        num_classes=classes,
    )
    for task, width, depth, heads, mlp_ratio, length, symbols, classes in (
        ("listops", 512, 4, 8, 2.0, 2000, 18, 10),
        ("imdb", 256, 4, 4, 4.0, 4000, 256, 2),
        ("cifar_pixel", 256, 1, 4, 1.0, 1024, 256, 10),
        ("pathfinder", 64, 4, 4, 1.0, 1024, 256, 2),
    )
}

# The public PyTorch reruns of the Long Range Arena (Nystroemformer arXiv:2102.03902, Skyformer
# arXiv:2111.00035) use one size for all tasks.
_LRA_SMALL = SequenceConfig(
    embed_dim=64,
    depth=2,
    num_heads=2,
    mlp_hidden_dim=128,
    num_classes=10,
    embedding="token",
    pos_embed="learned",
)

_TIMM_SIZES = {"tiny": vit_sizes["Ti"], "small": vit_sizes["S"], "base": vit_sizes["B"]}

_CIFAR_PERFORMERS = ("", "_relu", "_exp", "_gelu", "_elu", "_ftheta")

MODELS: Registry[Variant] = Registry("model")


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Sorted names of the models that match a shell pattern such as `taylor*`.

    Args:
        pattern: The pattern.
        pretrained: List the names of trained weights instead, such as `residual_cifar.cifar10`.
    """
    return list_pretrained(pattern) if pretrained else MODELS.names(pattern)


def _register(configs: Mapping[str, TransformerConfig], source: str) -> None:
    for name, config in configs.items():
        MODELS.register(name, Variant(config, source))


_register(
    {f"taylorir_{size}": override(_TAYLORIR, dims) for size, dims in _TAYLORIR_SIZES.items()},
    "TaylorIR: README, and its parameter counts for the FFN",
)
_register(
    {
        f"taylorshift_vit_{size.lower()}_patch16_224": override(_TAYLORSHIFT, dims)
        for size, dims in vit_sizes.items()
    },
    "TaylorShift: ViT sizes",
)
_register(
    {
        f"taylorshift_{task}": replace(
            config, attention="taylorshift", embedding="token", no_embed_class=True
        )
        for task, config in _SEQUENCES.items()
    },
    "TaylorShift: sequence sizes",
)
_register({"lra_small": _LRA_SMALL}, "Nystroemformer, Skyformer: the size of their reruns")
_register({"vit_cifar": _VIT_CIFAR}, "Efficient Transformers on CIFAR-10: the ViT baseline")
_register(
    {"hybrid_cifar": _HYBRID_CIFAR},
    "Efficient Transformers on CIFAR-10: its convolutional front before the ViT baseline",
)
_register(
    {
        f"performer{kind}_cifar": replace(_VIT_CIFAR, attention=f"performer{kind}")
        for kind in _CIFAR_PERFORMERS
    },
    "Efficient Transformers on CIFAR-10: its kernels on the ViT baseline",
)
_register(
    {"residual_cifar": _RESIDUAL_CIFAR},
    "saccade: the first two thirds of a ResNet-9 (David Page, How to train your ResNet) and a ViT",
)
_register({"light_vit": _LIGHT_VIT}, "VisTransformer: LightViT on MNIST")
_register({"vit_micro_patch4_32": _VIT_MICRO}, "ViT from scratch: its config")
_register(
    {f"vit_{size}_patch16_224": override(ViTConfig(), dims) for size, dims in _TIMM_SIZES.items()},
    "timm: the same names",
)
