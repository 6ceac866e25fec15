"""Peak memory of one call beyond what was there before it.

On a GPU torch counts it. On the CPU it is the resident set of a fresh process that runs the call
once after a small one (`python -m saccade.bench.probe`), as Linux's `VmHWM` saw it. One process can
answer many requests, since it gives freed memory back at once.
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

__all__ = ["cuda_peak_mib", "probe_peak_mib", "probe_peaks_mib", "resident_peak_mib"]

MIB = 1 << 20
_STATUS = Path("/proc/self/status")

# glibc keeps freed blocks below this size, up to 32 MiB by default, for the next call to reuse.
_GIVE_BACK_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}


def cuda_peak_mib(call: Callable[[], object], device: torch.device) -> float:
    """What torch allocated at most during a call, less what was allocated before."""
    gc.collect()  # what is freed on the way would hide as much of the call's own
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    del result
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def probe_peak_mib(kind: str, request: Mapping[str, Any]) -> float:
    """The peak that a fresh process reports; `RuntimeError` says why where there is none."""
    return probe_peaks_mib(kind, [request])[0]


def probe_peaks_mib(kind: str, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """The peaks of several requests, one after the other in one fresh process."""
    if not _STATUS.exists():
        raise RuntimeError(f"no {_STATUS} on this system")
    command = [sys.executable, "-m", "saccade.bench.probe", kind]
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


def resident_peak_mib(call: Callable[[], object]) -> float:
    """The highest resident set of this process during a call, less the one before; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    before = _resident_mib("VmRSS")
    call()
    return _resident_mib("VmHWM") - before


def _resident_mib(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{_STATUS} has no {name}")
