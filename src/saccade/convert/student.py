"""The student: the teacher's configuration and weights with another attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.attentions import check_options
from saccade.layers.taylorshift import TaylorShiftCore
from saccade.models import VisionTransformer, ViTConfig
from saccade.ops.centering import centered_keys

__all__ = ["LOCAL_SIDE", "block_inputs", "build_student", "default_options", "student_config"]

LOCAL_SIDE = 3
"""Side of the depthwise convolution of `--local`, in patches."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "taylor": {"center_keys": True},
    "taylorshift": {"center_keys": True, "output_normalized": False},
}
"""Options of converted models, which bring the attention closest to softmax."""


def default_options(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options of a converted attention: `given`, and defaults for the others.

    Raises:
        UnknownNameError: The attention or an option does not exist.
        ConfigError: The attention is softmax.
    """
    check_options(name, given or {})
    if name == "softmax":
        raise ConfigError("--attention must be another attention than softmax, got 'softmax'")
    return {**_DEFAULTS.get(name, {}), **(given or {})}


def student_config(
    teacher: ViTConfig,
    name: str,
    options: Mapping[str, Any],
    *,
    keep: Sequence[int] = (),
    local: bool = False,
    seed: int = 0,
) -> ViTConfig:
    """The teacher's configuration with another attention and without dropout."""
    rates = ("drop", "pos_drop", "proj_drop", "attn_drop", "drop_path")
    without: dict[str, Any] = dict.fromkeys((f"{rate}_rate" for rate in rates), 0.0)
    return replace(
        teacher,
        attention=name,
        attention_options=dict(options),
        softmax_blocks=tuple(keep),
        local_conv=LOCAL_SIDE if local else None,
        feature_seed=seed,
        act_drop_rate=None,
        **without,
    )


@torch.no_grad()
def build_student(
    teacher: VisionTransformer, config: ViTConfig, images: Tensor
) -> VisionTransformer:
    """A model with the weights of the teacher, on its device, in evaluation mode.

    The temperatures of `taylorshift` become the mean of |q| |k| / sqrt(D), so that its scores
    have the size of the teacher's.
    """
    student = VisionTransformer(config).to(images.device).eval()
    student.load_state_dict(teacher.state_dict(), strict=False)
    *inputs, _ = block_inputs(teacher, images)
    for block, x in zip(student.blocks, inputs, strict=True):
        core = block.attn.core
        if isinstance(core, TaylorShiftCore) and core.temperature is not None:
            q, k, _ = block.attn.heads(block.norm1(x))
            k = centered_keys(k) if core.center_keys else k
            lengths = [part.float().norm(dim=-1).mean(dim=(0, 2)) for part in (q, k)]
            tau = lengths[0] * lengths[1] * k.shape[-1] ** -0.5
            core.temperature.copy_(tau.view(-1, 1, 1))
    return student


def block_inputs(model: VisionTransformer, images: Tensor) -> Iterator[Tensor]:
    """Yield the input of every block, then the output of the last, (B, N, C) each."""
    x = model.embed(images)
    grid = model.patch_embed.dynamic_feat_size((images.shape[2], images.shape[3]))
    yield x
    for block in model.blocks:
        x = model.run_block(block, x, grid=grid)
        yield x
