"""Ctrl-C and preemption of the tool itself: exit codes that a shell or Slurm can act on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from saccade.cli.interrupts import AGAIN_S, REMINDER, Halted, catch_interrupts
from saccade.config import load_config
from saccade.errors import Preempted
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.signals import STOP_SIGNALS, stop_signals
from tests.report.made_runs import make_study
from tests.train.moments import signal_at
from tests.waiting import PATIENCE_S, wait_until


def interrupt() -> None:
    """Ctrl-C, here and now."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def interrupt_a_finalizer() -> None:
    """Python drops what is raised in one, and goes on."""

    class Dying:
        def __del__(self) -> None:
            interrupt()

    Dying()
    time.sleep(60)
    raise AssertionError("the interrupt was lost")


LOADING = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
except KeyboardInterrupt:
    raise ImportError("an optional part is missing") from None
LOADED = True
"""


def load_and_go_on(module: str) -> None:
    import_module(module)
    time.sleep(60)
    raise AssertionError("the interrupt was lost")


def test_an_interrupt_waits_for_modules_that_are_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them takes any failure of another for a part that is not installed, and goes on."""
    (tmp_path / "optional_part.py").write_text(LOADING)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), catch_interrupts([signal.SIGINT]):
        load_and_go_on("optional_part")
    assert sys.modules["optional_part"].LOADED


LOADING_FOR_LONG = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0.2)
print("the first one waits", flush=True)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0.2)
print("the second one waits", flush=True)
"""

LOAD = """
import signal
from saccade.cli.interrupts import catch_interrupts
with catch_interrupts([signal.SIGINT]):
    import slow_part
"""


def test_a_second_ctrl_c_does_not_wait_for_modules(tmp_path: Path) -> None:
    (tmp_path / "slow_part.py").write_text(LOADING_FOR_LONG)
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -signal.SIGINT  # 130 to a shell
    assert done.stdout == b"the first one waits\n"


def test_no_reminder_outlives_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process: whoever came before has no handler for it."""
    (tmp_path / "quick_part.py").write_text(
        "import os, signal\nfor _ in range(2): os.kill(os.getpid(), signal.SIGTERM)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    reminded = []
    before = signal.signal(REMINDER, lambda *_: reminded.append("again"))
    try:
        with catch_interrupts([signal.SIGTERM]):
            import_module("quick_part")
        time.sleep(3 * AGAIN_S)
    finally:
        signal.signal(REMINDER, before)
    assert not reminded


def take_for_an_error() -> None:
    """As compiled code does that looks no further than "it failed"."""
    try:
        interrupt()
    except KeyboardInterrupt:
        raise ImportError("initialization failed") from None


def take_for_success() -> None:
    try:
        interrupt()
    except KeyboardInterrupt:
        sys.exit(0)


@pytest.mark.parametrize("body", [interrupt, take_for_an_error, take_for_success])
def test_no_interrupt_is_lost(body: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises((Halted, KeyboardInterrupt)), catch_interrupts([signal.SIGINT]):
        body()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_python_drops_is_raised_again() -> None:
    with pytest.raises(KeyboardInterrupt), catch_interrupts([signal.SIGINT]):
        interrupt_a_finalizer()


def test_errors_without_a_signal_stay_what_they_are() -> None:
    with pytest.raises(ImportError), catch_interrupts([signal.SIGINT]):
        raise ImportError("initialization failed")
    with pytest.raises(SystemExit) as end, catch_interrupts([signal.SIGINT]):
        sys.exit(0)
    assert end.value.code == 0


def wait_for_library(process: subprocess.Popen[bytes], name: bytes) -> None:
    """Until the process has loaded a compiled library."""
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: name in maps.read_bytes(), process)


def see_to_the_end(number: int) -> None:
    """As a command does that keeps what it has when it is interrupted."""
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    except KeyboardInterrupt:
        sys.exit(130)


def test_a_command_that_sees_to_its_end_keeps_the_code_of_its_signal() -> None:
    both = [signal.SIGINT, signal.SIGTERM]
    with pytest.raises(SystemExit) as interrupted, catch_interrupts(both):
        see_to_the_end(signal.SIGINT)
    assert interrupted.value.code == 130
    with pytest.raises(Halted) as terminated, catch_interrupts(both):
        see_to_the_end(signal.SIGTERM)
    assert terminated.value.exit_code == 143


SIGNALLED_WHILE_READING_RUNS = """
import signal
from saccade.cli import main
from saccade.report import write
write.collect = lambda _: signal.raise_signal({number})
main()
"""


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 143, b"saccade: stopped by SIGTERM\n"),
        (signal.SIGINT, 130, b"saccade: interrupted\n"),
    ],
)
def test_signal_to_a_command_that_cannot_be_resumed(
    tmp_path: Path, number: int, code: int, line: bytes
) -> None:
    """Not even if it is told of a folder that is called like a command that can."""
    program = SIGNALLED_WHILE_READING_RUNS.format(number=int(number))
    command = [sys.executable, "-c", program, "report", "train"]
    done = subprocess.run(command, stderr=subprocess.PIPE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, line)


SIGNALLED_WHILE_LOADING_DATA = """
import signal
from saccade.cli import main
from saccade.train import run_data
run_data.load_splits = lambda _: signal.raise_signal({number})
main()
"""


SIGNALS = pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 75, b"saccade: stopped by SIGTERM; go on with --resume\n"),
        (signal.SIGINT, 130, b"saccade: interrupted\n"),
    ],
)


@SIGNALS
def test_signal_before_the_run_begins(
    recipe: Path, tmp_path: Path, number: int, code: int, line: bytes
) -> None:
    program = SIGNALLED_WHILE_LOADING_DATA.format(number=int(number))
    words = ["train", str(recipe), "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", program, *words], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (code, line)
    assert not (tmp_path / "run").exists()


@SIGNALS
def test_signal_while_modules_are_loaded(
    recipe: Path, tmp_path: Path, number: signal.Signals, code: int, line: bytes
) -> None:
    """It waits for them; on a busy machine that may last until the run has begun, and saves."""
    words = ["train", str(recipe), "--out", str(tmp_path / "run"), "train.epochs=400"]
    process = subprocess.Popen([sys.executable, "-m", "saccade", *words], stderr=subprocess.PIPE)
    wait_for_library(process, b"libtorch")
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert told == line or told.endswith(b" and saved; go on with --resume\n")
    assert bool(RunFolder(tmp_path / "run").checkpoints()) == (told != line)


@pytest.mark.slow
def test_interrupt_of_a_report_at_any_moment(tmp_path: Path) -> None:
    """One in thirty came inside a callback of a weak reference, was dropped, and the code was 0."""
    study = make_study(tmp_path / "study", {"softmax": 0.9, "taylor": 0.5}, seeds=2)
    command = [sys.executable, "-m", "saccade", "report", str(study), "--out", str(tmp_path / "o")]
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - begun
    outcomes = []
    for moment in range(60):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_library(process, b"pydantic")
        time.sleep(0.8 * whole * moment / 60)
        process.send_signal(signal.SIGINT)
        printed, told = process.communicate(timeout=PATIENCE_S)
        outcomes += [] if printed else [(process.returncode, told)]
    assert len(outcomes) > 30
    for code, told in outcomes:
        assert code in (130, -signal.SIGINT)  # the same to a shell
        assert told.endswith(b"saccade: interrupted\n")
        assert b"Traceback" not in told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_to_the_tool(
    recipe: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    words = ["train", str(recipe), "--out", str(out), "train.epochs=400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "saccade", *words], stderr=subprocess.PIPE, text=True
    )
    wait_until(RunFolder(out).metrics, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert "saved; go on with --resume" in told.splitlines()[-1]
    run = RunFolder(out)
    assert run.status()["state"] == "preempted"
    newest, faults = run.newest_intact()
    assert newest is not None
    assert not faults
    assert newest.step == run.status()["step"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_the_end_of_a_terminal_and_slurms_warning_save_as_sigterm_does(
    recipe: Path, tmp_path: Path, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # `nohup make test` ignores SIGHUP
    request.addfinalizer(lambda: signal.signal(number, before))
    config = load_config(recipe, ["train.epochs=400"])
    with signal_at(5, number), pytest.raises(Preempted, match="at step 5 and saved"):
        train(config, tmp_path / "run", quiet=True)
    run = RunFolder(tmp_path / "run")
    assert run.status()["state"] == "preempted"
    assert run.newest_step() == run.status()["step"] == 5
    with pytest.raises(Halted, match=f"stopped by {number.name}; go on") as halted:
        raise Halted(number, resumable=True)
    assert halted.value.exit_code == 75
    assert Halted(number).exit_code == 128 + number


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    """As `nohup` wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_interrupts(STOP_SIGNALS), stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == 0
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal == signal.SIGUSR1
    finally:
        signal.signal(signal.SIGHUP, before)


HANGS = """
import ctypes, signal
from saccade.cli import interrupts
interrupts.PATIENCE_S = 1
with interrupts.catch_interrupts([signal.SIGINT]):
    print("in", flush=True)
    if {ignores}:
        while True:
            try:
                ctypes.CDLL(None).pause()
            except BaseException:
                pass
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second one waits for itself
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("ignores", [True, False])
def test_a_second_ctrl_c_ends_what_obeys_none(ignores: bool) -> None:
    """Compiled code that is inside of a long call hears no handler of Python's."""
    command = [sys.executable, "-c", HANGS.format(ignores=ignores)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    wait_until(lambda: sleeps_for(process.pid, 0.5))  # it is inside of the call
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130


def sleeps_for(pid: int, seconds: float) -> bool:
    """True if the main thread of a process waits in the kernel for this time."""
    for _ in range(5):
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "S":
            return False
        time.sleep(seconds / 5)
    return True


def test_a_broken_pipe_for_progress_does_not_fail_a_run(recipe: Path, tmp_path: Path) -> None:
    words = ["train", str(recipe), "--out", str(tmp_path / "run"), "train.epochs=1", "--json"]
    command = [sys.executable, "-m", "saccade", *words]
    ear, mouth = os.pipe()
    os.close(ear)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=mouth, check=False)
    os.close(mouth)
    assert done.returncode == 0
    assert json.loads(done.stdout)["epochs"] == 1
    assert RunFolder(tmp_path / "run").status()["state"] == "finished"
