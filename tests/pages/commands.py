"""The `saccade` commands of the pages: found, checked, made small, and run."""

import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from saccade import cli
from saccade.config import list_recipes
from tests.train.tiny_runs import processes

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
    "train.compile=false",
)
SMALL = {"train": TINY, "compare": TINY, "tune": (*TINY, "tune.warmup_epochs=0")}
"""Keys that a command is given, in place of its own values, so that it takes seconds."""

FLAGS = {
    "compare": {"--seeds": "1", "--folds": "2"},
    "tune": {"--trials": "2"},
    "convert": {"--minutes": "0.02"},
    "bench": {
        "--n": "64",
        "--d": "16",
        "--tokens": "1024",
        "--model": "vit_micro_patch4_32",
        "--image-size": "32",
    },
}
"""Smaller values of flags that a command has."""

MORE = {
    ("bench", "attention"): {"--n": "64", "--d": "16", "--seconds": "0.01", "--no-memory": ""},
    ("bench", "model"): {"--seconds": "0.01"},
    ("analyze", "crossover"): {"--d": "16", "--seconds": "1"},
}
"""Flags that are added to a command that does not have them."""

NAMES = {
    "DIR": "runs",
    "cifar10": "digits",
    "benchmarks/foreground.yaml": str(ROOT / "benchmarks" / "foreground.yaml"),
}
"""Placeholders and data sets, and what they are replaced with."""

ELSEWHERE = {
    "--launcher slurm": "tests/cluster",
    "compare status /shared": "tests/cluster",
    "serve": "tests/serve",
    "data fetch": "tests/data",
    "--preset": "tests/bench",
    "--calibrate": "tests/bench",
    "train recall": "tests/train",
    "train text": "tests/train",
    "predict runs/reviews": "tests/train",
    "init.from=": "tests/train",
    "model.pretrained=": "tests/cli",
}
"""Parts of commands that need a cluster, the network, a GPU, other data or minutes; their tests."""


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


def runs_here(command: Command) -> bool:
    """False for a command that is run by other tests."""
    line = f"{shlex.join(command.words)} "
    return not any(
        f"{part} " in line or line.startswith(part) or (part[-1] == "=" and part in line)
        for part in ELSEWHERE
    )


def small(command: Command) -> list[str]:
    """The command made small, on digits. Resuming takes no settings."""
    words = _with_small_flags(command.words)
    keys = SMALL.get(command.name, ())
    if not keys or _resumes(words) or words[1] == "status":
        return words
    keys += ("data.name=digits",) if _has_other_data(words) else ()
    dropped = {key.partition("=")[0] for key in keys}
    dropped |= {"data.root", "data.image_size"} if _has_other_data(words) else set()
    return [word for word in words if word.partition("=")[0] not in dropped] + list(keys)


def _with_small_flags(words: tuple[str, ...]) -> list[str]:
    flags = FLAGS.get(words[0], {})
    found = [
        flags.get(before, NAMES.get(word, word))
        for before, word in zip(("", *words), words, strict=False)
    ]
    more = MORE.get(words[:2], {}) if "--list" not in words else {}
    added = [part for flag, value in more.items() if flag not in found for part in (flag, value)]
    return found + [part for part in added if part]


def _resumes(words: list[str]) -> bool:
    return "--resume" in words and (len(words) < 2 or words[1].startswith("-"))


def _has_other_data(words: list[str]) -> bool:
    """True for a shipped recipe, or an override, of a data set that may not be there."""
    return words[1] in list_recipes() or any(word.startswith("data.name=") for word in words)


def call(lines: list[list[str]], folder: Path, told: Path) -> None:
    """Body of a process: run commands until one fails, and exit with its code."""
    with told.open("w") as file:
        os.dup2(file.fileno(), 2)
    with (told.parent / f"{told.name}.out").open("w") as file:
        os.dup2(file.fileno(), 1)
    os.chdir(folder)
    for words in lines:
        sys.argv = ["saccade", *words]
        try:
            cli.main()
            code: int | str = 0
        except SystemExit as end:
            code = end.code or 0
        print(f"exit code {code} of saccade {shlex.join(words)}", file=sys.stderr, flush=True)
        if code:
            sys.exit(code)


@dataclass(frozen=True)
class Done:
    """How a process ended: its exit code, and what it wrote to stderr."""

    returncode: int | None
    stderr: str


def run(lines: list[list[str]], folder: Path, timeout: float) -> Done:
    """Run commands one after the other in one process, forked from one that has loaded torch."""
    with tempfile.TemporaryDirectory() as place, processes() as start:
        told = Path(place) / "stderr"
        process = start(call, lines, folder, told)
        process.join(timeout)
        return Done(process.exitcode, told.read_text())
