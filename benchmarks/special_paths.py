"""Time of a training step with and without the kernels for short heads, on a GPU.

    PYTHONPATH=src python benchmarks/special_paths.py --out special_paths.json

`vit_cifar` with 64 tokens, or 65 with a class token, and heads of 32 or 64 columns: forward and
backward as a CUDA graph, in milliseconds, with all paths and without some. A path that gains less
than a tenth in every row is not worth its code (docs/log.md has the decision).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

import saccade
from saccade.ops.softmax import attention as softmax_attention
from saccade.ops.taylor import triton as taylor_triton
from saccade.ops.taylor.triton import api

BATCH, DEPTH, REPEATS = 512, 8, 31
PATHS: dict[str, tuple[Any, str, Any]] = {
    "taylor packed": (taylor_triton, "is_short", lambda *_: False),
    "taylor whole": (api, "is_single_block", lambda _: False),
    "softmax packed": (softmax_attention, "SHORT", ()),
}
PACKED, WHOLE, SOFTMAX = (
    ("taylor packed",),
    ("taylor packed", "taylor whole"),
    ("softmax packed",),
)
CASES: tuple[tuple[str, int, bool, tuple[tuple[str, ...], ...]], ...] = (
    ("taylorshift", 8, False, ((), PACKED, WHOLE)),
    ("taylor", 8, False, ((), PACKED, WHOLE)),
    ("taylorshift", 4, False, ((), PACKED)),
    ("taylor", 4, False, ((), PACKED)),
    ("taylorshift", 8, True, ((), ("taylor whole",))),
    ("softmax", 8, False, ((), SOFTMAX)),
    ("softmax", 4, False, ((), SOFTMAX)),
    ("softmax", 8, True, ((), SOFTMAX)),
)


def step_ms(attention: str, heads: int, *, class_token: bool) -> float:
    """The median time of a step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    overrides: dict[str, Any] = {"num_heads": heads, "depth": DEPTH, "class_token": class_token}
    overrides["global_pool"] = "token" if class_token else "avg"
    model = saccade.create_model("vit_cifar", attention, 10, **overrides).cuda()
    for block in model.blocks:
        block.compile(dynamic=False)
    x = torch.randn(BATCH, 3, 32, 32, device="cuda")
    y = torch.randint(10, (BATCH,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            step()
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return float(sorted(times)[REPEATS // 2])


def main() -> None:
    """Measure every case and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    out = parser.parse_args().out
    kept = {name: getattr(owner, part) for name, (owner, part, _) in PATHS.items()}
    found = []
    for attention, heads, class_token, variants in CASES:
        for off in variants:
            for name, (owner, part, without) in PATHS.items():
                setattr(owner, part, without if name in off else kept[name])
            ms = step_ms(attention, heads, class_token=class_token)
            row = {"attention": attention, "heads": heads, "class_token": class_token}
            found.append({**row, "without": off, "step_ms": ms})
            print(found[-1], flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
