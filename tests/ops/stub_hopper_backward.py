"""Which kernels the direct backward launches on a Hopper that is not there, run as a program.

As `stub_hopper`. Printed as JSON: for each kind of call, the kernels launched in their order with
their grids and arguments by name, what the call was given and what it gave; and for calls that only
tell what they would launch, the names of it.
"""

import json
import sys
from dataclasses import replace

import torch
from triton.runtime import driver

from saccade.ops._triton import launch as launches
from saccade.ops._triton.launch import Launch, compile_kernels
from saccade.ops.taylor.triton import direct_hopper
from saccade.ops.taylor.triton import direct_hopper_backward as kernels
from saccade.ops.taylor.triton.direct import run_direct_backward
from saccade.ops.taylor.triton.rows import weighted_row_gradients
from saccade.ops.taylor.triton.shapes import Problem
from tests.ops.stub_driver import Driver, launched
from tests.ops.stub_hopper import obstructed, problem

KERNELS = {
    kernel.__name__: kernel
    for kernel in (weighted_row_gradients, kernels.hopper_backward, kernels.query_gradients)
}


def backward(p):
    """The gradients of q, k and v, of nothing in particular."""
    f = p.call
    out = torch.zeros(f.batch, f.heads, f.queries, f.width, dtype=torch.bfloat16)
    total = torch.ones(f.batch_heads, f.queries)
    return run_direct_backward.__wrapped__(p, out, out, total)


def address(x):
    """Where a tensor is, or what a descriptor reads."""
    if hasattr(x, "block_shape"):
        return [x.base.data_ptr(), x.shape, x.strides, x.block_shape]
    return x


def called(p):
    """One call: what was launched."""
    before, sums, call = len(launched), [], Launch.__call__

    def noted(launch, *tensors):
        if launch.kernel is kernels.hopper_backward:
            sums.append(tensors[kernels.hopper_backward.arg_names.index("p_sums")])
            sums.append(int(sums[0].count_nonzero()))
        call(launch, *tensors)

    Launch.__call__ = noted
    dq, dk, dv, _ = backward(p)
    Launch.__call__ = call
    made = []
    for launcher, arguments in launched[before:]:
        names = KERNELS[launcher.name].arg_names
        given = dict(zip(names, map(address, arguments[9:]), strict=False))
        made.append({"kernel": launcher.name, "grid": arguments[:3], **given})
    return {
        "launches": made,
        "read": {n: [x.data_ptr(), x.shape, x.stride()] for n, x in zip("qkv", p[:3], strict=True)},
        "written": {n: x.data_ptr() for n, x in zip(("dq", "dk", "dv"), (dq, dk, dv), strict=True)},
        "sums": [str(sums[0].dtype), sums[0].shape],
        "sums not zero": sums[1],
    }


def told(p):
    """The kernels that a call would launch."""
    names, call = [], Launch.__call__
    Launch.__call__ = lambda launch, *tensors: names.append(launch.kernel.__name__)
    backward(p)
    Launch.__call__ = call
    return names


def dry_run(p):
    """The kernels that are compiled together before a call; and how often one is launched then."""
    names, compile_one, before = [], Launch.compile, len(launched)
    Launch.compile = lambda launch, dtypes: names.append(launch.kernel.__name__)
    compile_kernels(backward, p)
    Launch.compile = compile_one
    return {"kernels": sorted(names), "launched": len(launched) - before}


def apart(dim, queries):
    """Whether the places of blocks that go by are memory apart."""
    form = replace(problem(dim).call, queries=queries)
    return kernels.keys_launch(form).constants["APART"]


def main():
    """Call in every way that matters."""
    driver.set_active(Driver())
    numbers = Problem.numbers
    Problem.numbers = lambda p, *shape: numbers(p, *shape).fill_(torch.nan)
    plain, shift = problem(), problem(128, normalized=True)
    compile_one, Launch.compile = Launch.compile, lambda launch, dtypes: None
    found = {"masked": told(problem(masked=True))}
    found |= {"unaligned": told(problem(skipped=1)), "narrow": told(problem(32))}
    torch.use_deterministic_algorithms(True)
    found |= {"deterministic": told(plain)}
    torch.use_deterministic_algorithms(False)
    Launch.compile = compile_one
    for name, seen, heard in obstructed(kernels, direct_hopper._launches, lambda: told(plain)):
        found |= {name: seen, f"{name}, told": heard}
    assert not launches.is_dry_run()
    found |= {"dry_run": dry_run(plain)}
    found |= {"plain": called(plain), "normalized": called(shift)}
    found |= {"apart": [apart(64, 1024), apart(64, 896), apart(128, 1024)]}
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    main()
