"""What a model is made of: frozen records that check themselves.

`TransformerConfig` holds what images and sequences share, `ViTConfig` and `SequenceConfig` add
their inputs. Every field is an override of `create_model` and a key of a saved `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

from saccade.errors import ConfigError, UnknownNameError
from saccade.layers.choices import Activation, Positions, SequenceEmbedding, StemName

__all__ = ["SequenceConfig", "TransformerConfig", "ViTConfig", "override"]

Pooling = Literal["token", "avg", "map"]
ConfigT = TypeVar("ConfigT", bound="TransformerConfig")


_OPTIONAL_INTEGERS = (
    "head_dim",
    "mlp_hidden_dim",
    "head_hidden_dim",
    "feature_seed",
    "stem_dim",
)


def _require(ok: bool, argument: str, value: object, accepted: str) -> None:
    if not ok:
        raise ConfigError(f"{argument}={value!r}: expected {accepted}")


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What every transformer here has.

    Args:
        attention: A name of `list_attentions()`.
        attention_options: Options of that attention, such as `num_features` of a performer.
        feature_seed: Seed of the random features of block 0; block i gets `feature_seed + i`.
            None draws the seeds from torch's generator. Attentions without random features have
            no use for it, and a `feature_seed` in `attention_options` goes before it.
        num_classes: Logits; 0 leaves the head out.
        embed_dim: Width C.
        depth: Number of blocks.
        num_heads: Heads; must divide `embed_dim` unless `head_dim` is given.
        head_dim: Width of a head, where it is not `embed_dim / num_heads`.
        mlp_ratio: Hidden features of the MLPs over `embed_dim`.
        mlp_hidden_dim: Hidden features as a number; goes before `mlp_ratio`.
        act: Exact GELU or its tanh approximation.
        qkv_bias: Whether queries, keys and values have a bias.
        init_values: Start of the layer scales; None for none.
        class_token: Whether a learned token is put in front.
        global_pool: Read the class token, average the patches, or pool them by attention.
        pos_embed: Kind of positions.
        final_norm: Whether a LayerNorm follows the blocks.
        fc_norm: Whether that norm comes after pooling; None: only where pooling averages.
        head_hidden_dim: Hidden features of the head; None for a linear head.
        drop_rate: Dropout in the head.
        pos_drop_rate: Dropout of the embedded tokens.
        proj_drop_rate: Dropout after the attention's projection and in the MLPs.
        attn_drop_rate: Dropout of attention weights, for the attentions that have them.
        drop_path_rate: Stochastic depth of the last block; earlier ones rise to it linearly.
        init_std: Standard deviation of the truncated normal that linear maps start from.
        class_names: Names of the classes, in the order of the logits.
    """

    attention: str = "softmax"
    attention_options: Mapping[str, Any] = field(default_factory=dict)
    feature_seed: int | None = None
    num_classes: int = 1000
    embed_dim: int = 192
    depth: int = 12
    num_heads: int = 3
    head_dim: int | None = None
    mlp_ratio: float = 4.0
    mlp_hidden_dim: int | None = None
    act: Activation = "gelu"
    qkv_bias: bool = True
    init_values: float | None = None
    class_token: bool = True
    global_pool: Pooling = "token"
    pos_embed: Positions = "learned"
    final_norm: bool = True
    fc_norm: bool | None = None
    head_hidden_dim: int | None = None
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    init_std: float = 0.02
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_classes()
        _require(
            isinstance(self.attention_options, Mapping),
            "attention_options",
            self.attention_options,
            "a mapping from option names to values",
        )
        object.__setattr__(self, "attention_options", dict(self.attention_options))

    def _check_numbers(self) -> None:
        for name, least in self._least_values().items():
            value = getattr(self, name)
            optional = name in _OPTIONAL_INTEGERS
            accepted = f"an integer of at least {least}" + (" or None" if optional else "")
            _require((optional and value is None) or _is_int(value, least), name, value, accepted)
        for name in ("drop", "pos_drop", "proj_drop", "attn_drop", "drop_path"):
            rate = getattr(self, f"{name}_rate")
            _require(_is_number(rate) and 0 <= rate < 1, f"{name}_rate", rate, "a number in [0, 1)")
        for name in ("mlp_ratio", "init_std"):
            value = getattr(self, name)
            _require(_is_number(value) and value > 0, name, value, "a positive number")
        _require(
            self.init_values is None or _is_number(self.init_values),
            "init_values",
            self.init_values,
            "a number or None",
        )
        _require(
            self.head_dim is not None or self.embed_dim % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"a divisor of embed_dim={self.embed_dim}, or head_dim given too",
        )

    def _least_values(self) -> dict[str, int]:
        """The smallest value of every integer field."""
        positive = ("embed_dim", "depth", "num_heads")
        optional = ("head_dim", "mlp_hidden_dim", "head_hidden_dim")
        return dict.fromkeys(positive + optional, 1) | {"num_classes": 0, "feature_seed": 0}

    def _check_choices(self) -> None:
        for name, known in self._choices().items():
            value = getattr(self, name)
            if value not in known:
                raise UnknownNameError(name, str(value), known)
        for name in ("qkv_bias", "class_token", "final_norm"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "a bool")
        _require(
            self.class_token or self.global_pool != "token",
            "global_pool",
            self.global_pool,
            "'avg' or 'map' where class_token=False",
        )
        _require(
            self.global_pool != "map" or self.embed_dim % self.num_heads == 0,
            "global_pool",
            self.global_pool,
            f"'token' or 'avg' where num_heads={self.num_heads} does not divide embed_dim",
        )

    def _choices(self) -> dict[str, tuple[str, ...]]:
        """The closed choices, by field."""
        return {
            "act": get_args(Activation),
            "global_pool": get_args(Pooling),
            "pos_embed": get_args(Positions),
        }

    def _check_classes(self) -> None:
        if self.class_names is None:
            return
        given: object = self.class_names
        if not isinstance(given, (tuple, list)):
            raise ConfigError(f"class_names={given!r}: expected a list of names or None")
        names = tuple(map(str, given))
        _require(
            len(names) == self.num_classes,
            "class_names",
            names,
            f"num_classes={self.num_classes} names, not {len(names)}",
        )
        object.__setattr__(self, "class_names", names)

    @property
    def mlp_features(self) -> int:
        """Hidden features of the MLPs."""
        if self.mlp_hidden_dim is not None:
            return self.mlp_hidden_dim
        return max(1, int(self.embed_dim * self.mlp_ratio))

    @property
    def norm_after_pool(self) -> bool:
        """Whether the final norm comes after pooling."""
        return self.global_pool == "avg" if self.fc_norm is None else self.fc_norm


@dataclass(frozen=True, kw_only=True)
class ViTConfig(TransformerConfig):
    """A transformer over images.

    Args:
        img_size: Height and width; one integer for both.
        in_chans: Channels.
        stem: What turns images into tokens.
        stem_dim: Width of the first convolution of the stem `conv_residual`, doubled at every
            halving but the last; None for embed_dim over the patch's side.
        patch_size: Pixels a token stands for along each side.
        window: Side, or (height, width), of attention windows in tokens; None for global attention.
        shifted: Whether every second block shifts its windows by half a window.
        mean: Mean of the normalisation that inputs have been through, one a channel.
        std: Its standard deviation.
    """

    img_size: tuple[int, int] = (224, 224)
    in_chans: int = 3
    stem: StemName = "patch"
    stem_dim: int | None = None
    patch_size: int = 16
    window: int | tuple[int, int] | None = None
    shifted: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", _pair("img_size", self.img_size))
        super().__post_init__()
        if self.window is not None:
            object.__setattr__(self, "window", _pair("window", self.window))
        _require(
            self.window is not None or not self.shifted,
            "shifted",
            self.shifted,
            "False or a window",
        )
        for name in ("mean", "std"):
            values = getattr(self, name)
            ok = isinstance(values, (tuple, list)) and all(map(_is_number, values))
            _require(
                ok and len(values) == self.in_chans,
                name,
                values,
                f"in_chans={self.in_chans} numbers",
            )
            object.__setattr__(self, name, tuple(float(value) for value in values))

    def _least_values(self) -> dict[str, int]:
        return super()._least_values() | {"in_chans": 1, "patch_size": 1, "stem_dim": 1}

    def _choices(self) -> dict[str, tuple[str, ...]]:
        return super()._choices() | {"stem": get_args(StemName)}


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(TransformerConfig):
    """A transformer over sequences.

    Args:
        max_seq_len: Longest sequence that the positions cover.
        input_dim: Features of a token, or number of symbols for the embedding `token`.
        embedding: What turns the input into tokens.
    """

    max_seq_len: int = 1024
    input_dim: int = 256
    embedding: SequenceEmbedding = "linear"
    pos_embed: Positions = "sinusoidal_1d"

    def _least_values(self) -> dict[str, int]:
        return super()._least_values() | {"max_seq_len": 1, "input_dim": 1}

    def _choices(self) -> dict[str, tuple[str, ...]]:
        choices = super()._choices() | {"embedding": get_args(SequenceEmbedding)}
        return choices | {"pos_embed": ("learned", "sinusoidal_1d", "none")}


def _pair(argument: str, size: object) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    _require(
        len(sides) == 2 and all(_is_int(side, 1) for side in sides),
        argument,
        size,
        "a positive integer or (height, width)",
    )
    return sides[0], sides[1]


def override(config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """A copy of `config` with some fields changed; unknown fields raise and suggest.

    Another attention drops the options of the old one, another number of classes its names, and
    another number of channels its normalisation (0.5 each then), unless they are given as well.
    """
    known = [spec.name for spec in fields(config)]
    for name in changes:
        if name not in known:
            raise UnknownNameError("model option", name, known)
    changed = {name for name in changes if changes[name] != getattr(config, name)}
    implied: dict[str, Any] = {}
    if "attention" in changed:
        implied["attention_options"] = {}
    if "num_classes" in changed:
        implied["class_names"] = None
    if "in_chans" in changed and _is_int(changes["in_chans"], 1):
        implied |= dict.fromkeys(("mean", "std"), (0.5,) * changes["in_chans"])
    return replace(config, **(implied | dict(changes)))
