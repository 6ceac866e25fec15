"""Write the table of attentions in docs/attention.md from the registry.

python docs/attention_table.py            rewrite it
python docs/attention_table.py --check    fail if it is out of date
"""

import argparse
import sys
from pathlib import Path

from saccade.layers import ATTENTIONS

PAGE = Path(__file__).parent / "attention.md"
START, END = "<!-- table: attentions -->\n", "<!-- end of table -->\n"


def table() -> str:
    """A row for each entry, in the order of registration."""
    lines = [
        "| attention | weight w | cost | kind | length | rows | options |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ATTENTIONS:
        entry = ATTENTIONS[name]
        options = ", ".join(f"`{option}`" for option in entry.options) or "none"
        cells = (entry.weight, entry.cost, entry.kind, entry.length, entry.rows, options)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite or check the table."""
    parser = argparse.ArgumentParser(description="The table of attentions in docs/attention.md.")
    parser.add_argument("--check", action="store_true", help="fail if the table is another")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    old = arguments.page.read_text(encoding="utf-8")
    before, rest = old.split(START)
    new = before + START + table() + END + rest.partition(END)[2]
    if arguments.check and new != old:
        sys.exit(f"{arguments.page}: not the registry's table; run python docs/attention_table.py")
    if new != old:
        arguments.page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
