"""The Taylor algorithm that `algorithm="auto"` chooses, and why."""

import math
from typing import Literal, NamedTuple

from saccade.errors import ConfigError
from saccade.ops.compilation import constant_when_compiled
from saccade.ops.taylor import costs as costs_file
from saccade.ops.taylor.thresholds import speed_threshold

__all__ = ["Choice", "explain_choice"]

# Tokens from which the fused efficient kernels beat the fused direct ones, by head dim (bfloat16):
# between where the lines of attention_h200_202611.json and of calibration_h200_202611.json in
# results/attention/ cross, the latter of half as many heads. At no place of the first is the other
# algorithm more than a tenth faster. At one of the second it is, forward with D = 64 and 4,096
# tokens: half of the heads take linear time five sixths as long as all of them.
_FUSED_CROSSOVERS = {
    "forward": {8: 600, 16: 700, 32: 1400, 64: 4000, 128: 12400},
    "training": {8: 600, 16: 600, 32: 860, 64: 3350, 128: 12600},
}


_NEVER = 1 << 62
"""N0 if calibration found direct faster at every number of tokens; null in the file."""

# On a CPU linear time has to save more FLOPs than it takes: the measured crossings lie at 1.7 to
# 2.1 times the tokens with equal FLOPs for D = 32 to 128
# (results/crossover/crossover_cpu_202611.json).
_CPU_FACTOR = 2


class Choice(NamedTuple):
    """An algorithm and the reason for it."""

    algorithm: Literal["direct", "efficient"]
    reason: str


def explain_choice(
    num_queries: int,
    num_keys: int | None = None,
    *,
    head_dim: int,
    backend: Literal["torch", "triton"] = "torch",
    device_name: str | None = None,
    dtype: str = "bfloat16",
    training: bool = False,
) -> Choice:
    """The algorithm that `taylor_attention(..., algorithm="auto")` uses for one shape.

    The rule: `efficient` for more than N0 tokens; for unequal numbers of queries and keys,
    their harmonic mean. N0 is the first of these that is known:

    1. what `saccade bench attention --calibrate` measured for this device, dtype and head dim;
    2. for the fused kernels, what was measured on an H200;
    3. `speed_threshold(head_dim, symmetric=True)`: where linear time takes fewer FLOPs; on a CPU
       twice as many tokens.

    Args:
        num_queries: Number of queries N.
        num_keys: Number of keys; as many as queries by default.
        head_dim: Width D of a head.
        backend: Which implementation runs.
        device_name: The device as in the calibration file: a GPU's name, or `cpu`.
        dtype: The dtype of the inputs, without `torch.`.
        training: True if gradients are computed.
    """
    keys = num_queries if num_keys is None else num_keys
    threshold, source = crossover(head_dim, backend, device_name, dtype, training)
    chosen, tokens = choose(num_queries, keys, threshold), _mean_tokens(num_queries, keys)
    size = f"{tokens:g} tokens" if keys == num_queries else f"{tokens:.1f} tokens on average"
    relation = ">" if chosen == "efficient" else "<="
    return Choice(chosen, f"{size} {relation} N0 = {threshold:g} at D={head_dim} ({source})")


def choose(num_queries: int, num_keys: int, threshold: float) -> Literal["direct", "efficient"]:
    """The rule without the reason, for symbolic sizes of `torch.compile`."""
    return "efficient" if _mean_tokens(num_queries, num_keys) > threshold else "direct"


def _mean_tokens(num_queries: int, num_keys: int) -> float:
    return 2 * num_queries * num_keys / max(1, num_queries + num_keys)


def crossover(
    head_dim: int, backend: str, device_name: str | None, dtype: str, training: bool
) -> tuple[float, str]:
    """N0 and its origin."""
    measured = measured_crossover(device_name or "", dtype, head_dim, training)
    if measured == _NEVER:
        return math.inf, f"measured on {device_name}, at no number of tokens"
    if measured >= 0:
        return measured, f"measured on {device_name}"
    if backend == "triton":
        crossovers = _FUSED_CROSSOVERS["training" if training else "forward"]
        width = next((d for d in crossovers if head_dim <= d), None)
        if width is None:
            raise ConfigError(
                f"head_dim must be at most {max(crossovers)} for the fused kernels, got {head_dim}"
            )
        return crossovers[width], "fused kernels, measured on an H200"
    equal = speed_threshold(head_dim, symmetric=True)
    if device_name == "cpu":
        return _CPU_FACTOR * equal, "linear time takes half the FLOPs, as measured on CPUs"
    return equal, "linear time takes fewer FLOPs from there on"


@constant_when_compiled
def measured_crossover(device_name: str, dtype: str, head_dim: int, training: bool) -> int:
    """N0 of the calibration, -1 without one; a constant for `torch.compile`."""
    costs = costs_file.read_costs_once().get(device_name, {}).get(dtype, {}).get(str(head_dim), {})
    crossover = costs.get("crossover_training" if training else "crossover_forward", -1)
    return _NEVER if crossover is None else round(crossover)
