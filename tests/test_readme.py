"""The README tells the truth: its benchmark table is the result file's, its links exist."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def benchmark_table(path: Path) -> str:
    """The README's table, made from a result file."""
    rows = [r for r in json.loads(path.read_text())["rows"] if r["direction"] == "forward"]
    shapes = sorted({(r["head_dim"], r["tokens"]) for r in rows})
    lines = [
        "| D | N | softmax (torch) ms | Taylor, D² features ms | Taylor, ours ms "
        "| faster than softmax | memory, ours / D² features |",
        "|---|---|---|---|---|---|---|",
    ]
    for d, n in shapes:
        cell = {r["mechanism"]: r for r in rows if (r["head_dim"], r["tokens"]) == (d, n)}
        softmax, ours, plain = (
            cell[m]["timing"]["median_ms"] for m in ("sdpa", "taylor-efficient", "taylor-unfused")
        )
        mib = [cell[m]["peak_extra_mib"] for m in ("taylor-efficient", "taylor-unfused")]
        memory = f"{mib[0]:,.0f} / {mib[1]:,.0f} MiB" if None not in mib else ""
        lines.append(
            f"| {d} | {n:,} | {softmax:,.1f} | {plain:,.1f} | {ours:,.1f} "
            f"| {softmax / ours:.2f}x | {memory} |"
        )
    return "\n".join(lines)


def test_the_benchmark_table_is_the_result_files():
    found = re.findall(r"<!-- table: (\S+) -->\n(.*?)\n<!-- end of table -->", README, re.DOTALL)
    assert len(found) == 1
    for path, table in found:
        assert table == benchmark_table(ROOT / path)
