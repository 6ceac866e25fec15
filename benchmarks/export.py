"""CPU latency of exported models beside torch, the crossing of both Taylor graphs, and int8.

    python benchmarks/export.py prepare --run RUN     # exports the models; nothing is timed
    python benchmarks/export.py crossover             # direct and linear graphs in ONNX Runtime
    python benchmarks/export.py latency               # ONNX Runtime, eager and compiled torch
    python benchmarks/export.py int8                  # size, latency and accuracy on CIFAR-10
    python benchmarks/export.py table

Every part adds to results/export/export_cpu_202611.json; `table` makes the .md from it. The runners
of a row are timed alternately in one process, on two threads. RUN is a finished run on CIFAR-10.
`latency` continues where it was stopped.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from saccade import create_model
from saccade.data.held_out import load_held_out
from saccade.environment import describe_environment
from saccade.export import ExportOptions, export_onnx
from saccade.export.inference import evaluate_classifier
from saccade.export.reading import open_classifier
from saccade.export.run_export import export_run
from saccade.layers import MultiHeadAttention
from saccade.ops.backends import plain_operators
from saccade.runs import RunFolder

RESULTS = Path(__file__).parents[1] / "results" / "export"
NAME = "export_cpu_202611"
THREADS, SECONDS, LEAST = 2, 0.3, 3

# A ViT of two blocks, 64 wide, two heads of 32: small enough for 4,096 tokens at batch 32 on a CPU.
MODEL = {
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 2,
    "mlp_hidden_dim": 256,
    "num_classes": 10,
    "class_token": False,
    "global_pool": "avg",
}
SIZES = {64: 32, 256: 64, 1024: 128, 4096: 256}  # tokens: image size at patch 4
BATCHES = (1, 32)
ATTENTIONS = ("softmax", "taylor")
HEADS = 4
GRID = (32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192)
HEAD_DIMS = (8, 16, 32, 64, 128)
LONGEST_MS = 700.0  # a graph that takes longer is not run with more tokens


def session(path: Path) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session with the threads of the benchmark."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def time_in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Median, fastest and slowest of each call, all called in turns."""
    first = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        first[name] = time.perf_counter() - start
    rounds = max(LEAST, min(50, int(SECONDS / max(sum(first.values()) / len(first), 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {
            "median_ms": statistics.median(found),
            "min_ms": min(found),
            "max_ms": max(found),
            "repeats": rounds,
        }
        for name, found in times.items()
    }


def build(attention: str, tokens: int) -> torch.nn.Module:
    """The model of a row, newly initialized."""
    torch.manual_seed(0)
    side = SIZES[tokens]
    options = {**MODEL, "img_size": side}
    return create_model("vit_micro_patch4_32", attention, **options).eval()


def compiled(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model compiled for one shape."""
    return torch.compile(model, dynamic=False)


def prepare(folder: Path, run: Path | None) -> None:
    """Export every model, so that measuring does not."""
    for attention in ATTENTIONS:
        for tokens in SIZES:
            path = folder / f"{attention}-{tokens}.onnx"
            if not path.exists():
                print(path.name, export_onnx(build(attention, tokens), path).algorithm, flush=True)
    if run is not None:
        for name, options, quantize in (
            ("fp32", ExportOptions(), None),
            ("fp16", ExportOptions(precision="fp16"), None),
            ("int8", ExportOptions(), "int8"),
        ):
            path = folder / f"cifar10-{name}.onnx"
            if not path.exists():
                source = RunFolder.open(run)
                print(export_run(source, path, options=options, quantize=quantize), flush=True)
    for dim in HEAD_DIMS:
        for algorithm in ("direct", "efficient"):
            path = folder / f"attention-{dim}-{algorithm}.onnx"
            if not path.exists():
                export_attention(path, dim, algorithm)
                print(path.name, flush=True)


def export_attention(path: Path, dim: int, algorithm: str) -> None:
    """One Taylor attention layer with any number of tokens."""
    layer = MultiHeadAttention(
        HEADS * dim, HEADS, "taylor", attention_options={"algorithm": algorithm}
    ).eval()
    tokens = torch.export.Dim("tokens", min=2, max=2**20)
    x = torch.randn(1, 100, HEADS * dim)
    with plain_operators(), torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes=({1: tokens},), strict=False)
        found = torch.onnx.export(program, (x,), opset_version=20, verbose=False)
    path.write_bytes(found.model_proto.SerializeToString())


def measure_crossover(folder: Path) -> list[dict[str, Any]]:
    """Times of both graphs of a Taylor layer, by head dim and tokens."""
    rows = []
    for dim in HEAD_DIMS:
        sessions = {
            name: session(folder / f"attention-{dim}-{name}.onnx")
            for name in ("direct", "efficient")
        }
        for tokens in GRID:
            x = {
                sessions["direct"].get_inputs()[0].name: np.random.default_rng(0)
                .standard_normal((1, tokens, HEADS * dim))
                .astype(np.float32)
            }
            times = time_in_turns(
                {name: lambda run=run, x=x: run.run(None, x) for name, run in sessions.items()}
            )
            rows.append({"head_dim": dim, "heads": HEADS, "tokens": tokens, "times": times})
            print(dim, tokens, {k: round(v["median_ms"], 2) for k, v in times.items()}, flush=True)
            if max(t["median_ms"] for t in times.values()) > LONGEST_MS:
                break
    return rows


def measure_latency(folder: Path, rows: list[dict[str, Any]], save: Callable[[], None]) -> None:
    """Add the times of a model in three runners, by attention, tokens and batch, to the rows."""
    done = {(row["attention"], row["tokens"], row["batch"]) for row in rows}
    cells = [(n, b, a) for b in BATCHES for n in SIZES for a in ATTENTIONS]
    for tokens, batch, attention in cells:
        if (attention, tokens, batch) in done:
            continue
        model, path = build(attention, tokens), folder / f"{attention}-{tokens}.onnx"
        runtime = session(path)
        stored = json.loads(runtime.get_modelmeta().custom_metadata_map["saccade.model"])
        torch.compiler.reset()
        x = torch.randn(batch, 3, SIZES[tokens], SIZES[tokens])
        fed = {"images": x.numpy()}
        fast = compiled(model)
        with torch.inference_mode():
            times = time_in_turns(
                {
                    "onnxruntime": lambda r=runtime, f=fed: r.run(None, f),
                    "eager": lambda m=model, x=x: m(x),
                    "compiled": lambda m=fast, x=x: m(x),
                }
            )
        row = {"attention": attention, "algorithm": stored["algorithm"], "tokens": tokens}
        rows.append({**row, "batch": batch, "times": times})
        save()
        shown = {k: round(v["median_ms"], 2) for k, v in times.items()}
        print(attention, tokens, batch, shown, flush=True)


def measure_int8(folder: Path) -> list[dict[str, Any]]:
    """Size, times and accuracy of the trained model, by precision."""
    paths = {name: folder / f"cifar10-{name}.onnx" for name in ("fp32", "fp16", "int8")}
    sessions = {name: session(path) for name, path in paths.items()}
    held_out = load_held_out("cifar10")
    rows = {
        name: {
            "precision": name,
            "bytes": path.stat().st_size,
            "model": json.loads(
                sessions[name].get_modelmeta().custom_metadata_map["saccade.model"]
            ),
            "accuracy": evaluate_classifier(open_classifier(path), held_out)["accuracy"],
            "count": len(held_out.labels),
            "times": {},
        }
        for name, path in paths.items()
    }
    for batch in BATCHES:
        fed = {"images": np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)}
        calls = {name: lambda r=run, f=fed: r.run(None, f) for name, run in sessions.items()}
        for name, times in time_in_turns(calls).items():
            rows[name]["times"][str(batch)] = times
    return list(rows.values())


def table(found: dict[str, Any]) -> str:
    """The Markdown tables of the result file."""
    machine = found["environment"]
    versions = f"torch {machine['packages']['torch']}, ONNX Runtime {found['onnxruntime']}"
    lines = [
        f"{machine['cpu']}, {THREADS} threads, {versions}, {machine['time'][:10]}.",
        "Medians in ms. The runners of a row were timed in turns in one process.",
        "",
        "A ViT of two blocks, 64 wide, two heads of 32 columns. `taylor` in ONNX Runtime is the",
        "graph that `saccade export` chooses.",
        "",
        "| attention | tokens | batch | graph | ONNX Runtime | eager torch | compiled torch "
        "| eager / ORT | compiled / ORT |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = {tokens: place for place, tokens in enumerate(SIZES)}
    rows = sorted(
        found.get("latency", []),
        key=lambda row: (row["attention"], row["batch"], order[row["tokens"]]),
    )
    for row in rows:
        runtime, eager, fast = (
            row["times"][k]["median_ms"] for k in ("onnxruntime", "eager", "compiled")
        )
        graph = row["algorithm"] or "-"
        lines.append(
            f"| {row['attention']} | {row['tokens']:,} | {row['batch']} | {graph} "
            f"| {runtime:.2f} | {eager:.2f} | {fast:.2f} | {eager / runtime:.2f} "
            f"| {fast / runtime:.2f} |"
        )
    lines += [
        "",
        "One Taylor attention layer with four heads in ONNX Runtime, batch 1: direct / linear.",
        "",
        "| tokens | " + " | ".join(f"D = {dim}" for dim in HEAD_DIMS) + " |",
        "|---" * (len(HEAD_DIMS) + 1) + "|",
    ]
    ratios = {
        (row["head_dim"], row["tokens"]): row["times"]["direct"]["median_ms"]
        / row["times"]["efficient"]["median_ms"]
        for row in found.get("crossover", [])
    }
    for tokens in GRID:
        cells = [ratios.get((dim, tokens)) for dim in HEAD_DIMS]
        shown = " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells)
        lines.append(f"| {tokens:,} | {shown} |")
    lines += [
        "",
        "Precisions on CIFAR-10: `vit_micro_patch4_32` with Taylor attention, 119,194 parameters,",
        "trained for 6 epochs on this CPU for this table (a well trained one reaches 78 %).",
        "",
        "| precision | MiB | batch 1, ms | batch 32, ms | accuracy of 10,000 |",
        "|---|---|---|---|---|",
    ]
    for row in found.get("int8", []):
        one, many = (row["times"][str(batch)]["median_ms"] for batch in BATCHES)
        lines.append(
            f"| {row['precision']} | {row['bytes'] / 2**20:.2f} | {one:.2f} | {many:.2f} "
            f"| {100 * row['accuracy']:.2f} % |"
        )
    return "\n".join(lines) + "\n"


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the results, and the tables made from them."""
    path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(found))


def main() -> None:
    """Run one part and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("prepare", "crossover", "latency", "int8", "table"))
    parser.add_argument("--run", type=Path, help="a finished run on CIFAR-10, for int8")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/saccade-export-benchmark"))
    words = parser.parse_args()
    torch.set_num_threads(THREADS)
    words.folder.mkdir(parents=True, exist_ok=True)
    if words.part == "prepare":
        prepare(words.folder, words.run)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{NAME}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if words.part != "table":
        own = {"threads": THREADS, "command": f"python benchmarks/export.py {words.part}"}
        found["environment"] = describe_environment(torch.device("cpu")) | own
        found["onnxruntime"] = onnxruntime.__version__
        prepare(words.folder, words.run)
        if words.part == "latency":
            rows = found.setdefault("latency", [])
            measure_latency(words.folder, rows, lambda: write(path, found))
        else:
            measure = {"crossover": measure_crossover, "int8": measure_int8}[words.part]
            found[words.part] = measure(words.folder)
        found.setdefault("measured", {})[words.part] = datetime.now(UTC).isoformat("T", "seconds")
    write(path, found)


if __name__ == "__main__":
    main()
