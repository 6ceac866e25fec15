"""`python -m tests.chaos`: put saccade, and its peers, through faults, and count what is lost.

Every fault is drawn from `--seed` and meets a numbered operation on files, so that the same
command repeats the same faults.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.chaos.attacks import ATTACKS, TOOLS, Harness, Outcome, attack_training
from tests.chaos.tampering import TAMPERING
from tests.chaos.zygote import Zygote

EVERY = {**ATTACKS, **TAMPERING}
KINDS = {"kill": "kills", "power": "power cuts", "io": "disk errors"}


def main() -> int:
    options = _options()
    modules = [
        "tests.conftest",
        "tests.chaos.bodies",
        "tests.chaos.peers",
        "torch._dynamo",
        "optuna",
        "accelerate",
    ]
    found: dict[str, Any] = {"attacks": {}, "peers": {}}
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=options.scratch) as scratch:
        if options.peers_path:
            modules.append("transformers")
        path = [options.peers_path] if options.peers_path else []
        zygote = Zygote(Path(scratch), modules, path)
        try:
            harness = Harness(zygote, Path(scratch), options.seed)
            for name, attack in EVERY.items():
                if options.only in name:
                    found["attacks"][name] = _show(name, attack(harness, options.chains))
            for tool in [tool for tool in TOOLS if options.peers_path and options.tool in tool]:
                found["peers"][tool] = {
                    label: _show(
                        f"{tool}: {label}", attack_training(harness, tool, kind, options.chains)
                    )
                    for kind, label in KINDS.items()
                }
        finally:
            zygote.close()
    if options.out:
        _write(options.out, {**_about(options), **found})
    outcomes = [*found["attacks"].values(), *found["peers"].get("saccade", {}).values()]
    return int(any(outcome["unusable"] + outcome["different"] for outcome in outcomes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chains", type=int, default=5, help="how often; 5 take minutes")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--tool", default="", help="peers whose name has this in it")
    parser.add_argument("--peers-path", default="", help="a folder with Hugging Face transformers")
    parser.add_argument("--scratch", default=None, help="where to write; the temporary folder")
    parser.add_argument("--out", type=Path, help="a folder for results.json and results.md")
    return parser.parse_args()


def without_scratch(note: str) -> str:
    """A note in which paths are relative to the folder of their attempt."""
    return re.sub(r"/\S*?/chaos-\w+/[0-9a-f]{32}/", "", note)


def _show(name: str, outcome: Outcome) -> dict[str, Any]:
    outcome.notes[:] = map(without_scratch, outcome.notes)
    print(f"{name:<28} {outcome.attempts:>7,} attempts  {outcome.failures:>4} failures", flush=True)
    for note in outcome.notes:
        print(f"    {note}", flush=True)
    return asdict(outcome)


def _about(options: argparse.Namespace) -> dict[str, Any]:
    packages = ["torch", "accelerate", *(["transformers"] if options.peers_path else [])]
    sys.path[:0] = [options.peers_path] if options.peers_path else []
    return {
        "version": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "seed": options.seed,
        "chains": options.chains,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
    }


def _write(folder: Path, values: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if all(before.get(key) == values[key] for key in ("seed", "chains", "date")):  # the other parts
        for part, names in (("attacks", EVERY), ("peers", TOOLS)):
            found = {**before[part], **values[part]}
            values[part] = {name: found[name] for name in names if name in found}
        values["packages"] = {**before["packages"], **values["packages"]}
    path.write_text(json.dumps(values, indent=2) + "\n")
    (folder / "results.md").write_text(markdown(values))


def markdown(values: dict[str, Any]) -> str:
    """The tables of `results.json`."""
    packages = ", ".join(f"{name} {number}" for name, number in values["packages"].items())
    options = f"--seed {values['seed']} --chains {values['chains']}"
    options += " --peers-path PATH" if values["peers"] else ""
    command = f"make chaos CHAOS='{options}'"
    lines = [
        "# Faults and failures",
        "",
        f"Made by `{command}` on {values['date']}: Python {values['python']}, {packages}.",
        "[docs/faults.md](../../docs/faults.md) defines attempts and failures.",
        "",
        "| attack on saccade | attempts | failures |",
        "|---|---:|---:|",
    ]
    for name, outcome in values["attacks"].items():
        failures = outcome["unusable"] + outcome["different"]
        lines.append(f"| {name} | {outcome['attempts']:,} | {failures} |")
    if values["peers"]:
        kinds = list(KINDS.values())
        lines += [
            "",
            "Training under the same kinds of fault. A cell holds the number of attempts,",
            "how often the run could not be resumed, and how often it ended with other weights.",
            "",
            f"| tool | {' | '.join(kinds)} |",
            f"|---|{'---:|' * len(kinds)}",
        ]
        for tool, row in values["peers"].items():
            cells = (f"{o['attempts']} / {o['unusable']} / {o['different']}" for o in row.values())
            lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
