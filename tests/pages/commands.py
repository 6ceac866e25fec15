"""The `saccade` commands of the pages: found, checked, made small, and run."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
TINY = (
    "data.num_train=150",
    "data.num_test=60",
    "data.workers=0",
    "train.epochs=1",
    "train.batch_size=32",
    "model.overrides.depth=1",
    "optim.warmup_epochs=0",
)
SMALL = {"train": TINY, "compare": TINY, "tune": (*TINY, "tune.warmup_epochs=0")}
"""What is added to a command, so that it takes seconds."""


@dataclass(frozen=True)
class Command:
    """A command of a page, without the word `saccade`."""

    page: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{self.page}: saccade {shlex.join(self.words)}"


def pages() -> list[Path]:
    """All pages that may have commands, except the log of what was tried."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "notebooks" / "README.md"]
    return sorted(path for path in found if path.name not in ("log.md", "CHANGELOG.md"))


def commands(page: Path, languages: tuple[str, ...] | None = None) -> list[Command]:
    """The commands in the code blocks of a page, lines that end in a backslash joined."""
    found = []
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if languages is not None and language not in languages:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            text = line.strip().removeprefix("$ ")
            words = split(text)
            if words[:1] == ["saccade"] and len(words) > 1 and words[1] != "COMMAND":
                found.append(Command(str(page.relative_to(ROOT)), tuple(words[1:])))
    return found


INLINE = re.compile(r"`(saccade [a-z][^`]*)`")


def inline_commands(page: Path) -> list[Command]:
    """The commands in the sentences of a page; they may have placeholders in capitals."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    lines = (split(" ".join(line.split())) for line in INLINE.findall(text))
    return [Command(str(page.relative_to(ROOT)), tuple(words[1:])) for words in lines if words[2:]]


def split(line: str) -> list[str]:
    """The words of a line, without its comment; empty if it is not a command line."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def small(command: Command) -> list[str]:
    """The command, made small. Resuming takes no settings."""
    words = list(command.words)
    if command.name in SMALL and not ("--resume" in words and not _has_recipe(words)):
        words += [
            word
            for word in SMALL[command.name]
            if f"{word.partition('=')[0]}=" not in " ".join(words)
        ]
    return words


def _has_recipe(words: list[str]) -> bool:
    return len(words) > 1 and not words[1].startswith("-")


RUN = """
import json, shlex, sys, time

from saccade.cli import main

for words in json.loads(sys.stdin.read()):
    sys.argv = ["saccade", *words]
    start = time.monotonic()
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print(f"exit code {code} of saccade {shlex.join(words)}", file=sys.stderr, flush=True)
    if code:
        sys.exit(code)
"""


def run(lines: list[list[str]], folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run commands one after the other in one process, which pays for torch once."""
    return subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(lines),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
