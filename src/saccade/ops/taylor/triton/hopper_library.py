"""What Hopper's own kernels share, in Gluon: layouts, descriptors, copies, tables.

Gluon changes its names between releases of Triton: those of 3.6 and 3.9 are known, and whoever
imports this is prepared for it to fail.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import copy
import inspect

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core as core
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import MockTensor

from saccade.ops.taylor.triton.library import FUSED, PAIR

__all__ = [
    "all_warps_here",
    "block_descriptor",
    "copy_block",
    "load_table",
    "operand_layout",
    "rounded",
    "row_pointers",
    "rows_layout",
    "scale_add",
    "split_warps",
]

copy_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
all_warps_here = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def operand_layout(rank):
    """Rows of 64 numbers or more in shared memory, as the matrix unit takes them."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


def block_descriptor(dtype, shape, strides, rows):
    """What (1, 1, rows, D) are copied by, out of a (B, H, S, D) that is to be put in as `base`."""
    block = [1, 1, rows, shape[-1]]
    return TensorDescriptor(MockTensor(dtype), shape, strides, block, operand_layout(4))


@gluon.constexpr_function
def rows_layout(dim, warps):
    """Rows of `dim` numbers in registers, 16 bytes a thread."""
    across = dim // 8
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.constexpr_function
def table_layout(block, warps):
    """A block of a table (`table_place`): each thread has what its columns of a product want."""
    registers = [[1], [2], [4]] + [[32 << i] for i in range((block // 32).bit_length() - 1)]
    lanes, idle = [[8], [16], [0], [0], [0]], [[0]] * (warps.bit_length() - 1)
    return gl.DistributedLinearLayout(registers, lanes, idle, [], [block])


@gluon.jit
def scale_add(x, a, b):
    """a x + b, a and b rounded to bfloat16."""
    return gl.inline_asm_elementwise(
        FUSED,
        "=r,r,r,r",
        [x, gl.to_tensor(a).to(gl.bfloat16), gl.to_tensor(b).to(gl.bfloat16)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def rounded(x):
    """Numbers out of the matrix unit, two to a register."""
    return gl.inline_asm_elementwise(PAIR, "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def load_table(p_table, first, BLOCK: gl.constexpr, SCORES: gl.constexpr):
    """The numbers of a block of keys, as columns of their scores."""
    x = gl.load(p_table + (first + gl.arange(0, BLOCK, table_layout(BLOCK, gl.num_warps()))))
    x = gl.reshape(gl.permute(gl.reshape(x, (BLOCK // 32, 4, 4, 2)), (0, 2, 1, 3)), (BLOCK,))
    return gl.convert_layout(x, gl.SliceLayout(0, SCORES), assert_trivial=True)[None, :]


@gluon.jit
def row_pointers(base, stride, ROWS: gl.constexpr, DIM: gl.constexpr):
    """(ROWS, DIM) pointers from `base` on."""
    LAYOUT: gl.constexpr = rows_layout(DIM, gl.num_warps())
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    o_d = gl.arange(0, DIM, gl.SliceLayout(0, LAYOUT))
    return base + rows[:, None] * stride + o_d[None, :]


class _Except:
    """What another object is, but for some of its methods."""

    def __init__(self, other, **methods):
        vars(self).update(methods, _other=other)

    def __getattr__(self, name):
        return getattr(self._other, name)


@core.builtin
def _split_unasked(functions_and_args, worker_num_warps, _semantic=None, _generator=None):
    """Triton's `warp_specialize`, its wish for register counts unheard."""
    builder, semantic = _semantic.builder, copy.copy(_semantic)

    def create(*args):
        op = builder.create_warp_specialize(*args)
        return _Except(op, set_requested_registers=lambda counts: None)

    semantic.builder = _Except(builder, create_warp_specialize=create)
    warps = [getattr(count, "value", count) for count in worker_num_warps]
    return semantic.warp_specialize(functions_and_args, warps, [24] * len(warps), _generator)


# Triton 3.6 has groups of warps trade registers, always; ptxas then takes products one by one
# (C7512). Later releases leave that out where no counts are given.
_counts = inspect.signature(gl.warp_specialize).parameters["worker_num_regs"]
split_warps = gl.warp_specialize if _counts.default is None else _split_unasked
