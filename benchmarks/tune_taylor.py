"""Search the block sizes of the fused Taylor kernels on the device at hand.

    python benchmarks/tune_taylor.py --out DIR [--dims 16,32,64,128] [--kernels accumulate,values]
                                     [--normalized]

Candidates are compiled by several processes at once, then timed in one (median of repeated runs,
cache flushed between them). The winners belong into `saccade/ops/taylor/triton/configs.py`.
"""

import argparse
import itertools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import triton

from saccade.ops.taylor.triton import configs, direct, efficient, efficient_gradients
from saccade.ops.taylor.triton.configs import Blocks, blocks_for
from saccade.ops.taylor.triton.efficient_moments import row_moments
from saccade.ops.taylor.triton.efficient_state import row_state, row_sums
from saccade.ops.taylor.triton.rows import quotient_gradients
from saccade.ops.taylor.triton.shapes import Problem, call_shape_of

ROWS_KERNELS = ("values", "gradients")
DIRECT_KERNELS = ("direct_forward", "direct_queries", "direct_keys")


def candidates(kernel: str, dim: int) -> list[Blocks]:
    """The block sizes to try: those whose registers and shared memory have a chance to fit."""
    both = (4, 8)
    if kernel in ("accumulate", "narrow_sums"):
        sizes = itertools.product((0,), (32, 64, 128), both, (2, 3, 4))
    elif kernel == "moments":
        sizes = itertools.product((0, 64), (32, 64, 128), both, (2, 3))
    elif kernel in ROWS_KERNELS and dim <= 32:
        sizes = [(r, 16, w, s) for r, w in ((64, 4), (128, 4), (128, 8)) for s in (1, 2, 3)]
    elif kernel in ROWS_KERNELS:
        blocks = ((64, 4), (128, 4), (128, 8), (256, 8))
        sizes = [(r, part, w, s) for r, w in blocks for part in (4, 8, 16) for s in (2, 3)]
    else:
        blocks = ((64, 4), (128, 4), (128, 8), (256, 8))
        sizes = [(r, n, w, s) for r, w in blocks for n in (32, 64, 128) for s in (2, 3)]
    device = torch.cuda.get_device_capability()
    shipped = blocks_for(kernel, dim, torch.bfloat16, device)
    at_once = (2, 3, 4, 5) if kernel == "narrow_sums" else (shipped.resident,)
    return [
        Blocks(*size, resident=count, chunk=shipped.chunk) for size in sizes for count in at_once
    ]


def make_problem(dim: int, tokens: int, normalized: bool) -> Problem:
    """q, k and v as they come out of a qkv projection."""
    heads = (1 << (21 if dim <= 32 else 20)) // tokens
    torch.manual_seed(0)
    qkv = torch.randn(max(1, heads // 8), tokens, 3, min(8, heads), dim, device="cuda")
    q, k, v = qkv.bfloat16().permute(2, 0, 3, 1, 4)
    temperature = torch.ones(q.shape[1], device="cuda") if normalized else None
    numbers = (1.0 if normalized else dim**-0.5, 0.5, 1.0, 1.0)
    return Problem.of(q, k, v, None, temperature, *numbers, normalized, "ieee")


class Runner:
    """Runs one kernel of one problem with given blocks."""

    def __init__(self, dim: int, tokens: int, normalized: bool) -> None:
        self.problem = p = make_problem(dim, tokens, normalized)
        self.out, self.total, self.state, self.moments = efficient.run_efficient(p)
        self.grad = torch.randn_like(self.out)
        self.dy, self.dz = quotient_gradients(p, self.grad, self.out, self.total)
        self.squares = row_moments(p)[1]
        self.chosen: tuple[str, Blocks] | None = None

    def choose(self, kernel: str, blocks: Blocks) -> None:
        """Let one kernel have these blocks, and the others those that are shipped."""
        if self.chosen == (kernel, blocks):
            return
        self.chosen = kernel, blocks
        configs.blocks_for = lambda name, *rest: (
            blocks if name == kernel else blocks_for(name, *rest)
        )
        call_shape_of.cache_clear()
        q, k, v, _, temperature, form = self.problem
        numbers = (form.scale, form.a, form.b, form.c, form.normalize_output, form.precision)
        self.problem = Problem.of(q, k, v, None, temperature if form.normalized else None, *numbers)

    def run(self, kernel: str, blocks: Blocks) -> None:
        """Launch one kernel with these blocks, and what goes with it."""
        self.choose(kernel, blocks)
        p = self.problem
        if kernel == "accumulate":
            row_state(p, self.squares)
        elif kernel == "moments":
            row_moments(p)
        elif kernel == "narrow_sums":
            row_sums(p)
        elif kernel == "values":
            values = efficient.values_launch(p.call, True)
            sums = (self.state, self.moments, self.out, self.total)
            values(p.q, p.q, p.temperature, p.q, *sums)
        elif kernel == "gradients":
            efficient_gradients.run_gradient(p, p.q, self.dy, self.dz, self.state, self.moments)
        elif kernel == "direct_forward":
            direct._run_anywhere(p, self.out, keep=True)
        else:
            direct._run_backward_anywhere(p, self.grad, self.out, self.total)


def compile_some(
    dim: int, tokens: int, normalized: bool, jobs: list[tuple[str, Blocks]]
) -> list[str]:
    """Compile some candidates into the shared cache; say which do not fit."""
    runner, failed = Runner(dim, tokens, normalized), []
    for kernel, blocks in jobs:
        try:
            runner.run(kernel, blocks)
            torch.cuda.synchronize()
        except Exception as error:
            failed.append(f"{kernel} {tuple(blocks)}: {type(error).__name__} {str(error)[:80]}")
    return failed


def main() -> None:
    """Search, print the fastest, write everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dims", default="16,32,64,128")
    parser.add_argument(
        "--kernels",
        default=",".join(("accumulate", "moments", "narrow_sums", *ROWS_KERNELS, *DIRECT_KERNELS)),
    )
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--direct-tokens", type=int, default=4096)
    parser.add_argument("--normalized", action="store_true", help="TaylorShift's kernels")
    parser.add_argument("--workers", type=int, default=12)
    arguments = parser.parse_args()
    start, results = time.time(), {}
    plan = []
    for dim in map(int, arguments.dims.split(",")):
        for kernel in arguments.kernels.split(","):
            tokens = arguments.direct_tokens if kernel in DIRECT_KERNELS else arguments.tokens
            if kernel != "narrow_sums" or dim <= configs.ONE_PASS_WIDTH:
                plan += [(dim, tokens, kernel, blocks) for blocks in candidates(kernel, dim)]
    groups: dict[tuple[int, int, int], list[tuple[str, Blocks]]] = {}
    for index, (dim, tokens, kernel, blocks) in enumerate(plan):
        groups.setdefault((dim, tokens, index % arguments.workers), []).append((kernel, blocks))
    with ProcessPoolExecutor(arguments.workers, torch.multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(compile_some, d, n, arguments.normalized, jobs)
            for (d, n, _), jobs in groups.items()
        ]
        failed = [line for future in futures for line in future.result()]
    print(f"compiled {len(plan)} in {time.time() - start:.0f} s, {len(failed)} failed", flush=True)
    for (dim, tokens), jobs in itertools.groupby(plan, key=lambda job: job[:2]):
        runner = Runner(dim, tokens, arguments.normalized)
        for _, _, kernel, blocks in jobs:
            try:
                runner.run(kernel, blocks)
                ms = triton.testing.do_bench(
                    lambda k=kernel, b=blocks, r=runner: r.run(k, b), warmup=5, rep=20,
                    return_mode="median",
                )  # fmt: skip
            except Exception:
                continue
            results.setdefault(f"{kernel} D={dim}", []).append((ms, tuple(blocks)))
    for name, rows in results.items():
        rows.sort()
        print(name, " ".join(f"{ms:.3f}{blocks}" for ms, blocks in rows[:4]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    about = {"device": torch.cuda.get_device_name(), **versions, "command": sys.argv[1:]}
    text = json.dumps({**about, "results": results, "failed": failed}, indent=1)
    (arguments.out / "tune_taylor.json").write_text(text)


if __name__ == "__main__":
    main()
