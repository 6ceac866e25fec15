"""Inspect the machine code of the fused linear attention kernels, without a GPU.

    python benchmarks/machine_code_linear.py [--maps favor_softmax,gelu] [--dtype bfloat16]
                                             [--shape 512,8,65,32,112] [--arch 90]

As `machine_code.py` does for Taylor attention: every launch of a forward and a backward pass is
compiled instead of run. A shape is B,H,N,D,M; many short heads are taken whole, few long ones in
pieces, as if the device had the 132 processors of an H200.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from machine_code import SHARED_LIMIT, MachineCode, compiled

from saccade.ops._triton.launch import Launch
from saccade.ops.linear.triton import api, shapes
from saccade.ops.linear.triton import heads as whole_heads

SHAPES = "512,8,65,32,112 16,8,16384,32,112 8,8,16384,64,272"


def compile_all(
    feature_map: str, shape: list[int], dtype: torch.dtype, arch: int
) -> list[tuple[str, MachineCode]]:
    """Every kernel of one call, forward and backward; sums over queries are marked."""
    found: list[tuple[str, MachineCode]] = []

    def compile_instead(launch: Launch, *tensors: Any) -> None:
        name = launch.kernel.__name__ + (" of queries" if launch.constants.get("QUERY") else "")
        found.append((name, compiled(launch, tensors, arch)))

    Launch.__call__ = compile_instead  # type: ignore[method-assign]
    for module in (whole_heads, shapes):
        module.processors = lambda device: 132
    batch, heads, tokens, dim, features = shape
    qkv = torch.zeros(1, 1, 3, heads, dim, dtype=dtype).expand(batch, tokens, -1, -1, -1)
    inputs = (*qkv.permute(2, 0, 3, 1, 4), torch.zeros(features, dim), None)
    numbers = (feature_map, dim**-0.5, 1e-3, 1e-6, "ieee")
    out, *saved = api._forward.function(*inputs, *numbers)
    api._backward.function(out, *inputs, out, *saved, *numbers)
    return found


def main() -> None:
    """Compile and print a line for each launch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", default="favor_softmax,relu,gelu")
    parser.add_argument("--shape", nargs="*", default=SHAPES.split(), help="B,H,N,D,M")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--arch", type=int, default=90, choices=SHARED_LIMIT)
    arguments = parser.parse_args()
    for shape in arguments.shape:
        sizes = [int(size) for size in shape.split(",")]
        for name in arguments.maps.split(","):
            dtype = getattr(torch, arguments.dtype)
            for kernel, code in compile_all(name, sizes, dtype, arguments.arch):
                print(f"{shape:<20} {name:<13} {kernel:<21} {code}", flush=True)


if __name__ == "__main__":
    main()
