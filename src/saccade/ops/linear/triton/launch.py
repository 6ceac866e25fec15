"""Block sizes, workspaces and launches: from tensors to the kernels of `state` and `tokens`."""

# mypy: disable-error-code="no-untyped-call"

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from saccade.ops.launches import launch_of, on_device
from saccade.ops.linear.triton import heads as whole_heads
from saccade.ops.linear.triton import state, tokens
from saccade.ops.linear.triton.blocks import split
from saccade.ops.linear.triton.tiles import Pass, padded, tiles

__all__ = [
    "Call",
    "HeadState",
    "QueryRows",
    "head_backward",
    "head_forward",
    "head_state",
    "key_gradient",
    "mix",
    "parts_of",
    "query_gradient",
    "state_dtype",
    "takes_whole_heads",
]

# A piece of the tokens is long enough to be worth its partial state, and there are as many pieces
# as run at once, by warps of a program: with more, a last round of them would leave most idle.
MIN_CHUNK = 512
AT_ONCE = {4: 3, 8: 2}
PROCESSORS_WITHOUT_A_GPU = 16
SPLIT_BLOCK = 1024
# Whole heads: all features at once, and the state beside them, in the registers of a program.
HEADS_PER_PROCESSOR = 4
MAX_FEATURES = 128
MAX_HEAD_DIM = 32
HEAVY_SLOPES = ("gelu",)  # with them the backward pass of a whole head spills registers
# FAVOR+ keeps maxima beside its sums. With so many registers four programs of a whole head run at
# once instead of two, which is worth what is spilled: a seventh faster (docs/log.md).
FAVOR_REGISTERS = 128


def parts_of(projection: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """W as a sum of matrices in the dtype of the inputs, (1 or 2, M, D)."""
    if projection is None:
        return None
    if projection.dtype == dtype or dtype == torch.float32:
        return projection.to(dtype).contiguous()[None]
    parts = projection.new_empty(2, *projection.shape, dtype=dtype)
    size = projection.numel()
    with on_device(projection):
        launch_of(split, (triton.cdiv(size, SPLIT_BLOCK),), size, BLOCK=SPLIT_BLOCK)(
            projection.contiguous(), parts
        )
    return parts


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a state whose products are taken in that of the values."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


@dataclass(frozen=True)
class Call:
    """What all launches of one attention share.

    Args:
        feature_map: A map of `blocks.feature`; `identity` where q and k are features already.
        weights: W from `parts_of`, none for `identity`.
        dtype: The dtype of the values; products take their operands in it, float16 ones in TF32,
            which has the same mantissa and the range that features need.
        num_features: M.
        dim: D.
        width: E.
        scale: Factor of the scores.
        precision: How float32 operands are multiplied: `ieee`, `tf32x3` or `tf32`.
    """

    feature_map: str
    weights: Tensor | None
    dtype: torch.dtype
    num_features: int
    dim: int
    width: int
    scale: float
    precision: str

    def options(self) -> dict[str, object]:
        """The compile-time arguments that all kernels over tokens take."""
        return {
            "M": self.num_features,
            "D": self.dim,
            "E": self.width,
            "DP": 16 if self.weights is None else padded(self.dim),
            "EP": padded(self.width),
            "MAP": self.feature_map,
            "PARTS": 0 if self.weights is None else self.weights.shape[0],
            "OPERAND": self.operand,
        }

    @property
    def operand(self) -> str:
        """How operands of products are rounded."""
        if self.dtype == torch.float32:
            return self.precision
        return "bf16" if self.dtype == torch.bfloat16 else "tf32"

    def numbers(self) -> tuple[float, float]:
        """`factor` of W x and `norm` of |x|^2, in base 2 for FAVOR+."""
        root = math.sqrt(self.scale)
        if self.feature_map == "favor_softmax":
            return root / math.log(2), self.scale / 2 / math.log(2)
        return (1.0 if self.feature_map == "identity" else root), 0.0

    def tiles(self, kind: Pass) -> dict[str, int]:
        """The blocks of a pass."""
        width = padded(self.width if self.weights is None else max(self.width, self.dim))
        return tiles(kind, self.dtype, width, self.num_features).options()


@dataclass(frozen=True)
class HeadState:
    """S (B, H, M, E) as an operand, s (B, H, M), b and b' (B, H, E+1), largest key exponent."""

    state: Tensor
    weight: Tensor
    base: Tensor
    top: Tensor


class QueryRows(NamedTuple):
    """Of every query: the denominator, the largest exponent (FAVOR+), u = do / z and y = -u.o."""

    total: Tensor
    top: Tensor
    scaled: Tensor
    pull: Tensor


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return PROCESSORS_WITHOUT_A_GPU
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _pieces(programs: int, length: int, blocks: dict[str, int], device: torch.device) -> int:
    """Into how many pieces of at least MIN_CHUNK tokens a head is cut."""
    places = AT_ONCE[blocks["num_warps"]] * _processors(device)
    most = length // max(blocks["BN"], MIN_CHUNK)
    return max(1, min(places // max(1, programs), most))


def head_state(
    call: Call,
    x: Tensor,
    u: Tensor,
    *,
    constant: float,
    eps: float,
    key_mask: Tensor | None = None,
    queries: QueryRows | None = None,
) -> HeadState:
    """Sum over keys x with values u or, given `queries`, over queries x with their scaled u."""
    (batch, heads, length), m, e = x.shape[:3], call.num_features, call.width
    blocks = call.tiles("state")
    count, groups = batch * heads, triton.cdiv(m, blocks["BM"])
    splits = _pieces(count * groups, length, blocks, x.device)
    chunk = triton.cdiv(triton.cdiv(length, splits), blocks["BN"]) * blocks["BN"]
    peaked = call.feature_map == "favor_softmax" and queries is None
    new = x.new_empty
    wide = new(count, splits, m, e, dtype=torch.float32)
    narrow = new(count, splits, m, dtype=torch.float32)
    peak = new((count, splits, m) if peaked else 0, dtype=torch.float32)
    plain = new(count, splits, e + 1, dtype=torch.float32)
    top, pull = (None, None) if queries is None else (queries.top, queries.pull)
    launch = launch_of(
        state.accumulate, (count * splits * groups,),
        heads, length, splits, chunk, *call.numbers(), *x.stride(), *u.stride(),
        QUERY=queries is not None, MASKED=key_mask is not None, **blocks, **call.options(),
    )  # fmt: skip
    launch(x, u, call.weights, key_mask, top, pull, wide, narrow, peak, plain)
    summed = HeadState(
        new(batch, heads, m, e, dtype=state_dtype(call.dtype)),
        new(batch, heads, m, dtype=torch.float32),
        new(batch, heads, e + 1, dtype=torch.float32),
        new((batch, heads) if peaked else 0, dtype=torch.float32),
    )
    launch = launch_of(
        state.assemble, (count,), splits, constant, eps,
        M=m, E=e, BM=min(32, padded(m)), EP=padded(e), PEAKED=peaked, OPERAND=call.operand,
    )  # fmt: skip
    launch(wide, narrow, peak, plain, summed.state, summed.weight, summed.base, summed.top)
    return summed


def mix(call: Call, q: Tensor, summed: HeadState, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the output; give every query's denominator and, for FAVOR+, largest exponent."""
    batch, heads, length = q.shape[:3]
    favor = call.feature_map == "favor_softmax"
    total = q.new_empty(batch, heads, length, dtype=torch.float32)
    top = q.new_empty((batch, heads, length) if favor else 0, dtype=torch.float32)
    blocks = call.tiles("mix")
    launch = launch_of(
        tokens.mix, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, call.numbers()[0], *q.stride(), *out.stride()[:3],
        **blocks, **call.options(),
    )  # fmt: skip
    launch(q, call.weights, summed.state, summed.weight, summed.base, out, total, top)
    return total, top


def query_gradient(
    call: Call,
    q: Tensor,
    summed: HeadState,
    rows: QueryRows,
    grad: Tensor,
    out: Tensor,
    dq: Tensor,
) -> None:
    """Write dq, and u and y of the rows."""
    batch, heads, length = q.shape[:3]
    blocks = call.tiles("gradient")
    launch = launch_of(
        tokens.query_gradient, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, call.numbers()[0], math.sqrt(call.scale),
        *q.stride(), *grad.stride(), *out.stride()[:3], *dq.stride()[:3],
        **blocks, **call.options(),
    )  # fmt: skip
    launch(
        q, call.weights, summed.state, summed.weight, grad, out,
        *rows, dq,
    )  # fmt: skip


def key_gradient(
    call: Call,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    summed: HeadState,
    top: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Write dk and dv from the gradient of the state."""
    batch, heads, length = k.shape[:3]
    blocks = call.tiles("gradient")
    launch = launch_of(
        tokens.key_gradient, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, *call.numbers(), math.sqrt(call.scale),
        *k.stride(), *v.stride(), *dk.stride()[:3], *dv.stride()[:3],
        MASKED=key_mask is not None, **blocks, **call.options(),
    )  # fmt: skip
    launch(k, v, call.weights, key_mask, summed.state, summed.weight, summed.base, top, dk, dv)


def takes_whole_heads(call: Call, q: Tensor, *, backward: bool = False) -> bool:
    """Whether one program a head fills the device, and all features of a head fit into it."""
    heads = q.shape[0] * q.shape[1]
    return (
        call.dtype == torch.bfloat16
        and call.weights is not None
        and not (backward and call.feature_map in HEAVY_SLOPES)
        and call.num_features <= MAX_FEATURES
        and max(call.dim, call.width) <= MAX_HEAD_DIM
        and heads >= HEADS_PER_PROCESSOR * _processors(q.device)
    )


def head_forward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, out: Tensor,
    *, constant: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Write the output; give S, s, the largest key exponent, and z and exponents of the queries."""
    batch, heads, queries = q.shape[:3]
    favor = call.feature_map == "favor_softmax"
    new = functools.partial(q.new_empty, dtype=torch.float32)
    kept = (
        q.new_empty(batch, heads, call.num_features, call.width, dtype=state_dtype(call.dtype)),
        new((batch, heads, call.num_features)),
        new((batch, heads) if favor else 0),
        new((batch, heads, queries)),
        new((batch, heads, queries) if favor else 0),
    )
    launch = launch_of(
        whole_heads.head_forward, (batch * heads,),
        heads, queries, k.shape[2], *call.numbers(), constant, eps,
        *q.stride(), *k.stride(), *v.stride(), *out.stride()[:3],
        MASKED=key_mask is not None, **call.tiles("head"), **call.options(),
        **({"maxnreg": FAVOR_REGISTERS} if favor else {}),
    )  # fmt: skip
    launch(q, k, v, call.weights, key_mask, *kept[:3], out, *kept[3:])
    return kept


def head_backward(
    call: Call, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], grad: Tensor, out: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor], *, constant: float, eps: float,
) -> None:  # fmt: skip
    """Write the gradients of q, k and v from what `head_forward` gave."""
    batch, heads, queries = q.shape[:3]
    strides = [x.stride()[:3] for x in (out, *gradients)]
    launch = launch_of(
        whole_heads.head_backward, (batch * heads,),
        heads, queries, k.shape[2], *call.numbers(), math.sqrt(call.scale), constant, eps,
        *q.stride(), *k.stride(), *v.stride(), *grad.stride(), *itertools.chain(*strides),
        MASKED=key_mask is not None, **call.tiles("head_gradient"), **call.options(),
    )  # fmt: skip
    launch(q, k, v, call.weights, key_mask, *kept[:3], grad, out, *kept[3:], *gradients)
