"""Real processes with faults, without the seconds that loading torch takes: forked from one server.

The server runs with the shim (`shim.c`) preloaded. A request names a function, its arguments and a
fault; a forked process arms the shim and calls the function. It ends like any process: by its exit
code, a signal, or a limit of time.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 300
ACTIONS = {
    "count": 0,
    "kill": 1,
    "tear": 2,
    "EIO": 3,
    "ENOSPC": 4,
    "SIGHUP": 5,
    "SIGUSR1": 6,
    "SIGTERM": 7,
}
LACKS = {"flock": 1, "POSIX locks": 2, "hard links": 4}


@dataclass(frozen=True)
class Fault:
    """What the n-th operation on files below a folder meets.

    Attributes:
        action: One of `ACTIONS`; `tear` writes half and kills.
        at: n, from 1.
        more: How many operations after it fail too.
        journal: Where operations are written down for a power cut.
        lacks: What the file system does not have, of `LACKS`.
    """

    action: str = "count"
    at: int = 1 << 40
    more: int = 0
    journal: str = ""
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class End:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for a signal, -1000 where it had to be ended.
        told: The last line that it wrote to stderr.
        count: Operations on files, where it lived to tell.
    """

    code: int
    told: str
    count: int


class Zygote:
    """The server, seen from the harness.

    Args:
        folder: For the shim and what processes say.
        modules: What it loads before the first request.
        path: Folders to find modules in, before the others.
    """

    def __init__(self, folder: Path, modules: list[str], path: list[str] | None = None) -> None:
        library = folder / "shim.so"
        source = Path(__file__).with_name("shim.c")
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        paths = [*(path or []), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote", str(folder), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(p for p in paths if p),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            },
            cwd=Path(__file__).parents[2],
        )

    def run(self, body: str, folder: Path, fault: Fault | None = None, **arguments: Any) -> End:
        """Run `module:function(folder, **arguments)` in a process of its own."""
        request = {"body": body, "folder": str(folder), "arguments": arguments}
        request["fault"] = asdict(fault or Fault())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return End(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


def _serve(folder: Path, modules: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in modules:
        importlib.import_module(name)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        told, counted = folder / f"told-{number}", folder / f"count-{number}"
        child = os.fork()
        if child == 0:
            _act(request, told, counted)
        code = _wait(child)
        lines = told.read_text(errors="replace").strip().splitlines() if told.exists() else []
        count = int(counted.read_text()) if counted.exists() else 0
        told.unlink(missing_ok=True)
        counted.unlink(missing_ok=True)
        end = {"code": code, "told": lines[-1] if lines else "", "count": count}
        answers.write(json.dumps(end) + "\n")
        answers.flush()


def _wait(child: int) -> int:
    """The exit code of a process, which is ended after `LIMIT_S`; its children end with it."""
    until, status = time.monotonic() + LIMIT_S, None
    while status is None:
        done, found = os.waitpid(child, os.WNOHANG)
        if done:
            status = found
        elif time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1000
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(status)


def _act(request: dict[str, Any], told: Path, counted: Path) -> None:
    """Body of a forked process."""
    os.setpgid(0, 0)
    descriptor = os.open(told, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    code = 70
    shim = ctypes.CDLL(None)
    shim.chaos_count.restype = ctypes.c_long
    shim.chaos_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 2, ctypes.c_char_p)
    try:
        module, _, name = request["body"].partition(":")
        function, fault = getattr(importlib.import_module(module), name), request["fault"]
        place = request["folder"].encode()
        action, log = ACTIONS[fault["action"]], fault["journal"].encode()
        shim.chaos_place(sum(LACKS[name] for name in fault["lacks"]))
        shim.chaos_arm(place, fault["at"], action, fault["more"], log)
        code = int(function(Path(request["folder"]), **request["arguments"]) or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        counted.write_text(str(shim.chaos_count()))
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
