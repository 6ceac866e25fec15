"""Count the source files that a call of `taylor_attention` and a training run execute.

    PYTHONPATH=src python benchmarks/call_path.py

A file counts if a function of it runs; imports do not count. The kernels run in Triton's
interpreter, so operators, launches and device functions count as well. The run is
`saccade train digits-quick` with one epoch, in the process that trains. ARCHITECTURE.md has the
figures.
"""

import inspect
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

os.environ["TRITON_INTERPRET"] = "1"

import torch

from saccade import taylor_attention
from saccade.cli import main as saccade
from saccade.ops.taylor import triton  # noqa: F401  (imported before anything is counted)


def files_of(call: Callable[[], object]) -> set[str]:
    """The files below `saccade` whose functions run."""
    found: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        _, package, file = frame.f_code.co_filename.rpartition("/saccade/")
        if package and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # not a module or class body
            found.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    call()
    sys.setprofile(None)
    threading.setprofile(None)
    return found


def attend(algorithm: str, *, backward: bool) -> None:
    """Call the kernels of an algorithm."""
    q, k, v = (torch.randn(1, 1, 96, 16, requires_grad=backward) for _ in range(3))
    out = taylor_attention(q, k, v, backend="triton", algorithm=algorithm)  # type: ignore[arg-type]
    if backward:
        out.sum().backward()


def train() -> None:
    """Train a small model for an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        out = ["--out", f"{folder}/run", "--quiet", "--json"]
        with suppress(SystemExit):
            saccade(["train", "digits-quick", "train.epochs=1", *out])


def main() -> None:
    """Print a line for each algorithm and pass, and one for a run."""
    for algorithm in ("direct", "efficient"):
        for backward in (False, True):
            found = files_of(lambda a=algorithm, b=backward: attend(a, backward=b))
            print(f"{algorithm:<10} {'training' if backward else 'forward':<9} {len(found)} files")
            print("   ", *sorted(found))
    train()  # imports what it needs
    found = files_of(train)
    rooms = Counter(file.partition("/")[0] for file in found if "/" in file)
    print(f"saccade train {len(found)} files:", *(f"{n} {room}" for room, n in rooms.items()))
    print("   ", *sorted(found))


if __name__ == "__main__":
    main()
