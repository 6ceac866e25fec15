"""Which kernels the direct forward launches on a Hopper that is not there, run as a program.

As `stub_driver`, by whose driver it is done. Printed as JSON: for each kind of call, the kernels
launched and, where Hopper's own is among them, its grid, what it was given for q, k and v, what
was given by the pass before, and whether Triton was asked; and of a call in parts, where the keys
of each were.
"""

import json
import sys
import warnings

import torch
from triton.runtime import driver

from saccade.ops._triton.launch import Launch, compile_kernels
from saccade.ops.taylor.triton import direct_hopper
from saccade.ops.taylor.triton import direct_hopper_forward as kernels
from saccade.ops.taylor.triton.direct import run_direct
from saccade.ops.taylor.triton.shapes import Problem
from tests.ops.stub_driver import Driver, launched


def problem(dim=64, *, normalized=False, masked=False, skipped=0):
    """q, k and v out of a qkv projection, (2, 3, 1024, dim) each, behind some numbers."""
    numbers = torch.zeros(skipped + 2 * 1024 * 3 * 3 * dim, dtype=torch.bfloat16)[skipped:]
    q, k, v = numbers.view(2, 1024, 3, 3, dim).permute(2, 0, 3, 1, 4)
    mask = torch.ones(2, 1024, dtype=torch.bool) if masked else None
    temperature = torch.ones(3) if normalized else None
    return Problem.of(q, k, v, mask, temperature, 1.0, 0.5, 1.0, 1.0, normalized, "ieee")


def called(p, *, keep=False):
    """One call: what was launched."""
    kernel, asked = kernels.hopper_forward, []
    run = kernel.run
    kernel.run = lambda *args, **options: asked.append(options["warmup"]) or run(*args, **options)
    before = len(launched)
    run_direct(p, keep=keep)
    kernel.run = run
    found = {"kernels": [launcher.name for launcher, _ in launched[before:]]}
    launcher, arguments = launched[-1]
    if launcher.name == "hopper_forward":
        found |= {
            "asked": False in asked,
            "grid": arguments[:3],
            "read": [
                (x.base.data_ptr(), x.shape, x.strides, x.block_shape) for x in arguments[9:12]
            ],
            "given": [(x.data_ptr(), x.shape, x.stride()) for x in (p.q, p.k, p.v)],
            "prepared": launched[-2][1][11],
            "numbers": arguments[16:],
            "total": arguments[15],
        }
    return found


def in_parts(p):
    """A call that has to do with a quarter of memory: samples, heads and place of keys of each.

    Places are counted in heads of the output, None where they are elsewhere.
    """
    free, direct_hopper.FREE_BYTES = direct_hopper.FREE_BYTES, 0
    before = len(launched)
    out, _ = run_direct(p, keep=False)
    direct_hopper.FREE_BYTES = free
    head, found = out[0, 0].nbytes, []
    for launcher, arguments in launched[before:]:
        if launcher.name == "hopper_forward":
            q, k = arguments[9:11]
            place = (k.base.data_ptr() - out.data_ptr()) / head
            inside = place if 0 <= place < p.call.batch_heads else None
            found.append([q.shape[0], q.shape[1], inside, (arguments[14] - out.data_ptr()) / head])
    return found


def dry_run(p, *, keep):
    """The kernels that are compiled together before a call, and how often each is compiled then."""
    names, compile_one = [], Launch.compile
    Launch.compile = lambda launch, dtypes: (
        names.append(launch.kernel.__name__) or compile_one(launch, dtypes)
    )
    compile_kernels(run_direct.__wrapped__, p, keep=keep)
    Launch.compile = compile_one
    return sorted(names)


def refuse(*_):
    """As a Triton that has other names than those we know."""
    raise AttributeError("no such name")


def obstructed(kernels, kept, call):
    """For everything that can be missing: its name, what a call finds, what two of them tell.

    Args:
        kernels: The module whose kernels are then not to be had.
        kept: The function that keeps launches; it forgets them before each call.
        call: What to call.
    """
    for name, owner, part in (
        ("no Gluon", direct_hopper.importlib, "import_module"),
        ("other descriptors", kernels, "block_descriptor"),
        ("does not compile", Launch, "compile"),
    ):
        whole = getattr(owner, part)
        setattr(owner, part, refuse)
        direct_hopper._failed.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = []
            for _ in range(2):
                kept.cache_clear()
                found.append(call())
        setattr(owner, part, whole)
        yield name, found[0], [str(warning.message) for warning in told]
    kept.cache_clear()
    direct_hopper._failed.clear()


def main():
    """Call in every way that matters."""
    driver.set_active(Driver())
    plain, shift = problem(), problem(128, normalized=True)
    before = len(launched)
    found = {"dry_run": dry_run(shift, keep=True)}
    found |= {"launched meanwhile": len(launched) - before}
    found |= {"first": called(plain), "again": called(plain), "other": called(problem())}
    found |= {"normalized": called(shift, keep=True), "kept": called(plain, keep=True)}
    found |= {"masked": called(problem(masked=True)), "unaligned": called(problem(skipped=1))}
    found |= {"narrow": called(problem(32)), "in parts": in_parts(problem(normalized=True))}

    def rehearsed_and_called():
        compile_kernels(run_direct.__wrapped__, plain, keep=False)
        return called(plain)

    for name, seen, told in obstructed(kernels, direct_hopper.forward_parts, rehearsed_and_called):
        found[name] = seen | {"told": told}
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    main()
