"""Peak memory of one call beyond the memory allocated before it.

On a GPU torch counts it. On the CPU it is the peak resident set (`VmHWM` of Linux) of a fresh
process, which runs the call once after a small warm-up call. One process can measure many calls,
because it returns freed memory to the system at once.

`python -m saccade.bench.memory KIND` is that process. KIND is `attention`, `model` or `subject`.
Stdin holds a JSON list of requests; each is answered with one line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["cuda_peak_mib", "main", "probe_peaks_mib"]

MIB = 1 << 20
_STATUS = Path("/proc/self/status")

# glibc keeps freed blocks below this size (32 MiB by default) instead of returning them.
_GIVE_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}


def cuda_peak_mib(call: Callable[[], object], device: torch.device) -> float:
    """The peak memory that torch allocated during a call, minus the memory allocated before."""
    gc.collect()  # garbage that is freed during the call would lower the result
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    del result
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def probe_peaks_mib(kind: str, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """The peaks of several requests, measured one after the other in one fresh process.

    Raises:
        RuntimeError: They cannot be measured, with the reason.
    """
    if not _STATUS.exists():
        raise RuntimeError(f"no {_STATUS} on this system")
    command = [sys.executable, "-m", "saccade.bench.memory", kind]
    done = subprocess.run(
        command,
        input=json.dumps([dict(request) for request in requests]),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | _GIVE_BACK_AT_ONCE,
    )
    if done.returncode != 0:
        told = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise RuntimeError(told[-1])
    return [float(json.loads(line)["peak_extra_mib"]) for line in done.stdout.splitlines()]


def _resident_peak_mib(call: Callable[[], object]) -> float:
    """The peak resident set during a call, minus the resident set before it; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM to VmRSS
    before = _resident_mib("VmRSS")
    call()
    return _resident_mib("VmHWM") - before


def _resident_mib(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{_STATUS} has no {name}")


WARM_UP_TOKENS = 64


def _attention(request: Mapping[str, Any]) -> Callable[[], object]:
    from saccade.bench.attention import make_call, prepare
    from saccade.bench.shapes import Shape

    shape = Shape(**request["shape"])
    small = Shape(1, shape.heads, min(WARM_UP_TOKENS, shape.tokens), shape.head_dim)
    calls = []
    for size in (small, shape):
        problem, operation = prepare(request["mechanism"], size, request["dtype"], "cpu")
        calls.append(make_call(problem, operation, request["direction"]))
    calls[0]()
    return calls[1]


def _model(request: Mapping[str, Any]) -> Callable[[], object]:
    from saccade.bench.model import ModelCase, make_model_call

    case = ModelCase(**request["case"])
    small, call = (make_model_call(case, size, torch.device("cpu")) for size in (1, case.batch))
    small()
    return call


def _subject(request: Mapping[str, Any]) -> Callable[[], object]:
    from saccade.bench.verdict.subject import Subject, make_pass

    subject, cpu = Subject(**request["subject"]), torch.device("cpu")
    start, autocast = (subject, request["attention"], subject.size), request["autocast"]
    small, call = (
        make_pass(*start, batch, request["direction"], cpu, autocast=autocast, optimizer=True)
        for batch in (1, request["batch"])
    )
    small()
    return call


def main() -> None:
    """Answer the requests in order."""
    make = {"attention": _attention, "model": _model, "subject": _subject}[sys.argv[1]]
    for request in json.load(sys.stdin):
        if request.get("threads") is not None:
            torch.set_num_threads(request["threads"])
        peak = _resident_peak_mib(make(request))
        sys.stdout.write(json.dumps({"peak_extra_mib": peak}) + "\n")


if __name__ == "__main__":
    main()
