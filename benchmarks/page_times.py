"""Write the H200 times that the page of `saccade serve` shows beside this machine's.

    python benchmarks/page_times.py [--check]

They are the medians of results/crossover/crossover_h200_202611.json, forward, bfloat16, fused,
divided by the number of heads that were timed together. Softmax is the faster of cuDNN and flash.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "results" / "crossover" / "crossover_h200_202611.json"
TARGET = ROOT / "src" / "saccade" / "serve" / "page" / "h200.json"
HEAD_DIMS = (16, 32, 64)
FORMS = {
    "softmax": ("softmax, cuDNN", "softmax, flash"),
    "direct": ("direct, fused",),
    "linear": ("efficient, fused",),
}


def collect(result: dict) -> dict:
    """Times of one head by head dim and form, and the measured crossings."""
    times = {
        str(dim): {form: _curve(result["points"], dim, lines) for form, lines in FORMS.items()}
        for dim in HEAD_DIMS
    }
    crossings = {
        str(dim): [
            {"slower": entry["rival"], "tokens": entry["crossing"]["tokens"]}
            for entry in result["crossings"]
            if (entry["head_dim"], entry["form"], entry["measure"]) == (dim, "fused", "time")
        ]
        for dim in HEAD_DIMS
    }
    return {
        "device": result["environment"]["device_name"],
        "dtype": result["dtype"],
        "source": SOURCE.relative_to(ROOT).as_posix(),
        "times": times,
        "crossings": crossings,
    }


def _curve(points: list[dict], dim: int, lines: tuple[str, ...]) -> dict[str, float]:
    found: dict[int, float] = {}
    for point in points:
        if point["head_dim"] == dim and point["line"] in lines:
            one_head = point["median_ms"] / point["heads"]
            found[point["tokens"]] = min(one_head, found.get(point["tokens"], one_head))
    return {str(tokens): float(f"{found[tokens]:.5g}") for tokens in sorted(found)}


def main() -> None:
    """Write the file, or check that it is the one that would be written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = json.dumps(collect(json.loads(SOURCE.read_text())), separators=(",", ":")) + "\n"
    if not options.check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET.relative_to(ROOT)} differs from {SOURCE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
