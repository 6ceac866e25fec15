"""`saccade compare` with little memory: it ends, says why, and leaves no process."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PATIENCE_S = 300


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("kib", [800_000, 920_000, 1_040_000, 1_200_000, 1_700_000, 2_300_000])
def test_a_comparison_ends_where_memory_is_limited(tmp_path: Path, kib: int, jobs: int) -> None:
    """Depending on the limit, an import, the model, a worker or a step runs out of memory."""
    words = ["digits-quick", "--attention", "softmax,taylor", "--seeds", "1", "--jobs", str(jobs)]
    sizes = ["train.epochs=1", "model.overrides.embed_dim=8192", "model.overrides.depth=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "saccade", "compare", *words, "--out", str(tmp_path / "x"), *sizes],
        env={**os.environ, "RUST_BACKTRACE": "1"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (kib * 1024,) * 2),
    )
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode in {1, 4, -signal.SIGKILL}
    assert "memory" in err or "unexpected SystemError" in err
    place = str(tmp_path)
    assert not [p for p in psutil.process_iter(["cmdline"]) if place in str(p.info["cmdline"])]
