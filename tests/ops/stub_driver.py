"""Launches without a GPU: a driver that writes down what would be launched, run as a program.

Kernels are compiled for sm_90 and given to a launcher that keeps its arguments. Printed as JSON:
for each launch of `scaled`, which compiled kernel it was, with what, and whether Triton was asked;
then what compiling two kernels side by side did.
"""

import json
import sys
import threading
import weakref

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from saccade.ops._triton.launch import Launch, compile_kernels


@triton.jit(do_not_specialize=["tokens"])
def scaled(x_ptr, mask_ptr, out_ptr, tokens, stride, factor, BLOCK: tl.constexpr):
    """out = factor x, where the mask says so."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = rows < tokens
    if mask_ptr is not None:
        keep = keep & (tl.load(mask_ptr + rows, mask=keep, other=0) != 0)
    x = tl.load(x_ptr + rows * stride, mask=keep, other=0.0)
    tl.store(out_ptr + rows, x * factor, mask=keep)


launched = []


class Launcher:
    """Keeps what it was called with."""

    def __init__(self, source, metadata):
        self.attributes = sorted(str(item) for item in source.attrs.items())
        self.signature = source.signature
        self.name = source.fn.__name__

    def __call__(self, *arguments):
        arguments = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
        launched.append((self, arguments))


class Files:
    """A driver's way to load binaries."""

    def load_binary(self, name, kernel, shared, device):
        return 1, id(kernel), 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448}

    def unload_module(self, module):
        pass


class Driver:
    """A Hopper that is not there; its number is the one of CPU tensors."""

    utils, launcher_cls, device = Files(), Launcher, -1

    def get_current_device(self):
        return self.device

    def get_current_stream(self, device):
        return 7

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def called(launch, *tensors):
    """One call: the kernel that ran, its arguments, and whether Triton was asked for it."""
    bound = []
    run = launch.kernel.run
    launch.kernel.run = lambda *args, **options: bound.append(1) or run(*args, **options)
    launch(*tensors)
    launch.kernel.run = run
    launcher, arguments = launched[-1]
    return {
        "asked": bool(bound),
        "grid": arguments[:3],
        "stream": arguments[3],
        "function": arguments[4],
        "arguments": arguments[9:],
        "signature": launcher.signature,
        "attributes": launcher.attributes,
    }


def compiled_together(x, mask, out):
    """Compile two kernels that wait for each other, then launch them on a tensor of their own."""
    kinds = [(2, 64, 8), (2, 64, 16), (4, 63, 16)]  # the last two are compiled alike
    launches = [Launch(scaled, (n,), (m, 1, 0.5), {"BLOCK": size}) for n, m, size in kinds]
    both, compiles, own = threading.Barrier(2, timeout=60), [], []
    compile_one = scaled.compile

    def compile_beside(*args, **options):
        both.wait()
        compiles.append(any(tensor() is not None for tensor in own))
        return compile_one(*args, **options)

    def run():
        copy = x.clone()
        own.append(weakref.ref(copy))
        for launch in launches:
            launch(copy, mask, out)

    scaled.compile = compile_beside
    before = len(launched)
    compile_kernels(run)
    dry_run = len(launched) - before
    run()
    scaled.compile = compile_one
    return {
        "compiled": len(compiles),
        "tensors held": any(compiles),
        "launched meanwhile": dry_run,
        "launched": len(launched) - before,
    }


def main():
    """Launch in every way that matters."""
    driver.set_active(Driver())
    x, out = torch.zeros(64), torch.zeros(65)
    mask = torch.ones(64, dtype=torch.int8)
    launch = Launch(scaled, (2,), (64, 1, 0.5), {"BLOCK": 32, "num_warps": 2})
    found = {
        "first": called(launch, x, mask, out),
        "again": called(launch, x, mask, out),
        "misaligned": called(launch, x, mask, out[1:]),
        "aligned after": called(launch, x, mask, out),
        "other dtype": called(launch, x.bfloat16(), mask, out),
        "no mask": called(launch, x, None, out),
        "no mask again": called(launch, x, None, out),
    }
    found["together"] = compiled_together(x, mask, out)
    release, triton.__version__ = triton.__version__, "99.0.0"
    other = Launch(scaled, (2,), (64, 1, 0.5), {"BLOCK": 32, "num_warps": 2})
    found["other release"] = [called(other, x, mask, out) for _ in range(2)]
    triton.__version__ = release
    heard = []
    triton.knobs.runtime.launch_enter_hook.add(
        lambda metadata: heard.append(metadata.get()["name"])
    )
    found["listened to"] = called(launch, x, mask, out)
    triton.knobs.runtime.launch_enter_hook.calls.clear()
    Driver.device = 1
    found["tensors elsewhere"] = called(launch, x, mask, out)
    json.dump(found, sys.stdout, default=str)


if __name__ == "__main__":
    main()
