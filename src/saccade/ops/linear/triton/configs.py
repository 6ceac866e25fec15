"""Block sizes of the kernels: fixed, so that a first call compiles one variant and no more.

Rows are keyed by the dtype of the products and the padded head width, columns are tokens, features,
warps and stages. All fit in the 99 KiB of shared memory of small Ampere and Ada cards.
"""

from typing import Literal, NamedTuple

import torch
import triton

__all__ = ["Pass", "padded", "tiles"]

Pass = Literal["state", "mix", "gradient", "head", "head_gradient"]


class Tiles(NamedTuple):
    """What one step of a program holds, and what runs it."""

    tokens: int
    features: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """The launch arguments."""
        return {
            "BN": self.tokens,
            "BM": self.features,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


_TABLE: dict[tuple[torch.dtype, Pass], dict[int, Tiles]] = {
    (torch.bfloat16, "state"): {
        64: Tiles(64, 128, 8, 3),
        128: Tiles(64, 64, 4, 2),
    },
    (torch.bfloat16, "mix"): {
        64: Tiles(128, 64, 8, 2),
        128: Tiles(128, 32, 8, 2),
    },
    (torch.bfloat16, "gradient"): {
        32: Tiles(64, 64, 4, 2),
        128: Tiles(64, 32, 4, 2),
    },
    (torch.bfloat16, "head"): {32: Tiles(64, 128, 4, 1)},
    (torch.bfloat16, "head_gradient"): {32: Tiles(64, 128, 4, 1)},
    (torch.float16, "state"): {128: Tiles(32, 64, 4, 2)},
    (torch.float16, "mix"): {128: Tiles(64, 32, 4, 2)},
    (torch.float16, "gradient"): {
        64: Tiles(64, 32, 4, 2),
        128: Tiles(64, 16, 4, 2),
    },
    (torch.float32, "state"): {
        32: Tiles(32, 64, 4, 2),
        64: Tiles(32, 64, 8, 2),
        128: Tiles(32, 32, 8, 2),
    },
    (torch.float32, "mix"): {
        32: Tiles(64, 32, 4, 2),
        64: Tiles(64, 32, 8, 2),
        128: Tiles(32, 32, 8, 2),
    },
    (torch.float32, "gradient"): {
        32: Tiles(64, 32, 4, 2),
        64: Tiles(64, 32, 8, 2),
        128: Tiles(32, 32, 8, 2),
    },
}


def padded(width: int) -> int:
    """The power of two, at least 16, that a width is padded to."""
    return max(16, int(triton.next_power_of_2(width)))


def tiles(kind: Pass, dtype: torch.dtype, width: int, num_features: int) -> Tiles:
    """The blocks of a pass.

    128 features are taken at once only where that pads them no further than 64 would.
    """
    rows = _TABLE[dtype, kind]
    chosen = rows[min(row for row in rows if row >= width)]
    if kind == "state" and chosen.features == 128 and triton.cdiv(num_features, 64) % 2:
        chosen = chosen._replace(features=64, warps=4)
    return chosen._replace(features=min(chosen.features, padded(num_features)))
