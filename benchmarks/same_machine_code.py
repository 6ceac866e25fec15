"""Whether two revisions of the kernels compile to the same machine code, without a GPU.

    PYTHONPATH=src python benchmarks/same_machine_code.py --out before.json [--only taylor]
    (change the kernels)
    PYTHONPATH=src python benchmarks/same_machine_code.py --out after.json
    python benchmarks/same_machine_code.py --compare before.json after.json

All operators are called on the CPU, forward and backward, while a driver without a device compiles
their kernels for Hopper and notes each launch: a digest of its PTX (with `--assemble` of the
machine code, and the registers a thread), the grid, and every argument that is no address. Names,
files and the grouping of arguments into tuples are not part of the record. Two records that are
equal launch the same instructions with the same numbers in the same order. Compile with the Triton
that will run: other releases make other code. `benchmarks/machine_code.py` tells what the code of a
kernel is like.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # while the kernels are imported
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from saccade.ops.linear import triton as _linear  # noqa: F401  (registers operators)
from saccade.ops.norm import triton as _norm  # noqa: F401
from saccade.ops.softmax import triton as _softmax  # noqa: F401
from saccade.ops.taylor import triton as _taylor  # noqa: F401

ARCH = 90
HALF, SINGLE = torch.bfloat16, torch.float32
Case = tuple[str, Callable[[], None]]


class Recorder:
    """A device that is not there: it keeps machine code and launches.

    Attributes:
        launches: Of the case that runs, one entry for each launch.
        named: Names of tensors by address; every other address is `*`.
    """

    def __init__(self) -> None:
        self.launches: list[list[Any]] = []
        self.named: dict[int, str] = {}
        self._code: list[str] = []

    def load_binary(self, _name: str, kernel: bytes, shared: int, _device: int) -> tuple[int, ...]:
        """Keep the code; its handle is its place."""
        code = kernel.decode() if kernel.startswith(b"ptx") else code_of(kernel)
        self._code.append(f"{code} shared {shared}")
        return 1, len(self._code) - 1, 32, 0, 1024

    def get_device_properties(self, _device: int) -> dict[str, int]:
        """Those of a Hopper."""
        return {"max_shared_mem": 232448}

    def unload_module(self, _module: int) -> None:
        """Nothing is loaded."""

    def note(self, name: str, signature: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        """Keep a launch: grid, stream, handle, metadata, hooks, then what the kernel takes."""
        grid, handle = list(arguments[:3]), arguments[4]
        values = arguments[len(arguments) - len(signature) :]
        flat = [
            x for pair in zip(signature.values(), values, strict=True) for x in self.flat(*pair)
        ]
        self.launches.append([name, self._code[handle], grid, flat])

    def flat(self, kind: Any, value: Any) -> Iterator[Any]:
        """The numbers and addresses of an argument, without compile-time values."""
        if isinstance(kind, tuple):
            for pair in zip(kind, value, strict=True):
                yield from self.flat(*pair)
        elif kind.startswith("tensordesc"):
            yield [*self.flat("*", value.base), list(value.shape), list(value.strides)]
        elif kind.startswith("*"):
            address = value.data_ptr() if isinstance(value, torch.Tensor) else value
            yield self.named.get(address, "*")
        elif kind != "constexpr":
            yield value


def code_of(cubin: bytes) -> str:
    """A digest of the machine code, and the registers a thread."""
    start = struct.unpack_from("<Q", cubin, 40)[0]
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    strings = headers[names][4]
    sections = {}
    for name, _kind, _flags, _address, offset, length, *_ in headers:
        label = cubin[strings + name : cubin.index(b"\0", strings + name)].decode()
        sections[label] = cubin[offset : offset + length]
    code = next((text for label, text in sections.items() if label.startswith(".text.")), None)
    if code is None:
        raise ValueError("cubin has no machine code")
    register_count = sections[".nv.info"].index(b"\x04\x2f\x08\x00") + 8  # behind the symbol
    registers = struct.unpack_from("<I", sections[".nv.info"], register_count)[0]
    return f"{hashlib.sha256(code).hexdigest()[:16]} registers {registers}"


def digest_of_ptx(
    _backend: CUDABackend, ptx: str, metadata: dict[str, Any], *_options: Any
) -> bytes:
    """What stands for machine code where nothing is assembled: ptxas adds nothing of its own."""
    text = re.sub(r"//.*", "", ptx.split(".section")[0])
    text = re.sub(rf"\b{metadata['name']}(?=_param_|\b)", "KERNEL", text)
    return f"ptx {hashlib.sha256(text.encode()).hexdigest()[:16]}".encode()


class Launcher:
    """What Triton calls to launch a kernel."""

    def __init__(self, source: Any, _metadata: Any) -> None:
        self.name, self.signature = source.fn.__name__, source.signature

    def __call__(self, *arguments: Any) -> None:
        """Note the launch."""
        RECORDER.note(self.name, self.signature, arguments)


class Driver:
    """A Hopper that is not there; its number is the one of CPU tensors."""

    launcher_cls = Launcher

    @property
    def utils(self) -> Recorder:
        """What loads binaries."""
        return RECORDER

    def get_current_device(self) -> int:
        """The number that `Tensor.get_device` has for the CPU."""
        return -1

    def get_current_stream(self, _device: int) -> int:
        """Any number."""
        return 7

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return GPUTarget("cuda", ARCH, 32)


RECORDER = Recorder()


def projected(
    batch: int, heads: int, tokens: int, dim: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """q, k and v as they come out of one projection, (B, H, N, D) and (B, H, N, E)."""
    rows = torch.empty(batch, tokens, heads, 2 * dim + width, dtype=dtype)
    return rows.transpose(1, 2).split([dim, dim, width], dim=-1)


def taylor(
    dim: int,
    width: int | None = None,
    *,
    tokens: int = 2048,
    keys: int | None = None,
    batch: int = 1,
    heads: int = 8,
    dtype: torch.dtype = HALF,
    normalized: bool = False,
    masked: bool = False,
    efficient: bool = False,
    tf32: bool = False,
) -> Case:
    """A call of `taylor_fused` and its backward pass."""
    width = width or dim
    words = f"taylor D={dim} E={width} N={tokens} S={keys or tokens} B={batch} H={heads} {dtype}"
    flags = {"normalized": normalized, "masked": masked, "efficient": efficient, "tf32": tf32}

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        q, k, v = projected(batch, heads, tokens, dim, width, dtype)
        k, v = k[:, :, :keys], v[:, :, :keys]
        mask = torch.ones(batch, k.shape[2], dtype=torch.bool) if masked else None
        temperature = torch.ones(heads) if normalized else None
        tensors, numbers = (
            (q, k, v, mask, temperature),
            (0.25, 0.5, 1.0, 1.0, normalized, efficient),
        )
        name_tensors(q=q, k=k, v=v, mask=mask, temperature=temperature)
        operators = torch.ops.saccade
        operators.taylor_fused(*tensors, *numbers, False)
        out, *kept = operators.taylor_fused(*tensors, *numbers, True)
        name_tensors(out=out)
        operators.taylor_fused_backward(out, *tensors, out, *kept, *numbers)
        torch.backends.cuda.matmul.allow_tf32 = False

    return words + "".join(f" {key}" for key, on in flags.items() if on), run


def linear(
    feature_map: str, shape: tuple[int, ...], dtype: torch.dtype = HALF, *, masked: bool = False
) -> Case:
    """A call of `linear_fused` and its backward pass; a shape is B, H, N, D, M."""
    batch, heads, tokens, dim, features = shape

    def run() -> None:
        q, k, v = projected(batch, heads, tokens, dim, dim, dtype)
        weight = None if feature_map == "identity" else torch.zeros(features, dim)
        mask = torch.ones(batch, tokens, dtype=torch.bool) if masked else None
        inputs, numbers = (q, k, v, weight, mask), (feature_map, dim**-0.5, 1e-3, 1e-6, "ieee")
        name_tensors(q=q, k=k, v=v, mask=mask)
        out, *kept = torch.ops.saccade.linear_fused(*inputs, *numbers)
        name_tensors(out=out)
        torch.ops.saccade.linear_fused_backward(out, *inputs, out, *kept, *numbers)

    return f"linear {feature_map} {shape} {dtype}{' masked' if masked else ''}", run


def packed(tokens: int, dim: int) -> Iterator[Case]:
    """Calls that take q, k and v in one tensor."""

    def tensors() -> tuple[torch.Tensor, torch.Tensor]:
        qkv, grad = (torch.zeros(4, tokens, *n, dim, dtype=HALF) for n in ((3, 8), (8,)))
        name_tensors(qkv=qkv, grad=grad)
        return qkv, grad

    def softmax() -> None:
        qkv, grad = tensors()
        torch.ops.saccade.softmax_packed(qkv, 0.25)
        torch.ops.saccade.softmax_packed_backward(grad, qkv, 0.25)

    def taylor() -> None:
        qkv, grad = tensors()
        for temperature in (None, torch.ones(8)):
            numbers = temperature, 0.25, 0.5, 1.0, 1.0, True
            torch.ops.saccade.taylor_packed(qkv, *numbers)
            torch.ops.saccade.taylor_packed_backward(grad, qkv, *numbers)

    yield f"softmax packed N={tokens} D={dim}", softmax
    yield f"taylor packed N={tokens} D={dim}", taylor


def norm(width: int, tokens: int = 64) -> Case:
    """Residual addition and norm, with and without a branch and factors."""

    def run() -> None:
        operators = torch.ops.saccade
        x, weight, keep = torch.zeros(8, tokens, width), torch.ones(width), torch.ones(8)
        branch = x.to(HALF)
        name_tensors(x=x, weight=weight, keep=keep, branch=branch)
        for factors in (None, keep):
            s, _, statistics = operators.add_norm(x, branch, factors, weight, weight, 1e-6, HALF)
            for ds in (None, x):
                known = s, statistics, weight, weight, factors, HALF
                operators.add_norm_backward(branch, ds, *known)
        _, statistics = operators.layer_norm(x, weight, weight, 1e-6, SINGLE)
        operators.add_norm_backward(x, None, x, statistics, weight, weight, None, None)

    return f"norm C={width} N={tokens}", run


def name_tensors(**tensors: torch.Tensor | None) -> None:
    """Have addresses of these tensors recorded by name."""
    RECORDER.named.update({x.data_ptr(): name for name, x in tensors.items() if x is not None})


def cases() -> Iterator[Case]:
    """Every family, dtype and path, with head dims that are and are not multiples of 16."""
    kinds = [{"normalized": n, "efficient": e} for n in (False, True) for e in (False, True)]
    for width in (256, 1024):
        yield norm(width)
    yield norm(100, 7)
    for tokens, dim in ((64, 32), (37, 20)):
        yield from packed(tokens, dim)
    for name in ("favor_softmax", "gelu"):
        yield linear(name, (64, 8, 65, 32, 112))
        yield linear(name, (512, 8, 65, 32, 112), masked=True)
        yield linear(name, (2, 8, 4096, 64, 272))
        yield linear(name, (4, 8, 1000, 40, 112), torch.float16, masked=True)
    for name in ("relu", "exp", "elu"):
        yield linear(name, (4, 8, 1000, 24, 50), SINGLE)
    yield linear("identity", (4, 8, 1000, 64, 64))
    for dim in (64, 16):
        for kind in kinds:
            yield taylor(dim, **kind)
    for kind in kinds:
        yield taylor(32, masked=True, **kind, tokens=1000)
        yield taylor(40, **kind, tokens=300)
        yield taylor(17, 24, **kind, tokens=300, keys=200)
        yield taylor(128, **kind)
        yield taylor(64, dtype=SINGLE, tf32=True, **kind)
    for normalized in (False, True):
        for dim in (32, 128):  # many heads: swizzled keys, parts, several waves
            yield taylor(dim, batch=33, normalized=normalized, efficient=True)
        yield taylor(64, batch=33, tokens=1024, normalized=normalized)
        yield taylor(64, tokens=1152, normalized=normalized)
        for tokens, masked in ((64, False), (64, True), (128, False)):
            yield taylor(32, tokens=tokens, normalized=normalized, masked=masked)
        yield taylor(24, dtype=torch.float16, normalized=normalized, efficient=True, tokens=500)
        yield taylor(64, 16, normalized=normalized, masked=True, efficient=True, tokens=512)


def record(out: Path, only: str, *, assemble: bool) -> None:
    """Run the cases whose names begin so, and write what they launched."""
    driver.set_active(Driver())
    if not assemble:
        CUDABackend.make_cubin = digest_of_ptx
    found: dict[str, Any] = {}
    for name, run in cases():
        if name.startswith(only):
            RECORDER.launches, RECORDER.named = [], {}
            run()
            found[name] = RECORDER.launches
            print(f"{len(found[name]):>3} launches  {name}", flush=True)
    out.write_text(json.dumps({"triton": triton.__version__, "cases": found}))


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What is not the same, a line each; names of kernels are not compared."""
    if before["triton"] != after["triton"]:
        yield f"other releases of Triton: {before['triton']} and {after['triton']}"
    old, new = before["cases"], after["cases"]
    for case in old | new:
        pair = old.get(case, []), new.get(case, [])
        if len(pair[0]) != len(pair[1]):
            names = [[launch[0] for launch in launches] for launches in pair]
            yield f"{case}: launches {names[0]} became {names[1]}"
            continue
        for one, other in zip(*pair, strict=True):
            for what, a, b in zip(("code", "grid", "arguments"), one[1:], other[1:], strict=True):
                if a != b:
                    yield f"{case}: {one[0]} -> {other[0]}: {what} {a} became {b}"


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write a record")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--assemble", action="store_true", help="take machine code, not PTX")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    arguments = parser.parse_args()
    if arguments.out:
        with tempfile.TemporaryDirectory() as cache:  # no digest may be taken for code later
            os.environ["TRITON_CACHE_DIR"] = cache
            record(arguments.out, arguments.only, assemble=arguments.assemble)
    if arguments.compare:
        before, after = (json.loads(path.read_text()) for path in arguments.compare)
        told = list(differences(before, after))
        count = sum(map(len, before["cases"].values()))
        print(*told, f"{count} launches compared, {len(told)} differences", sep="\n")
        sys.exit(bool(told))


if __name__ == "__main__":
    main()
