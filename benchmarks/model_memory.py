"""Peak memory of one training step of TaylorIR-base on the CPU.

Each row is a fresh process: build the model, one step of AdamW at batch 32, and read the highest
resident set that Linux saw (`VmHWM`), less what was resident before the step. One thread: memory
hardly depends on it. Nothing is timed.

    python benchmarks/model_memory.py
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MODEL, BATCH_SIZE, THREADS = "taylorir_base", 32, 1
RESULTS = Path(__file__).parents[1] / "results" / "model"

# Attention dropout would form the weights, which is not what the forms are compared for.
NO_DROPOUT = dict.fromkeys(("pos_drop_rate", "proj_drop_rate", "attn_drop_rate"), 0.0)

# The efficient form runs above N0 tokens; softmax, which has no N0, is there to compare with.
ROWS: list[dict[str, Any]] = [
    {"attention": attention, "form": form, "N0": threshold, "checkpointing": checkpointing}
    for attention, form, threshold in (
        ("taylor", "direct", 2**64),
        ("taylor", "efficient", -1),
        ("softmax", "fused", None),
    )
    for checkpointing in (False, True)
]


def resident_mib(field: str) -> float:
    """`VmRSS` or `VmHWM` of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def measure(row: dict[str, Any], batch_size: int) -> dict[str, Any]:
    """One training step in this process, and what it took."""
    import torch
    import torch.nn.functional as F

    from saccade import create_model, model_summary

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = create_model(MODEL, row["attention"], **NO_DROPOUT)
    if row["N0"] is not None:
        model.N0 = row["N0"]
    model.set_grad_checkpointing(row["checkpointing"])
    kept = model_summary(model, batch_size=batch_size).activation_bytes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
    before = resident_mib("VmRSS")
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return {
        "resident_before_mib": round(before),
        "peak_mib": round(resident_mib("VmHWM")),
        "step_peak_mib": round(resident_mib("VmHWM") - before),
        "kept_for_backward_mib": round(kept / 2**20),
        "torch": torch.__version__,
    }


def machine() -> dict[str, Any]:
    """The hardware that the numbers are from."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "memory_gib": round(pages / 2**30),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The table that the documentation shows."""
    facts = result["machine"]
    lines = [
        f"One training step of `{MODEL}` at batch {result['batch_size']}, float32, on "
        f"{facts['cpu']}, {facts['threads']} thread, torch {result['rows'][0]['torch']}, "
        f"{facts['date']}.",
        "",
        "| attention | form | checkpointing | peak of the step, MiB | kept for backward, MiB |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['attention']} | {row['form']} | {'on' if row['checkpointing'] else 'off'} "
        f"| {row['step_peak_mib']:,} | {row['kept_for_backward_mib']:,} |"
        for row in result["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every row in its own process and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row is not None:
        print(json.dumps(measure(json.loads(arguments.row), arguments.batch_size)))
        return
    rows = []
    for row in ROWS:
        command = [sys.executable, __file__, "--row", json.dumps(row)]
        command += ["--batch-size", str(arguments.batch_size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(row | json.loads(done.stdout))
        print(rows[-1], file=sys.stderr)
    result = {"model": MODEL, "batch_size": arguments.batch_size, "machine": machine()}
    result["rows"] = rows
    stem = f"model_memory_cpu_{datetime.now(UTC):%Y%m}"
    (arguments.out / f"{stem}.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.out / f"{stem}.md").write_text(as_markdown(result))


if __name__ == "__main__":
    main()
