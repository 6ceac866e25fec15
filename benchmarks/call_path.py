"""Count the source files that one call of `taylor_attention` runs, including kernels.

    PYTHONPATH=src python benchmarks/call_path.py

The kernels run in Triton's interpreter, so a file counts if a function of it runs: operator, launch
or device function. ARCHITECTURE.md has the figures.
"""

import os
import sys
from types import FrameType

os.environ["TRITON_INTERPRET"] = "1"

import torch

from saccade import taylor_attention
from saccade.ops.taylor import triton  # noqa: F401  (imported before anything is counted)


def files_of(algorithm: str, *, backward: bool) -> set[str]:
    """The files below `saccade` whose functions run."""
    q, k, v = (torch.randn(1, 1, 96, 16, requires_grad=backward) for _ in range(3))
    found: set[str] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        _, package, file = frame.f_code.co_filename.rpartition("/saccade/")
        if package:
            found.add(file)

    sys.setprofile(note)
    out = taylor_attention(q, k, v, backend="triton", algorithm=algorithm)  # type: ignore[arg-type]
    if backward:
        out.sum().backward()
    sys.setprofile(None)
    return found


def main() -> None:
    """Print a line for each algorithm and pass."""
    for algorithm in ("direct", "efficient"):
        for backward in (False, True):
            found = files_of(algorithm, backward=backward)
            print(f"{algorithm:<10} {'training' if backward else 'forward':<9} {len(found)} files")
            print("   ", *sorted(found))


if __name__ == "__main__":
    main()
