"""Model configurations: frozen dataclasses that validate their fields.

`TransformerConfig` has the fields that image and sequence models share; `ViTConfig` and
`SequenceConfig` add those of their inputs. Every field is an override of `create_model` and a key
of a saved `config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args

from saccade.errors import MAX_VALUE, ConfigError, UnknownNameError, shorten
from saccade.layers.choices import Activation, Positions, SequenceEmbedding, StemName
from saccade.models.size_limits import check_size

__all__ = ["SequenceConfig", "TransformerConfig", "ViTConfig", "override"]

Pooling = Literal["token", "avg", "map", ""]
MAX_IMPLIED_CHANNELS = 1_000_000  # limit for a default mean and std of 0.5 per channel
ConfigT = TypeVar("ConfigT", bound="TransformerConfig")


_OPTIONAL_INTEGERS = {"head_dim", "mlp_hidden_dim", "head_hidden_dim", "feature_seed", "stem_dim"}
_DROPOUTS = ("drop", "pos_drop", "proj_drop", "act_drop", "attn_drop", "drop_path")


def _require(ok: bool, argument: str, value: object, accepted: str) -> None:
    if not ok:
        shown = shorten(repr(value), MAX_VALUE)
        raise ConfigError(f"{argument} must be {accepted}, got {shown}")


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Fields that image and sequence transformers share.

    Args:
        attention: A name from `list_attentions()`.
        attention_options: Options of the attention, such as `num_features` for a performer.
        local_conv: Side of a depthwise convolution of the values over the patches, or over the
            tokens of a sequence. It is added to the output of every attention that is not in
            `softmax_blocks`; None for none.
        softmax_blocks: Blocks that have softmax instead of `attention`, counted from 0.
        feature_seed: Seed of the random features of block 0; block i uses `feature_seed + i`.
            None draws the seeds from torch's generator. Attentions without random features ignore
            it. A `feature_seed` in `attention_options` takes precedence.
        num_classes: Number of logits; 0 for no classifier.
        embed_dim: Width C.
        depth: Number of blocks.
        num_heads: Number of heads; must divide `embed_dim` unless `head_dim` is given.
        head_dim: Width of a head; None for `embed_dim / num_heads`.
        mlp_ratio: Ratio of the hidden features of an MLP to `embed_dim`.
        mlp_hidden_dim: Number of hidden features of an MLP; takes precedence over `mlp_ratio`.
        act: Exact GELU or its tanh approximation.
        qkv_bias: Add a bias to queries, keys and values.
        init_values: Initial value of the layer scales; None for no layer scale.
        class_token: Prepend a learned class token.
        global_pool: `token` uses the class token, `avg` averages the patches, `map` pools them by
            attention, and the empty string classifies every token.
        pos_embed: Kind of position embedding.
        no_embed_class: Give the class token no position, so that the next token has position 0.
        norm_eps: Added to the variance in every LayerNorm.
        final_norm: Apply a LayerNorm after the blocks.
        fc_norm: Apply that norm after pooling. None does so only with average pooling.
        head_hidden_dim: Hidden features of the head; None for a linear head.
        drop_rate: Dropout in the head.
        pos_drop_rate: Dropout of the embedded tokens.
        proj_drop_rate: Dropout after the attention's projection and at the end of the MLPs.
        act_drop_rate: Dropout inside the MLPs, after the activation; None for `proj_drop_rate`.
        attn_drop_rate: Dropout of attention weights, for attentions that compute them.
        drop_path_rate: Stochastic depth rate of the last block; it rises linearly from 0.
        init_std: Standard deviation of the truncated normal that initializes linear layers.
        class_names: Names of the classes, in the order of the logits.
    """

    attention: str = "softmax"
    attention_options: Mapping[str, Any] = field(default_factory=dict)
    local_conv: int | None = None
    softmax_blocks: tuple[int, ...] = ()
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
    no_embed_class: bool = False
    norm_eps: float = 1e-6
    final_norm: bool = True
    fc_norm: bool | None = None
    head_hidden_dim: int | None = None
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    act_drop_rate: float | None = None
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    init_std: float = 0.02
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_classes()
        is_mapping = isinstance(self.attention_options, Mapping)
        self._require(attention_options=(is_mapping, "a mapping from option names to values"))
        object.__setattr__(self, "attention_options", dict(self.attention_options))
        self._check_softmax_blocks()
        check_size(self)

    def _require(self, **checks: tuple[bool, str]) -> None:
        """Raise for the first field whose check, True or False, failed; says what is accepted."""
        for name, (ok, accepted) in checks.items():
            _require(ok, name, getattr(self, name), accepted)

    def _check_softmax_blocks(self) -> None:
        blocks: object = self.softmax_blocks
        is_list = isinstance(blocks, (tuple, list))
        known = is_list and all(_is_int(i, 0) and i < self.depth for i in self.softmax_blocks)
        self._require(softmax_blocks=(known, f"a list of blocks from 0 to {self.depth - 1}"))
        object.__setattr__(self, "softmax_blocks", tuple(sorted(set(self.softmax_blocks))))

    def _check_numbers(self) -> None:
        for name, least in self._least_values().items():
            value = getattr(self, name)
            optional = name in _OPTIONAL_INTEGERS
            accepted = f"an integer of at least {least}" + (" or None" if optional else "")
            _require((optional and value is None) or _is_int(value, least), name, value, accepted)
        for name in _DROPOUTS:
            rate, optional = getattr(self, f"{name}_rate"), name == "act_drop"
            accepted = "a number in [0, 1)" + (" or None" if optional else "")
            is_rate = _is_number(rate) and 0 <= rate < 1
            _require(is_rate or (optional and rate is None), f"{name}_rate", rate, accepted)
        for name in ("mlp_ratio", "init_std", "norm_eps"):
            value = getattr(self, name)
            is_positive = _is_number(value) and 0 < value < math.inf
            _require(is_positive, name, value, "a positive number")
        scale, side = self.init_values, self.local_conv
        is_finite = scale is None or (_is_number(scale) and math.isfinite(scale))
        is_odd = side is None or (_is_int(side, 1) and side % 2 == 1)
        divides = self.head_dim is not None or self.embed_dim % self.num_heads == 0
        self._require(
            init_values=(is_finite, "a finite number or None"),
            local_conv=(is_odd, "an odd number of tokens or None"),
            num_heads=(
                divides,
                f"a divisor of embed_dim={self.embed_dim} unless head_dim is given",
            ),
        )

    def _least_values(self) -> dict[str, int]:
        """The smallest allowed value of every integer field."""
        positive = ("embed_dim", "depth", "num_heads")
        optional = ("head_dim", "mlp_hidden_dim", "head_hidden_dim")
        return dict.fromkeys(positive + optional, 1) | {"num_classes": 0, "feature_seed": 0}

    def _check_choices(self) -> None:
        for name, known in self._choices().items():
            value = getattr(self, name)
            if value not in known:
                raise UnknownNameError(name, str(value), known)
        for name in ("qkv_bias", "class_token", "no_embed_class", "final_norm"):
            self._require(**{name: (isinstance(getattr(self, name), bool), "a bool")})
        has_token = self.class_token or self.global_pool != "token"
        self._require(global_pool=(has_token, "'avg', 'map' or '' with class_token=False"))
        divides = self.global_pool != "map" or self.embed_dim % self.num_heads == 0
        accepted = f"'token' or 'avg' if num_heads={self.num_heads} does not divide embed_dim"
        self._require(global_pool=(divides, accepted))

    def _choices(self) -> dict[str, tuple[str, ...]]:
        """The accepted values of each field with a fixed set of choices."""
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
            raise ConfigError(f"class_names must be a list of names or None, got {given!r}")
        names = tuple(map(str, given))
        _require(
            len(names) == self.num_classes,
            "class_names",
            names,
            f"num_classes={self.num_classes} names (not {len(names)})",
        )
        object.__setattr__(self, "class_names", names)

    @property
    def mlp_features(self) -> int:
        """Number of hidden features of the MLPs."""
        if self.mlp_hidden_dim is not None:
            return self.mlp_hidden_dim
        return max(1, int(self.embed_dim * self.mlp_ratio))

    @property
    def norm_after_pool(self) -> bool:
        """True if the final norm is applied after pooling."""
        return self.global_pool == "avg" if self.fc_norm is None else self.fc_norm


@dataclass(frozen=True, kw_only=True)
class ViTConfig(TransformerConfig):
    """Configuration of an image model.

    Args:
        img_size: Height and width; one integer for both.
        in_chans: Number of channels.
        stem: Layer that turns images into tokens.
        stem_dim: Width of the first convolution of the stem `conv_residual`. The width doubles at
            every halving of the resolution but the last. None for `embed_dim / patch_size`.
        patch_size: Side of a patch in pixels.
        dynamic_img_size: Accept images of other sizes, in multiples of `patch_size`. Positions are
            resampled for each size.
        window: Side, or (height, width), of attention windows in tokens; None for global attention.
        shifted: Shift the windows of every second block by half a window.
        mean: Mean, per channel, that input images are normalized with.
        std: Standard deviation, per channel, that input images are normalized with.
    """

    img_size: tuple[int, int] = (224, 224)
    in_chans: int = 3
    stem: StemName = "patch"
    stem_dim: int | None = None
    patch_size: int = 16
    dynamic_img_size: bool = False
    window: int | tuple[int, int] | None = None
    shifted: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", _pair("img_size", self.img_size))
        super().__post_init__()
        if self.window is not None:
            object.__setattr__(self, "window", _pair("window", self.window))
        self._require(
            shifted=(self.window is not None or not self.shifted, "False without a window"),
            dynamic_img_size=(isinstance(self.dynamic_img_size, bool), "a bool"),
        )
        for name in ("mean", "std"):
            values = getattr(self, name)
            ok = isinstance(values, (tuple, list)) and all(map(_is_number, values))
            accepted = f"in_chans={self.in_chans} numbers"
            self._require(**{name: (ok and len(values) == self.in_chans, accepted)})
            object.__setattr__(self, name, tuple(float(value) for value in values))

    def _least_values(self) -> dict[str, int]:
        return super()._least_values() | {"in_chans": 1, "patch_size": 1, "stem_dim": 1}

    def _choices(self) -> dict[str, tuple[str, ...]]:
        return super()._choices() | {"stem": get_args(StemName)}


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(TransformerConfig):
    """Configuration of a sequence model.

    Args:
        max_seq_len: Maximum sequence length.
        input_dim: Features of a token, or size of the vocabulary for the embedding `token`.
        embedding: Layer that turns the input into tokens.
        pad_symbol: Symbol that marks padding, which the model masks if no `key_mask` is given; None
            for input without padding. Only for the embedding `token`.
    """

    max_seq_len: int = 1024
    input_dim: int = 256
    embedding: SequenceEmbedding = "linear"
    pos_embed: Positions = "sinusoidal_1d"
    pad_symbol: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        pad, has_symbols = self.pad_symbol, self.embedding == "token"
        is_symbol = has_symbols and _is_int(pad, 0) and pad is not None and pad < self.input_dim
        accepted = f"a symbol below input_dim={self.input_dim} or None" if has_symbols else "None"
        self._require(pad_symbol=(pad is None or is_symbol, accepted))

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
    """A copy of `config` with some fields changed.

    Three changes reset other fields, unless those are given too: a new `attention` clears
    `attention_options`, a new `num_classes` clears `class_names`, and a new `in_chans` sets `mean`
    and `std` to 0.5.

    Raises:
        UnknownNameError: A field does not exist; the message suggests similar ones.
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
        channels = min(changes["in_chans"], MAX_IMPLIED_CHANNELS)
        implied |= dict.fromkeys(("mean", "std"), (0.5,) * channels)
    return replace(config, **(implied | dict(changes)))
