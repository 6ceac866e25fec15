"""What the fused Taylor kernels compile to on Hopper, without a GPU.

    python benchmarks/machine_code.py [--dims 16,32,64,128] [--width 64] [--dtype float32]
                                      [--normalised]

Every launch of a forward and a backward pass is compiled for sm_90 instead of run, with the shipped
blocks, for inputs as they come out of a qkv projection. For each kernel: registers a thread, bytes
spilled, and whether ptxas serialised its matrix products (remarks C7510 to C7515), which costs more
than anything else. `docs/log.md` tells what that is good for.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton.direct import run_direct, run_direct_backward
from saccade.ops.taylor.triton.efficient import run_efficient, run_efficient_backward
from saccade.ops.taylor.triton.problem import Problem

SMALL_KERNELS = ("lengths", "row_gradients", "unfold", "add_parts")
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg")
PTXAS = get_ptxas(90).path


def compiled(launch: Launch, tensors: tuple[torch.Tensor, ...]) -> str:
    """What ptxas tells of the variant that would be launched."""
    kernel, constants = launch.kernel, dict(launch.constants)
    tuning = {key: constants.pop(key) for key in LAUNCH_OPTIONS if key in constants}
    values = dict(zip(kernel.arg_names, (*tensors, *launch.numbers), strict=False)) | constants
    signature, known, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name], known[(place,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            hints[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[parameter.name] = "i32"
            if value % 16 == 0:
                hints[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32"
    source = ASTSource(kernel, signature, known, hints)
    target = GPUTarget("cuda", 90, 32)
    return assembled(triton.compile(source, target=target, options=tuning).asm["ptx"])


def assembled(ptx: str) -> str:
    """Registers, spills and serialisation, as ptxas tells them."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [PTXAS, "-v", "-arch=sm_90a", file.name, "-o", os.devnull]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spilled = re.search(r"(\d+) bytes spill stores", told)
    assert registers
    assert spilled
    serial = re.search(r"C751[0-5]", told)
    words = f"{registers[1]:>3} registers, {spilled[1]:>4} bytes spilled"
    return words + (f", SERIALISED ({serial[0]})" if serial else "")


def compile_all(
    dim: int, width: int, dtype: torch.dtype, *, normalised: bool
) -> list[tuple[str, str]]:
    """Every kernel of both algorithms, forward and backward, for heads of one shape."""
    found: list[tuple[str, str]] = []

    def compile_instead(launch: Launch, *tensors: Any) -> None:
        if launch.kernel.__name__ not in SMALL_KERNELS:
            found.append((launch.kernel.__name__, compiled(launch, tensors)))

    Launch.__call__ = compile_instead  # type: ignore[method-assign]
    qkv = torch.zeros(1, 2048, 8, 2 * dim + width, dtype=dtype).transpose(1, 2)
    q, k, v = qkv.split([dim, dim, width], dim=-1)
    temperature = torch.ones(8) if normalised else None
    problem = Problem.of(q, k, v, None, temperature, dim**-0.5, 0.5, 1.0, 1.0, normalised, "ieee")
    out, total = run_direct(problem)
    run_direct_backward(problem, out, out, total)
    out, total, state, sums = run_efficient(problem)
    run_efficient_backward(problem, out, out, total, state, sums)
    return found


def main() -> None:
    """Compile and print a line for each launch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", default="16,32,64,128")
    parser.add_argument("--width", type=int, help="of values; that of queries and keys if absent")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--normalised", action="store_true", help="TaylorShift's kernels")
    arguments = parser.parse_args()
    dtype, normalised = getattr(torch, arguments.dtype), arguments.normalised
    for dim in map(int, arguments.dims.split(",")):
        width = arguments.width or dim
        for name, words in compile_all(dim, width, dtype, normalised=normalised):
            print(f"D = {dim:<4} {name:<16} {words}", flush=True)


if __name__ == "__main__":
    main()
