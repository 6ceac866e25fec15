"""Block sizes of the fused kernels: data, so that no call waits for a search.

Searched on an H200 in bfloat16 (`docs/log.md`). Wider dtypes were not searched; they take smaller
blocks, since their operands fill twice the shared memory. Each table goes by the largest width that
an entry serves.
"""

from typing import NamedTuple

import torch

__all__ = ["ONE_PASS_WIDTH", "Blocks", "blocks_for"]

# Heads up to this width take all sums over keys, or queries, in one kernel (`narrow_sums`, which
# has a single tile); 0 takes `moments` and `accumulate` for all.
ONE_PASS_WIDTH = 16


class Blocks(NamedTuple):
    """How one kernel is launched.

    Attributes:
        rows: Rows a program; 0 for sums over rows, which go over all of a part.
        block: Length of a step of the inner loop; for `values` and `gradients`, how many of a
            tile's 16 columns a step takes.
        warps: Warps a program.
        stages: Depth of the software pipeline.
        resident: How many programs a multiprocessor holds at once, by their registers; for the
            kernels whose sums are split so as to fill the device exactly.
        registers: At most how many a thread takes, where the compiler takes more than it needs and
            a second program no longer fits beside the first.
    """

    rows: int
    block: int
    warps: int
    stages: int
    resident: int = 1
    registers: int | None = None

    def options(self) -> dict[str, int]:
        """Launch options."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


_HALF: dict[str, dict[int, Blocks]] = {
    "direct_forward": {
        16: Blocks(64, 64, 4, 3),
        32: Blocks(128, 128, 8, 3, registers=128),
        64: Blocks(128, 64, 8, 3),
        128: Blocks(128, 128, 8, 3),
    },
    "direct_queries": {
        16: Blocks(64, 64, 4, 3),
        128: Blocks(128, 64, 8, 3),
    },
    "direct_keys": {
        16: Blocks(64, 64, 4, 3),
        32: Blocks(128, 64, 4, 3),
        128: Blocks(128, 64, 8, 3),
    },
    "accumulate": {
        16: Blocks(0, 64, 4, 3, resident=4),
        32: Blocks(0, 64, 4, 3, resident=3, registers=168),
        64: Blocks(0, 64, 4, 3, resident=2),
        128: Blocks(0, 128, 8, 3),
    },
    "moments": {
        16: Blocks(0, 128, 4, 3, resident=2),
        64: Blocks(0, 64, 4, 3, resident=2),
        128: Blocks(0, 64, 8, 3),
    },
    "narrow_sums": {16: Blocks(0, 64, 4, 3, resident=3, registers=168)},
    "values": {
        16: Blocks(64, 16, 4, 3),
        32: Blocks(64, 16, 4, 2),
        64: Blocks(128, 8, 4, 3),
        128: Blocks(64, 8, 4, 3),
    },
    "gradients": {
        32: Blocks(64, 8, 4, 3),
        64: Blocks(128, 8, 4, 3),
        128: Blocks(128, 16, 8, 3),
    },
}

_SINGLE: dict[str, dict[int, Blocks]] = {
    "direct_forward": {64: Blocks(64, 32, 4, 2), 128: Blocks(64, 32, 8, 1)},
    "direct_queries": {64: Blocks(64, 32, 4, 2), 128: Blocks(64, 32, 8, 1)},
    "direct_keys": {64: Blocks(64, 32, 4, 2), 128: Blocks(64, 32, 8, 1)},
    "accumulate": {64: Blocks(0, 32, 8, 2), 128: Blocks(0, 32, 8, 1)},
    "moments": {64: Blocks(0, 64, 4, 2), 128: Blocks(0, 32, 8, 1)},
    "narrow_sums": {16: Blocks(0, 32, 4, 2)},
    "values": {64: Blocks(64, 16, 8, 1), 128: Blocks(64, 16, 8, 1)},
    "gradients": {64: Blocks(64, 16, 8, 1), 128: Blocks(64, 16, 8, 1)},
}


def blocks_for(kernel: str, width: int, operands: torch.dtype) -> Blocks:
    """The blocks of a kernel for a padded width, by the dtype its products are taken in."""
    table = (_HALF if operands == torch.bfloat16 else _SINGLE)[kernel]
    return next(blocks for widest, blocks in table.items() if width <= widest)
