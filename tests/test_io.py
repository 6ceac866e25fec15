"""The one module for files: what it writes is whole, what it reads is bounded."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from saccade import io
from saccade.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that waits for a FIFO."""

    def end(*_: Any) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# Writing


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    io.write_file(path, "old")
    io.write_json(path, {"x": 1})
    assert io.read_json(path) == {"x": 1}
    io.write_file(path, b"bytes")
    assert path.read_bytes() == b"bytes"
    io.write_file(path, lambda file: file.write(b"from a function"))
    assert path.read_bytes() == b"from a function"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_the_rights_of_a_file_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        io.write_file(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_content_and_names_are_synced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before it gets its name, the folder after it."""
    found = []
    real = os.fsync

    def note(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        found.append(("folder" if is_folder else "file", (tmp_path / "a").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    io.write_file(tmp_path / "a", "x")
    assert found == [("file", False), ("folder", True)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", ["content", "fsync"])
def test_what_cannot_be_written_is_named_and_leaves_the_old_file(
    tmp_path: Path, code: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    io.write_file(path, "old")

    def fail(file: BinaryIO | int) -> None:
        raise OSError(code, os.strerror(code))

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        io.write_file(path, fail if step == "content" else "new")
    assert (caught.value.errno, caught.value.filename) == (code, str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "old"


KILLED = """
import os, signal, sys
from pathlib import Path
from saccade import io
def write(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.readline()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
io.write_file(Path(sys.argv[1]), write)
"""


def test_what_killed_processes_left_is_removed_and_what_is_being_written_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "status.json"
    command = [sys.executable, "-c", KILLED, str(path)]
    subprocess.run([*command, "die"], stdout=subprocess.DEVNULL, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "wait"], **pipes) as living:  # type: ignore[call-overload]
        assert living.stdout.readline() == "writing\n"
        (tmp_path / ".kept").write_text("not ours")
        assert len(list(tmp_path.iterdir())) == 3
        io.remove_leftovers(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        living.stdin.write("\n")
        living.stdin.close()
        assert living.wait() == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [".kept", "status.json"]
    assert path.read_text() == "half"


def test_a_writer_whose_temporary_file_was_removed_writes_again(tmp_path: Path) -> None:
    calls = []

    def write(file: BinaryIO) -> None:
        calls.append(file)
        file.write(b"x")
        if len(calls) == 1:
            Path(file.name).unlink()

    io.write_file(tmp_path / "a", write)
    assert (len(calls), (tmp_path / "a").read_text()) == (2, "x")


# Locks


HOLD = """
import sys
from pathlib import Path
from saccade import io
with io.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_is_refused_or_waited_for_while_another_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    waited = []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        assert io.is_locked(path)
        with pytest.raises(BlockingIOError, match="another process holds it"), io.locked(path):
            pytest.fail("held by two")

        def let_go() -> None:
            waited.append(True)
            other.stdin.write("\n")
            other.stdin.close()

        with io.locked(path, let_go):
            assert waited == [True]
    assert not io.is_locked(path)


def test_a_forked_process_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    ready, tell = os.pipe()
    with io.locked(path):
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")
            time.sleep(30)
            os._exit(0)
        os.read(ready, 1)
    try:
        with io.locked(path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_a_lock_is_a_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / ".lock")
    refused = pytest.raises(OSError, match=r"not a regular file|Is a directory")
    with refused, io.locked(tmp_path / ".lock"):
        pytest.fail("held")


def test_a_lock_that_is_a_link_is_refused_and_its_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="is a symbolic link"), io.locked(tmp_path / ".lock"):
        pytest.fail("held")
    (tmp_path / ".new").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="is a symbolic link"), io.locked(tmp_path / ".new"):
        pytest.fail("held")
    assert (tmp_path / "precious").read_text() == "content"
    assert not (tmp_path / "nowhere").exists()


NO_FLOCK = """
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>
#include <sys/syscall.h>
int flock(int fd, int how) { errno = ENOSYS; return -1; }
#ifdef NO_POSIX
int fcntl64(int fd, int command, ...) {
    va_list rest; va_start(rest, command);
    long value = va_arg(rest, long);
    va_end(rest);
    if (command == 6 || command == 7) { errno = ENOLCK; return -1; }  /* F_SETLK, F_SETLKW */
    return syscall(SYS_fcntl, fd, command, value);
}
int fcntl(int, int, ...) __attribute__((alias("fcntl64")));
#endif
"""


@pytest.mark.parametrize("is_posix_there", [True, False])
def test_file_systems_without_flock(tmp_path: Path, is_posix_there: bool) -> None:
    """POSIX locks are used instead; without those, one line says what to do."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(NO_FLOCK)
    flags = [] if is_posix_there else ["-DNO_POSIX"]
    try:
        subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes |= {"stderr": subprocess.PIPE, "env": environment}
    with subprocess.Popen(command, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline() == ("held\n" if is_posix_there else "")
        second = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        first.stdin.close()
        told = second.stderr + first.stderr.read()
    expected = "BlockingIOError" if is_posix_there else "its file system has no file locks"
    assert second.returncode == 1
    assert expected in told


# Reading


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


READERS = [io.read_bytes, io.read_text, io.read_json, io.read_json_object, io.read_yaml]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_socket, make_device, None])
def test_only_regular_files_are_read(
    tmp_path: Path, read: Callable[..., Any], make: Callable[[Path], None] | None
) -> None:
    path = tmp_path / "x"
    if make is not None:
        make(path)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read"):
        io.read_bytes(path, kind=DataError)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").symlink_to("a")
    assert io.read_text(tmp_path / "b") == "text"


SMALL = io.Limits(size=1000, depth=5, items=50)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "larger than 1,000 bytes"),
        ("[" * 400, "nested too deeply"),
        ('{"a":' * 100, "nested too deeply"),
        ("[[[[[[1]]]]]]", "nested too deeply"),
        ("[" + "1," * 60 + "1]", "more than 50 values"),
        ("[" + "{}," * 30 + "{}]", "more than 50 values"),
        ("{" + ",".join(f'"k{i}":1' for i in range(60)) + "}", "more than 50 values"),
        ("nonsense", "not valid JSON"),
        ("1" * 900, None),
        ('{"a": [[[[]]]]}', None),
        ('["' + "[" * 200 + '"]', None),
        ('["' + '\\"[' * 200 + '"]', None),
        ('["' + "," * 200 + '"]', None),
    ],
)
def test_json_is_bounded(tmp_path: Path, text: str, told: str | None) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    if told is None:
        io.read_json(path, limits=SMALL)
        return
    with pytest.raises(ConfigError, match=told) as caught:
        io.read_json(path, limits=SMALL)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ['"' + '\\"' * 500_000, '["' + '\\"[' * 500_000, "[" * 1_000_000])
def test_json_is_judged_in_linear_time(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError):
        io.parse_json(text, "x")
    assert time.perf_counter() - start < 5


LAUGHS = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 8)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 900, "nested too deeply"),
        ("- " * 400 + "x", "nested too deeply"),
        ("{a: " * 200, "nested too deeply"),
        ("? " * 400, "nested too deeply"),
        ("a: &a [[[1]]]\nb: [[[*a]]]", "nested too deeply"),
        ("[" + "1," * 60 + "1]", "more than 50 values"),
        ("".join(f"k{i}: 1\n" for i in range(60)), "more than 50 values"),
        (LAUGHS, "more than 50 values"),
        ("a: &a " + "x" * 600 + "\nb: [*a, *a]", "more than 1,000 characters"),
        ("a: &a [*a]", "contains it"),
        ("a: 1\na: 2", "written twice"),
        ("[1]: 2", "not a plain value"),
        ("a: 2001-99-99", "not valid YAML"),
        ("a: 0x" + "f" * 450, "at most 400 digits"),
        ("a: " + "1:" * 220 + "1", "at most 400 digits"),
        ("a: !!int x", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
        ("*missing", "not valid YAML"),
        ("a: [", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_yaml_is_bounded(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        io.read_yaml(path, limits=SMALL)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_yaml_within_its_limits(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a [1, 1e-4, [x]]\nb: *a\nc: {d: *a}\n")
    assert io.read_yaml(path, limits=SMALL) == {
        "a": [1, 1e-4, ["x"]],
        "b": [1, 1e-4, ["x"]],
        "c": {"d": [1, 1e-4, ["x"]]},
    }


@pytest.mark.parametrize("read", [io.read_text, io.read_json, io.read_yaml])
def test_bytes_that_are_no_text(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff\xfe")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8 text"):
        read(tmp_path / "x")


# Names in a terminal


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat", "cat"),
        ("Größe 猫 کتاب 👩\u200d🔬", "Größe 猫 کتاب 👩\u200d🔬"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\rc\x7f\x9b", "a\\nb\\rc\\x7f\\x9b"),
        ("gnp.\u202egpj", "gnp.\\u202egpj"),
        ("a\u2066b\u200f", "a\\u2066b\\u200f"),
        ("bad\udc80byte", "bad\\udc80byte"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_names_are_escaped_for_a_terminal(name: str, shown: str) -> None:
    assert io.escape_for_terminal(name) == shown
