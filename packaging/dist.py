"""Build the wheel and the source archive, install the wheel elsewhere, run the quick start.

python packaging/dist.py                         with this Python
python packaging/dist.py python3.12 python3.13   with these, too

For each Python, a new environment and an empty folder outside the clone; nothing of the clone is
on the path. The quick start is what README.md shows under "Sixty seconds".
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command without the variables that would let it see the clone."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), cwd=cwd, env=environment, check=True)


def new_environment(python: str, folder: Path) -> Path:
    """A new virtual environment; returns its folder of programs."""
    run(python, "-m", "venv", folder)
    return folder / "bin"


def build(folder: Path) -> Path:
    """Build both files and check that an index can show their description; return the wheel."""
    programs = new_environment(sys.executable, folder / "build")
    run(programs / "pip", "install", "-q", "build", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    run(programs / "python", "-m", "build", "--outdir", DIST, ROOT)
    run(programs / "twine", "check", "--strict", *sorted(DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def quick_start(readme: str) -> tuple[list[str], list[str]]:
    """The Python snippets and the `saccade` commands of the section "Sixty seconds"."""
    section = readme.partition("## Sixty seconds")[2].partition("\n## ")[0]
    snippets = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    commands = [line.partition("#")[0].strip() for line in section.splitlines()]
    return snippets, [line for line in commands if line.startswith("saccade ")]


def can_end(command: str) -> bool:
    """False for a server, which runs until it is stopped."""
    return command.split()[1] != "serve"


def try_wheel(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel in a new environment and run the quick start in an empty folder."""
    programs = new_environment(python, folder / "env")
    run(programs / "pip", "install", "-q", "-c", CONSTRAINTS, "torch")
    run(programs / "pip", "install", "-q", "-c", CONSTRAINTS, f"{wheel}[export]")
    empty = folder / "empty"
    empty.mkdir()
    snippets, commands = quick_start((ROOT / "README.md").read_text(encoding="utf-8"))
    for snippet in snippets:
        run(programs / "python", "-c", snippet, cwd=empty)
    run(programs / "python", "-c", f"import saccade; assert {str(ROOT)!r} not in saccade.__file__")
    for command in filter(can_end, commands):
        name, *words = command.split()
        run(programs / name, *words, cwd=empty)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, then try the wheel with every Python."""
    parser = argparse.ArgumentParser(description="Build the package and try it.")
    parser.add_argument("pythons", nargs="*", help="further interpreters")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        wheel = build(Path(name))
        for number, python in enumerate([sys.executable, *options.pythons]):
            start = time.monotonic()
            folder = Path(name, str(number))
            folder.mkdir()
            try_wheel(wheel, python, folder)
            shutil.rmtree(folder)
            print(f"{python}: the quick start ran in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
