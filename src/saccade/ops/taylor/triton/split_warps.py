"""Warps of a Gluon kernel that go ways of their own, all with as many registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import copy
import inspect

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core as core

__all__ = ["split_warps"]


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
