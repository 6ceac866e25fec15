"""Block sizes of the fused kernels, by the device's compute capability.

They are data, so that no call waits for a search. Those of bfloat16 on Hopper were searched on an
H200 (`docs/log.md`), but for widths of 17 to 31 and odd ones. The others were found by compiling:
they fit the shared memory of a program, spill little or nothing, and take as many tokens a step as
they then can. Each table goes by the largest width that an entry serves.
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
        rows: Rows a program; 0 for sums over rows, which go over all of a part. For `moments`,
            the height of products that the matrix unit wants, 0 where any will do.
        block: Length of a step of the inner loop; for `values` and `gradients`, how many of a
            tile's 16 columns a step takes; for `prepare_keys`, whose steps are of `rows`, the
            fewest rows of a program.
        warps: Warps a program; for `hopper_forward`, those of one warpgroup.
        stages: Depth of the software pipeline; for Hopper's own kernels, how many blocks of
            the rows that go by are in shared memory, a power of two.
        resident: How many programs a multiprocessor holds at once, by their registers; for the
            kernels whose sums are split by how many run at once, or whose programs stay.
        registers: At most how many a thread takes, where the compiler takes more than it needs and
            a second program no longer fits beside the first, or loses its way and spills them
            nearly all.
        chunk: How many rows of L or G a product outside the loop takes at once.
        swizzled: Time of the sums with swizzled keys (`efficient_state`), relative to the time
            without; None where keys are never swizzled.
    """

    rows: int
    block: int
    warps: int
    stages: int
    resident: int = 1
    registers: int | None = None
    chunk: int = 32
    swizzled: float | None = None

    def options(self) -> dict[str, int]:
        """Launch options."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


Table = dict[str, dict[int, Blocks]]

_HOPPER: Table = {
    "direct_forward": {
        16: Blocks(128, 64, 4, 3),
        31: Blocks(128, 64, 8, 3),
        32: Blocks(128, 64, 4, 3, registers=168),
        64: Blocks(128, 64, 4, 3),
        128: Blocks(128, 128, 8, 3),
    },
    "hopper_forward": {64: Blocks(128, 128, 4, 4), 128: Blocks(128, 64, 4, 4)},
    "prepare_keys": {
        64: Blocks(32, 128, 4, 1, resident=8),
        128: Blocks(16, 128, 4, 1, resident=8),
    },
    "hopper_backward": {128: Blocks(128, 64, 8, 4)},
    "direct_queries": {
        16: Blocks(128, 64, 4, 3),
        31: Blocks(128, 64, 8, 3),
        32: Blocks(128, 64, 4, 3, registers=168),
        64: Blocks(128, 64, 8, 3, registers=128),
        128: Blocks(128, 64, 8, 3),
    },
    "direct_keys": {
        16: Blocks(128, 64, 4, 3),
        31: Blocks(128, 64, 8, 3),
        32: Blocks(128, 64, 4, 3),
        64: Blocks(64, 64, 4, 3, registers=168),
        128: Blocks(128, 64, 8, 3),
    },
    "accumulate": {
        16: Blocks(0, 64, 4, 3, resident=4),
        32: Blocks(0, 64, 4, 3, resident=3, registers=168, swizzled=0.9),
        64: Blocks(0, 64, 4, 3, resident=2, swizzled=1.0),
        128: Blocks(0, 128, 8, 3, swizzled=0.8),
    },
    "moments": {
        16: Blocks(64, 128, 4, 3, resident=2),
        64: Blocks(64, 64, 4, 3, resident=2),
        128: Blocks(64, 64, 8, 3),
    },
    "narrow_sums": {16: Blocks(0, 64, 4, 3, resident=3, registers=168)},
    "values": {
        16: Blocks(64, 16, 4, 3),
        32: Blocks(64, 16, 4, 2, registers=160),
        64: Blocks(128, 8, 4, 2, registers=168),
        128: Blocks(128, 8, 4, 3),
    },
    "values, odd": {
        16: Blocks(64, 16, 4, 3),
        32: Blocks(64, 16, 4, 2),
        128: Blocks(64, 8, 4, 3),
    },
    "gradients": {
        32: Blocks(64, 8, 4, 3),
        64: Blocks(128, 8, 4, 3, chunk=64),
        128: Blocks(128, 16, 8, 3, chunk=128),
    },
}

_AMPERE: Table = {
    "direct_forward": {
        16: Blocks(64, 64, 4, 3),
        32: Blocks(128, 128, 8, 3, registers=128),
        64: Blocks(128, 64, 8, 3),
        128: Blocks(128, 64, 8, 2),
    },
    "direct_queries": {
        16: Blocks(64, 64, 4, 3),
        64: Blocks(128, 64, 8, 3),
        128: Blocks(64, 64, 8, 2),
    },
    "direct_keys": {
        16: Blocks(64, 64, 4, 3),
        32: Blocks(128, 64, 8, 3),
        64: Blocks(128, 32, 8, 3),
        128: Blocks(64, 32, 8, 2, registers=255),
    },
    "accumulate": {
        16: Blocks(0, 64, 4, 3, resident=4),
        32: Blocks(0, 64, 4, 3, resident=3, registers=168),
        64: Blocks(0, 64, 4, 3, resident=2),
        128: Blocks(0, 32, 8, 3),
    },
    "moments": {
        16: Blocks(0, 128, 4, 3, resident=2),
        32: Blocks(0, 64, 4, 3, resident=2),
        64: Blocks(0, 32, 4, 3, resident=2),
        128: Blocks(0, 16, 8, 2),
    },
    "narrow_sums": {16: Blocks(0, 64, 4, 3, resident=3, registers=168)},
    "values": {
        16: Blocks(64, 16, 4, 3),
        32: Blocks(64, 16, 4, 2),
        64: Blocks(64, 8, 4, 3),
        128: Blocks(64, 8, 8, 2),
    },
    "gradients": {
        16: Blocks(64, 8, 4, 3),
        32: Blocks(64, 8, 4, 1),
        64: Blocks(64, 8, 4, 3),
        128: Blocks(64, 8, 8, 2),
    },
}

# Where a program has 99 KB, one that holds the state has a multiprocessor to itself.
_SMALL: Table = _AMPERE | {
    "values": _AMPERE["values"] | {32: Blocks(128, 16, 8, 2)},
    "gradients": _AMPERE["gradients"] | {32: Blocks(128, 8, 8, 1)},
}

# Products of float32 and float16; these fit everywhere.
_SINGLE: Table = {
    "direct_forward": {64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32, 8, 2)},
    "direct_queries": {64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32, 8, 2)},
    "direct_keys": {64: Blocks(64, 32, 8, 2), 128: Blocks(32, 32, 8, 2)},
    "accumulate": {64: Blocks(0, 32, 8, 2), 128: Blocks(0, 16, 8, 2)},
    "moments": {64: Blocks(0, 32, 8, 2), 128: Blocks(0, 16, 8, 2)},
    "narrow_sums": {16: Blocks(0, 32, 4, 2)},
    "values": {
        16: Blocks(64, 16, 8, 1),
        32: Blocks(64, 4, 8, 2, registers=255),
        64: Blocks(64, 4, 8, 2, registers=255),
        128: Blocks(64, 2, 8, 2, registers=255),
    },
    "gradients": {
        16: Blocks(64, 16, 8, 1),
        64: Blocks(64, 8, 8, 2, registers=255),
        128: Blocks(32, 2, 8, 2, registers=255),
    },
}


def _half_precision(capability: tuple[int, int]) -> Table:
    """The table of bfloat16; where nothing is known of a device, the one that asks for least."""
    return {(9, 0): _HOPPER, (8, 0): _AMPERE}.get(capability, _SMALL)


def blocks_for(
    kernel: str,
    width: int,
    operands: torch.dtype,
    capability: tuple[int, int],
    odd: bool = False,
) -> Blocks:
    """The blocks of a kernel, by the width it serves and the dtype its products are taken in.

    Args:
        kernel: Its name.
        width: The wider of D and E.
        operands: The dtype of products.
        capability: Of the device.
        odd: Whether numbers are loaded one by one, which takes registers.
    """
    table = _half_precision(capability) if operands == torch.bfloat16 else _SINGLE
    sizes = table.get(f"{kernel}, odd", table[kernel]) if odd else table[kernel]
    return next(blocks for widest, blocks in sizes.items() if width <= widest)
