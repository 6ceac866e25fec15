"""The command line of the analyses: measure, print the tables, write the files.

Ctrl-C stops a measurement and keeps what was measured: files are named `_partial`, and the exit
code is 130.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from saccade.bench.findings import Findings, check_folder, write_findings
from saccade.bench.tables import markdown_table
from saccade.environment import describe_environment, hardware_slug, resolve_device
from saccade.errors import ConfigError

INTERRUPTED = 130


def main(
    make: Callable[[Mapping[str, Any]], Findings], run: Callable[..., None], description: str
) -> None:
    """Measure the findings that `make` and `run` describe, as the command line says."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, help="folder for JSON, Markdown, PNG and SVG")
    options = parser.parse_args()
    try:
        device = resolve_device(options.device)
        if options.out is not None:
            check_folder(options.out)
    except ConfigError as error:
        parser.error(str(error))
    findings = make(describe_environment(device))
    try:
        run(findings, device, report=_say)
    except KeyboardInterrupt:
        print("interrupted; the results are partial", file=sys.stderr)
    for table in findings.tables():
        print(f"## {table.title}\n\n{markdown_table(table.columns, table.lines)}")
    for path in write_findings(findings, options.out, hardware_slug(device)) if options.out else ():
        print(f"wrote {path}", file=sys.stderr)
    if not findings.complete:
        sys.exit(INTERRUPTED)


def _say(message: str, share: float) -> None:
    print(f"[{share:4.0%}] {message}", file=sys.stderr)
