"""One call of fused linear attention: what its launches share, and what they leave in memory."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import launch_of, on_device
from saccade.ops.linear.triton.configs import Pass, padded, tiles
from saccade.ops.linear.triton.library import halves

__all__ = [
    "Call",
    "HeadState",
    "QueryRows",
    "parts_of",
    "processors",
    "split",
    "splits_of",
    "state_dtype",
]


@triton.jit
def split(
    p_x,
    p_parts,
    size,
    BLOCK: tl.constexpr,
):
    """x (size) as a sum of two in the half precision of parts (2, size)."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_inside = places < size
    x = tl.load(p_x + places, mask=m_inside, other=0.0).to(tl.float32)
    if p_parts.dtype.element_ty == tl.bfloat16:
        leading, rest = halves(x)
    else:
        leading = x.to(tl.float16)
        rest = x - leading.to(tl.float32)
    tl.store(p_parts + places, leading.to(p_parts.dtype.element_ty), mask=m_inside)
    tl.store(p_parts + size + places, rest.to(p_parts.dtype.element_ty), mask=m_inside)


# A chunk of the tokens is long enough to be worth its partial state, and there are as many chunks
# as run at once, by warps of a program: with more, a last round of them would leave most idle.
MIN_CHUNK = 512
AT_ONCE = {4: 3, 8: 2}
PROCESSORS_WITHOUT_A_GPU = 16
SPLIT_BLOCK = 1024


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


class Constants(NamedTuple):
    """What all kernels over tokens are compiled for, one argument of theirs.

    Attributes:
        M: The number of features.
        D: The head dimension.
        E: The columns of the values.
        DP: D, padded to a power of two of at least 16; 16 where there is no projection.
        EP: E, padded likewise.
        MAP: The feature map (`feature`).
        PARTS: Of how many matrices in half precision W is the sum; 0 where there is none.
        OPERAND: How operands of products are rounded.
    """

    M: int
    D: int
    E: int
    DP: int
    EP: int
    MAP: str
    PARTS: int
    OPERAND: str


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

    def constants(self) -> Constants:
        """The compile-time arguments that all kernels over tokens take."""
        return Constants(
            self.num_features,
            self.dim,
            self.width,
            16 if self.weights is None else padded(self.dim),
            padded(self.width),
            self.feature_map,
            0 if self.weights is None else self.weights.shape[0],
            self.operand,
        )

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
def processors(device: torch.device) -> int:
    """How many multiprocessors the device has; few without a GPU, so that tests split sums."""
    if device.type != "cuda":
        return PROCESSORS_WITHOUT_A_GPU
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def splits_of(programs: int, length: int, blocks: dict[str, int], device: torch.device) -> int:
    """Into how many chunks of at least MIN_CHUNK tokens a head is cut."""
    places = AT_ONCE[blocks["num_warps"]] * processors(device)
    most = length // max(blocks["BN"], MIN_CHUNK)
    return max(1, min(places // max(1, programs), most))
