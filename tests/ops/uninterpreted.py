"""Programs beside these tests that compile kernels, where the tests interpret them."""

import json
import os
import subprocess
import sys
from typing import Any


def seen_by(program: str) -> dict[str, Any]:
    """What a module of `tests.ops` prints as JSON, run as a program that interprets nothing."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", f"tests.ops.{program}"]
    told = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found
