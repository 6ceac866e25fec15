"""Inspect the machine code of the fused Taylor kernels for an architecture, without a GPU.

    python benchmarks/machine_code.py [--dims 16,32,64x24,128] [--width 64] [--dtype float32]
                                      [--normalized] [--masked] [--arch 80]

Every launch of a forward and a backward pass is compiled instead of run, with the blocks shipped
for that architecture, for inputs as they come out of a qkv projection. For each kernel: registers a
thread, bytes spilled, bytes of shared memory and whether a program may have that many, whether
ptxas serialized its matrix products (remarks C7510 to C7515), which costs more than anything else,
and whether the machine code reads uniform registers that it never writes. ptxas 12.8, which Triton
3.6 brings, emits such code: addresses of matrix products come out of them, and are wrong.
Where Hopper has kernels of its own, those that all other calls take follow.
`docs/log.md` has what was found with it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from saccade.ops._triton.launch import Launch
from saccade.ops.taylor.triton import shapes
from saccade.ops.taylor.triton.direct import (
    _run_anywhere,
    _run_backward_anywhere,
    run_direct,
    run_direct_backward,
)
from saccade.ops.taylor.triton.direct_single_block import (
    is_single_block,
    run_single_block,
    run_single_block_backward,
)
from saccade.ops.taylor.triton.efficient import run_efficient, run_efficient_backward
from saccade.ops.taylor.triton.efficient_state import row_sums, swizzled_division
from saccade.ops.taylor.triton.shapes import Problem, call_shape_of

SMALL_KERNELS = (
    "add_parts",
    "key_sums",
    "prepare_keys",
    "query_gradients",
    "row_gradients",
    "unfold",
    "weighted_row_gradients",
)
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.bool: "*i1",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg")
# Bytes of shared memory that one program may have.
SHARED_LIMIT = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
FULL = 33  # samples whose tiles fill 132 multiprocessors, once or several times
TENSOR_COLUMNS = 512  # of the memory that sm_100 keeps its products in
INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[\w.]+) (?P<operands>[^;]*);"
)
UNIFORM = re.compile(r"\bUR(\d+)\b")
WRITES_UNIFORM = re.compile("U|R2UR|S2UR")


class MachineCode(NamedTuple):
    """One compiled kernel; as a string, the words that are printed for it."""

    registers: int
    spilled: int
    shared: int
    fits: bool
    serialized: str | None
    unset: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = f"{self.registers:>3} registers, {self.spilled:>4} bytes spilled"
        words += f", {self.shared:>6} bytes shared"
        words += "" if self.fits else ", DOES NOT FIT"
        words += f", SERIALIZED ({self.serialized})" if self.serialized else ""
        return words + (f", READS UNSET REGISTERS {self.unset}" if self.unset else "")


def compiled(launch: Launch, tensors: tuple[torch.Tensor, ...], arch: int = 90) -> MachineCode:
    """What becomes of the variant that would be launched."""
    kernel, constants = launch.kernel, dict(launch.constants)
    tuning = {key: constants.pop(key) for key in LAUNCH_OPTIONS if key in constants}
    arguments: list[Any] = [*tensors, *launch.numbers]
    launch.describe(arguments, tensors)
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | constants
    signature: dict[str, Any] = {}
    known: dict[tuple[int, ...], Any] = {}
    hints: dict[tuple[int, ...], list[list[Any]]] = {}

    def kind_of(value: Any, path: tuple[int, ...], *, is_constexpr: bool = False) -> Any:
        """What the signature says of an argument, a tuple likewise of what it holds."""
        if is_constexpr or value is None or (isinstance(value, int) and value == 1):
            known[path] = value
            return "constexpr"
        if isinstance(value, tuple):
            return tuple(kind_of(each, (*path, i)) for i, each in enumerate(value))
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            hints[path] = [["tt.divisibility", 16]]
        if isinstance(value, torch.Tensor):
            return POINTERS[value.dtype]
        if isinstance(value, float):
            return "fp32"
        return "i32" if isinstance(value, int) else mangle_type(value)

    for place, parameter in enumerate(kernel.params):
        value, is_constexpr = values[parameter.name], parameter.is_constexpr
        signature[parameter.name] = kind_of(value, (place,), is_constexpr=is_constexpr)
    source = source_class(kernel)(kernel, signature, known, hints)
    result = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=tuning)
    shared, columns = result.metadata.shared, getattr(result.metadata, "tmem_size", None) or 0
    fits = shared <= SHARED_LIMIT[arch] and columns <= TENSOR_COLUMNS
    registers, spilled, serialized = assembled(result.asm["ptx"], arch)
    unset = unset_registers(disassembled(result.asm["cubin"]))
    return MachineCode(registers, spilled, shared, fits, serialized, unset)


def source_class(kernel: Any) -> type[ASTSource]:
    """How Triton reads a kernel: as Triton or as Gluon."""
    if not kernel.is_gluon():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def assembled(ptx: str, arch: int = 90) -> tuple[int, int, str | None]:
    """Registers, bytes spilled and the remark of a serialized product, as ptxas tells them."""
    variant = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(arch).path, "-v", f"-arch={variant}", file.name, "-o", os.devnull]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spilled = re.search(r"(\d+) bytes spill stores", told)
    assert registers
    assert spilled
    serial = re.search(r"C751[0-5]", told)
    return int(registers[1]), int(spilled[1]), serial[0] if serial else None


def disassembled(cubin: bytes) -> str:
    """The machine code of a compiled kernel as text."""
    with tempfile.NamedTemporaryFile("wb", suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unset_registers(listing: str) -> tuple[int, ...]:
    """Numbers of the uniform registers that machine code reads and never writes.

    No correct program has any. A register that is written too late is not found.
    """
    read: set[int] = set()
    written: set[int] = set()
    for match in INSTRUCTION.finditer(listing):
        name, operands = match["name"], match["operands"].split(",")
        if name.startswith("HGMMA"):
            # UR of the first matrix's descriptor and UR + 2 of the second's, two registers each.
            first = int(UNIFORM.findall(match["operands"])[0])
            in_registers = operands[1].strip().startswith("R")
            read |= set(range(first + 2 if in_registers else first, first + 4))
            continue
        pair = {0, 1} if ".64" in name or "WIDE" in name else {0}
        if WRITES_UNIFORM.match(name) and operands[0].strip().startswith("UR"):
            target = int(UNIFORM.findall(operands.pop(0))[0])
            written |= {target + i for i in pair}
        read |= {int(number) for operand in operands for number in UNIFORM.findall(operand)}
    return tuple(sorted(read - written))


def compile_all(
    dim: int,
    width: int,
    dtype: torch.dtype,
    *,
    normalized: bool,
    masked: bool = False,
    arch: int = 90,
) -> list[tuple[str, MachineCode]]:
    """Every kernel of both algorithms, forward and backward, for heads of one shape."""
    found: list[tuple[str, MachineCode]] = []

    def compile_instead(launch: Launch, *tensors: Any) -> None:
        if launch.kernel.__name__ not in SMALL_KERNELS:
            found.append((launch.kernel.__name__, compiled(launch, tensors, arch)))

    Launch.__call__ = compile_instead  # type: ignore[method-assign]
    Launch.compile = lambda launch, dtypes: None  # type: ignore[method-assign]
    shapes.capability = lambda device: divmod(arch, 10)
    call_shape_of.cache_clear()
    qkv = torch.zeros(1, 2048, 8, 2 * dim + width, dtype=dtype).transpose(1, 2)
    q, k, v = qkv.split([dim, dim, width], dim=-1)
    temperature = torch.ones(8) if normalized else None
    mask = torch.ones(1, 2048, dtype=torch.bool) if masked else None
    problem = Problem.of(q, k, v, mask, temperature, dim**-0.5, 0.5, 1.0, 1.0, normalized, "ieee")
    out, total = run_direct(problem, keep=True)
    if found[-1][0] == "hopper_forward":
        _run_anywhere(problem, out, keep=True)
    run_direct_backward(problem, out, out, total)
    if found[-1][0] == "hopper_backward":
        compile_odd_waves(problem, out)
        _run_backward_anywhere(problem, out, out, total)
    out, total, state, sums = run_efficient(problem)
    run_efficient_backward(problem, out, out, total, state, sums)
    if "accumulate_swizzled" not in dict(found):
        compile_swizzled(problem)
    for queries, keys in ((64, 64), (128, 128), (128, 16), (32, 128)):
        compile_whole(problem, queries, keys)
    return found


def compile_odd_waves(problem: Problem, out: torch.Tensor) -> None:
    """Hopper's own backward for queries that are not whole rounds of four blocks, D = 64."""
    q, form = problem.q[:, :, 128:], problem.call
    if form.dim == 64:
        fewer = Problem(q, *problem[1:5], replace(form, queries=q.shape[2]))
        out = out[:, :, 128:]
        run_direct_backward(fewer, out, out, fewer.numbers(form.batch_heads, q.shape[2]))


def compile_whole(problem: Problem, queries: int, keys: int) -> None:
    """The kernels that take a head of so many tokens at once, where there are any."""
    q, k, v = (x[:, :, :n] for x, n in zip(problem[:3], (queries, keys, keys), strict=True))
    mask = problem.key_mask[:, :keys] if problem.call.masked else q
    form = replace(problem.call, queries=queries, keys=keys)
    few = Problem(q, k, v, mask, problem.temperature, form)
    if is_single_block(form):
        out, total = run_single_block(few, keep=True)
        run_single_block_backward(few, out, out, total)


def compile_swizzled(problem: Problem) -> None:
    """The sums over swizzled keys, where there are any; of few heads they may not be swizzled."""
    q, k, v = (x.to("meta").expand(FULL, *x.shape[1:]) for x in problem[:3])
    form = replace(problem.call, batch=FULL, device=q.device)
    many = Problem(q, k, v, q, problem.temperature, form)
    out = many.new(FULL, form.heads, form.queries, form.width)
    if swizzled_division(form, out.nbytes) is not None:
        row_sums(many, scratch=out)


def main() -> None:
    """Compile and print a line for each launch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dims", default="16,32,64,128", help="D, or DxE where they differ")
    parser.add_argument("--width", type=int, help="E of all; D if absent")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--normalized", action="store_true", help="TaylorShift's kernels")
    parser.add_argument("--masked", action="store_true", help="with a key mask")
    parser.add_argument("--arch", type=int, default=90, choices=SHARED_LIMIT)
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    for heads in arguments.dims.split(","):
        dim, _, width = heads.partition("x")
        width = int(width or arguments.width or dim)
        for name, code in compile_all(
            int(dim),
            width,
            dtype,
            normalized=arguments.normalized,
            masked=arguments.masked,
            arch=arguments.arch,
        ):
            print(f"D = {heads:<4} {name:<16} {code}", flush=True)


if __name__ == "__main__":
    main()
